"""A serving engine's attention on a CUDA device: mixed steps in one call, and decoding from pages, beside FlashInfer.

bf16, causal, K and V in pages at random places, lengths in seqused_k on the device. Times are medians of CUDA graphs
that take turns; L2 is overwritten before each. All contenders of a cell read the same memory.

  one call           onepass.attention for the whole step
  batch_invariant    the same with one result per row
  part 1, part 2     each group of sequences by a call of its own; a step's bar is their sum
  tokens, any bound  the single tokens of a step alone, with max_seqlen_q of the whole step
  contiguous         decoding from [batch, seq, heads, dim]; with seqused_k, lengths are known on the device only
  flashinfer ...     FlashInfer's kernels where it is installed (bench/peers/flashinfer.py)

difference: the largest of a contender's from `one call`.
"""

from bench.peers.flashinfer import PEERS
from bench.tables import gpu
from bench.timing import Timer, graphed, in_turn, medians

NEEDS = "torch", "onepass"

# name: groups of sequences, each (how many, rows, keys).
STEPS = {
    "64 single tokens at 8k, a prompt of 2k": [[(64, 1, 8192)], [(1, 2048, 2048)]],
    "128 single tokens at 2k, four chunks of 512 at 4k": [[(128, 1, 2048)], [(4, 512, 4096)]],
    "four chunks of 512 at 8k": [[(4, 512, 8192)]],
    "prompts of 77 to 8000": [[(1, n, n) for n in (77, 500, 1000, 2000, 3000, 8000)]],
    "32 drafts of 8 at 8k": [[(32, 8, 8192)]],
    "32 drafts of 8 at 8k, a prompt of 300": [[(32, 8, 8192)], [(1, 300, 300)]],
}
LENGTHS = [(1, 1, 100 + (32768 - 100) * i // 63) for i in range(64)]
# name: (sequences, heads, K/V heads, head dim, page sizes)
DECODING = {
    "b1 x 8k": ([(1, 1, 8192)], 32, 8, 128, (16, 64)),
    "b1 x 64k": ([(1, 1, 65536)], 32, 8, 128, (16, 64)),
    "b16 x 8k": ([(16, 1, 8192)], 32, 8, 128, (16, 64)),
    "b64 x 4k": ([(64, 1, 4096)], 32, 8, 128, (16, 64)),
    "b64, lengths 100 to 32k": (LENGTHS, 32, 8, 128, (16, 64)),
    "b16 x 2k, 32/32 heads": ([(16, 1, 2048)], 32, 32, 128, (16,)),
    "b32 x 4k, 64/8 heads, d64": ([(32, 1, 4096)], 64, 8, 64, (16,)),
}


class Step:
    """Sequences over a cache of pages; `of` makes the step of some of them, which reads the same memory."""

    def __init__(self, torch, sequences, heads, heads_kv, dim, page):
        self.rows = [rows for count, rows, _ in sequences for _ in range(count)]
        self.keys = [keys for count, _, keys in sequences for _ in range(count)]
        self.torch, self.heads, self.heads_kv, self.dim, self.page = torch, heads, heads_kv, dim, page
        new = {"dtype": torch.bfloat16, "device": "cuda"}
        pages = [-(-n // page) for n in self.keys]
        self.q = torch.randn(sum(self.rows), heads, dim, **new)
        self.k, self.v = (torch.randn(sum(pages), page, heads_kv, dim, **new) for _ in "kv")
        self.table = torch.zeros(len(pages), max(pages), dtype=torch.int32, device="cuda")
        places, at = torch.randperm(sum(pages), device="cuda").int(), 0
        for row, count in zip(self.table, pages, strict=True):
            row[:count] = places[at : at + count]
            at += count
        self.lengths()

    def lengths(self):
        torch = self.torch
        self.cu_rows = torch.tensor([0, *self.rows]).cumsum(0).int().cuda()
        self.used = torch.tensor(self.keys, dtype=torch.int32, device="cuda")

    def of(self, first, count):
        part = object.__new__(Step)
        part.__dict__.update(self.__dict__)
        begin = sum(self.rows[:first])
        part.rows, part.keys = self.rows[first : first + count], self.keys[first : first + count]
        part.q = self.q[begin : begin + sum(part.rows)]
        part.table = self.table[first : first + count, : -(-max(part.keys) // self.page)].contiguous()
        part.lengths()
        return part

    def call(self, onepass, **options):
        out = self.torch.empty_like(self.q)
        cache = {"seqused_k": self.used, "page_table": self.table, "cu_seqlens_q": self.cu_rows}
        longest = {"max_seqlen_q": max(self.rows)}
        how = {"mask": "causal_bottom_right", "out": out} | cache | longest | options
        return out, lambda: onepass.attention(self.q, self.k, self.v, **how)

    def decoded(self, onepass, k, v, **options):
        """Single tokens as a batch instead of packed."""
        out = self.torch.empty_like(self.q)
        q, to = (x.view(len(self.rows), 1, self.heads, self.dim) for x in (self.q, out))
        return out, lambda: onepass.attention(q, k, v, layout="bshd", out=to, **options)

    def contiguous(self, x):
        pages = x[self.table.long()]
        return pages.view(len(self.keys), -1, self.heads_kv, self.dim)


def measured(torch, onepass, timer, options, of):
    """{name: median}, differences and refusals of functions that return (result, call)."""
    graphs, results, refused = {}, {}, {}
    for name, make in of.items():
        try:
            out, call = make()
            call()
            torch.cuda.synchronize()
            graphs[name], results[name] = graphed(torch, call), out
        except Exception as error:  # a peer is not installed, or a contender refuses
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    whole = results["one call"].float()
    same = {name: out for name, out in results.items() if out.shape == whole.shape}
    difference = {name: float((out.float() - whole).abs().max()) for name, out in same.items()}
    clocks = {name: lambda graph=graph: timer.spans(graph, options.spans) for name, graph in graphs.items()}
    in_turn(clocks, 1, options.pause)  # warm-up
    seconds = medians(in_turn(clocks, options.rounds, options.pause))
    return {"median_s": seconds, "difference": difference, "refused": refused}


def contenders(torch, onepass, step, with_peers):
    def invariant():
        return step.call(onepass, batch_invariant=True)

    peers = {name: lambda make=make: make(torch, step) for name, make in PEERS.items() if with_peers}
    return {"one call": lambda: step.call(onepass), "batch_invariant": invariant} | peers


def step_row(torch, onepass, timer, options, name, groups):
    step = Step(torch, [sequence for group in groups for sequence in group], 32, 8, 128, 16)
    of, first = contenders(torch, onepass, step, options.peers), 0
    for number, group in enumerate(groups, 1):
        count = sum(n for n, _, _ in group)
        if len(groups) > 1:
            part = step.of(first, count)
            of[f"part {number}"] = lambda part=part: part.call(onepass)
            if set(part.rows) == {1}:
                of["tokens, any bound"] = lambda part=part: part.call(onepass, max_seqlen_q=max(step.rows))
        first += count
    return {"cell": name, "page": 16} | measured(torch, onepass, timer, options, of)


def decoding_row(torch, onepass, timer, options, name, page):
    sequences, heads, heads_kv, dim, _ = DECODING[name]
    step = Step(torch, sequences, heads, heads_kv, dim, page)
    of = contenders(torch, onepass, step, options.peers)
    cache = {"seqused_k": step.used, "page_table": step.table}
    of["batch"] = lambda: step.decoded(onepass, step.k, step.v, **cache)
    if len(set(step.keys)) == 1:
        for also, used in {"": {}, ", seqused_k": {"seqused_k": step.used}}.items():
            dense = {"k": step.contiguous(step.k), "v": step.contiguous(step.v)}
            of[f"contiguous{also}"] = lambda dense=dense, used=used: step.decoded(onepass, **dense, **used)
    return {"cell": name, "page": page} | measured(torch, onepass, timer, options, of)


def arguments(parser):
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which must be in a cell's name")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="onepass alone")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--spans", type=int, default=3, help="launches in a turn")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds before every turn")


def rows(torch, onepass, options):
    torch.manual_seed(0)
    timer = Timer(torch)
    how = torch, onepass, timer, options

    def wanted(name):
        return not options.only or any(word in name for word in options.only)

    for name, groups in STEPS.items():
        if wanted(name):
            yield step_row(*how, name, groups)
            torch.cuda.empty_cache()
    for name, (*_, pages) in DECODING.items():
        for page in pages if wanted(name) else ():
            yield decoding_row(*how, name, page)
            torch.cuda.empty_cache()


def said(row):
    us = {name: f"{1e6 * s:.1f}" for name, s in row["median_s"].items()}
    off = {name: x for name, x in row["difference"].items() if not x < 0.03}
    lines = [f"{row['cell']}, pages of {row['page']}: {us}" + (f" off: {off}" if off else "")]
    return "\n".join(lines + [f"  {name}: {why}" for name, why in row["refused"].items()])


def document(rows, torch, onepass, options):
    return {"device": torch.cuda.get_device_name(), "version": onepass.__version__, "rows": rows}


def table(document):
    return "\n".join(gpu.serving(document["rows"]))
