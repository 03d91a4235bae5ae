import os
import sys
import zlib

import numpy as np
import pytest

import reference

TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def gloo_or_skip():
    """PyTorch with process groups over gloo."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch.distributed lacks gloo", allow_module_level=True)
    return torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def attention(torch):
    """onepass.torch.attention"""
    import onepass.torch

    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:  # a function is compiled eight times at most
        torch._dynamo.reset()
    return onepass.torch.attention


@pytest.fixture(params=["cpu", "cuda"])
def device(request, torch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return request.param


def jax_or_skip():
    """JAX, on CPUs unless $JAX_PLATFORMS says otherwise, with products of fp32 in fp32."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    jax.config.update("jax_default_matmul_precision", "highest")
    return jax


def same(mine, other, tolerance=1e-5):
    """Asserts that a call through JAX is the call of NumPy arrays: bit for bit on CPUs, which both compute on."""
    mine, other = np.asarray(mine), np.asarray(other)
    assert mine.shape == other.shape
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        np.testing.assert_array_equal(mine, other)
    else:
        mine, other = (x.astype(np.float32) if x.dtype.kind == "V" else x for x in (mine, other))
        np.testing.assert_allclose(mine, other, atol=tolerance, rtol=tolerance)


@pytest.fixture
def jax():
    return jax_or_skip()


@pytest.fixture
def bfloat16():
    return pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16


def normal(rng, shape, dtype=np.float32, spread=1.0):
    return (rng.normal(size=shape) * spread).astype(dtype)


def inputs(rng, batch=2, heads=4, heads_kv=2, rows=37, keys=65, dim=40, dim_v=24, dtype=np.float32):
    """q, k and v whose scores have a standard deviation of 3, so that the softmax is far from flat."""
    q = normal(rng, (batch, heads, rows, dim), dtype, spread=3.0)
    return q, normal(rng, (batch, heads_kv, keys, dim), dtype), normal(rng, (batch, heads_kv, keys, dim_v), dtype)


def qkv(torch, device="cpu", heads=4, heads_kv=2, rows=19, keys=23, grad=False, dtype=None):
    """Tensors of PyTorch's."""
    shapes = (2, heads, rows, 16), (2, heads_kv, keys, 16), (2, heads_kv, keys, 24)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=grad) for shape in shapes]


def check(result, expected, dtype="float32", scale=None):
    """Infinities and NaNs stand where the reference has them; the rest is within the dtype's share of max|expected|."""
    result, expected = np.asarray(result).astype(np.float64), np.asarray(expected, np.float64)
    assert result.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    if finite.any():
        size = max(1.0, np.abs(expected[finite]).max()) if scale is None else scale
        worst = np.abs(result[finite] - expected[finite]).max()
        assert worst <= TOLERANCE[dtype] * size, f"off by {worst:.3g}, {TOLERANCE[dtype] * size:.3g} is accepted"


def agrees(call, q, k, v, dtype="float32", **options):
    """`call` (onepass.attention) gives what the float64 reference gives, and its log-sum-exp too."""
    out, lse = call(q, k, v, return_lse=True, **options)
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    check(out, ref_out, dtype)
    check(lse, ref_lse, scale=4 * max(1.0, np.abs(ref_lse[np.isfinite(ref_lse)]).max(initial=0)))
    return out
