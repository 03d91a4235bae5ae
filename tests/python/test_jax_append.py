"""Caches in onepass.jax: append_kv and merge, beside onepass's of the same names."""

import re

import numpy as np
import onepass
import pytest
from conftest import jax_or_skip, normal, same

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402


def call_of(rng, rotary_dim=16, rows=3, dtype=np.float32):
    """(new keys, new values, caches, options) of two sequences."""
    new_k, new_v = normal(rng, (2, 2, rows, 24), dtype), normal(rng, (2, 2, rows, 16), dtype)
    caches = normal(rng, (2, 2, 12, 24), dtype), normal(rng, (2, 2, 12, 16), dtype)
    angles = rng.random((12, rotary_dim // 2)) * 6
    options = dict(cos=np.cos(angles).astype(dtype), sin=np.sin(angles).astype(dtype))
    return new_k, new_v, caches, options | dict(q=normal(rng, (2, 4, rows, 24), dtype), cache_seqlens=np.int32([7, 0]))


def in_numpy(new_k, new_v, caches, options):
    caches = [x.copy() for x in caches]
    q = onepass.append_kv(new_k, new_v, *caches, **options)
    return *caches, *([] if q is None else [q])


def swapped(x):
    return None if x is None else np.asarray(x).swapaxes(1, 2)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_same_as_numpy(rng, layout, jit, interleaved):
    """It is the same call; what was given stays as it was."""
    new_k, new_v, caches, options = call_of(rng)
    options["interleaved"] = interleaved
    expected = in_numpy(new_k, new_v, caches, options)
    arrays = dict(k_new=new_k, v_new=new_v, k_cache=caches[0], v_cache=caches[1], q=options.pop("q"))
    if layout == "bshd":
        arrays = {name: swapped(x) for name, x in arrays.items()}
    arrays = {name: jnp.asarray(x) for name, x in arrays.items()}
    before = {name: np.array(x) for name, x in arrays.items()}

    def append(arrays):
        return onepass.jax.append_kv(**arrays, **options, layout=layout)

    given = (jax.jit(append) if jit else append)(arrays)
    for mine, other in zip(given, expected, strict=True):
        same(mine, swapped(other) if layout == "bshd" else other)
    for name, x in before.items():
        np.testing.assert_array_equal(arrays[name], x)


def test_pages_and_packed_tokens(rng):
    lengths, used = np.array([4, 0, 1]), np.int64([3, 5, 0])
    cu = np.concatenate([[0], np.cumsum(lengths)])
    new = normal(rng, (7, 2, 16))  # two tokens behind the last sequence
    pools = [normal(rng, (9, 3, 2, 16)) for _ in "kv"]
    options = dict(cache_seqlens=used, page_table=rng.permutation(9).reshape(3, 3), cu_seqlens_q=cu)
    expected = in_numpy(new, new, pools, options)
    for mine, other in zip(jax.jit(lambda *x: onepass.jax.append_kv(*x, **options))(new, new, *pools), expected):
        same(mine, other)
    angles = rng.random((12, 4)).astype(np.float64)  # converted to float32
    options |= dict(cos=np.cos(angles), sin=np.sin(angles), q=new)
    for mine, other in zip(onepass.jax.append_kv(new, new, *pools, **options), in_numpy(new, new, pools, options)):
        same(mine, other)


def test_slots(rng):
    """Slots and positions of int64, from one table of cos and sin, under jit; what is not written stays."""
    new, q = normal(rng, (6, 2, 16)), normal(rng, (6, 4, 16))
    pools = [normal(rng, (5, 4, 2, 16)) for _ in "kv"]
    options = dict(slot_mapping=np.array([7, -1, 19, 0, 8, -3]), positions=np.array([3, 0, 8, 8, 1, 2]), q=q)
    options |= dict(cos_sin_cache=normal(rng, (9, 12)), interleaved=True)
    given = jax.jit(lambda *x: onepass.jax.append_kv(*x, **options))(new, new + 1, *pools)
    for mine, other in zip(given, in_numpy(new, new + 1, pools, options), strict=True):
        same(mine, other)


def test_a_decoder_carries_its_cache(rng):
    """Token by token in a scan, donated, beside attention over all tokens; the caches are not copied."""
    k, v, q = (jnp.asarray(normal(rng, (10, 2, heads, 1, 16))) for heads in (2, 2, 4))
    angles = np.arange(10)[:, None] * 100.0 ** (-np.arange(8) / 8)
    rotary = dict(cos=jnp.cos(angles), sin=jnp.sin(angles))

    def decode(k_cache, v_cache, q, k, v):
        def step(carried, new):
            used, *caches = carried
            *caches, turned = onepass.jax.append_kv(*new[1:], *caches, cache_seqlens=used, q=new[0], **rotary)
            out = onepass.jax.attention(turned, *caches, mask="causal_bottom_right", seqused_k=used + 1)
            return (used + 1, *caches), out

        return jax.lax.scan(step, (jnp.zeros(2, jnp.int32), k_cache, v_cache), (q, k, v))

    program = jax.jit(decode, donate_argnums=(0, 1))
    caches = jnp.full((2, 2, 2, 12, 16), jnp.nan)
    text = program.lower(*caches, q, k, v).compile().as_text()
    assert "onepass_append_kv" in text and not re.search(r"f32\[2,2,12,16\]\S* copy\(", text)
    _, outs = program(*caches, q, k, v)
    every = [np.concatenate(x, axis=2) for x in (q, k, v)]
    empty = np.zeros((2, 2, 2, 10, 16), np.float32)
    rotary = {name: np.asarray(x) for name, x in rotary.items()}
    turned = onepass.append_kv(*every[1:], *empty, cache_seqlens=np.zeros(2, np.int32), q=every[0], **rotary)
    expected = onepass.attention(turned, *empty, mask="causal_top_left")
    np.testing.assert_allclose(np.concatenate(outs, axis=2), expected, atol=1e-5)


def test_vmap_and_refusals(rng):
    new_k, new_v, caches, options = call_of(rng)
    stack = [np.stack([x, x + 1]) for x in (new_k, new_v, *caches)]
    given = jax.vmap(lambda *x: onepass.jax.append_kv(*x, **options))(*stack)
    for i in range(2):
        expected = in_numpy(stack[0][i], stack[1][i], [x[i] for x in stack[2:]], options)
        for mine, other in zip(given, expected, strict=True):
            same(mine[i], other)
    given = dict(k_new=new_k, v_new=new_v, k_cache=caches[0], v_cache=caches[1], **options)
    of_hosts = [
        (
            dict(cache_seqlens=np.int32([7, 10])),
            r"cache_seqlens\[1\] must be 0 to 9 to append 3 tokens to a cache of 12 \(got 10\)",
        )
    ]
    for wrong, sentence in [
        *(of_hosts if jax.default_backend() == "cpu" else []),
        (dict(layout="shbd"), r"layout must be 'bhsd' or 'bshd' \(got 'shbd'\)"),
        (dict(threads=0), r"threads must be .* \(got 0\)"),
        (dict(sin=None), "sin must be given"),
        (dict(q=options["q"][:, :, :1]), "the sequence length of q must be 3, as in k_new"),
        (dict(cache_seqlens=None), r"cache_seqlens or slot_mapping must be an array \(got None\)"),
        (dict(k_new=None), r"k_new must be an array \(got None\)"),
        (dict(v_cache=None), r"v_cache must be an array \(got None\)"),
        (dict(cache_seqlens=np.float32([7, 0])), r"cache_seqlens must be int32 or int64 \(got float32\)"),
        (dict(page_table=np.float32([[0.5], [1]])), r"page_table must be int32 or int64 \(got float32\)"),
        (dict(cos=np.ones((12, 8), np.int32)), r"cos must be float32, float16, bfloat16 or float64 \(got int32\)"),
    ]:
        with pytest.raises((ValueError, TypeError, jax.errors.JaxRuntimeError), match=sentence):
            jax.block_until_ready(onepass.jax.append_kv(**(given | wrong)))
    with pytest.raises(NotImplementedError, match="append_kv does not support gradients"):
        jax.grad(lambda x: onepass.jax.append_kv(**(given | dict(k_new=x)))[0].sum())(new_k)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_merged_parts_are_the_whole_with_gradients(rng, layout):
    """Gradients of attention over pieces of the keys, one of which the first rows do not see."""
    q, k, v = (jnp.asarray(normal(rng, (2, heads, n, 16))) for heads, n in ((4, 9), (2, 30), (2, 30)))
    if layout == "bshd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    axis = 2 if layout == "bhsd" else 1
    mask = np.ones((9, 30), bool)
    mask[:4, 20:] = False

    def whole(q, k, v):
        return onepass.jax.attention(q, k, v, bool_mask=mask, layout=layout, return_lse=True)

    def merged(q, k, v):
        ends = (0, 7, 20, 30)
        parts = [
            onepass.jax.attention(
                q,
                *(jax.lax.slice_in_dim(x, a, b, axis=axis) for x in (k, v)),
                bool_mask=mask[:, a:b],
                layout=layout,
                return_lse=True,
            )
            for a, b in zip(ends, ends[1:])
        ]
        return onepass.jax.merge(*zip(*parts))

    def loss(f, *x):
        out, lse = f(*x)
        return (out**3).sum() + lse.sum()

    for mine, other in zip(jax.jit(merged)(q, k, v), whole(q, k, v), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    gradients = [jax.jit(jax.grad(lambda *x, f=f: loss(f, *x), (0, 1, 2)))(q, k, v) for f in (merged, whole)]
    for mine, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)


def test_merge_is_that_of_numpy(rng):
    """Rows of -inf, whose out is NaN, in some and in all of the parts; packed; 16 bits."""
    outs, lses = normal(rng, (5, 2, 3, 4, 8)), normal(rng, (5, 2, 3, 4), spread=30)
    lses[rng.random(lses.shape) < 0.4] = -np.inf
    lses[:, 0, 0] = -np.inf
    outs[np.isneginf(lses)] = np.nan
    packed = [x[0] for x in outs], [x[0].T for x in lses]
    for given in ((list(outs), list(lses)), packed, ([x.astype(np.float16) for x in outs], list(lses))):
        for mine, other in zip(jax.jit(onepass.jax.merge)(*given), onepass.merge(*given), strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-5, rtol=1e-5)
    gradient = jax.grad(lambda x, y: onepass.jax.merge(list(x), list(y))[0].sum(), (0, 1))(outs, lses)
    assert all(np.isfinite(x).all() for x in gradient)
    for wrong in (([], []), (list(outs), list(lses)[:4]), ([outs[0]], [lses[0, 0]])):
        with pytest.raises(ValueError, match="all of one shape"):
            onepass.jax.merge(*wrong)
    for wrong, sentence in (((np.int32(outs * 0 == 0), lses), "outs"), ((outs, np.float16(lses)), "lses")):
        with pytest.raises(TypeError, match=rf"{sentence}\[0\] must be "):
            onepass.jax.merge(*map(list, wrong))
    parts = [np.ones((1, 1, 1, 2), np.float32), np.full((1, 1, 1, 2), np.nan, np.float32)]
    small = [np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), -200, np.float32)]  # read, though it weighs nothing
    assert np.isnan(onepass.jax.merge(parts, small)[0]).all() and np.isnan(onepass.merge(parts, small)[0]).all()
