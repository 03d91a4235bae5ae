"""onepass.cascade against attention to whole sequences."""

import numpy as np
import onepass
import pytest

RNG = np.random.default_rng(5)
HEADS, HEADS_KV, DIM = 4, 2, 32


def numbers(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def tree(rows):
    """Six sequences in two groups of three: a system prompt of all, a prompt of each group, own keys in pages."""
    own = np.array([9, 33, 1, 16, 40, 5], np.int32)
    first, groups = numbers(2, 70, HEADS_KV, DIM), [numbers(2, n, HEADS_KV, DIM) for n in (41, 100)]
    pool = np.full((2, 20, 16, HEADS_KV, DIM), np.nan, np.float32)
    table = RNG.permutation(20)[:18].astype(np.int32).reshape(6, 3)
    keys = []
    for b, n in enumerate(own):
        mine = numbers(2, n, HEADS_KV, DIM)
        for j in range(n):
            pool[:, table[b, j // 16], j % 16] = mine[:, j]
        keys.append(np.concatenate([first, groups[b // 3], mine], axis=1))
    levels = [
        {"k": first[0], "v": first[1]},
        {
            "k": np.concatenate([g[0] for g in groups]),
            "v": np.concatenate([g[1] for g in groups]),
            "cu_seqlens_q": [0, sum(rows[:3]), sum(rows)],
            "cu_seqlens_k": [0, 41, 141],
        },
        {
            "k": pool[0],
            "v": pool[1],
            "cu_seqlens_q": np.cumsum([0, *rows]),
            "seqused_k": own,
            "page_table": table,
            "mask": "causal_bottom_right",
        },
    ]
    for level in levels[1:]:
        level["cu_seqlens_q"] = np.asarray(level["cu_seqlens_q"], np.int32)
        if "cu_seqlens_k" in level:
            level["cu_seqlens_k"] = np.asarray(level["cu_seqlens_k"], np.int32)
    return levels, keys


def whole(q, rows, keys, **options):
    results, at = [], 0
    for n, (k, v) in zip(rows, keys):
        mine = q[at : at + n].swapaxes(0, 1)[None]
        at += n
        out, lse, most = onepass.attention(
            mine,
            k.swapaxes(0, 1)[None],
            v.swapaxes(0, 1)[None],
            mask="causal_bottom_right",
            return_lse=True,
            return_max=True,
            **options,
        )
        results.append((out[0].swapaxes(0, 1), lse[0], most[0]))
    return [np.concatenate(x, axis) for x, axis in zip(zip(*results), (0, 1, 1))]


@pytest.mark.parametrize(
    "options", [{}, {"sinks": np.array([1, -2, 0.5, 3], np.float32)}, {"softcap": 5.0, "scale": 0.3}]
)
def test_levels_are_the_whole_sequences(options):
    rows = (1, 4, 0, 5, 2, 1)
    levels, keys = tree(rows)
    q = numbers(sum(rows), HEADS, DIM)
    out, lse, most = onepass.cascade(q, levels, return_lse=True, return_max=True, **options)
    expected, expected_lse, expected_max = whole(q, rows, keys, **options)
    np.testing.assert_allclose(most, expected_max, rtol=1e-5, atol=1e-6)
    out, of_heads = onepass.cascade(q, levels, return_max="head", **options)
    assert np.array_equal(of_heads, most.max(1))
    assert np.abs(out - expected).max() < 2e-6
    assert np.abs(lse - expected_lse).max() < 2e-6
    into = np.empty_like(out)
    assert onepass.cascade(q, levels, out=into, **options) is into
    assert np.array_equal(into, out)


def test_one_level_is_attention():
    q, k, v = numbers(7, HEADS, DIM), numbers(50, HEADS_KV, DIM), numbers(50, HEADS_KV, DIM)
    out = onepass.cascade(q, [{"k": k, "v": v}])
    expected = onepass.attention(*(x.swapaxes(0, 1)[None] for x in (q, k, v)))[0].swapaxes(0, 1)
    assert np.abs(out - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("levels", "error", "sentence"),
    [
        ([], ValueError, "levels must hold at least one level"),
        ([3], TypeError, r"levels\[0\] must be a dict of attention's arguments \(got int\)"),
        ([{"k": numbers(4, 2, 32)}], TypeError, r"levels\[0\] must have 'v'"),
        ([{"k": numbers(4, 2, 32), "v": numbers(4, 2, 32), "sinks": None}], TypeError, "must not have 'sinks'"),
    ],
)
def test_refusals(levels, error, sentence):
    with pytest.raises(error, match=sentence):
        onepass.cascade(numbers(3, HEADS, DIM), levels)


def test_row_maxima_are_of_all_levels():
    level = {"k": numbers(4, HEADS_KV, DIM), "v": numbers(4, HEADS_KV, DIM)}
    with pytest.raises(TypeError, match=r"levels\[1\] must not have 'return_max', which is cascade's own"):
        onepass.cascade(numbers(3, HEADS, DIM), [level, level | {"return_max": "head"}])
    with pytest.raises(ValueError, match=r"return_max must be False, True or 'head' \(got 'rows'\)"):
        onepass.cascade(numbers(3, HEADS, DIM), [level], return_max="rows")
    assert isinstance(onepass.cascade(numbers(3, HEADS, DIM), [level], return_max=False), np.ndarray)
    out, most = onepass.cascade(numbers(0, HEADS, DIM), [level], return_max="head")
    assert out.shape == (0, HEADS, DIM) and (most == -np.inf).all()


def test_partial_is_cascades_own():
    level = {"k": numbers(4, HEADS_KV, DIM), "v": numbers(4, HEADS_KV, DIM)}
    with pytest.raises(TypeError, match="cascade does not accept 'partial', which its levels always are"):
        onepass.cascade(numbers(3, HEADS, DIM), [level], partial=True)
    with pytest.raises(TypeError, match=r"levels\[0\] must not have 'partial', which is cascade's own"):
        onepass.cascade(numbers(3, HEADS, DIM), [level | {"partial": False}])


def test_rows_must_be_packed():
    with pytest.raises(ValueError, match=r"q must be packed, \[total, heads, dim\] \(got \[1, 4, 3, 32\]\)"):
        onepass.cascade(numbers(1, HEADS, 3, DIM), [{"k": numbers(4, 2, 32), "v": numbers(4, 2, 32)}])


def test_torch_has_gradients():
    torch = pytest.importorskip("torch")
    import onepass.torch

    q, k, v, a, b = (
        torch.from_numpy(numbers(n, h, DIM)).requires_grad_() for n, h in ((6, 4), (30, 2), (30, 2), (12, 2), (12, 2))
    )
    lengths = {"cu_seqlens_q": torch.tensor([0, 2, 6], dtype=torch.int32)}
    lengths["cu_seqlens_k"] = torch.tensor([0, 5, 12], dtype=torch.int32)
    levels = [{"k": k, "v": v}, {"k": a, "v": b, **lengths, "mask": "causal_bottom_right"}]
    out, most = onepass.torch.cascade(q, levels, return_max="head")
    assert not most.requires_grad
    out.square().sum().backward()
    got = [x.grad.clone() for x in (q, k, v, a, b)]
    for x in (q, k, v, a, b):
        x.grad = None
    total, largest = 0, []
    for (lo, hi), (first, end) in (((0, 2), (0, 5)), ((2, 6), (5, 12))):
        keys, values = torch.cat([k, a[first:end]]), torch.cat([v, b[first:end]])
        rows = (x.transpose(0, 1)[None] for x in (q[lo:hi], keys, values))
        one, of_heads = onepass.torch.attention(*rows, mask="causal_bottom_right", return_max="head")
        largest.append(of_heads)
        total = total + one.square().sum()
    total.backward()
    torch.testing.assert_close(most, torch.stack(largest).amax(0))
    for mine, x in zip(got, (q, k, v, a, b)):
        assert (mine - x.grad).abs().max() < 2e-5
