"""The bytes that the scheme gather of onepass.jax.context_parallel_attention sends, counted in the lowered programs.

Run as a program it prints, as JSON, how many programs were counted and the sentences about wrong ones. Nothing is
computed, so a sequence may have a million positions.
"""

import json
import os
import re

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import onepass.jax  # noqa: E402
from onepass.jax import Layout  # noqa: E402

HEADS, HEADS_KV, DIMS = 4, 2, (16, 8)  # of k and of v
DOCUMENTS = (0, 100, 350, 420, 960)
PERMUTE = re.compile(r'collective_permute"\(.*?dense<(.*?)> : tensor<\d+x2xi64>.*?\(tensor<([\dx]+)x(bf16|f32)>\)')
ALL = re.compile(r'"stablehlo.all_(gather|to_all)"\(.*\(tensor<([\dx]+)x(bf16|f32)>\)')


def size_of(shape, dtype):
    return int(np.prod([int(n) for n in shape.split("x")])) * {"bf16": 2, "f32": 4}[dtype]


def traffic(text, ranks):
    """(bytes that each rank gets by permutations, bytes that a rank gets by collectives of all ranks)"""
    permuted, by_all = np.zeros(ranks, np.int64), 0
    for pairs, shape, dtype in PERMUTE.findall(text):
        for _, target in np.array(json.loads(pairs)).reshape(-1, 2):
            permuted[target] += size_of(shape, dtype)
    for kind, shape, dtype in ALL.findall(text):
        by_all += size_of(shape, dtype) * (ranks - 1) // (1 if kind == "gather" else ranks)
    assert len(PERMUTE.findall(text)) == text.count("stablehlo.collective_permute")
    assert len(ALL.findall(text)) == text.count("stablehlo.all_gather") + text.count("stablehlo.all_to_all")
    return permuted, by_all


def lowered(layout, axes, heads, dims, **options):
    """The program of the forward and that of the gradients. axes: name -> devices."""
    devices = np.array(jax.devices()[: layout.ranks]).reshape([*axes.values()])
    mesh = jax.sharding.Mesh(devices, tuple(axes))
    words = {"mesh": mesh, "axis": tuple(axes) if len(axes) > 1 else next(iter(axes)), "layout": layout}
    words |= {"scheme": "mesh" if len(axes) > 1 else "gather"}

    def call(*given):
        return onepass.jax.context_parallel_attention(*given, **words, **options)

    def gradients(dout, *given):
        return jax.vjp(call, *given)[1](dout)

    rows = layout.ranks * layout.rows
    shapes = ((heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1]), (heads[0], dims[1]))
    q, k, v, dout = (jax.ShapeDtypeStruct((1, h, rows, d), jnp.bfloat16) for h, d in shapes)
    return jax.jit(call).lower(q, k, v).as_text(), jax.jit(gradients).lower(dout, q, k, v).as_text()


def keys_that_come(layout, causal=False, window=(-1, -1), documents=None):
    """By rank, the positions that its rows see and another rank holds."""
    place, (left, right) = np.arange(layout.length), window
    begins = np.array(documents or (0, layout.length))
    begin, end = (begins[np.searchsorted(begins, place, "right") + i] for i in (-1, 0))
    first = begin if left < 0 else np.maximum(begin, place - left)
    last = place if causal else end - 1 if right < 0 else np.minimum(end - 1, place + right)
    found = []
    for rank in range(layout.ranks):
        mine = np.concatenate([[*run] for run, _ in layout.runs(rank)])
        edges = np.zeros(layout.length + 1, np.int64)
        np.add.at(edges, first[mine], 1)
        np.add.at(edges, last[mine] + 1, -1)
        seen = np.cumsum(edges[:-1]) > 0
        seen[mine] = False
        found.append(int(seen.sum()))
    return np.array(found)


