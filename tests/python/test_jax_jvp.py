"""Forward mode of onepass.jax: jvp, linearize and jacfwd, beside JAX's own of the formula and slopes in float64."""

import pathlib
import re

import numpy as np
import pytest
from conftest import jax_or_skip, normal

import reference

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

RNG = np.random.default_rng(7)
SHAPES = {"q": (2, 4, 7, 8), "k": (2, 2, 11, 8), "v": (2, 2, 11, 5)}
CASES = {
    "plain": {},
    "causal, cap, window": {"mask": "causal_bottom_right", "softcap": 2.0, "window": (5, 0)},
    "bias, sinks, dropout": {"bias": (4, 7, 11), "sinks": (4,), "dropout_p": 0.3, "seed": 2**63 + 5},
    "slopes, expression": {"bias": (7, 11), "alibi_slopes": (2, 4), "score_mod": "2.0 * tanh(score / 2.0)"},
    "masks": {"bool_mask": RNG.random((2, 1, 7, 11)) < 0.7, "mask_mod": "k_index != 3"},
}


def case_of(rng, case):
    """(differentiable arrays, tangents of them, options)"""
    options = {n: normal(rng, x) if n in ("bias", "sinks", "alibi_slopes") else x for n, x in CASES[case].items()}
    x = {n: normal(rng, shape) for n, shape in SHAPES.items()}
    x |= {n: options.pop(n) for n in ("bias", "sinks") if n in options}
    return x, {n: normal(rng, a.shape) for n, a in x.items()}, options


def textbook(q, k, v, bias=0.0):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5 + bias
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1), v), jax.nn.logsumexp(s, -1)


def mine(q, k, v, **options):
    return onepass.jax.attention(q, k, v, return_lse=True, **options)


def calls(f, *x):
    """The custom calls of a compiled program, by their results."""
    text = jax.jit(f).lower(*x).compile().as_text()
    return [re.search(r'results = "([^"]*)"', line)[1] for line in text.splitlines() if "custom_call_target" in line]


