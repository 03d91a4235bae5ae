"""Functions as score_mod and mask_mod of onepass.jax: by their jaxpr."""

import functools

import numpy as np
import pytest
from conftest import inputs, jax_or_skip, same

jax = jax_or_skip()
import jax.numpy as jnp  # noqa: E402
import onepass  # noqa: E402
import onepass.jax  # noqa: E402

HEADS, ROWS, KEYS = 4, 37, 65
SLOPES = jnp.exp2(-jnp.arange(1.0, HEADS + 1))
TABLE = jnp.asarray(np.random.default_rng(1).standard_normal((HEADS, ROWS + KEYS), dtype=np.float32))
DOCUMENT = jnp.arange(KEYS) // 20

SCORE_MODS = {
    "alibi": (lambda s, b, h, q, k: s - SLOPES[h] * jnp.abs(q - k), lambda s, b, h, q, k: s - SLOPES[h] * abs(q - k)),
    "table": (lambda s, b, h, q, k: s + TABLE[h, q - k], lambda s, b, h, q, k: s + TABLE[h, q - k]),
    "table_by_parts": (lambda s, b, h, q, k: s + TABLE[h][q], lambda s, b, h, q, k: s + TABLE[h, q]),
    "taken": (lambda s, b, h, q, k: s * jnp.take(SLOPES, h), lambda s, b, h, q, k: s * SLOPES[h]),
    "softcap": (lambda s, b, h, q, k: 20 * jnp.tanh(s / 20), lambda s, b, h, q, k: 20 * jnp.tanh(s / 20)),
    "choice": (
        lambda s, b, h, q, k: jnp.where(q // 5 == k // 5, jax.nn.sigmoid(s) ** 2, jnp.clip(s, -1, 2)),
        lambda s, b, h, q, k: jnp.where(q // 5 == k // 5, 1 / (1 + jnp.exp(-s)) ** 2, jnp.clip(s, -1, 2)),
    ),
    "integers": (
        lambda s, b, h, q, k: s + (q - k) % 7 + (q - k) // 3 + jax.lax.rem(q - k, 4) + q / 2,
        lambda s, b, h, q, k: s + (q - k) % 7 + (q - k) // 3 + jnp.fmod(q - k, 4) + q / 2,
    ),
    "relu": (lambda s, b, h, q, k: jax.nn.relu(s) + jnp.sin(s), lambda s, b, h, q, k: jnp.maximum(s, 0) + jnp.sin(s)),
}
MASK_MODS = {
    "documents": lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (q >= k),
    "window": lambda b, h, q, k: (q - k < 9) & ~(k > q) | (k < b + 1),
    "dilated": lambda b, h, q, k: jnp.logical_and(q >= k, (q - k) % 3 == 0),
}


def indices():
    return (
        jnp.arange(n).reshape(shape)
        for n, shape in ((2, (2, 1, 1, 1)), (HEADS, (HEADS, 1, 1)), (ROWS, (ROWS, 1)), (KEYS, (KEYS,)))
    )


def dense(q, k, v, score_mod, mask_mod):
    """Attention with all scores in memory."""
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if score_mod is not None:
        scores = score_mod(scores, *indices())
    if mask_mod is not None:
        scores = jnp.where(mask_mod(*indices()), scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def agree(mine, other):
    np.testing.assert_allclose(mine, other, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", SCORE_MODS)
def test_score_mods(rng, name):
    """The same function of arrays, or one that says the same; with gradients, under jit."""
    q, k, v = map(jnp.asarray, inputs(rng))
    mine, array = SCORE_MODS[name]
    weights = jnp.linspace(-1, 1, v.shape[-1])

    def loss(call, q, k, v):
        return (call(q, k, v) * weights).sum()

    ours = functools.partial(onepass.jax.attention, score_mod=mine)
    theirs = functools.partial(dense, score_mod=array, mask_mod=None)
    agree(jax.jit(ours)(q, k, v), theirs(q, k, v))
    for x, y in zip(*(jax.grad(functools.partial(loss, f), (0, 1, 2))(q, k, v) for f in (ours, theirs))):
        agree(x, y)


@pytest.mark.parametrize("name", MASK_MODS)
def test_mask_mods(rng, name):
    q, k, v = map(jnp.asarray, inputs(rng))
    agree(onepass.jax.attention(q, k, v, mask_mod=MASK_MODS[name]), dense(q, k, v, None, MASK_MODS[name]))


def test_vmap(rng):
    """The queries and a captured array are mapped."""
    q, k, v = map(jnp.asarray, inputs(rng))
    slopes = jnp.stack([SLOPES, 2 * SLOPES])

    def call(q, slopes):
        return onepass.jax.attention(q[None], k[:1], v[:1], score_mod=lambda s, b, h, i, j: s * slopes[h] + h)

    agree(jax.vmap(call)(q, slopes), jnp.stack([call(x, y) for x, y in zip(q, slopes)]))


def test_texts_are_short(rng):
    """JAX's own care for negative indices is gone where an index is not negative."""
    from onepass._flex import jaxpr, trace

    q, k, _ = inputs(rng)
    given = dict(score_mod=SCORE_MODS["alibi"][0], mask_mod=MASK_MODS["documents"], mod_buffers=None, q=q, k=k)
    found = trace.texts(given, jaxpr.call_with)
    assert found["score_mod"] == "score - t0[head] * float(abs(q_index - k_index))"
    assert found["mask_mod"] == "t1[q_index] == t1[k_index] && q_index >= k_index"


def test_captured_arrays_may_be_traced(rng):
    q, k, v = map(jnp.asarray, inputs(rng))

    @jax.jit
    def call(slopes):
        return onepass.jax.attention(q, k, v, score_mod=lambda s, b, h, q, k: s * slopes[h] + slopes[:2].sum())

    text = {
        "score_mod": "score * t[head] + s",
        "mod_buffers": {"t": np.asarray(SLOPES), "s": np.asarray(SLOPES[:2].sum())},
    }
    same(call(SLOPES), onepass.attention(*map(np.asarray, (q, k, v)), **text))

    def textbook(slopes):
        return dense(q, k, v, lambda s, b, h, q, k: s * slopes[h] + slopes[:2].sum(), None)

    agree(*(jax.grad(lambda slopes, f=f: jnp.sin(f(slopes)).sum())(SLOPES) for f in (call, textbook)))


@pytest.mark.parametrize(
    "function, sentence",
    [
        (lambda s, b, h, q, k: jax.scipy.special.erf(s), "JAX's erf"),
        (lambda s, b, h, q, k: s + TABLE[h][2:4][1], "JAX's slice"),
        (
            lambda s, b, h, q, k: s + SLOPES.sum() + jnp.cumsum(jnp.stack([s, s]))[0],
            "JAX's|arrays of what they compute",
        ),
    ],
)
def test_refusals_name_the_operation(rng, function, sentence):
    with pytest.raises(TypeError, match="do not support .*(" + sentence + ")"):
        onepass.jax.attention(*map(jnp.asarray, inputs(rng)), score_mod=function)
