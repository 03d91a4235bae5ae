"""onepass.softmax, its gradient and rows in pieces, beside NumPy's own words."""

import numpy as np
import onepass
import pytest


def textbook(x, mask=True):
    s = np.where(mask, x.astype(np.float64), -np.inf)
    weights = np.exp(s - s.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    return weights / total, (s.max(-1, keepdims=True) + np.log(total))[..., 0]


@pytest.mark.parametrize("shape", [(7,), (3, 1000), (2, 3, 4, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_it_is_the_formula(shape, dtype):
    rng = np.random.default_rng(0)
    x, mask = rng.standard_normal(shape).astype(dtype), rng.random(shape[-1]) < 0.7
    y, lse = onepass.softmax(x, scale=2.0, bool_mask=mask, return_lse=True)
    expected, expected_lse = textbook(2 * x.astype(np.float64), mask)
    assert y.dtype == dtype and lse.shape == (shape[:-1] or (1,))
    np.testing.assert_allclose(y, expected, atol=1e-6 if dtype == np.float32 else 1e-3)
    np.testing.assert_allclose(lse, expected_lse.reshape(lse.shape), atol=1e-5)
    logarithm = onepass.softmax(x.astype(np.float32), log=True)
    np.testing.assert_allclose(np.exp(logarithm), textbook(x.astype(np.float32))[0], atol=1e-6)


def test_a_row_comes_in_pieces():
    x = np.random.default_rng(1).standard_normal((4, 100), dtype=np.float32)
    pieces = [x[:, :30], x[:, 30:37], x[:, 37:]]
    lse = onepass.merge_lse([onepass.softmax(piece, lse_only=True) for piece in reversed(pieces)])
    y = np.concatenate([onepass.softmax(piece, row_lse=lse) for piece in pieces], axis=1)
    np.testing.assert_allclose(y, onepass.softmax(x), rtol=1e-5)


def test_gradients_are_the_formulas():
    x, dy = np.random.default_rng(2).standard_normal((2, 5, 40), dtype=np.float32)
    y = onepass.softmax(x, scale=3.0)
    dx = onepass.softmax_backward(y, dy, scale=3.0)
    np.testing.assert_allclose(dx, 3 * y * (dy - (dy * y).sum(-1, keepdims=True)), atol=1e-6)
    logarithm = onepass.softmax(x.T, log=True)  # any strides
    dx = onepass.softmax_backward(logarithm, dy.T, log=True)
    np.testing.assert_allclose(dx, dy.T - np.exp(logarithm) * dy.T.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 3), (2, 3, 4)])
def test_lses_of_any_shape_are_merged(shape):
    parts = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i in range(3)]
    np.testing.assert_allclose(onepass.merge_lse(parts), np.log(sum(np.exp(x) for x in parts)), rtol=1e-5, atol=1e-6)


def test_what_is_refused_is_said():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="lse_only does not support out and row_lse"):
        onepass.softmax(x, lse_only=True, out=x)
    with pytest.raises(TypeError, match="float64"):
        onepass.softmax(x.astype(np.float64))
    with pytest.raises(ValueError, match="y must not share memory with x"):
        onepass.softmax(x, out=x)
    with pytest.raises(ValueError, match="row_lse does not support return_lse"):
        onepass.softmax(x, row_lse=np.zeros(2, np.float32), return_lse=True)
    with pytest.raises(ValueError, match=r"x must have 1 to 4 dimensions \(got 0\)"):
        onepass.softmax(x[0, 0])
    with pytest.raises(TypeError, match=r"scale must be a number \(got None\)"):
        onepass.softmax(x, scale=None)
    for call in (onepass.softmax, onepass.quantize, lambda x: onepass.linear(x, x)):
        with pytest.raises(TypeError, match="x must be a NumPy array, a torch tensor or an array with DLPack"):
            call([1.0, 2.0])
    with pytest.raises(ValueError, match="lses must hold at least one LSE"):
        onepass.merge_lse([])