def close(found, expected, tolerance=2e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("case", CASES)
def test_is_the_slope_of_the_reference(rng, case, layout):
    x, t, options = case_of(rng, case)
    swap = (lambda a: np.swapaxes(a, 1, 2)) if layout == "bshd" else (lambda a: a)

    def call(x):
        return mine(**{n: jnp.swapaxes(a, 1, 2) if layout == "bshd" and n in "qkv" else a for n, a in x.items()},
                    layout=layout, **options)  # fmt: skip

    (out, lse), (tout, tlse) = jax.jvp(call, (x,), (t,))

    def at(step):
        moved = {n: a.astype(np.float64) + step * t[n] for n, a in x.items()}
        q, k, v = (moved.pop(n) for n in "qkv")
        return reference.attention(q, k, v, **moved, **options)

    expected = at(0)
    close((swap(out), swap(lse)), expected)
    for found, up, down in zip((tout, tlse), at(1e-5), at(-1e-5), strict=True):
        np.testing.assert_allclose(swap(found), (up - down) / 2e-5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("jit", [False, True])
def test_same_as_jvp_of_the_formula(rng, jit, dtype):
    x = [jnp.asarray(normal(rng, shape), dtype) for shape in SHAPES.values()]
    t = [jnp.asarray(normal(rng, shape), dtype) for shape in SHAPES.values()]
    found = (jax.jit if jit else lambda f: f)(lambda x, t: jax.jvp(mine, x, t))(tuple(x), tuple(t))
    wide = [tuple(y.astype("float32") for y in given) for given in (x, t)]
    assert found[1][0].dtype == dtype
    close(found, jax.jvp(textbook, *wide), 2e-5 if dtype == "float32" else 5e-2)
    for i in range(3):  # one tangent alone: the others are symbolic zeros

        def alone(f, x, t, i=i):
            return jax.jvp(lambda y: f(*x[:i], y, *x[i + 1 :])[0], (x[i],), (t[i],))

        close(alone(mine, x, t), alone(textbook, *wide), 2e-5 if dtype == "float32" else 5e-2)


def test_linearize_and_jacobians(rng):
    x, t, _ = case_of(rng, "plain")
    f, g = (lambda *x: mine(*x)), textbook
    out, push = jax.linearize(f, *x.values())
    wanted, other = jax.linearize(g, *x.values())
    close((out, push(*t.values())), (wanted, other(*t.values())))
    q, k, v = (a[:1, :, :3] for a in x.values())
    for jacobian in (jax.jacfwd, jax.jacrev):
        found = [jacobian(lambda *x, f=f: f(*x)[0][0, 0, 0], (0, 1, 2))(q, k, v) for f in (f, g)]
        close(*found)
    pull = jax.linear_transpose(push, *x.values())
    close(pull((out[0], out[1])), jax.vjp(f, *x.values())[1]((out[0], out[1])), 1e-6)


@pytest.mark.parametrize("case", ["plain", "bias, sinks, dropout"])
def test_vmap_of_jvp_is_a_loop(rng, case):
    x, t, options = case_of(rng, case)
    x, t = ({n: np.stack([a, 2 * a, -a]) for n, a in given.items()} for given in (x, t))
    x["k"] = x["k"][0]  # all examples have it

    def along(x, t):
        return jax.jvp(lambda x: mine(**x, **options), (x,), (t,))

    axes = ({n: None if n == "k" else 0 for n in x}, 0)
    t["k"] = t["k"] * np.ones((3, 1, 1, 1, 1), np.float32)
    found = jax.vmap(along, axes)(x, t)
    pushed = jax.vmap(lambda t: along({n: a if n == "k" else a[0] for n, a in x.items()}, t))(t)
    for i in range(3):
        one = {n: a if n == "k" else a[i] for n, a in x.items()}
        close(jax.tree.map(lambda a, i=i: a[i], found), along(one, {n: a[i] for n, a in t.items()}))
        one = {n: a if n == "k" else a[0] for n, a in x.items()}
        close(jax.tree.map(lambda a, i=i: a[i], pushed), along(one, {n: a[i] for n, a in t.items()}))


def test_packed(rng):
    q, k, v, *t = (normal(rng, (9, 2, 8)) for _ in range(6))
    cu = np.int32([0, 4, 8])
    options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "mask": "causal_bottom_right"}
    (_, lse), (tout, tlse) = jax.jvp(lambda *x: mine(*x, **options), (q, k, v), tuple(t))
    expected = onepass.jvp(q, k, v, *t, **options, return_lse=True)
    close((tout, tlse), (expected[1], expected[3]), 1e-6)
    assert (tout[8] == 0).all() and (tlse[:, 8] == 0).all() and (lse[:, 8] == -np.inf).all()


def test_under_scan_remat_and_shard_map(rng):
    x, t = jnp.asarray(normal(rng, (1, 2, 9, 8))), jnp.asarray(normal(rng, (1, 2, 9, 8)))
    weights = jnp.asarray(normal(rng, (3, 8, 8))) / 3

    def network(attention, x):
        @jax.checkpoint
        def layer(x, w):
            return x + attention(x @ w, x, x)[0], None

        return jax.lax.scan(layer, x, weights)[0]

    close(*(jax.jvp(lambda x, f=f: network(f, x), (x,), (t,)) for f in (mine, textbook)), 1e-4)
    close(*(jax.grad(lambda x, f=f: (network(f, x) ** 2).sum())(x) for f in (mine, textbook)), 1e-3)
    mesh, batch = Mesh(np.array(jax.devices()[:1]), ("b",)), PartitionSpec("b")
    for checked in (True, False):
        for jit in (jax.jit, lambda f: f):
            sharded = jax.shard_map(
                lambda x, t: jax.jvp(lambda x: mine(x, x, x), (x,), (t,)),
                mesh=mesh, in_specs=batch, out_specs=batch, check_vma=checked,
            )  # fmt: skip
            close(jit(sharded)(x, t), jax.jvp(lambda x: textbook(x, x, x), (x,), (t,)))


def test_a_loss_of_the_value_and_a_detached_derivative(rng):
    """MeanFlow's: gradients flow through the value alone, and that of the derivative is never computed."""
    x, t, _ = case_of(rng, "plain")

    def loss(attention, w):
        def net(q):
            return attention(q * w, x["k"] * w, x["v"])[0]

        out, tout = jax.jvp(net, (x["q"],), (t["q"],))
        return ((out - jax.lax.stop_gradient(tout)) ** 2).sum()

    for jit in (jax.jit, lambda f: f):
        found, expected = (jit(jax.value_and_grad(lambda w, f=f: loss(f, w)))(1.3) for f in (mine, textbook))
        close(found, expected, 1e-4)


def test_reverse_mode_makes_the_calls_that_it_needs():
    x = jnp.zeros((1, 2, 8, 8))

    def f(*x):
        return onepass.jax.attention(*x, bias=x[0][0, 0])

    def loss(*x):
        return (f(*x) ** 2).sum()

    assert calls(jax.grad(loss, (0, 1, 2)), x, x, x) == ["out lse", "dq dk dv dbias"]
    assert calls(jax.value_and_grad(lambda x: loss(x, x, x)), x) == ["out lse", "dq dk dv dbias"]
    assert calls(jax.grad(lambda v: onepass.jax.attention(x, x, v).sum()), x) == ["out lse", "dv"]
    assert calls(lambda *x: jax.vjp(f, *x)[1](x[0]), x, x, x) == ["out lse", "dq dk dv dbias"]
    assert calls(f, x, x, x) == ["out"]
    for policy, times in ((None, 2), (jax.checkpoint_policies.everything_saveable, 1)):
        program = str(jax.make_jaxpr(jax.grad(jax.checkpoint(loss, policy=policy)))(x, x, x))
        assert program.count('results="out lse"') + program.count("= onepass_attention[") == times, program


def test_the_example_of_the_documentation(capsys):
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/features/forward_mode.md"
    block = re.search(r"## JAX.*?```python no-test\n(.*?)```", page.read_text(), re.DOTALL)
    exec(block[1], {})
    assert capsys.readouterr().out == "(1, 4, 64, 32)\n"


def test_refusals(rng):
    x = jnp.asarray(normal(rng, (1, 2, 8, 8)))
    slopes = jnp.ones(2)
    with pytest.raises(NotImplementedError, match="does not support a tangent of alibi_slopes in forward mode"):
        jax.jvp(lambda s: onepass.jax.attention(x, x, x, alibi_slopes=s), (slopes,), (slopes,))
    for options, sentence in (
        ({"fp8": True}, "FP8 attention does not support"),
        ({"seqused_k": np.int32([5])}, "attention to a cache .* does not support"),
    ):
        with pytest.raises(ValueError, match=sentence):
            jax.jvp(lambda q, options=options: onepass.jax.attention(q, x, x, **options), (x,), (x,))
    with pytest.raises(NotImplementedError, match="does not support forward mode over forward mode"):
        jax.jvp(lambda q: jax.jvp(lambda q: mine(q, x, x)[0], (q,), (x,))[1], (x,), (x,))
