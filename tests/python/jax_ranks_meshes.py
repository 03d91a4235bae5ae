"""onepass.jax.context_parallel_attention on two axes of a mesh: nodes, and ranks within a node.

Run as a program it prints, as JSON, how many results were compared and the sentences about wrong ones.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import jax_ranks_cases as cases
import jax_ranks_fp8 as fp8
import jax_ranks_maxima as maxima
import numpy as np
import onepass.jax
from onepass.jax import Layout

LENGTH = cases.LENGTH
AXES = "nodes", "within"


def mesh_of(nodes, within, *more):
    """Axes behind those of the ranks have the other devices."""
    shape = (nodes, within, *(n for _, n in more))
    devices = np.array(jax.devices()[: np.prod(shape)])
    return jax.sharding.Mesh(devices.reshape(shape), (*AXES, *(name for name, _ in more)))


def calls(ranks):
    """name -> (layout, tensors, options)"""
    few, zigzag = cases.inputs(LENGTH), Layout.zigzag(LENGTH, ranks)
    found = {"causal": (zigzag, few, {"causal": True})}
    if ranks != 4:  # each case is compiled for every rank
        return found
    rng = np.random.default_rng(2)
    sinks, slopes = rng.standard_normal(4).astype("float32"), np.abs(0.2 * rng.standard_normal(4)).astype("float32")
    bias, mask = rng.standard_normal((1, 4, 1, LENGTH)).astype("float32"), rng.random((1, 1, 1, LENGTH)) < 0.7
    more = {"causal": True, "documents": cases.DOCUMENTS}
    found["documents"] = zigzag, few, {**more, "sinks": sinks, "alibi_slopes": slopes}
    found["bias"] = zigzag, few, {"bias": bias, "bool_mask": mask, "window": (21, 3), "softcap": 2.0}
    found["score_mod"] = zigzag, few, {**more, "score_mod": "score - 0.05 * (head + q_index - k_index)"}
    found["dropout"] = zigzag, few, {**more, "dropout_p": 0.3, "seed": 2**63 + 1}
    cuts = Layout((0, 9, 9, 22, 39, LENGTH), (3, 1, 0, 4, 2), (0, 2, 2, 2, 5))  # two ranks without rows
    found["any cuts"] = cuts, few, {"causal": True}
    found["one node has all"] = Layout((0, 20, LENGTH), (1, 0), (0, 1, 2, 2, 2)), few, {"window": (9, 9)}
    found["bfloat16"] = zigzag, cases.inputs(LENGTH, 8, 2, "bfloat16", 2), {"causal": True}
    found["one head"] = zigzag, cases.inputs(LENGTH, 1, 1), {"causal": True}
    found["length 1"] = Layout.zigzag(1, ranks), cases.inputs(1), {"causal": True}
    return found


def compared(nodes, within):
    """(number of results, sentences about wrong ones)"""
    count, wrong, ranks = 0, [], nodes * within
    for name, (layout, tensors, o) in calls(ranks).items():
        mine = cases.sharded(mesh_of(nodes, within), layout, "auto", tensors, dict(o), AXES)
        one = cases.one_device(tensors, dict(o))
        found = cases.wrong_of(mine, one, cases.textbook(*tensors, **o), tensors[0].dtype)
        count += len(mine)
        wrong += [f"{nodes} nodes of {within} ranks, {name} {sentence}" for sentence in found]
    return count, wrong


def others():
    """Sentences about row maxima, FP8, a batch axis, a NaN, and a sequence without positions."""
    wrong, layout, mesh = [], Layout.zigzag(LENGTH, 4), mesh_of(2, 2)
    q, k, v, *_ = cases.inputs(LENGTH)
    k = k.at[:, 1, 20].set(jnp.nan)
    words = {"mesh": mesh, "axis": AXES, "layout": layout, "causal": True}
    call = onepass.jax.context_parallel_attention
    out, most = call(*map(layout.shard, (q, k, v)), scheme="mesh", return_max=True, **words)
    one = maxima.one_device(q, k, v, causal=True)
    lost = jnp.isnan(layout.whole(out)).any(3)
    if not (maxima.same(layout.whole(most), one) and (lost == jnp.isnan(one)).all() and lost.any()):
        wrong.append("maxima with NaN")
    _, heads = call(*map(layout.shard, (q, k, v)), return_max="head", **words)
    if not maxima.same(heads, one.max((0, 2))):
        wrong.append("maxima of heads")
    tensors, factors = fp8.inputs(2)
    layout, options = Layout.zigzag(fp8.LENGTH, 4), fp8.MASKS["window"]
    words = {"mesh": mesh_of(2, 2, ("data", 2)), "axis": AXES, "batch_axis": "data", "layout": layout, **options}
    mine = call(*map(layout.shard, tensors), return_lse=True, **factors, **words)
    exact = fp8.exact_of(tensors, factors, options)
    one = fp8.one_device(*tensors, factors, **options)
    wrong += fp8.wrong_of("FP8", [layout.whole(x) for x in mine], one, exact)
    empty = Layout.zigzag(0, 4)
    nothing = [empty.shard(x[:, :, :0]) for x in (q, k, v)]
    if np.abs(call(*nothing, mesh=mesh, axis=AXES, layout=empty)).max() != 0:
        wrong.append("no positions")
    return wrong


if __name__ == "__main__":
    counts, wrong = zip(compared(2, 2), compared(4, 2), compared(1, 2))
    print(json.dumps({"compared": sum(counts), "wrong": [*itertools.chain(*wrong), *others()]}))
