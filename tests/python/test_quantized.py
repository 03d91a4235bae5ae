"""The result of quantize carries everything that attention needs, so that nothing can be forgotten."""

import copy
import pickle

import numpy as np
import onepass
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

ROTATED = dict(hadamard=True, seed=5)


def numbers(rng):
    q, k, v = rng.standard_normal((3, 2, 4, 150, 32)).astype(np.float32)
    return q, k, v + 1


def test_attention_reads_everything_from_it(rng):
    q, k, v = numbers(rng)
    q8, k8, v8 = (
        onepass.quantize(q, factors="block", **ROTATED),
        onepass.quantize(k, **ROTATED),
        onepass.quantize(v, mean=True),
    )
    assert (q8.hadamard, q8.seed, q8.mean) == (True, 5, None) and not v8.hadamard
    assert v8.mean.shape == (2, 4, 32) and q8.shape == q.shape and q8.dtype == ml_dtypes.float8_e4m3fn
    data, descale = k8  # the pair that it has always been
    assert data is k8.data and descale is k8.descale and len(v8) == 3
    options = dict(return_lse=True, mask="causal_top_left")
    out, lse = onepass.attention(q8, k8, v8, **options)
    same = onepass.attention(
        q8[0], k8[0], v8[0], q_descale=q8[1], k_descale=k8[1], v_descale=v8[1], v_mean=v8[2], **options
    )
    np.testing.assert_array_equal(out, same[0])
    np.testing.assert_array_equal(lse, same[1])
    np.testing.assert_allclose(out.astype(np.float32), onepass.attention(q, k, v, mask="causal_top_left"), atol=0.2)
    assert "fp8_e4m3" in onepass.explain(q8, k8, v8).splitlines()[0]


def test_a_cache_beside_16_bit_queries(rng):
    q, k, v = numbers(rng)
    k8, v8 = onepass.quantize(k), onepass.quantize(v)
    out = onepass.attention(q, k8, v8)
    np.testing.assert_array_equal(out, onepass.attention(q, k8[0], v8[0], k_descale=k8[1], v_descale=v8[1]))
    shifted = onepass.attention(q, k8.with_data(k8.data[:, :, :100]), v8.with_data(v8.data[:, :, :100]))
    np.testing.assert_allclose(shifted, onepass.attention(q, k[:, :, :100], v[:, :, :100]), atol=0.2)


def test_what_does_not_belong_together_is_refused(rng):
    q, k, v = numbers(rng)
    plain, rotated = (onepass.quantize(k, **how) for how in ({}, ROTATED))
    other = onepass.quantize(q, hadamard=True, seed=6)
    v8, one = onepass.quantize(v, mean=True), np.ones(1, np.float32)
    for call, sentence in (
        (
            (plain, rotated, v8),
            r"q and k must be rotated with the same seed, or not at all \(q is not rotated, k is rot",
        ),
        ((other, rotated, v8), r"\(q is rotated with seed 6, k is rotated with seed 5\)"),
        ((q, rotated, v8), "q is not rotated, k is rotated with seed 5"),
        ((plain, plain, rotated), "v must not be rotated: quantize it with hadamard=False"),
        ((v8, plain, v8), "q must be quantized with mean=False: attention restores the mean of v only"),
        ((plain, plain, v8, dict(k_descale=one)), "k_descale must be None, because k is Quantized"),
        ((plain, plain, v8, dict(v_mean=one)), "v_mean must be None, because v is Quantized"),
        ((plain, plain, v8, dict(fp8=True)), "fp8 must be False, because q, k or v is quantized already"),
    ):
        options = call[3] if len(call) > 3 else {}
        for function in (onepass.attention, onepass.explain):
            with pytest.raises(ValueError, match=sentence):
                function(*call[:3], **options)


def test_copies_keep_everything(rng):
    x = onepass.quantize(numbers(rng)[2], mean=True, **ROTATED)
    assert repr(x) == "Quantized(shape [2, 4, 150, 32], descale [2, 4, 1], mean, hadamard, seed 5)"
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert (type(y), y.how) == (onepass.Quantized, (True, 5))
        for mine, theirs in zip(y, x, strict=True):
            np.testing.assert_array_equal(np.asarray(mine).view(np.uint8), np.asarray(theirs).view(np.uint8))


def test_tensors(torch, device):
    import onepass.torch

    q, k, v = torch.randn(3, 2, 4, 150, 32, device=device)
    q8, k8 = (onepass.torch.quantize(x, **ROTATED) for x in (q, k))
    v8 = onepass.torch.quantize(v, mean=True)
    assert q8.dtype == torch.float8_e4m3fn and q8.how == (True, 5) and v8.mean.shape == (2, 4, 32)
    for mine, theirs in zip(v8, onepass.quantize(v, mean=True), strict=True):
        torch.testing.assert_close(mine.view(torch.uint8), theirs.view(torch.uint8), rtol=0, atol=0)
    words = dict(q_descale=q8[1], k_descale=k8[1], v_descale=v8[1], v_mean=v8[2])
    out = onepass.torch.attention(q8, k8, v8)
    torch.testing.assert_close(out, onepass.torch.attention(q8[0], k8[0], v8[0], **words), rtol=0, atol=0)
    torch.testing.assert_close(onepass.attention(q8, k8, v8), out, rtol=0, atol=0)
    with pytest.raises(ValueError, match="q and k must be rotated with the same seed"):
        onepass.torch.attention(onepass.torch.quantize(q), k8, v8)
    with pytest.raises(RuntimeError, match=r"x.requires_grad is set, but quantize does not return its gradient"):
        onepass.torch.quantize(q.requires_grad_())


def test_compiled(torch, device):
    import onepass.torch

    q, k, v = torch.randn(3, 2, 4, 150, 32, device=device)

    def layer(q, k, v):
        q, k = (onepass.torch.quantize(x, hadamard=True) for x in (q, k))
        return onepass.torch.attention(q, k, onepass.torch.quantize(v, mean=True))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), layer(q, k, v), rtol=0, atol=0)
    torch.library.opcheck(torch.ops.onepass.quantize.default, (q, "block", True, 3, True))


def test_arrays_of_jax(rng, jax):
    import onepass.jax

    q, k, v = numbers(rng)

    @jax.jit
    def quantized(q, k, v):
        return *(onepass.jax.quantize(x, **ROTATED) for x in (q, k)), onepass.jax.quantize(v, mean=True)

    q8, k8, v8 = quantized(q, k, v)
    assert q8.how == (True, 5) and type(v8) is onepass.Quantized
    words = dict(q_descale=q8[1], k_descale=k8[1], v_descale=v8[1], v_mean=v8[2])
    out = jax.jit(onepass.jax.attention)(q8, k8, v8)
    np.testing.assert_array_equal(out, onepass.jax.attention(q8[0], k8[0], v8[0], **words))
    with pytest.raises(ValueError, match="q and k must be rotated with the same seed"):
        onepass.jax.attention(onepass.jax.quantize(q), k8, v8)
