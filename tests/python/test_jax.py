"""onepass.jax under jit, grad and vmap, beside jax.nn, float64 and onepass on NumPy arrays."""

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import onepass
import pytest
from conftest import TOLERANCE, check, inputs, jax_or_skip, normal, same

import reference

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402

RNG = np.random.default_rng(5)


def btnh(rng, rows=30, keys=50, heads=8, heads_kv=2, dim=64, dtype="float32", batch=(2,)):
    shapes = [(*batch, rows, heads, dim), (*batch, keys, heads_kv, dim), (*batch, keys, heads_kv, dim)]
    return [jnp.asarray(normal(rng, shape), dtype) for shape in shapes]


# As jax.nn.dot_product_attention takes them. No row is without a key: there JAX gives a mean, onepass 0.
MASK = np.concatenate([np.ones((1, 8, 30, 1), bool), RNG.random((1, 8, 30, 49)) < 0.6], axis=-1)
JAX_OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.2},
    "window": {"local_window_size": (7, 3)},
    "causal window": {"is_causal": True, "local_window_size": 5},
    "mask": {"mask": MASK},
    "bias": {"bias": np.linspace(-3, 3, 50, dtype=np.float32)[None, None, None]},
    "all": {"mask": MASK, "bias": normal(RNG, (2, 8, 30, 50)), "is_causal": True},
    "lengths": {"query_seq_lengths": np.int32([30, 11]), "key_value_seq_lengths": np.int32([20, 50])},
    "lengths, mask": {"key_value_seq_lengths": np.int32([20, 50]), "mask": MASK},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", JAX_OPTIONS)
def test_same_as_jax_nn(rng, case, dtype):
    q, k, v = btnh(rng, dtype=dtype)
    given = onepass.jax.dot_product_attention(q, k, v, **JAX_OPTIONS[case])
    wide = [x.astype("float32") for x in (q, k, v)]
    assert given.dtype == q.dtype
    check(given, jax.nn.dot_product_attention(*wide, **JAX_OPTIONS[case]), dtype)


def test_residual_and_no_batch(rng):
    q, k, v = btnh(rng, batch=())
    given = onepass.jax.dot_product_attention(q, k, v, is_causal=True, return_residual=True)
    wanted = jax.nn.dot_product_attention(q, k, v, is_causal=True, return_residual=True)
    for mine, other in zip(given, wanted, strict=True):
        assert mine.dtype == other.dtype
        check(mine, other)


def test_three_dimensions_beside_four(rng):
    q, k, v = btnh(rng, batch=(1,))
    wanted = jax.nn.dot_product_attention(q[0], k, v)
    given = onepass.jax.dot_product_attention(q[0], k, v)
    assert given.shape == wanted.shape
    check(given, wanted)


@pytest.mark.parametrize("case", JAX_OPTIONS)
def test_gradients_same_as_jax_nn(rng, case):
    q, k, v = btnh(rng)

    def gradients(attention):
        return jax.grad(lambda *x: (attention(*x, **JAX_OPTIONS[case]) ** 3).sum(), (0, 1, 2))(q, k, v)

    for mine, other in zip(
        gradients(onepass.jax.dot_product_attention), gradients(jax.nn.dot_product_attention), strict=True
    ):
        np.testing.assert_allclose(mine, other, atol=1e-4, rtol=1e-4)


OPTIONS = {
    "plain": {},
    "bottom right": {"mask": "causal_bottom_right", "window": (20, -1)},
    "offset": {"mask": "causal_offset", "align_offset": 9},
    "mask": {"bool_mask": RNG.random((37, 65)) < 0.3},
    "bias": {"bias": normal(RNG, (4, 1, 65))},
    "slopes": {"alibi_slopes": np.float32([0.5, 0.25, 0.1, 0.0]), "mask": "causal_bottom_right"},
    "sinks, softcap": {"sinks": normal(RNG, (4,)), "softcap": 5.0, "scale": 0.3},
    "dropout": {"dropout_p": 0.3, "seed": 2**64 - 3},
}
SIDE = ("bias", "alibi_slopes", "sinks")


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("case", OPTIONS)
def test_same_as_numpy(rng, case, layout, jit):
    """It is the same call."""
    q, k, v = inputs(rng)
    out, lse = onepass.attention(q, k, v, return_lse=True, **OPTIONS[case])
    if layout == "bshd":
        q, k, v, out, lse = (x.swapaxes(1, 2) for x in (q, k, v, out, lse))

    def call(*x):
        return onepass.jax.attention(*x, layout=layout, return_lse=True, **OPTIONS[case])

    given = (jax.jit(call) if jit else call)(q, k, v)
    same(given[0], out)
    same(given[1], lse)


