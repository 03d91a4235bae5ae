"""Forward mode: attention and its derivative along tangents of its inputs."""

import math
import sys
from typing import Any

from . import _arrays, _devices, _keywords, _onepass, _options
from . import _numpy as np


@_keywords.shared("jvp", _keywords.OF_DERIVATIVES, tbias=None, tsinks=None, return_lse=False)
def jvp(q: Any, k: Any, v: Any, tq: Any, tk: Any, tv: Any, **options: Any) -> Any:
    """``attention`` and its derivative along tangents, in one pass over the keys: the score matrix is not stored.

    Args:
      q, k, v: as ``attention`` takes them.
      tq, tk, tv: tangents, of the shapes and dtypes of q, k and v. None is 0.
      tbias: tangent of bias, of its shape and dtype. None is 0.
      tsinks: tangent of sinks, float32 ``[heads_q]``. None is 0.
      return_lse: return the LSE and its derivative too.
      options: the other keywords, as ``attention`` takes them. Masks, slopes, buffers of expressions and the dropout's
        draws are constants.

    Returns:
      ``(out, tout)``, or with return_lse ``(out, tout, lse, tlse)``. Rows that see no key have a derivative of 0.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    given = _keywords.given(jvp, options, q=q, k=k, v=v, tq=tq, tk=tk, tv=tv)
    place = _devices.place_of(q)
    call = _options.options(place, given)
    call["q"], call["k"], call["v"] = _options.inputs(place, q, k, v, call["tokens_first"])
    for name, of in (("tq", q), ("tk", k), ("tv", v)):
        tangent = zero_tangent(name, of) if given[name] is None else given[name]
        call[name] = _arrays.exported(name, tangent, place)
    for name in ("tbias", "tsinks"):
        call[name] = _arrays.exported(name, given[name], place)
    results = _results(q, v, bool(given["return_lse"]), call)
    for name in ("out", "tout", "lse", "tlse"):
        call[name] = _arrays.target(name, results[name], place) if name in results else None
    _onepass.jvp(call)
    place.finish()
    return tuple(_arrays.finished(x) for x in results.values())


def zero_tangent(name: str, like: Any) -> Any:
    """Zeros that share one row."""
    shape = tuple(like.shape)
    if isinstance(like, np.ndarray):
        return np.broadcast_to(np.zeros(shape[-1:], like.dtype), shape)
    if _devices.is_torch(like):
        return sys.modules["torch"].zeros(shape[-1:], dtype=like.dtype, device=like.device).expand(shape)
    raise TypeError(f"{name} must be an array, as {name[1:]} (got None)")


def _results(q: Any, v: Any, lse: bool, call: dict[str, Any]) -> dict[str, Any]:
    """By name. New packed ones begin as empty rows: tokens beyond the last sequence are not computed."""
    packed = _options.is_packed(call)
    shape = (*q.shape[:-1], v.shape[-1])
    rows = _arrays.rows_of(q, packed)
    _arrays.dtype_name("q", q)
    results = {name: _arrays.new(q, shape, fill=0.0 if packed else None) for name in ("out", "tout")}
    for name, fill in (("lse", -math.inf), ("tlse", 0.0)) if lse else ():
        results[name] = _arrays.new(q, rows, "float32", ordered=False, fill=fill if packed else None)
    return results
