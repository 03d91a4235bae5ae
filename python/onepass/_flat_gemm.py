"""Few rows times a wide matrix, and linear layers of any number of rows."""

from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _values
from . import _numpy as np


def _product(function: Any, x: Any, w: Any, column_bias: Any, out: Any, threads: int | None) -> Any:
    place = _devices.place_of(x)
    _arrays.dtype_name("x", x)
    _arrays.dtype_name("w", w)
    if len(x.shape) != 2 or len(w.shape) != 2:
        raise ValueError(f"x and w must have the shapes [m, k] and [n, k] (got {list(x.shape)} and {list(w.shape)})")
    if out is None:
        out = _arrays.new(x, (x.shape[0], w.shape[0]), ordered=False)
    elif type(out) is not np.ndarray:
        _kinds.refuse_immutable(out)
    function(
        _arrays.exported("x", x, place),
        _arrays.exported("w", w, place),
        _arrays.target("out", out, place),
        _arrays.exported("column_bias", column_bias, place),
        _values.threads_of(threads),
        place.stream,
    )
    place.finish()
    return _arrays.finished(out)


def flat_gemm(x: Any, w: Any, *, column_bias: Any = None, out: Any = None, threads: int | None = None) -> Any:
    """``x @ w.T + column_bias`` for few rows x: as fast as w can be read (Hong et al., FlashDecoding++, section 4).

    Args:
      x: ``[m, k]``; bfloat16 or float16, on the CPU also float32. On CUDA m is up to 64.
      w: ``[n, k]``, of x's dtype, any strides, as all of them.
      column_bias: ``[n]``, of x's dtype.
      out: where to write the result, ``[m, n]`` of x's dtype or float32. By default a new array like x.
      threads: how many to use at most; None is all cores. Results do not depend on it, bit for bit.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    return _product(_onepass.flat_gemm, x, w, column_bias, out, threads)


def linear(x: Any, w: Any, *, column_bias: Any = None, out: Any = None, threads: int | None = None) -> Any:
    """``x @ w.T + column_bias`` of any number of rows, by the kernel that is fastest for it on this machine.

    A GEMV, ``flat_gemm``, or the GEMM of another library that is opened at run time (cuBLASLt; a BLAS for float32 on
    the CPU), by what ``onepass tune`` has measured for w's shape, else by the shape alone;
    ``onepass.explain("linear m8 n4096 k4096 bf16 cuda")`` says which and why.

    Args:
      x: ``[m, k]``; bfloat16, float16 or float32.
      w: ``[n, k]``, of x's dtype, any strides, as all of them.
      column_bias: ``[n]``, of x's dtype.
      out: where to write the result, ``[m, n]`` of x's dtype or float32. By default a new array like x.
      threads: how many to use at most; None is all cores. A BLAS has threads of its own.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    return _product(_onepass.linear, x, w, column_bias, out, threads)
