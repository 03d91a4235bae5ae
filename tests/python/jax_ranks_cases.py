"""Calls of onepass.jax.context_parallel_attention on devices of one CPU, beside float64 and one device.

Run as a program it prints, as JSON, how many results were compared and the sentences about wrong ones.
"""

import itertools
import json
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import onepass.jax  # noqa: E402
import ranks_textbook  # noqa: E402
from onepass.jax import Layout  # noqa: E402
from ranks_textbook import SIDE  # noqa: E402

LENGTH = 45
DOCUMENTS = (0, 1, 17, 17, 30, 45)
SCHEMES = "gather", "ring", "ulysses"


def mesh_of(ranks):
    return jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("seq",))


def inputs(length, heads=4, heads_kv=2, dtype="float32", batch=1):
    rng = np.random.default_rng(length + heads)
    shapes = ((heads, 16, 2.0), (heads_kv, 16, 1.0), (heads_kv, 8, 1.0), (heads, 8, 1.0))
    q, k, v, dout = (jnp.asarray(s * rng.standard_normal((batch, h, length, d)), dtype) for h, d, s in shapes)
    return q, k, v, dout, jnp.asarray(0.1 * rng.standard_normal((batch, heads, length)), "float32")


def textbook(*tensors, **o):
    """As ranks_textbook's, without the maxima, which jax_ranks_maxima.py compares."""
    found = ranks_textbook.textbook(*tensors, **o)
    found.pop("most")
    return found


def differentiated(function, q, k, v, dout, dlse, side):
    """The results of function(q, k, v, side) -> (out, lse), and its gradients, under jit."""

    def loss(q, k, v, side):
        out, lse = function(q, k, v, side)
        shown = jnp.where(jnp.isinf(lse), 0, lse)
        return (out.astype("float32") * dout.astype("float32")).sum() + (shown * dlse).sum(), (out, lse)

    (_, (out, lse)), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(q, k, v, side)
    found = {
        "out": out,
        "lse": lse,
        **dict(zip(("dq", "dk", "dv"), grads)),
        **{f"d{n}": x for n, x in grads[3].items()},
    }
    return {name: np.asarray(x) for name, x in found.items()}


def sharded(mesh, layout, scheme, tensors, o, axis=None):
    """axis: the mesh's last one by default."""
    side = {name: jnp.asarray(o.pop(name)) for name in SIDE if name in o}

    def function(q, k, v, side):
        whole = [layout.shard(x) for x in (q, k, v)]
        words = {
            "mesh": mesh,
            "axis": axis or mesh.axis_names[-1],
            "layout": layout,
            "scheme": scheme,
            "return_lse": True,
        }
        words |= {**o, **side}
        for name in ("bias", "bool_mask"):
            if name in words and words[name].shape[2] > 1:
                words[name] = layout.shard(words[name])
        out, lse = onepass.jax.context_parallel_attention(*whole, **words)
        return layout.whole(out), layout.whole(lse)

    return differentiated(function, *tensors, side)


def one_device(tensors, o):
    o.pop("head_groups", None)
    side = {name: jnp.asarray(o.pop(name)) for name in SIDE if name in o}
    causal, window, documents = o.pop("causal", False), o.pop("window", (-1, -1)), o.pop("documents", None)
    words = {"mask": "causal_top_left" if causal else "aligned_top_left", "window": window, "return_lse": True, **o}

    def function(q, k, v, side):
        if not documents:
            return onepass.jax.attention(q, k, v, **words, **side)
        cu = jnp.array(documents, "int32")
        packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
        out, lse = onepass.jax.attention(*packed, cu_seqlens_q=cu, cu_seqlens_k=cu, **words, **side)
        return out.swapaxes(0, 1)[None], lse[None]

    return differentiated(function, *tensors, side)


