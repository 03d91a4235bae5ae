"""Second derivatives of onepass.jax: both modes over each other, beside JAX's own of the formula."""

import numpy as np
import pytest
from conftest import jax_or_skip, normal

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402

SHAPES = {"q": (2, 4, 7, 8), "k": (2, 2, 9, 8), "v": (2, 2, 9, 5), "bias": (4, 7, 9), "sinks": (4,)}
CASES = {"plain": {}, "softcap": {"softcap": 2.0}, "causal": {"mask": "causal_bottom_right"}}


def textbook(q, k, v, bias=0.0, sinks=None, softcap=0.0, mask=None):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    s = softcap * jnp.tanh(s / softcap) if softcap else s
    s = s + bias
    if mask:
        seen = jnp.arange(s.shape[-1]) <= jnp.arange(s.shape[-2])[:, None] + s.shape[-1] - s.shape[-2]
        s = jnp.where(seen, s, -jnp.inf)
    if sinks is not None:
        s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))], -1)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1)[..., : v.shape[-2]], v), jax.nn.logsumexp(s, -1)


def mine(q, k, v, **options):
    return onepass.jax.attention(q, k, v, return_lse=True, **options)


def loss_of(function, **options):
    def loss(x):
        out, lse = function(**x, **options)
        return jnp.sin(out).sum() + jnp.cos(lse).sum()

    return loss


def close(found, expected, tolerance=1e-4):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(np.abs(np.asarray(b, np.float32)).max()))
        np.testing.assert_allclose(np.asarray(a, np.float32) / scale, np.asarray(b, np.float32) / scale,
                                   rtol=tolerance, atol=tolerance)  # fmt: skip


def numbers(rng, names=tuple(SHAPES)):
    return [{name: jnp.asarray(normal(rng, SHAPES[name])) for name in names} for _ in range(2)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_forward_over_reverse(rng, case, jit):
    x, t = numbers(rng)

    def hvp(function):
        f = lambda x, t: jax.jvp(jax.grad(loss_of(function, **CASES[case])), (x,), (t,))  # noqa: E731
        return (jax.jit(f) if jit else f)(x, t)

    close(hvp(mine), hvp(textbook))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_reverse_over_reverse(rng, case, jit):
    x, w = numbers(rng)

    def twice(function):
        def inner(x):
            first = jax.grad(loss_of(function, **CASES[case]))(x)
            return sum(jnp.sin(first[name] * w[name]).sum() for name in x)

        return (jax.jit(jax.grad(inner)) if jit else jax.grad(inner))(x)

    close(twice(mine), twice(textbook))


def test_reverse_over_forward(rng):
    """A loss of the derivative itself, as MeanFlow's without its stop of gradients."""
    x, t = numbers(rng)

    def gradients(function):
        def loss(x, t):
            (out, lse), (tout, tlse) = jax.jvp(lambda x: function(**x), (x,), (t,))
            return (jnp.sin(tout) * out).sum() + (jnp.cos(tlse) * lse).sum()

        return jax.grad(loss, argnums=(0, 1))(x, t)

    close(gradients(mine), gradients(textbook))


def test_hessian(rng):
    x = {name: jnp.asarray(normal(rng, shape)) for name, shape in
         {"q": (1, 2, 2, 3), "k": (1, 1, 3, 3), "v": (1, 1, 3, 2)}.items()}  # fmt: skip
    close(jax.hessian(loss_of(mine))(x), jax.hessian(loss_of(textbook))(x))


def test_over_examples(rng):
    x, t = numbers(rng, ("q", "k", "v"))
    x, t = ({name: a[:, None] for name, a in y.items()} for y in (x, t))

    def each(function):
        hvp = lambda x, t: jax.jvp(jax.grad(loss_of(function)), (x,), (t,))[1]  # noqa: E731
        twice = jax.grad(lambda x: sum(jnp.square(a).sum() for a in jax.grad(loss_of(function))(x).values()))
        return jax.vmap(hvp)(x, t), jax.vmap(twice)(x), jax.jvp(jax.vmap(jax.grad(loss_of(function))), (x,), (t,))

    close(each(mine), each(textbook))


def test_one_input_alone(rng):
    x, t = numbers(rng, ("q", "k", "v"))
    for name in x:

        def hvp(function, name=name):
            gradient = jax.grad(lambda a: loss_of(function)({**x, name: a}))
            return jax.jvp(gradient, (x[name],), (t[name],))

        close(hvp(mine), hvp(textbook))


def test_16_bits_and_packed_sequences(rng):
    q, k, v = (jnp.asarray(normal(rng, (9, 2, 8)), "bfloat16") for _ in range(3))
    cu = np.int32([0, 4, 8])

    def twice(q, k, v):
        def first(q, k, v):
            out = onepass.jax.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, mask="causal_bottom_right")
            return jnp.sin(out.astype("float32")).sum()

        return jax.grad(lambda *x: jnp.square(jax.grad(first)(*x).astype("float32")).sum(), argnums=(0, 1, 2))(q, k, v)

    found = twice(q, k, v)
    assert all(x.dtype == "bfloat16" and (x[8] == 0).all() for x in found)
    close(found, twice(*(x.astype("float32") for x in (q, k, v))), 5e-2)


def test_an_expression_of_the_scores(rng):
    x, t = numbers(rng, ("q", "k", "v"))

    def hvp(function, **options):
        return jax.jvp(jax.grad(loss_of(function, **options)), (x,), (t,))

    close(hvp(mine, score_mod="2.0 * tanh(score / 2.0)"), hvp(textbook, softcap=2.0))


def test_a_detached_second_derivative(rng):
    x, t = numbers(rng, ("q", "k", "v"))

    def loss(x):
        first, moved = jax.jvp(jax.grad(loss_of(mine)), (x,), (t,))
        return sum((first[name] * jax.lax.stop_gradient(moved[name])).sum() for name in x)

    assert all(bool(jnp.isfinite(a).all()) for a in jax.grad(loss)(x).values())


def test_what_has_none_is_refused(rng):
    x, t = numbers(rng, ("q", "k", "v"))
    slopes = jnp.asarray(normal(rng, (4,)))
    with pytest.raises(NotImplementedError, match="does not support a tangent of alibi_slopes"):
        jax.jvp(jax.grad(lambda s: loss_of(mine, alibi_slopes=s)(x)), (slopes,), (slopes,))
    with pytest.raises(NotImplementedError, match="does not support forward mode over forward mode"):
        jax.jvp(lambda x: jax.jvp(lambda x: mine(**x), (x,), (t,))[1], (x,), (t,))
    with pytest.raises(
        NotImplementedError, match="does not support (third derivatives|forward mode over forward mode)"
    ):
        jax.jvp(lambda x: jax.jvp(jax.grad(loss_of(mine)), (x,), (t,))[1], (x,), (t,))
