"""A shared prompt with many continuations (docs/features/cascade.md) on a CUDA device.

The prompt is attended once for all continuations and merged. Beside it each whole sequence is attended by itself, with
its prompt's pages shared or copied. bf16, 32 query heads on 8, head dim 128, one token each; own pages of 16 keys, 1 to
256 keys each. Times are medians of CUDA graphs; L2 is overwritten before each, as between the layers of a model.
"""

import json

from bench.tables import gpu
from bench.timing import Timer, graphed, in_turn, medians

NEEDS = "torch", "onepass"
HEADS, HEADS_KV, DIM, OWN, PAGE = 32, 8, 128, 256, 16
GROUP = HEADS // HEADS_KV
PARTS = (1, 8, 16)  # ranges of the prompt, so that 8 heads of K and V fill the multiprocessors


class Cell:
    """n continuations of a prompt of `prefix` keys."""

    def __init__(self, torch, onepass, n, prefix):
        self.torch, self.onepass, self.n, self.prefix = torch, onepass, n, prefix

        def normal(*shape):
            return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

        pages, shared = OWN // PAGE, prefix // PAGE
        self.q, self.prompt = normal(n, HEADS, 1, DIM), [normal(1, HEADS_KV, prefix, DIM) for _ in "kv"]
        self.own = [normal(n * pages, PAGE, HEADS_KV, DIM) for _ in "kv"]
        self.table = torch.randperm(n * pages, device="cuda").int().reshape(n, pages)
        self.used = torch.randint(1, OWN + 1, (n,), device="cuda").int()
        as_pages = [x[0].transpose(0, 1).reshape(shared, PAGE, HEADS_KV, DIM) for x in self.prompt]
        self.all_pages = [torch.cat(x) for x in zip(as_pages, self.own)]
        first = torch.arange(shared, device="cuda").int().expand(n, shared)
        self.whole_table = torch.cat([first, self.table + shared], 1).contiguous()
        self.whole_used = (self.used + prefix).int()

    def whole(self):
        onepass, out = self.onepass, self.torch.empty_like(self.q)
        arrays = {"seqused_k": self.whole_used, "page_table": self.whole_table, "out": out}
        return out, lambda: onepass.attention(self.q, *self.all_pages, **arrays)

    def copies(self):
        torch, onepass = self.torch, self.onepass
        k, v = (
            torch.empty(self.n, HEADS_KV, self.prefix + OWN, DIM, dtype=torch.bfloat16, device="cuda") for _ in "kv"
        )
        for to, prompt, own in zip((k, v), self.prompt, self.own):
            to[:, :, : self.prefix] = prompt
            to[:, :, self.prefix :] = own[self.table.long()].permute(0, 3, 1, 2, 4).reshape(self.n, HEADS_KV, OWN, DIM)
        out = torch.empty_like(self.q)
        return out, lambda: onepass.attention(self.q, k, v, seqused_k=self.whole_used, out=out)

    def cascade(self, parts):
        """All rows of a K/V head against parts of the prompt, which are views of it; then own pages and a merge."""
        torch, onepass, n = self.torch, self.onepass, self.n

        def fp32(*shape):
            return torch.empty(*shape, dtype=torch.float32, device="cuda")

        out, own_out = torch.empty_like(self.q), fp32(n, HEADS, 1, DIM)
        prompt_out = fp32(parts, HEADS_KV, n * GROUP, DIM)
        cut = [x.view(HEADS_KV, parts, self.prefix // parts, DIM).transpose(0, 1) for x in self.prompt]

        def of_head(x):  # [n, heads_q, 1, ...] -> [heads_kv, n, group, ...]
            return x.view(n, HEADS_KV, GROUP, *x.shape[3:]).transpose(0, 1)

        def call():
            rows = of_head(self.q).reshape(1, HEADS_KV, n * GROUP, DIM).expand(parts, -1, -1, -1)
            prompt_lse = onepass.attention(rows, *cut, out=prompt_out, return_lse=True)[1]
            pages = {"seqused_k": self.used, "page_table": self.table}
            own_lse = onepass.attention(self.q, *self.own, **pages, out=own_out, return_lse=True)[1]
            outs = [*prompt_out.view(parts, HEADS_KV, n, GROUP, DIM), of_head(own_out)]
            lses = [*prompt_lse.view(parts, HEADS_KV, n, GROUP), of_head(own_lse)]
            onepass.merge(outs, lses, out=of_head(out))

        return out, call

    def measured(self, timer):
        torch = self.torch
        of = {"pages": self.whole()} | {f"cascade_{parts}": self.cascade(parts) for parts in PARTS}
        if 4 * self.n * HEADS_KV * (self.prefix + OWN) * DIM < 20e9:
            of["copies"] = self.copies()
        for _, call in of.values():
            call()
        torch.cuda.synchronize()
        reference = of["pages"][0].float()
        worst = max((out.float() - reference).abs().max().item() for out, _ in of.values())
        cell = {"continuations": self.n, "prefix": self.prefix, "worst": worst, "largest": reference.abs().max().item()}
        graphs = {name: graphed(torch, call) for name, (_, call) in of.items()}
        clocks = {name: lambda graph=graph: timer.spans(graph, 12) for name, graph in graphs.items()}
        seconds = medians(in_turn(clocks, rounds=3, pause=0.05))
        return cell | {"milliseconds": {name: 1e3 * s for name, s in seconds.items()}}


def rows(torch, onepass, options):
    torch.manual_seed(0)
    timer = Timer(torch)
    for prefix in (8192, 16384, 32768):
        for n in (16, 32, 64):
            yield Cell(torch, onepass, n, prefix).measured(timer)
            torch.cuda.empty_cache()


said = json.dumps


def table(cells):
    return "\n".join(gpu.cascade(cells))
