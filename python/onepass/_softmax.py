"""Softmax over rows, whole or in pieces, and its gradient."""

from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _values
from . import _numpy as np

_NOTHING = dict.fromkeys(("x", "y", "lse", "row_lse", "bool_mask", "dy", "dx"))


def softmax(
    x: Any,
    *,
    scale: float = 1.0,
    log: bool = False,
    bool_mask: Any = None,
    row_lse: Any = None,
    return_lse: bool = False,
    lse_only: bool = False,
    out: Any = None,
    threads: int | None = None,
) -> Any:
    """``softmax(scale * x)`` over the last dimension, in one pass over memory where a row fits on the chip.

    Arrays are of the kinds that ``attention`` takes, read in place by any strides. Where an entry is hidden, or x is
    -inf, the result is 0 (log: -inf), also beside a NaN, which all other entries of its row become.

    A row may come in pieces: ``lse_only`` gives each piece's LSE, ``merge_lse`` the row's, and with that as row_lse
    every piece its part of the result.

    Args:
      x: ``[.., n]`` of 1 to 4 dimensions; float32, float16 or bfloat16.
      scale: any number from -2.3e38 to 2.3e38.
      log: give the logarithm, ``scale * x - lse``.
      bool_mask: bool, broadcastable to x; True means visible.
      row_lse: float32 ``[..]``: x is a piece of rows with these LSEs, and the result ``exp(scale * x - row_lse)``.
      return_lse: also return the rows' LSEs, ``log(sum(exp(scale * x)))`` over what is visible.
      lse_only: return nothing else; the result is not computed.
      out: where to write the result, of x's shape, and of its dtype or float32. By default a new array like x.
      threads: how many to use at most; None is all cores. Results do not depend on it, bit for bit.

    Returns:
      The result, ``(result, lse)``, or lse: float32 ``[..]``, ``[1]`` of a single row; -inf where nothing is visible.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    if lse_only and (out is not None or row_lse is not None):
        raise ValueError("lse_only does not support out and row_lse, because it computes the LSEs alone")
    if row_lse is not None and return_lse:
        raise ValueError("row_lse does not support return_lse: it holds the LSEs of the rows already")
    place = _devices.place_of(x)
    _arrays.dtype_name("x", x)
    lse = None
    if return_lse or lse_only:
        lse = _arrays.new(x, tuple(x.shape[:-1]) or (1,), "float32", ordered=False)
    if out is None and not lse_only:
        out = _arrays.new(x, tuple(x.shape))
    elif out is not None and type(out) is not np.ndarray:
        _kinds.refuse_immutable(out)
    call = {
        "x": _arrays.exported("x", x, place),
        "y": None if out is None else _arrays.target("out", out, place),
        "lse": None if lse is None else _arrays.target("lse", lse, place),
        "row_lse": _arrays.exported("row_lse", row_lse, place),
        "bool_mask": _arrays.exported("bool_mask", bool_mask, place),
    }
    _run(place, call, scale, log, threads)
    if lse_only:
        return _arrays.finished(lse)
    out = _arrays.finished(out)
    return (out, _arrays.finished(lse)) if return_lse else out


def softmax_backward(
    y: Any, dy: Any, *, scale: float = 1.0, log: bool = False, out: Any = None, threads: int | None = None
) -> Any:
    """The gradient of x from ``y = softmax(x, scale=scale, log=log)`` and dy, the gradient of a loss by y.

    ``scale * y * (dy - sum(dy * y))``, of a logarithm ``scale * (dy - exp(y) * sum(dy))``. Where y is 0 (log: -inf) it
    is 0, and dy is not used.

    Args:
      y, dy: ``[.., n]`` of 1 to 4 dimensions, one dtype, any strides.
      out: where to write the gradient: of y's dtype, or of any of the three if y is float32. By default an array like
        y.
      scale, log, threads: as ``softmax`` took them.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    place = _devices.place_of(y)
    for name, x in (("y", y), ("dy", dy)):
        _arrays.dtype_name(name, x)
    if out is None:
        out = _arrays.new(y, tuple(y.shape))
    elif type(out) is not np.ndarray:
        _kinds.refuse_immutable(out)
    call = {
        "y": _arrays.exported("y", y, place),
        "dy": _arrays.exported("dy", dy, place),
        "dx": _arrays.target("out", out, place),
    }
    _run(place, call, scale, log, threads)
    return _arrays.finished(out)


def merge_lse(lses: Any, *, threads: int | None = None) -> Any:
    """The LSEs of rows from those of their pieces, ``log(sum(exp(lses)))``, -inf where all are; in any order.

    Args:
      lses: float32 arrays of one shape, of 1 to 3 dimensions; up to 256 on CUDA.
    """
    lses = _values.arrays("lses", lses)
    if not lses:
        raise ValueError("lses must hold at least one LSE (got none)")
    place = _devices.place_of(lses[0])
    views = [_arrays.exported(f"lses[{i}]", x, place) for i, x in enumerate(lses)]
    lse = _arrays.new(lses[0], tuple(lses[0].shape), "float32", ordered=False)
    _onepass.merge_lse(views, _arrays.target("lse", lse, place), _values.threads_of(threads), place.stream)
    place.finish()
    return _arrays.finished(lse)


def _run(place: Any, call: dict[str, Any], scale: float | None, log: bool, threads: int | None) -> None:
    call = _NOTHING | call
    call["scale"], call["log"], call["stream"] = _values.number("scale", scale), bool(log), place.stream
    call["threads"] = _values.threads_of(threads)
    _onepass.softmax(call)
    place.finish()
