"""The largest score of each head over all ranks, as context_parallel.attention returns it."""

import context_parallel_cases as cases
from context_parallel_meshes import WITHIN, groups
from onepass.context_parallel import Layout, attention
from rank_processes import all_gathered

LENGTH = cases.LENGTH


def largest(rank, ranks, folder):
    """On every rank: the largest score of each head over all ranks, by scheme; and without rows."""
    q, k, v, _ = cases.inputs(LENGTH)
    found = {}
    for length in (LENGTH, 0):
        layout = Layout.zigzag(length, ranks)
        mine = [layout.shard(x[:, :, :length], rank) for x in cases.on_device(q, k, v)]
        for scheme in ("gather", "ring", "ulysses"):
            out, most = attention(*mine, layout=layout, scheme=scheme, causal=True, return_max="head")
            found[scheme, length] = most.tolist()
        if ranks in WITHIN:
            mesh = groups(ranks)
            found["mesh", length] = attention(*mine, layout=layout, group=mesh, causal=True, return_max="head")[
                1
            ].tolist()
    return all_gathered(found)
