"""Every option against the float64 reference."""

import numpy as np
import onepass
import pytest
from conftest import agrees, check, inputs, normal

import reference

MASKS = [None, "causal_bottom_right", "causal_top_left", "aligned_top_left"]


@pytest.mark.parametrize("rows, keys", [(37, 65), (65, 37), (1, 200), (130, 130)])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(rng, mask, rows, keys):
    agrees(onepass.attention, *inputs(rng, rows=rows, keys=keys), mask=mask)


@pytest.mark.parametrize("window", [(-1, -1), (5, -1), (-1, 5), (9, 3), (0, 0)])
@pytest.mark.parametrize("mask", [None, "aligned_top_left"])
def test_windows(rng, mask, window):
    agrees(onepass.attention, *inputs(rng), mask=mask, window=window)


@pytest.mark.parametrize("offset", [-50, -3, 0, 11, 64, 500, 2**60, -(2**60)])
@pytest.mark.parametrize(
    "mask, window", [("causal_offset", None), ("aligned_offset", (9, 3)), ("causal_offset", (7, -1))]
)
def test_offsets(rng, mask, window, offset):
    agrees(onepass.attention, *inputs(rng), mask=mask, align_offset=offset, window=window)


@pytest.mark.parametrize("mask", ["causal_offset", "aligned_offset"])
def test_alibi_counts_from_the_offset(rng, mask):
    slopes = rng.random(4).astype(np.float32)
    agrees(onepass.attention, *inputs(rng), mask=mask, align_offset=np.int64(20), alibi_slopes=slopes)


def test_causal_window(rng):
    agrees(onepass.attention, *inputs(rng), mask="causal_bottom_right", window=(7, 0))


def test_the_two_alignments_differ(rng):
    q, k, v = inputs(rng)
    assert not np.allclose(
        onepass.attention(q, k, v, mask="causal_bottom_right"),
        onepass.attention(q, k, v, mask="causal_top_left"),
        atol=1e-3,
    )


@pytest.mark.parametrize("shape", [(2, 4, 37, 65), (1, 4, 37, 65), (2, 1, 1, 65), (37, 65), (1, 65)])
def test_bool_mask(rng, shape):
    agrees(onepass.attention, *inputs(rng), bool_mask=rng.random(shape) < 0.6)


