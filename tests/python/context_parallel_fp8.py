"""Calls of onepass.torch.context_parallel with q, k and v of float8_e4m3fn, beside one device, in float64 too."""

import context_parallel_cases as cases
import onepass
import torch
from onepass.context_parallel import Layout, attention
from rank_processes import all_gathered, gathered, sentence
from ranks_fp8 import HEADS, HEADS_KV, LENGTH, MASKS


def inputs():
    """q, k and v in 8 bits, and their factors: for each head, or one."""
    draw = torch.Generator().manual_seed(8)
    q, k, v, dout = cases.inputs(LENGTH, HEADS, HEADS_KV, dim=64, dim_v=32)
    eight = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    factors = {
        "q_descale": 0.5 + torch.rand(1, HEADS, generator=draw),
        "k_descale": 0.5 + torch.rand(1, HEADS_KV, 1, generator=draw),
        "v_descale": torch.tensor([1.5]),
        "v_mean": torch.randn(1, HEADS_KV, 32, generator=draw),
    }
    return eight, factors, dout


def expected():
    """By mask: (out, lse) of one device, and in float64."""
    (q, k, v), factors, dout = inputs()
    found = {}
    shape = (1, -1, 1, 1)
    whole = (
        q.float() * factors["q_descale"].view(shape),
        k.float() * factors["k_descale"].view(shape),
        v.float() * 1.5 + factors["v_mean"][:, :, None],
    )
    for mask, options in MASKS.items():
        exact = cases.textbook(*whole, dout, None, **options)
        outs, lses = [], []
        documents = options.get("documents", (0, LENGTH))
        for a, b in zip(documents, documents[1:]):
            rows = [x[:, :, a:b] for x in (q, k, v)]
            words = {"mask": "causal_top_left" if options else None, "window": options.get("window"), **factors}
            out, lse = onepass.attention(*rows, return_lse=True, **words)
            outs.append(out)
            lses.append(lse)
        found[mask] = {"out": torch.cat(outs, 2), "lse": torch.cat(lses, 2)}, exact
    return found


def eight_bits(rank, ranks, folder):
    """On rank 0, by scheme and mask: the whole out and lse."""
    (q, k, v), factors, _ = inputs()
    found, layout = {}, Layout.zigzag(LENGTH, ranks)
    mine = [layout.shard(x.view(torch.uint8), rank).view(torch.float8_e4m3fn) for x in (q, k, v)]
    for scheme in ("gather", "ring", "ulysses"):
        for mask, options in MASKS.items():
            words = {"layout": layout, "scheme": scheme, "return_lse": True, "threads": 1, **options, **factors}
            out, lse = attention(*mine, **words)
            by_rank = gathered((out, lse))
            if rank == 0:
                found[scheme, mask] = {
                    name: layout.whole([x[i] for x in by_rank]) for i, name in enumerate(("out", "lse"))
                }
    return found


def refused(rank, ranks, folder):
    """The sentences that a rank hears."""
    (q, k, v), factors, _ = inputs()
    layout = Layout.zigzag(LENGTH, 1)
    blocks = torch.ones(1, HEADS, 2)
    sinks = torch.zeros(HEADS, requires_grad=True)

    def call(k=k, **options):
        return sentence(lambda: attention(q, k, v, layout=layout, **options))

    return {
        "blocks": call(q_descale=blocks),
        "dtypes": call(k.float()),
        "gradients": call(sinks=sinks),
        "gradients of k": call(k.clone().requires_grad_()),
    }


def compiled(rank, ranks, folder):
    """By rank: whether a call inside torch.compile has the bits of the eager one."""
    (q, k, v), factors, _ = inputs()
    layout = Layout.zigzag(LENGTH, ranks)
    mine = [layout.shard(x.view(torch.uint8), rank).view(torch.float8_e4m3fn) for x in (q, k, v)]

    def call(q, k, v):
        return attention(q, k, v, layout=layout, causal=True, **factors).float() + 1

    inside = torch.compile(call, fullgraph=True, backend="aot_eager")
    return all_gathered(torch.equal(call(*mine), inside(*mine)))
