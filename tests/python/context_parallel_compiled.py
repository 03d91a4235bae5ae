"""Calls of onepass.torch.context_parallel inside torch.compile, without a graph break."""

import functools

import context_parallel_cases as cases
import torch
from onepass.context_parallel import Layout, attention
from rank_processes import all_gathered, gathered, sentence
from torch._dynamo.testing import CompileCounter

LENGTH = 40


def options():
    draw = torch.Generator().manual_seed(2)
    sinks, bias = torch.randn(4, generator=draw), torch.randn(1, 1, 1, LENGTH, generator=draw)
    return {
        "gather": {"scheme": "gather", "window": (9, 0), "sinks": sinks},
        "ring": {"scheme": "ring", "softcap": 2.0, "bias": bias},
        "ulysses": {"scheme": "ulysses", "documents": [0, 7, LENGTH], "sinks": sinks},
        "reproducible": {"reproducible": True, "bool_mask": bias > 0},
        "dropout": {"dropout_p": 0.3, "seed": 2**63 + 5},
        "maxima": {"scheme": "ring", "return_max": True},
        "maxima of heads": {"scheme": "ulysses", "return_max": "head"},
        "expression": {"score_mod": "score + table[head] * q_index", "mod_buffers": {"table": sinks}},
    }


def step(layout, given, q, k, v, side):
    """A step of training: what goes in and out is computed in the same graph."""
    words = {**given, **side, "causal": True, "layout": layout, "return_lse": True}
    out, lse, *most = attention(2 * q, k, v, **words)
    return (out * out).sum() + lse.sum() + sum(x.sum() for x in most)


def results(function, layout, rank, given):
    leaves = [layout.shard(x, rank).requires_grad_() for x in cases.inputs(LENGTH)[:3]]
    side = {name: given[name].clone().requires_grad_() for name in cases.SIDE if name in given}
    loss = function(layout, given, *leaves, side)
    return [loss.detach(), *torch.autograd.grad(loss, [*leaves, *side.values()])]


def compiled(rank, ranks, folder):
    """By rank: names of the calls whose results have other bits inside torch.compile."""
    layout, wrong = Layout.zigzag(LENGTH, ranks), []
    for name, given in options().items():
        torch._dynamo.reset()
        inside = torch.compile(step, fullgraph=True, backend="aot_eager")
        pairs = zip(results(step, layout, rank, given), results(inside, layout, rank, given))
        if not all(torch.equal(a, b) for a, b in pairs):
            wrong.append(name)
    return all_gathered(wrong)


def drawn(rank, ranks, folder):
    """On rank 0, in two calls of a compiled function without a seed: the weights that dropout leaves."""
    q, k, _, _ = cases.inputs(LENGTH)
    v = torch.eye(LENGTH).expand(1, 2, LENGTH, LENGTH)
    layout = Layout.zigzag(LENGTH, ranks)
    mine = [layout.shard(x, rank) for x in (q, k, v)]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q, k, v):
        return attention(q, k, v, layout=layout, dropout_p=0.4)

    torch.manual_seed(rank)
    found = []
    for _ in range(2):
        by_rank = gathered(call(*mine) != 0)
        found.append(layout.whole(by_rank) if rank == 0 else None)
    return found


def seeds(rank, ranks, folder):
    """How often a function is compiled for five seeds, and the sentences of two wrong ones."""
    q, k, v, _ = cases.inputs(LENGTH)
    layout, counter = Layout.zigzag(LENGTH, ranks), CompileCounter()

    def call(seed):
        return attention(q, k, v, layout=layout, dropout_p=0.4, seed=seed)

    torch._dynamo.reset()
    counted = torch.compile(call, fullgraph=True, backend=counter)
    for seed in (3, 4, 7, 9, 1000):
        assert torch.equal(counted(seed), call(seed)), seed
    inside = torch.compile(call, backend="aot_eager")
    return counter.frame_count, [sentence(functools.partial(inside, seed)) for seed in (-1, 2**64)]