@pytest.mark.parametrize("case", OPTIONS)
def test_gradients_in_float64(rng, case):
    """Along a random direction, of out and lse and everything that has a gradient."""
    q, k, v = inputs(rng)
    options = {name: x for name, x in OPTIONS[case].items() if name not in SIDE}
    side = {name: x for name, x in OPTIONS[case].items() if name in SIDE}
    at = {"q": q, "k": k, "v": v, **side}
    lse = reference.attention(q, k, v, **OPTIONS[case])[1]
    by_out, by_lse = normal(rng, (2, 4, 37, 24)), np.where(np.isfinite(lse), normal(rng, (2, 4, 37)), 0)

    def loss(of, arrays, namespace):
        out, lse = of(arrays, options)
        return (out * by_out).sum() + namespace.where(namespace.isfinite(lse), lse * by_lse, 0).sum()

    def in_jax(arrays, options):
        return onepass.jax.attention(**arrays, return_lse=True, **options)

    def in_float64(arrays, options):
        return reference.attention(**arrays, **options)

    given = jax.jit(jax.grad(lambda arrays: loss(in_jax, arrays, jnp)))(at)
    for name in at:
        direction = normal(rng, at[name].shape)
        step = 1e-4
        ends = [
            loss(in_float64, {**at, name: at[name].astype(np.float64) + sign * step * direction}, np)
            for sign in (1, -1)
        ]
        wanted = (ends[0] - ends[1]) / (2 * step)
        terms = np.asarray(given[name], np.float64) * direction
        assert abs(terms.sum() - wanted) <= 2e-5 * np.abs(terms).sum() + 1e-4, name


def test_bfloat16_gradients(rng):
    q, k, v = btnh(rng, dtype="bfloat16")

    def gradients(attention, *arrays):
        return jax.grad(lambda *x: (attention(*x, is_causal=True).astype("float32") ** 2).sum(), (0, 1, 2))(*arrays)

    wanted = gradients(jax.nn.dot_product_attention, *(x.astype("float32") for x in (q, k, v)))
    for mine, other in zip(gradients(onepass.jax.dot_product_attention, q, k, v), wanted, strict=True):
        assert mine.dtype == "bfloat16"
        size = np.abs(other).max()
        assert np.abs(np.asarray(mine, np.float32) - other).max() <= 2 * TOLERANCE["bfloat16"] * size


def test_only_the_gradients_that_are_asked_for(rng):
    """The gradient of a bias costs a sum over the batch; it is not requested here."""
    q, k, v = inputs(rng)
    bias = normal(rng, (37, 65))
    program = jax.jit(jax.grad(lambda q: onepass.jax.attention(q, k, v, bias=bias).sum()))
    assert 'results = "dq"' in program.lower(q).compile().as_text()


def results_of(text):
    return [re.search(r'results = "([^"]*)"', line)[1] for line in text.splitlines() if "custom_call_target" in line]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_nothing_is_copied(rng, layout):
    x = jnp.asarray(normal(rng, (2, 16, 16, 64)))

    def step(q, k, v):
        return jax.value_and_grad(lambda *x: onepass.jax.attention(*x, layout=layout).sum(), (0, 1, 2))(q, k, v)

    text = jax.jit(step).lower(x, x, x).compile().as_text()
    assert results_of(text) == ["out lse", "dq dk dv"]
    assert not re.search(r" (copy|transpose)\(", text)
    text = jax.jit(jax.vmap(onepass.jax.attention)).lower(*(x[None],) * 3).compile().as_text()
    assert results_of(text) == ["out"]
    assert not re.search(r" (copy|transpose|while)\(", text)