def cases(ranks):
    """name -> (layout, options, how many times the needed bytes may be sent)"""
    contiguous, zigzag = Layout.contiguous(960, ranks), Layout.zigzag(960, ranks)
    window, documents = {"causal": True, "window": (40, 0)}, {"causal": True, "documents": DOCUMENTS}
    return {
        "a window": (contiguous, window, 1),
        "a window of both sides": (contiguous, {"window": (300, 7)}, 1),
        "a causal mask": (contiguous, {"causal": True}, 1),
        "a window, zigzag": (zigzag, window, 1),
        "a causal mask, zigzag": (zigzag, {"causal": True}, 1),
        "two groups of heads": (zigzag, {"causal": True, "head_groups": 2}, 1),
        "documents": (contiguous, documents, 1.25),
        "documents, zigzag": (Layout.documents(DOCUMENTS, ranks), documents, 1.25),
        "an uneven length": (Layout.zigzag(961, ranks), {"causal": True}, 1.25),
        "reproducible": (Layout.contiguous(960, ranks, units=16), {**window, "reproducible": True}, 1),
    }


def counted(ranks):
    """(number of programs, sentences about wrong ones)"""
    count, wrong, row = 0, [], HEADS_KV * sum(DIMS)
    for name, (layout, options, factor) in cases(ranks).items():
        mask = {x: y for x, y in options.items() if x in ("causal", "window", "documents")}
        needed = int(keys_that_come(layout, **mask).sum()) * row
        programs = lowered(layout, {"seq": ranks}, (HEADS, HEADS_KV), DIMS, **options)
        (come, by_all), (both, by_all_of_both) = (traffic(text, ranks) for text in programs)
        home = both.sum() - 2 * come.sum()  # the second program has the forward too, and K and V come once more
        for what, found, size in (("K and V", come.sum(), 2 * needed), ("their gradients", home, 4 * needed)):
            if not size <= found <= factor * size:
                wrong.append(f"{ranks} ranks, {name}: {found} bytes of {what}, and {size} are needed")
        if by_all or by_all_of_both:
            wrong.append(f"{ranks} ranks, {name}: all ranks take part in a collective")
        count += 2
    layout = Layout.contiguous(960, ranks)
    for options in ({}, {"window": (959, 959)}, {"reproducible": True}):
        for times, text in zip((1, 4), lowered(layout, {"seq": ranks}, (HEADS, HEADS_KV), DIMS, **options)):
            permuted, by_all = traffic(text, ranks)
            if permuted.any() or by_all != times * (ranks - 1) * layout.rows * row * 2:
                wrong.append(f"{ranks} ranks, everything is seen: {permuted} and {by_all} bytes, {options}")
            count += 1
    return count, wrong


def on_nodes(nodes, within):
    """(number of programs, sentences about wrong ones): keys come from other nodes."""
    layout, of_nodes = (Layout.contiguous(960, ranks) for ranks in (nodes * within, nodes))
    axes, options = {"nodes": nodes, "within": within}, {"causal": True, "window": (40, 0)}
    forward, both = lowered(layout, axes, (HEADS, HEADS_KV), DIMS, **options)
    come, home = (traffic(text, layout.ranks)[0].sum() for text in (forward, both))
    size = int(keys_that_come(of_nodes, True, (40, 0)).sum()) * HEADS_KV * sum(DIMS)
    wrong = (come, home - 2 * come) != (2 * size, 4 * size) or "all_gather" in forward + both
    return 2, [f"{nodes} nodes: {come} and {home} bytes, not {2 * size} and {8 * size}"] if wrong else []


def a_million():
    """(number of programs, sentences about wrong ones): a window of 4096 positions brings 17 MB, and not 4 GB."""
    text, _ = lowered(Layout.contiguous(2**20, 16), {"seq": 16}, (32, 8), (128, 128), causal=True, window=(4096, 0))
    permuted, by_all = traffic(text, 16)
    size = 4096 * 8 * (128 + 128) * 2
    wrong = by_all or permuted.tolist() != [0] + 15 * [size]
    return 1, [f"a million positions: {permuted} and {by_all} bytes, not {size}"] if wrong else []


if __name__ == "__main__":
    counts, wrong = zip(counted(4), counted(8), on_nodes(4, 2), a_million())
    print(json.dumps({"compared": sum(counts), "wrong": sum(wrong, [])}))
