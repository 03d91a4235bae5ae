"""onepass.flat_gemm and onepass.linear beside NumPy's product."""

import numpy as np
import onepass
import pytest


@pytest.mark.parametrize("function", [onepass.flat_gemm, onepass.linear])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("m", [1, 3, 70])
def test_it_is_the_product(m, dtype, function):
    rng = np.random.default_rng(m)
    x, w, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((m, 100), (37, 100), (37,)))
    y = function(x, w, column_bias=bias)
    expected = x.astype(np.float64) @ w.astype(np.float64).T + bias
    assert y.dtype == dtype and y.shape == (m, 37)
    np.testing.assert_allclose(y, expected, atol=1e-4 if dtype == np.float32 else 3e-2)
    np.testing.assert_array_equal(y, function(x, np.asfortranarray(w), column_bias=bias, threads=1))


def test_what_is_refused_is_said():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"\[n, k\] are expected"):
        onepass.flat_gemm(x, x[0])
    with pytest.raises(ValueError, match="the row length of w must be 3"):
        onepass.flat_gemm(x, np.zeros((5, 4), np.float32))
    with pytest.raises(TypeError, match="w must be fp32, as x .got fp16"):
        onepass.flat_gemm(x, np.zeros((5, 3), np.float16))