def cases(ranks):
    """name -> (layout, scheme, tensors, options)"""
    rng = np.random.default_rng(1)
    zigzag, few = Layout.zigzag(LENGTH, ranks), inputs(LENGTH)
    fours, contiguous = Layout.zigzag(LENGTH, ranks, multiple=4), Layout.contiguous(LENGTH, ranks)
    cuts, shares = (0, 9, 9, 22, 39, LENGTH), [0, *(min(5, 2 * r) for r in range(1, ranks)), 5]
    sinks, slopes = rng.standard_normal(4).astype("float32"), np.abs(0.2 * rng.standard_normal(4)).astype("float32")
    more = {"causal": True, "documents": DOCUMENTS}
    bias, mask = rng.standard_normal((1, 4, LENGTH, LENGTH)).astype("float32"), rng.random((1, 1, LENGTH, LENGTH)) < 0.7
    mask[:, :, 7] = False  # a row that sees no key
    found = {}
    for scheme in SCHEMES:
        found[f"{scheme} causal"] = zigzag, scheme, few, {"causal": True}
        if scheme == "gather":
            found["gather contiguous window"] = contiguous, scheme, few, {"window": (9, 4)}
        if ranks != 3:  # each case is compiled for every rank
            continue
        found[f"{scheme} sinks"] = zigzag, scheme, few, {"causal": True, "window": (11, 0), "sinks": sinks}
        found[f"{scheme} alibi"] = zigzag, scheme, few, {"alibi_slopes": slopes, "softcap": 2.0, "scale": 0.3}
        of_keys = {"bias": bias[:, :1, :1], "bool_mask": mask[:, :, :1], "sinks": sinks}
        found[f"{scheme} bias of keys"] = zigzag, scheme, few, of_keys
        if scheme != "ulysses":
            found[f"{scheme} bias"] = zigzag, scheme, few, {"bias": bias, "causal": True}
            found[f"{scheme} mask"] = zigzag, scheme, few, {"bool_mask": mask, "window": (21, 3)}
        found[f"{scheme} documents"] = zigzag, scheme, few, {**more, "sinks": sinks, "alibi_slopes": slopes}
        found[f"{scheme} score_mod"] = (
            zigzag,
            scheme,
            few,
            {**more, "score_mod": "score - 0.05 * (head + q_index - k_index)"},
        )
        found[f"{scheme} dropout"] = fours, scheme, few, {"dropout_p": 0.3, "seed": 2**63 + 1, "window": (21, 3)}
        if scheme != "ring":
            found[f"{scheme} dropout documents"] = zigzag, scheme, few, {**more, "dropout_p": 0.3, "seed": 1}
        found[f"{scheme} any cuts"] = Layout(cuts, (3, 1, 0, 4, 2), shares), scheme, few, {"causal": True}
        found[f"{scheme} bfloat16"] = zigzag, scheme, inputs(LENGTH, 8, 2, "bfloat16", 2), {"causal": True}
        found[f"{scheme} heads"] = zigzag, scheme, inputs(LENGTH, 4, 1), {"window": (13, 5)}
        found[f"{scheme} length"] = Layout.zigzag(2, ranks), scheme, inputs(2), {"causal": True}
    found["gather head_groups"] = (
        fours,
        "gather",
        inputs(LENGTH, 8, 4),
        {
            "causal": True,
            "head_groups": 3,
            "sinks": rng.standard_normal(8).astype("float32"),
            "bias": bias[:, :1, :1],
            "dropout_p": 0.3,
            "seed": 7,
            "score_mod": "score - 0.05 * (head + q_index - k_index)",
        },
    )
    if ranks == 3:
        found["gather contiguous causal"] = contiguous, "gather", few, {"causal": True}
        found["gather contiguous documents"] = contiguous, "gather", few, {**more, "window": (7, 0)}
        found["gather everything"] = contiguous, "gather", few, {}
    found["auto"] = Layout.documents(DOCUMENTS, ranks), "auto", few, more
    return found


def rms(x, exact):
    finite = np.isfinite(exact)
    assert (np.isfinite(x) == finite).all()
    return float(np.sqrt(np.square(x.astype(np.float64) - exact)[finite].mean())) if finite.any() else 0.0


def wrong_of(mine, one, exact, dtype):
    """Sentences about wrong results. Errors are beside one device's, both against float64."""
    wrong = []
    assert mine.keys() == exact.keys() == one.keys()
    for key, (x, terms) in exact.items():
        terms = terms if key[1:] in SIDE else x  # few numbers, each the sum of many
        size = float(np.sqrt(np.square(np.where(np.isfinite(terms), terms, 0)).mean()))
        bound = max((2.0 if dtype == jnp.float32 else 1.05) * rms(one[key], x), 4e-7 * size)
        if mine[key].dtype != one[key].dtype or not rms(mine[key], x) <= bound:
            wrong.append(f"{key}: {rms(mine[key], x):.2e} of at most {bound:.2e}")
    return wrong