VMAPPED = {
    "q, k, v": ((0, 0, 0), {}, {}),
    "q alone": ((0, None, None), {"mask": "causal_bottom_right"}, {}),
    "v, last axis": ((None, None, 3), {}, {}),
    "mapped bias": ((0, 0, 0), {}, {"bias": (3, 1, 4, 1, 6)}),
    "mapped bias of batches": ((0, 0, 0), {}, {"bias": (3, 2, 1, 5, 6)}),
    "mapped slopes": ((0, 0, 0), {}, {"alibi_slopes": (3, 4)}),
    "mapped sinks": ((0, 0, 0), {}, {"sinks": (3, 4)}),
    "shared bias": ((0, 0, 0), {"bias": normal(RNG, (1, 4, 5, 6))}, {}),
    "shared bias of batches": ((0, 0, 0), {"bias": normal(RNG, (2, 1, 5, 6))}, {}),
    "shared slopes of batches": ((0, 0, 0), {"alibi_slopes": np.abs(normal(RNG, (2, 4)))}, {}),
    "shared sinks": ((0, 0, 0), {"sinks": normal(RNG, (4,))}, {}),
    "shared lengths": ((0, 0, 0), {"seqused_k": np.int32([3, 6])}, {}),
    "dropout": ((0, 0, 0), {"dropout_p": 0.4, "seed": 3}, {}),
    "expression": ((0, 0, 0), {"score_mod": "score - 0.25f * batch"}, {}),
}


@pytest.mark.parametrize("case", VMAPPED)
def test_vmap_is_a_loop(rng, case):
    """Values and gradients, also those of what is not mapped."""
    axes, shared, mapped = VMAPPED[case]
    shapes = [(2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8)]
    arrays = [
        normal(rng, shape if axis is None else (*shape[:axis], 3, *shape[axis:]))
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    side = {name: np.abs(normal(rng, shape)) for name, shape in mapped.items()}
    wanted = [name for name in SIDE if name in shared]
    fixed = {name: x for name, x in shared.items() if name not in wanted}

    def value(q, k, v, side, learnt):
        return onepass.jax.attention(q, k, v, return_lse=True, **fixed, **side, **learnt)

    def loss(*x):
        out, lse = value(*x)
        return (out**2).sum() + lse.sum()

    learnt = {name: shared[name] for name in wanted}
    functions = [value] if "seqused_k" in shared else [value, jax.grad(loss, (0, 1, 2, 3, 4))]
    for function in functions:
        given = jax.vmap(function, in_axes=(*axes, 0, None))(*arrays, side, learnt)
        for i in range(3):
            one = [x if axis is None else jnp.take(x, i, axis) for x, axis in zip(arrays, axes, strict=True)]
            expected = function(*one, {name: x[i] for name, x in side.items()}, learnt)
            for mine, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(mine[i], other, atol=2e-5, rtol=2e-5)


def test_vmap_of_vmap_under_jit(rng):
    q, k, v = (normal(rng, (2, 3, 2, 2, 7, 16)) for _ in "qkv")
    given = jax.jit(jax.vmap(jax.vmap(onepass.jax.attention)))(q, k, v)
    for i in np.ndindex(2, 3):
        check(given[i], onepass.attention(q[i], k[i], v[i]))


def test_remat_and_scan(rng):
    """Layers in a scan, each computed again in the backward, as large models are trained."""
    x = jnp.asarray(normal(rng, (1, 2, 9, 16)))
    weights = jnp.asarray(normal(rng, (3, 16, 16))) / 4

    def network(weights, attention):
        def layer(x, w):
            return attention(x @ w, x, x), None

        return (jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2).sum()

    def plain(q, k, v):
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) / 4) @ v

    given = jax.jit(jax.grad(lambda w: network(w, onepass.jax.attention)))(weights)
    np.testing.assert_allclose(given, jax.grad(lambda w: network(w, plain))(weights), atol=1e-5, rtol=1e-4)


SHARDED = """
import jax, numpy as np, onepass.jax
P, auto = jax.sharding.PartitionSpec, jax.sharding.AxisType.Auto
mesh = jax.make_mesh((2,), ("devices",), axis_types=(auto,))
x = jax.random.normal(jax.random.key(0), (4, 2, 16, 8))
k = x[:, :1]
def whole(q, k):
    return onepass.jax.attention(q, k, k, mask="causal_top_left")
shared = jax.shard_map(whole, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"), check_vma=False)
def gradients(f):
    return jax.jit(jax.grad(lambda q, k: (f(q, k) ** 2).sum(), (0, 1)))
for mine, other in zip(gradients(shared)(x, k), gradients(whole)(x, k)):
    np.testing.assert_allclose(mine, other, atol=1e-6)
assert "all-gather" not in jax.jit(shared).lower(x, k).compile().as_text()
"""


