"""onepass.jax.weights beside onepass.weights, which test_key_mass.py compares with float64, traced and not."""

import functools

import numpy as np
import pytest
from conftest import same
from test_key_mass import DTYPES, FEATURES, HEADS, KEYS, ROWS, TABLE, documents, made, rand


def pieces(options):
    """(arrays, which may be traced; other options, which are static)."""
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    return arrays, {name: x for name, x in options.items() if name not in arrays}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature(rng, jax, feature, dtype):
    import onepass.jax

    q, k, v = made(rng, dtype)
    _, lse = onepass.attention(q, k, v, return_lse=True, **FEATURES[feature])
    arrays, static = pieces(FEATURES[feature])
    for mean in ("heads", None):
        expected = onepass.weights(q, k, lse, mean=mean, **FEATURES[feature])
        call = functools.partial(onepass.jax.weights, mean=mean, **static)
        found = jax.jit(call)(q, k, lse, **arrays)
        assert found.dtype == np.float32
        same(found, expected)


@pytest.mark.parametrize("feature", ["plain", "causal", "bias of heads", "bias of keys", "score_mod", "mask_mod"])
def test_packed_documents(rng, jax, feature):
    """Boundaries that are known, and traced ones, which need the lengths of the map."""
    import onepass.jax

    q, k, lse, lengths, options = documents(rng, feature)
    expected = onepass.weights(q, k, lse, **lengths, **options)
    same(onepass.jax.weights(q, k, lse, **lengths, **options), expected)
    traced = jax.jit(functools.partial(onepass.jax.weights, max_seqlen_q=22, max_seqlen_k=33, **pieces(options)[1]))
    if "bias" not in options:
        found = np.asarray(traced(q, k, lse, **lengths))
        assert found.shape == (3, 22, 33) and not found[:, 20:].any() and not found[:, :, 31:].any()
        np.testing.assert_allclose(found[:, :20, :31], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"max_seqlen_q must be given where cu_seqlens_q is traced \(got None\)"):
        jax.jit(onepass.jax.weights)(q, k, lse, **lengths)


def test_layouts_and_vmap(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    options = dict(mask="causal_bottom_right", bias=rand(HEADS, ROWS, KEYS))
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    expected = onepass.weights(q, k, lse, **options)
    turned = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, lse))
    same(onepass.jax.weights(*turned, layout="bshd", **options), expected)
    mapped = jax.vmap(functools.partial(onepass.jax.weights, **options))
    np.testing.assert_allclose(mapped(q[:, None], k[:, None], lse[:, None])[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_mods_as_functions_and_block_masks(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    table = jax.numpy.asarray(TABLE)
    text = dict(score_mod="score * 0.5 + t(q_index, k_index)", mod_buffers={"t": TABLE}, mask_mod="k_index % 7 < 4")
    _, lse = onepass.attention(q, k, v, return_lse=True, **text)

    def call(q, k, lse, table):
        def mod(score, batch, head, q_index, k_index):
            return score * 0.5 + table[q_index, k_index]

        return onepass.jax.weights(q, k, lse, score_mod=mod, mask_mod=lambda b, h, i, j: j % 7 < 4)

    expected = onepass.weights(q, k, lse, **text)
    np.testing.assert_allclose(jax.jit(call)(q, k, lse, table), expected, rtol=1e-5, atol=1e-6)
    mask = onepass.block_mask("k_index % 7 < 4", ROWS, KEYS)
    _, lse = onepass.attention(q, k, v, return_lse=True, block_mask=mask)
    same(onepass.jax.weights(q, k, lse, block_mask=mask), onepass.weights(q, k, lse, block_mask=mask))


def test_it_has_no_gradient_and_may_be_empty(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    _, lse = onepass.attention(q, k, v, return_lse=True)
    grad = jax.grad(lambda q: onepass.jax.weights(q, k, lse).sum() + (q * q).sum())(q)
    np.testing.assert_allclose(grad, 2 * q, rtol=1e-6)
    assert onepass.jax.weights(q[:, :, :0], k, lse[:, :, :0]).shape == (2, 0, KEYS)
    assert onepass.jax.weights(q, k[:, :, :0], lse, mean=None).shape == (2, HEADS, ROWS, 0)


def test_what_is_refused(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    lse = np.zeros((2, HEADS, ROWS), np.float32)
    for sentence, options in (
        (r"mean must be 'heads' or None \(got 'rows'\)", {"mean": "rows"}),
        ("weights does not support dropout_p", {"dropout_p": 0.5, "seed": 1}),
        ("dimension 2 of bias must be 37 or 1", {"bias": np.zeros((2, HEADS, 3, KEYS), np.float32)}),
        ("cu_seqlens_k must be given for packed sequences", {"cu_seqlens_q": np.int32([0, 9])}),
    ):
        packed = q[0].swapaxes(0, 1), k[0].swapaxes(0, 1), lse[0]
        given = packed if "cu_seqlens_q" in options else (q, k, lse)
        with pytest.raises(ValueError, match=sentence):
            onepass.jax.weights(*given, **options)
    with pytest.raises(TypeError, match="onepass.jax.weights does not accept 'seqused_k'"):
        onepass.jax.weights(q, k, lse, seqused_k=np.int32([3, 4]))