def compared(ranks, only=None):
    """(number of results, sentences about wrong ones)"""
    count, wrong, mesh = 0, [], mesh_of(ranks)
    for name, (layout, scheme, tensors, o) in cases(ranks).items():
        if only and only not in name:
            continue
        mine, one, exact = (
            sharded(mesh, layout, scheme, tensors, dict(o)),
            one_device(tensors, dict(o)),
            textbook(*tensors, **o),
        )
        count += len(mine)
        wrong += [f"{ranks} ranks, {name} {sentence}" for sentence in wrong_of(mine, one, exact, tensors[0].dtype)]
    return count, wrong


def transformed():
    """Sentences about what is wrong under other meshes, eagerly, and with nothing to attend to."""
    wrong = []
    q, k, v, dout, dlse = inputs(LENGTH, batch=2)
    whole, layout = onepass.jax.attention(q, k, v, mask="causal_top_left"), Layout.zigzag(LENGTH, 4)
    given = [layout.shard(x) for x in (q, k, v)]
    meshes = {
        "a batch axis": (jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "seq")), "data"),
        "an explicit mesh": (jax.make_mesh((4,), ("seq",)), None),
    }
    for name, (mesh, batch) in meshes.items():
        for scheme in SCHEMES:
            words = {
                "mesh": mesh,
                "axis": "seq",
                "layout": layout,
                "batch_axis": batch,
                "scheme": scheme,
                "causal": True,
            }
            out = np.asarray(onepass.jax.context_parallel_attention(*given, **words))
            if not np.abs(layout.whole(out) - whole).max() < 1e-5:
                wrong.append(f"{name}: {scheme}")
    wrong += biased(meshes["a batch axis"][0], layout, q, k, v)
    rows = np.asarray(layout.shard(jnp.arange(LENGTH), 0))
    if not (rows == layout.positions()).all() or layout.whole(rows, 0).tolist() != list(range(LENGTH)):
        wrong.append("positions")
    empty = Layout.zigzag(0, 3)
    nothing = jnp.zeros((1, 2, 3, 16))
    for scheme in SCHEMES:
        out = onepass.jax.context_parallel_attention(
            *(empty.shard(x[:, :, :0]) for x in (nothing,) * 3),
            mesh=mesh_of(3),
            axis="seq",
            layout=empty,
            scheme=scheme,
        )
        if out.shape != nothing.shape or np.abs(out).max() != 0:
            wrong.append(f"no positions: {scheme}")
    lost = k.at[:, :, 20].set(jnp.nan)
    neighbours = Layout.contiguous(LENGTH, 4), "gather", {"window": (11, 0)}
    for layout, scheme, more in (*((layout, scheme, {}) for scheme in SCHEMES), neighbours):
        words = {"mesh": mesh_of(4), "axis": "seq", "layout": layout, "scheme": scheme, "causal": True, **more}
        out = layout.whole(onepass.jax.context_parallel_attention(*map(layout.shard, (q, lost, v)), **words))
        seen = slice(20, 32 if more else LENGTH)
        if not (jnp.isnan(out[:, :, seen]).all() and jnp.isnan(out).sum() == jnp.isnan(out[:, :, seen]).sum()):
            wrong.append(f"NaN: {scheme} {more}")
    return wrong


def reproduced():
    """Sentences about results that have other bits on some number of ranks."""
    wrong = []
    documents = {"causal": True, "documents": DOCUMENTS, "head_groups": 2}
    for name, tensors, o in (
        ("causal", inputs(LENGTH), {"causal": True, "scheme": "auto"}),
        ("documents", inputs(LENGTH), documents),
        ("bfloat16", inputs(LENGTH, 4, 2, "bfloat16", 2), {"window": (13, 5), "dropout_p": 0.3, "seed": 5}),
    ):
        scheme, found = o.pop("scheme", "gather"), {}
        for ranks in (1, 2, 4):
            layout = Layout.zigzag(LENGTH, ranks, units=8)
            found[ranks] = sharded(mesh_of(ranks), layout, scheme, tensors, {**o, "reproducible": True})
            differ = [key for key, x in found[1].items() if x.tobytes() != found[ranks][key].tobytes()]
            wrong += [f"reproducible {name}: {key} has other bits on {ranks} ranks than on 1" for key in differ]
        exact = textbook(*tensors, **o)["out"][0]
        if not rms(found[4]["out"], exact) < (1e-6 if tensors[0].dtype == jnp.float32 else 1e-2):
            wrong.append(f"reproducible {name} is wrong")
    return wrong