@pytest.mark.parametrize("shape", [(2, 4, 37, 65), (4, 37, 65), (37, 1), (2, 1, 1, 65)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias(rng, shape, dtype):
    agrees(onepass.attention, *inputs(rng), bias=normal(rng, shape, dtype, spread=2))


def test_bias_in_bfloat16(rng, bfloat16):
    agrees(onepass.attention, *inputs(rng), bias=normal(rng, (37, 65), bfloat16, spread=2))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_alibi(rng, mask, shape):
    agrees(onepass.attention, *inputs(rng), mask=mask, alibi_slopes=rng.random(shape).astype(np.float32))


def test_sinks(rng):
    agrees(onepass.attention, *inputs(rng), sinks=normal(rng, (4,), spread=3), mask="causal_top_left")


def test_scale_and_softcap(rng):
    agrees(onepass.attention, *inputs(rng), scale=0.31, softcap=4.0)
    agrees(onepass.attention, *inputs(rng), scale=-0.1)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropout_is_the_documented_mask(rng, p):
    agrees(onepass.attention, *inputs(rng), dropout_p=p, seed=2**40 + 7)


def test_dropout_follows_the_seed(rng):
    q, k, v = inputs(rng)
    first, again, other = (onepass.attention(q, k, v, dropout_p=0.3, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_everything_at_once(rng):
    agrees(
        onepass.attention,
        *inputs(rng),
        mask="causal_bottom_right",
        window=(40, 0),
        bool_mask=rng.random((37, 65)) < 0.8,
        bias=normal(rng, (4, 1, 65)),
        alibi_slopes=rng.random(4).astype(np.float32),
        sinks=normal(rng, (4,)),
        softcap=20.0,
        scale=0.2,
        dropout_p=0.25,
        seed=3,
    )


@pytest.mark.parametrize("heads, heads_kv", [(1, 1), (8, 8), (8, 2), (16, 1)])
def test_grouped_heads(rng, heads, heads_kv):
    agrees(onepass.attention, *inputs(rng, heads=heads, heads_kv=heads_kv, rows=5))


@pytest.mark.parametrize("dim, dim_v", [(1, 1), (8, 64), (59, 111), (128, 128), (256, 32), (192, 128), (576, 512)])
def test_head_dims(rng, dim, dim_v):
    agrees(onepass.attention, *inputs(rng, batch=1, heads=2, rows=9, dim=dim, dim_v=dim_v), scale=dim**-0.5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(rng, dtype, request):
    element = request.getfixturevalue("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)
    q, k, v = inputs(rng, dtype=element)
    out = agrees(onepass.attention, q, k, v, dtype, mask="causal_bottom_right")
    assert out.dtype == element
    partial = np.empty(out.shape, np.float32)
    assert onepass.attention(q, k, v, mask="causal_bottom_right", out=partial) is partial
    check(partial, reference.attention(q, k, v, mask="causal_bottom_right")[0], dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 37])
def test_narrower_keys_and_values(rng, rows, dtype, request):
    element = request.getfixturevalue("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)
    q, k, v = inputs(rng, rows=rows)
    k, v = k.astype(element), v.astype(element)
    out = agrees(onepass.attention, q, k, v, mask="causal_bottom_right")
    assert out.dtype == np.float32
    dtypes = "fp16 k and v" if dtype == "float16" else "bf16 k and v"
    with pytest.raises(TypeError, match=f"attention_backward does not support {dtypes} with fp32 q"):
        onepass.attention_backward(out, q, k, v, out, np.zeros(out.shape[:3], np.float32))
    with pytest.raises(TypeError, match="k must be float32, as q"):
        onepass.key_mass(q, k, np.zeros(out.shape[:3], np.float32))


@pytest.mark.parametrize("batch, heads, rows, keys", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_sizes_of_zero(rng, batch, heads, rows, keys):
    q, k, v = inputs(rng, batch=batch, heads=heads, heads_kv=heads, rows=rows, keys=keys)
    out, lse = onepass.attention(q, k, v, return_lse=True)
    assert out.shape == (batch, heads, rows, 24) and (out == 0).all() and (lse == -np.inf).all()


def test_rows_without_a_key_are_zero(rng):
    q, k, v = inputs(rng, rows=65, keys=37)
    out, lse = onepass.attention(q, k, v, mask="causal_bottom_right", return_lse=True)
    assert (out[:, :, :28] == 0).all() and (lse[:, :, :28] == -np.inf).all()
    assert np.isfinite(lse[:, :, 28:]).all()


def test_nan_stays_in_the_rows_that_see_it(rng):
    q, k, v = inputs(rng, rows=64, keys=64)
    k[:, :, 40], v[:, :, 40] = np.nan, np.nan
    out = onepass.attention(q, k, v, mask="causal_top_left")
    assert np.isnan(out[:, :, 40:]).all() and np.isfinite(out[:, :, :40]).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": "causal_bottom_right"},
        {"window": (3, 1)},
        {"dropout_p": 0.2, "seed": 5},
        {"mask": "causal_offset", "align_offset": 4},
    ],
)
def test_packed_sequences(rng, options):
    cu_q, cu_k = np.array([0, 5, 5, 40, 41], np.int32), np.array([0, 9, 20, 20, 90], np.int32)
    q, k, v = normal(rng, (41, 4, 32), spread=3), normal(rng, (90, 2, 32)), normal(rng, (90, 2, 16))
    out, lse = onepass.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, **options)
    ref_out, ref_lse = reference.packed(q, k, v, cu_q, cu_k, **options)
    check(out, ref_out)
    check(lse, ref_lse, scale=20)


@pytest.mark.parametrize("kind", ["numpy", "jax", "jax bfloat16"])
def test_tokens_beyond_the_last_sequence_are_empty_rows(rng, kind, request):
    cu = np.array([0, 3, 7], np.int32)
    q = normal(rng, (9, 2, 16))
    if kind != "numpy":
        jax = request.getfixturevalue("jax")
        q = jax.numpy.asarray(q, "bfloat16" if kind.endswith("16") else "float32")
    out, lse = (
        np.asarray(x).astype(float)
        for x in onepass.attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
    )
    assert (out[7:] == 0).all() and (lse[:, 7:] == -np.inf).all() and np.isfinite(lse[:, :7]).all()
    assert (out[:7] != 0).any()


def test_merge_of_splits_is_the_whole(rng):
    q, k, v = inputs(rng, keys=201)
    parts = [
        onepass.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 50), (50, 51), (51, 201))
    ]
    out, lse = onepass.merge(*zip(*parts))
    whole, whole_lse = reference.attention(q, k, v)
    check(out, whole)
    check(lse, whole_lse, scale=20)
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    for same in (
        onepass.merge([out, nothing[0]], [lse, nothing[1]]),
        onepass.merge([nothing[0], out], [nothing[1], lse]),
    ):
        np.testing.assert_array_equal(same[0], out)
        np.testing.assert_array_equal(same[1], lse)


def test_merge_into_a_part(rng):
    """As a ring joins part after part to what it has."""
    q, k, v = inputs(rng, keys=90)
    parts = [onepass.attention(q, k[:, :, a : a + 30], v[:, :, a : a + 30], return_lse=True) for a in (0, 30, 60)]
    first, *others = parts
    expected = first
    for part in others:
        expected = onepass.merge(*zip(expected, part))
    out, lse = first
    for part in others:
        same = onepass.merge([out, part[0]], [lse, part[1]], out=out, lse=lse)
        assert same[0] is out and same[1] is lse
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(lse, expected[1])
    with pytest.raises(ValueError, match=r"out must not share memory with outs\[1\]"):
        onepass.merge([expected[0][:, :, 1:], out[:, :, :-1]], [lse[:, :, 1:]] * 2, out=out[:, :, 1:])


def test_merge_of_packed_results(rng):
    cu_q, cu_k = np.array([0, 3, 7], np.int32), np.array([0, 20, 50], np.int32)
    q, k, v = normal(rng, (7, 2, 16), spread=3), normal(rng, (50, 2, 16)), normal(rng, (50, 2, 16))
    parts = [
        onepass.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, bool_mask=mask, return_lse=True)
        for mask in (np.arange(30) < 11, np.arange(30) >= 11)
    ]
    out, lse = onepass.merge(*zip(*parts))
    ref_out, ref_lse = reference.packed(q, k, v, cu_q, cu_k)
    check(out, ref_out)
    check(lse, ref_lse, scale=20)


def test_explain_names_what_runs(rng):
    q, k, v = inputs(rng)
    text = onepass.explain(q, k, v, mask="causal_bottom_right", softcap=5.0, return_lse=True)
    line, *rows = text.strip().splitlines()
    assert (
        line.startswith("fwd b2 h4/2 s37x65 d40/24 fp32 causal_bottom_right") and "softcap=5" in line and "lse" in line
    )
    assert sum(row.startswith("* ") for row in rows) == 1 and "reference" in rows[-1]
    assert onepass.explain(line) == text
    chosen = next(row for row in rows if row.startswith("* ")).split()[1].rstrip(":")
    np.testing.assert_array_equal(onepass.attention(q, k, v, implementation=chosen), onepass.attention(q, k, v))


def test_float8(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = inputs(rng)

    def quantised(x):
        factor = np.abs(x).max(axis=(2, 3)) / 448
        return (x / factor[..., None, None]).astype(ml_dtypes.float8_e4m3fn), factor

    (q8, q_descale), (k8, k_descale), (v8, v_descale) = map(quantised, (q, k, v))
    descales = {"k_descale": k_descale, "v_descale": v_descale}
    wide = [x.astype(np.float32) * f[..., None, None] for x, f in ((q8, q_descale), (k8, k_descale), (v8, v_descale))]
    expected = onepass.attention(*wide)
    out = onepass.attention(q8, k8, v8, q_descale=q_descale, **descales, accumulation="fast")
    assert out.dtype == "bfloat16" and np.abs(out.astype(np.float32) - expected).max() < 0.02
    cached = onepass.attention(wide[0], k8, v8, **descales)
    assert cached.dtype == np.float32 and np.abs(cached - expected).max() < 1e-5
    with pytest.raises(ValueError, match=r"accumulation must be 'exact' or 'fast' \(got 'quick'\)"):
        onepass.attention(q8, k8, v8, accumulation="quick")
    torch = pytest.importorskip("torch")
    as_torch = [torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn) for x in (q8, k8, v8)]
    same = onepass.attention(*as_torch, q_descale=torch.from_numpy(q_descale), **descales, accumulation="fast")
    assert same.dtype == torch.bfloat16 and np.array_equal(same.float().numpy(), out.astype(np.float32))