def test_shard_map():
    """Over two devices, made of one CPU in a process of its own; each computes its part."""
    if not hasattr(jax, "shard_map"):
        pytest.skip("this jax has no jax.shard_map")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", SHARDED], env=os.environ | flags, check=True)


def test_packed(rng):
    """Tokens behind the last sequence are 0, and have no gradient."""
    cu = np.int32([0, 5, 5, 21])
    q, k, v = (normal(rng, (24, heads, 16)) for heads in (4, 2, 2))
    options = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, mask="causal_bottom_right", return_lse=True)
    out, lse = onepass.attention(q, k, v, **options)
    given, given_lse = jax.jit(lambda *x: onepass.jax.attention(*x, **options))(q, k, v)
    same(given, out)
    same(given_lse, lse)
    gradients = jax.grad(lambda *x: (onepass.jax.attention(*x, **options)[0] ** 2).sum(), (0, 1, 2))(q, k, v)
    del options["return_lse"]
    wanted = onepass.attention_backward(2 * out, q, k, v, out, lse, **options)
    for mine, other in zip(gradients, wanted, strict=True):
        same(mine, other)
        assert not np.asarray(mine)[21:].any()


def test_pages(rng):
    pages_k, pages_v = (normal(rng, (7, 4, 2, 16)) for _ in "kv")
    options = dict(page_table=rng.permutation(6).reshape(2, 3).astype(np.int32), seqused_k=np.int64([9, 3]))
    q = normal(rng, (2, 4, 1, 16))
    out = onepass.attention(q, pages_k, pages_v, **options)
    same(onepass.jax.attention(q, pages_k, pages_v, **options), out)
    rows_first = onepass.jax.attention(q.swapaxes(1, 2), pages_k, pages_v, layout="bshd", **options)
    same(rows_first.swapaxes(1, 2), out)
    with pytest.raises(ValueError, match="attention to a cache .* does not support gradients"):
        jax.grad(lambda q: onepass.jax.attention(q, pages_k, pages_v, **options).sum())(q)


def test_expressions_read_buffers(rng):
    q, k, v = inputs(rng)
    table = normal(rng, (4, 65))
    options = dict(score_mod="score + table(head, k_index)", mod_buffers={"table": table})
    given = jax.jit(lambda *x: onepass.jax.attention(*x, **options))(q, k, v)
    same(given, onepass.attention(q, k, v, **options))


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (1, 2, 0, 8)])
def test_nothing_to_compute(shape):
    x = np.zeros(shape, np.float32)
    assert onepass.jax.attention(x, x, x).shape == shape
    assert jax.grad(lambda q: onepass.jax.attention(q, x, x).sum())(x).shape == shape


def test_no_keys(rng):
    q, k = normal(rng, (1, 2, 3, 8)), np.zeros((1, 2, 0, 8), np.float32)
    out, lse = onepass.jax.attention(q, k, k, return_lse=True)
    assert not np.asarray(out).any() and (lse == -np.inf).all()


@pytest.mark.parametrize(
    ("name", "left_out"), [("attention", {"out", "recomputed"}), ("append_kv", {"q_out"}), ("quantize", set())]
)
def test_it_takes_what_onepass_takes(name, left_out):
    """But for arrays that are written to, and with the same defaults."""
    theirs, mine = ({**inspect.signature(getattr(of, name)).parameters} for of in (onepass, onepass.jax))
    for parameters in (theirs, mine):
        parameters.pop("unknown", None)  # what is refused by name
    assert theirs.keys() - mine.keys() == left_out
    assert all(mine[x].default == theirs[x].default for x in theirs.keys() & mine.keys())


def test_the_demo_that_trains(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[2] / "demo"))
    losses = importlib.import_module("train_jax").main("--steps 25 --width 32 --heads 2 --seq 32 --layers 1".split())
    assert losses["onepass.jax"][-1] < losses["onepass.jax"][0] - 0.5
    np.testing.assert_allclose(losses["onepass.jax"], losses["jax.nn"], atol=1e-4)
    assert "the largest difference between the two losses" in capsys.readouterr().out