def biased(mesh, layout, q, k, v):
    """Sentences about gradients of biases that are sharded along the batch and the rows, or along neither."""
    wrong = []
    for shape in ((2, 1, LENGTH, LENGTH), (1, 4, 1, LENGTH), (1, 1, LENGTH, 1)):
        bias = jnp.asarray(np.random.default_rng(3).standard_normal(shape), "float32")

        def on_ranks(bias):
            given = [layout.shard(x) for x in (q, k, v)]
            words = {"mesh": mesh, "axis": "seq", "batch_axis": "data", "layout": layout, "causal": True}
            sharded = layout.shard(bias) if bias.shape[2] > 1 else bias
            out = onepass.jax.context_parallel_attention(*given, bias=sharded, scheme="gather", **words)
            return (layout.whole(out) ** 2).sum()

        def on_one(bias):
            return (onepass.jax.attention(q, k, v, bias=bias, mask="causal_top_left") ** 2).sum()

        mine, one = jax.jit(jax.grad(on_ranks))(bias), jax.grad(on_one)(bias)
        if not np.abs(mine - one).max() < 1e-5 * max(1, np.abs(one).max()):
            wrong.append(f"a bias of shape {shape} with a batch axis")
    return wrong


def dropped(ranks):
    """Sentences about weights that dropout leaves on ranks, and not on one device, or the other way."""
    wrong, (q, k, *_) = [], inputs(48)
    v, layout = jnp.broadcast_to(jnp.eye(48), (1, 2, 48, 48)), Layout.zigzag(48, ranks, multiple=4)
    words = {"dropout_p": 0.4, "seed": 7}
    whole = onepass.jax.attention(q, k, v, mask="causal_top_left", **words) != 0
    for scheme in SCHEMES:
        more = {"mesh": mesh_of(ranks), "axis": "seq", "layout": layout, "scheme": scheme, "causal": True}
        out = onepass.jax.context_parallel_attention(*(layout.shard(x) for x in (q, k, v)), **words, **more)
        if not ((layout.whole(out) != 0) == whole).all():
            wrong.append(f"dropout on {ranks} ranks: {scheme}")
    return wrong


def seeded():
    """Sentences about seeds in arrays that drop other weights than the same numbers, or a key's than on one device."""
    wrong, given = [], inputs(48)[:3]
    layout = Layout.zigzag(48, 4, multiple=4)
    shards = [layout.shard(x) for x in given]
    nodes = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("nodes", "seq"))
    meshes = {scheme: {"mesh": mesh_of(4), "axis": "seq"} for scheme in SCHEMES}
    for scheme, more in (meshes | {"mesh": {"mesh": nodes, "axis": ("nodes", "seq")}}).items():
        more |= {"scheme": scheme, "causal": True, "layout": layout, "dropout_p": 0.4}

        def results(seed, more=more):
            def of(*shards):
                out = onepass.jax.context_parallel_attention(*shards, seed=seed, **more)
                return (out.astype("float32") ** 2).sum(), out

            grads, out = jax.grad(of, (0, 1, 2), has_aux=True)(*shards)
            return (out, *grads)

        traced = jax.jit(results)
        for seed in (7, 123456):
            pairs = zip(traced(jnp.uint32(seed)), jax.jit(lambda seed=seed: results(seed))())
            if not all((mine == of_number).all() for mine, of_number in pairs):
                wrong.append(f"the seed {seed} in an array: {scheme}")
        if traced._cache_size() != 1:
            wrong.append(f"a seed in an array is compiled again: {scheme}")
        key = jax.random.key(5)
        one = onepass.jax.attention(*given, mask="causal_top_left", dropout_p=0.4, seed=key)
        if not np.abs(layout.whole(traced(key)[0]) - one).max() < 1e-5:
            wrong.append(f"a key: {scheme}")
    return wrong


if __name__ == "__main__":
    counts, wrong = zip(*(compared(ranks) for ranks in (2, 3, 8)))
    others = [*transformed(), *dropped(3), *seeded(), *reproduced()]
    print(json.dumps({"compared": sum(counts), "wrong": [*itertools.chain(*wrong), *others]}))
