"""A shared prompt with many continuations (docs/features/cascade.md) on a CUDA device: the prompt once for all and a
merge, beside every whole sequence by itself, its pages shared or copied. bf16, 32 query heads on 8, head dim 128, a
token each; own pages of 16 keys, 1 to 256 keys each. Times are medians of CUDA graphs; K and V are in memory, not L2.

python3 -m bench study cascade [--json FILE]
"""

import argparse
import json
import pathlib
import statistics
import time

import onepass
import torch

HEADS, HEADS_KV, DIM, OWN, PAGE = 32, 8, 128, 256, 16
GROUP = HEADS // HEADS_KV
PARTS = (1, 8, 16)  # that the prompt is cut into, so that 8 heads of K and V fill the multiprocessors


def normal(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def fp32(*shape):
    return torch.empty(*shape, dtype=torch.float32, device="cuda")


def medians(calls, rounds=3, replays=12):
    """{name: milliseconds} of interleaved replays; L2 is flushed before each, as between the layers of a model."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    graphs, times = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            call()
    for _ in range(rounds):
        for name, graph in graphs.items():
            time.sleep(0.05)
            for _ in range(replays):
                flush.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(t) for name, t in times.items()}


class Cell:
    """n continuations of a prompt of `prefix` keys."""

    def __init__(self, n, prefix):
        self.n, self.prefix = n, prefix
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
        out = torch.empty_like(self.q)
        arrays = {"seqused_k": self.whole_used, "page_table": self.whole_table, "out": out}
        return out, lambda: onepass.attention(self.q, *self.all_pages, **arrays)

    def copies(self):
        k, v = (
            torch.empty(self.n, HEADS_KV, self.prefix + OWN, DIM, dtype=torch.bfloat16, device="cuda") for _ in "kv"
        )
        for to, prompt, own in zip((k, v), self.prompt, self.own):
            to[:, :, : self.prefix] = prompt
            to[:, :, self.prefix :] = own[self.table.long()].permute(0, 3, 1, 2, 4).reshape(self.n, HEADS_KV, OWN, DIM)
        out = torch.empty_like(self.q)
        return out, lambda: onepass.attention(self.q, k, v, seqused_k=self.whole_used, out=out)

    def cascade(self, parts):
        """All rows of a K/V head against the prompt's parts, which strides make of it; own pages; a merge."""
        n, out, own_out = self.n, torch.empty_like(self.q), fp32(self.n, HEADS, 1, DIM)
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

    def measured(self):
        of = {"pages": self.whole()} | {f"cascade_{parts}": self.cascade(parts) for parts in PARTS}
        if 4 * self.n * HEADS_KV * (self.prefix + OWN) * DIM < 20e9:
            of["copies"] = self.copies()
        for _, call in of.values():
            call()
        torch.cuda.synchronize()
        reference = of["pages"][0].float()
        worst = max((out.float() - reference).abs().max().item() for out, _ in of.values())
        cell = {"continuations": self.n, "prefix": self.prefix, "worst": worst, "largest": reference.abs().max().item()}
        return cell | {"milliseconds": medians({name: call for name, (_, call) in of.items()})}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="where the cells go")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    cells = []
    for prefix in (8192, 16384, 32768):
        for n in (16, 32, 64):
            cells.append(Cell(n, prefix).measured())
            print(json.dumps(cells[-1]), flush=True)
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1) + "\n")
