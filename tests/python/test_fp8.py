"""Numbers to float8_e4m3fn and attention on them: factors, rotations, means, and errors on the CPU."""

import pathlib
import sys

import numpy as np
import onepass
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def numbers(y, descale):
    """The numbers that y stands for, with one factor for each head."""
    return y.astype(np.float32) * descale[..., None]


def dequantized(y, descale):
    """The numbers that y stands for, with a factor for each head or for 128 rows."""
    rows = y.shape[-2]
    return y.astype(np.float32) * np.repeat(descale, 128 if descale.shape[-1] > 1 else rows, -1)[..., :rows, None]


def exact(q, k, v, lse=False):
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * q.shape[-1] ** -0.5
    m = s.max(-1, keepdims=True)
    w = np.exp(s - m)
    total = w.sum(-1, keepdims=True)
    out = w @ v.astype(np.float64) / total
    return (out, (m + np.log(total))[..., 0]) if lse else out


def rmse(x, y):
    return np.sqrt(np.mean((x - y) ** 2))


@pytest.mark.parametrize("factors, shape", [("block", (2, 3, 3)), ("head", (2, 3, 1)), ("tensor", (1, 1, 1))])
def test_factors_are_powers_of_two_that_cut_nothing_off(rng, factors, shape):
    x = rng.standard_normal((2, 3, 300, 64)).astype(np.float32)
    y, descale = onepass.quantize(x, factors=factors)
    assert y.dtype == ml_dtypes.float8_e4m3fn and y.shape == x.shape and descale.shape == shape
    assert (np.frexp(descale)[0] == 0.5).all()
    factor = np.repeat(descale, 128, axis=2)[:, :, :300, None] if factors == "block" else descale[..., None]
    assert (np.abs(x) <= 448 * factor).all()
    np.testing.assert_allclose(y.astype(np.float32) * factor, x, rtol=2**-4, atol=2**-10 * float(descale.max()))


def test_rotated_rows_have_the_same_products(rng):
    q, k = rng.standard_normal((2, 2, 100, 96)).astype(np.float32)
    (q8, fq), (k8, fk) = (onepass.quantize(x, hadamard=True, seed=11) for x in (q, k))
    products = numbers(q8, fq[0]) @ numbers(k8, fk[0]).swapaxes(-1, -2)
    assert rmse(products, q @ k.swapaxes(-1, -2)) < 0.06 * 96**0.5
    assert not np.array_equal(q8.view(np.uint8), onepass.quantize(q, hadamard=True, seed=12)[0].view(np.uint8))


def test_a_nan_stays_in_its_row(rng):
    x = rng.standard_normal((1, 2, 140, 32)).astype(np.float32)
    clean = onepass.quantize(x, mean=True)
    x[0, 1, 7, 3], x[0, 1, 9, 0] = np.nan, np.inf
    y, descale, mean = onepass.quantize(x, mean=True)
    wrong = np.isnan(y.astype(np.float32))
    assert wrong[0, 1, 7, 3] and wrong[0, 1, 9, 0] and wrong.sum() == 2
    assert np.isfinite(mean).all() and np.isfinite(descale).all()
    np.testing.assert_array_equal(mean[0, 0], clean[2][0, 0])


def test_attention_gives_means_back(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 200, 64)).astype(np.float32)
    v += 100
    center = {"center": True}
    assert rmse(onepass.attention(q, k, v, fp8=center), exact(q, k, v)) < 0.01
    assert rmse(onepass.attention(q, k, v, fp8=True), exact(q, k, v)) > 0.1
    mask = np.zeros((200, 200), bool)
    mask[1:] = True  # row 0 sees no key
    out, lse = onepass.attention(q, k, v, fp8=center, bool_mask=mask, return_lse=True)
    assert (out[:, :, 0] == 0).all() and (lse[:, :, 0] == -np.inf).all() and (out[:, :, 1:] > 90).all()


def test_a_row_that_sees_one_key_returns_it(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 40, 64)).astype(np.float32)
    v8, v_descale = onepass.quantize(v)
    out = onepass.attention(q, k, v, fp8=True, mask="causal_top_left", window=(0, 0))
    np.testing.assert_allclose(out, numbers(v8, v_descale), rtol=1e-6)  # to V's own rounding, and no other


