"""Row maxima of onepass.jax.context_parallel_attention on devices of one CPU, beside one device's.

Run as a program it prints, as JSON, how many results were compared and the sentences about wrong ones.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import jax_ranks_cases as cases
import numpy as np
import onepass.jax
from onepass.jax import Layout

LENGTH = cases.LENGTH


def one_device(q, k, v, causal=False, window=(-1, -1), documents=None, **o):
    """The maxima of one device, a call for each document."""
    words = {"mask": "causal_top_left" if causal else "aligned_top_left", "window": window, "return_max": True, **o}
    found = [
        onepass.jax.attention(*(x[:, :, a:b] for x in (q, k, v)), **words)[1]
        for a, b in itertools.pairwise(documents or (0, q.shape[2]))
    ]
    return jnp.concatenate(found, 2)


def on_ranks(ranks, layout, tensors, o):
    """(maxima of rows, maxima of heads) under jit, and in padding."""
    o = dict(o)
    if o.get("bool_mask") is not None:
        o["bool_mask"] = layout.shard(o["bool_mask"])
    words = {"mesh": cases.mesh_of(ranks), "axis": "seq", "layout": layout, **o}

    @jax.jit
    def call(*tensors):
        return [
            onepass.jax.context_parallel_attention(*map(layout.shard, tensors), **words, return_max=asked)[-1]
            for asked in (True, "head")
        ]

    return call(*tensors)


def calls(ranks):
    """name -> (layout, tensors, options)"""
    few, zigzag = cases.inputs(LENGTH)[:3], Layout.zigzag(LENGTH, ranks)
    mask = np.random.default_rng(1).random((1, 1, LENGTH, LENGTH)) < 0.5
    mask[:, :, 7] = False  # a row that sees no key
    more = {"causal": True, "documents": cases.DOCUMENTS}
    found = {}
    for scheme in cases.SCHEMES:
        o = {"scheme": scheme, "causal": True}
        found[f"{scheme} causal"] = zigzag, few, o
        found[f"{scheme} one position"] = Layout.zigzag(1, ranks), cases.inputs(1)[:3], o
        if ranks == 4:  # each case is compiled for every rank
            sinks = jnp.full(4, 100.0)  # which do not count
            found[f"{scheme} documents"] = zigzag, few, {**o, **more, "sinks": sinks, "softcap": 2.0}
            found[f"{scheme} bfloat16"] = zigzag, cases.inputs(LENGTH, 8, 2, "bfloat16", 2)[:3], {"scheme": scheme}
            lost = few[0], few[1].at[:, 1, 20].set(jnp.nan), few[2]
            found[f"{scheme} NaN"] = zigzag, lost, {**o, "window": (9, 0)}
            if scheme != "ulysses":
                found[f"{scheme} mask"] = zigzag, few, {"scheme": scheme, "bool_mask": mask}
    if ranks == 4:
        cuts = Layout((0, 9, 9, 22, 39, LENGTH), (3, 1, 0, 4, 2), (0, 2, 2, 5, 5))  # ranks without rows
        found["gather any cuts"] = cuts, few, {"scheme": "gather", "window": (3, 3)}
        found["gather head_groups"] = zigzag, few, {"head_groups": 2, **more}
        found["gather reproducible"] = Layout.zigzag(LENGTH, ranks, units=8), few, {"reproducible": True, **more}
    return found


def same(x, y):
    """Equal to rounding, and infinite and NaN in the same places."""
    x, y = np.asarray(x), np.asarray(y)
    return x.shape == y.shape and x.dtype == np.float32 and np.allclose(x, y, 1e-5, 1e-5, equal_nan=True)


def compared(ranks):
    """(number of results, sentences about wrong ones)"""
    count, wrong = 0, []
    for name, (layout, tensors, o) in calls(ranks).items():
        one = one_device(*tensors, **{n: x for n, x in o.items() if n not in ("scheme", "head_groups", "reproducible")})
        rows, heads = on_ranks(ranks, layout, tensors, o)
        padding = np.setdiff1d(np.arange(rows.shape[2]), layout.whole(jnp.arange(rows.shape[2]), 0))
        answers = {
            "rows": same(layout.whole(rows), one),
            "heads": same(heads, one.max((0, 2))),
            "padding": bool(np.isneginf(np.asarray(rows)[:, :, padding]).all()),
        }
        count += len(answers)
        wrong += [f"{ranks} ranks, {name}: {what}" for what, right in answers.items() if not right]
    return count, wrong


def others():
    """Sentences about maxima without rows, along a batch axis, and beside gradients."""
    wrong, empty = [], Layout.zigzag(0, 2)
    nothing = [empty.shard(x[:, :, :0]) for x in cases.inputs(4)[:3]]
    q, k, v, *_ = cases.inputs(LENGTH, batch=2)
    layout = Layout.zigzag(LENGTH, 4)
    given = [layout.shard(x) for x in (q, k, v)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "seq"))
    one = one_device(q, k, v, causal=True)
    for scheme in cases.SCHEMES:
        words = {"axis": "seq", "scheme": scheme, "causal": True}
        call = onepass.jax.context_parallel_attention
        _, most = call(*nothing, mesh=cases.mesh_of(2), layout=empty, return_max="head", **words)
        if not (most.shape == (4,) and jnp.isneginf(most).all()):
            wrong.append(f"heads without rows: {scheme}")
        words |= {"mesh": mesh, "batch_axis": "data", "layout": layout}
        _, lse, most = call(*given, return_lse=True, return_max=True, **words)
        _, heads = call(*given, return_max="head", **words)
        if not (same(layout.whole(most), one) and same(heads, one.max((0, 2))) and lse.shape == most.shape):
            wrong.append(f"a batch axis: {scheme}")

        def loss(q, scheme=scheme, asked=False):
            words = {"mesh": mesh, "axis": "seq", "layout": layout, "scheme": scheme, "return_max": asked}
            found = onepass.jax.context_parallel_attention(q, *given[1:], **words)
            return (found[0] ** 2).sum() + found[1].sum() if asked else (found**2).sum()

        plain, beside = (jax.jit(jax.grad(loss), static_argnames="asked")(given[0], asked=a) for a in (False, "head"))
        if not (plain == beside).all():
            wrong.append(f"gradients: {scheme}")
    return wrong


if __name__ == "__main__":
    counts, wrong = zip(*(compared(ranks) for ranks in (2, 4, 8)))
    print(json.dumps({"compared": sum(counts), "wrong": [*itertools.chain(*wrong), *others()]}))