# Goals by the number of keys: with random signs and Hadamard, factors for each head and for 128 rows.
@pytest.mark.parametrize("keys, goal", [(1024, 9.1e-3), (4096, 9.2e-3), (16384, 1.25e-2)])
def test_outliers_are_spread(rng, keys, goal):
    def draw(rows):
        x = rng.standard_normal((1, 1, rows, 128))
        return (x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.001)).astype(np.float32)

    q, k, v = draw(256), draw(keys), draw(keys)
    want, want_lse = exact(q, k, v, lse=True)
    for by_block in (False, True):
        out, lse = onepass.attention(q, k, v, fp8={"by_block": by_block}, return_lse=True)
        assert rmse(out, want) < goal
        # The LSE of the scores that e4m3 leaves; beside the exact one it is as far off as its largest score.
        q8, k8 = (
            onepass.quantize(x, hadamard=True, factors=f) for x, f in ((q, "block"), (k, ("head", "block")[by_block]))
        )
        same = exact(dequantized(*q8), dequantized(*k8), v, lse=True)[1]
        assert (np.abs(lse - same) <= 1e-5 * np.abs(same)).all() and np.abs(lse - want_lse).max() < 1
    assert rmse(onepass.attention(q, k, v, fp8={"hadamard": False}), want) > 1.2 * rmse(out, want)


@pytest.mark.parametrize("keys", [1024, 16384])
def test_a_mean_of_v_is_kept(rng, keys):
    q, k, v = (rng.standard_normal((1, 1, n, 128), dtype=np.float32) for n in (64, keys, keys))
    want = exact(q, k, v + 1)

    def bias(**options):
        out = onepass.attention(q, k, v + 1, **options)
        return (out * want).sum() / (want * want).sum() - 1

    assert abs(bias(fp8={"center": True})) < 1e-3
    for accumulation in ("exact", "fast"):  # which the CPU does not tell apart
        assert abs(bias(fp8=True, accumulation=accumulation)) < 5e-3


def test_tensors_of_a_model():
    sys.path.insert(0, str(ROOT / "demo"))
    import tensors

    if not (fixture := ROOT / "demo/fixture/minilm.safetensors").exists():
        pytest.skip("the demo's tensors are not here")
    found = tensors.read(fixture)[0]
    q, k, v = (np.array(found[n][1], np.float32).reshape(found[n][0]) for n in "qkv")
    want = onepass.attention(q, k, v)
    for how in ({"center": True}, {"by_block": True}, True):
        out = onepass.attention(q, k, v, fp8=how)
        assert (out * want).sum() / (np.linalg.norm(out) * np.linalg.norm(want)) >= 0.999
    # By default: V of some keys is a twentieth of its mean, whose rounding their rows carry with center.
    assert ((out * want).sum(-1) / (np.linalg.norm(out, axis=-1) * np.linalg.norm(want, axis=-1))).min() > 0.99


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("behind", [1e6, np.nan])
def test_tokens_behind_the_last_sequence_change_nothing(center, behind):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((10, 2, 64)).astype(np.float32) for _ in range(3))
    cu = np.array([0, 3, 7], np.int32)

    def attends(*qkv):
        return onepass.attention(*qkv, cu_seqlens_q=cu, cu_seqlens_k=cu, fp8={"center": center})

    expected = attends(q, k, v)
    for x in (q, k, v):
        x[7:] = behind
    np.testing.assert_array_equal(attends(q, k, v)[:7], expected[:7])


def test_what_is_refused(rng):
    x = rng.standard_normal((1, 2, 5, 8)).astype(np.float32)
    with pytest.raises(ValueError, match=r"factors must be 'block', 'head' or 'tensor' \(got 'row'\)"):
        onepass.quantize(x, factors="row")
    with pytest.raises(ValueError, match="rows of x must have 1 to 256 elements .got 300"):
        onepass.quantize(rng.standard_normal((2, 300)).astype(np.float32))
    with pytest.raises(
        ValueError, match="fp8 does not support the key 'blocks'; its keys are by_block, hadamard, center, seed"
    ):
        onepass.attention(x, x, x, fp8={"blocks": True})
    for dtype, what in (
        (ml_dtypes.float8_e4m3fn, "fp32, fp16 or bf16 .got fp8_e4m3"),
        (np.float64, r"float32.* \(got float64\)"),
    ):
        y = x.astype(dtype)
        with pytest.raises(TypeError, match=f"q (is|must be) {what}"):
            onepass.attention(y, y, y, fp8=True)
    for other in (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz):
        with pytest.raises(TypeError, match=rf"k must be .* ml_dtypes.float8_e4m3fn \(got {np.dtype(other).name}\)"):
            onepass.attention(x, x.astype(other), x.astype(other))
    with pytest.raises(ValueError, match="out must not share memory with q"):
        onepass.attention(x, x, x, fp8=True, out=x)
    with pytest.raises(ValueError, match="attention_fp8 does not support v_descale; it computes the scales and means"):
        onepass.attention(x, x, x, fp8=True, v_descale=np.ones(1, np.float32))
