"""Merging results over disjoint sets of keys."""

from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _values
from . import _numpy as np


def merge(outs: Any, lses: Any, *, out: Any = None, lse: Any = None, threads: int | None = None) -> Any:
    """Joins attention results over disjoint sets of keys into the result over all of them.

    On CUDA the call is put on PyTorch's or CuPy's current stream and returns at once; there it takes up to 256 results.

    Args:
      outs: arrays ``[batch, heads, seq, dim]`` (packed: ``[total, heads, dim]``), float32, float16 or bfloat16; float32
        loses nothing (give ``attention`` a float32 ``out``).
      lses: one float32 array for each out, ``[batch, heads, seq]`` (packed: ``[heads, total]``).
      out: where to write the result, of any of the three dtypes; by default a new float32 array. It may be one of outs.
      lse: where to write the LSE, float32; by default a new array. It may be one of lses.
      threads: how many to use at most; None is all cores.

    Returns:
      ``(out, lse)``, which may be merged again. (0, -inf) is the identity; the order matters up to rounding only.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    outs, lses = _values.arrays("outs", outs), _values.arrays("lses", lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"outs and lses must have the same length, 1 or more (got {len(outs)} and {len(lses)})")
    place = _devices.place_of(outs[0])
    out_views = [_arrays.exported(f"outs[{i}]", x, place) for i, x in enumerate(outs)]
    lse_views = [_arrays.exported(f"lses[{i}]", x, place) for i, x in enumerate(lses)]
    threads = _values.threads_of(threads)
    if out is None:
        out = _arrays.new(outs[0], tuple(outs[0].shape), "float32")
    elif type(out) is not np.ndarray:
        _kinds.refuse_immutable(out)
    if lse is None:
        lse = _arrays.new(lses[0], tuple(lses[0].shape), "float32", ordered=False)
    elif type(lse) is not np.ndarray:
        _kinds.refuse_immutable(lse, "lse")
    out_view, lse_view = _arrays.target("out", out, place), _arrays.target("lse", lse, place)
    _onepass.merge(out_views, lse_views, out_view, lse_view, threads, place.stream)
    place.finish()
    return _arrays.finished(out), _arrays.finished(lse)


def packed_parts(outs: Any, lses: Any) -> Any:
    """True if parts that frameworks merge are of packed sequences; an error if onepass.merge would not take them."""
    for name, parts, accepted in (("outs", outs, ("float32", "float16", "bfloat16")), ("lses", lses, ("float32",))):
        for i, x in enumerate(parts):
            dtype = str(x.dtype).rpartition(".")[2]
            if dtype not in accepted:
                raise TypeError(f"{name}[{i}] must be {' or '.join(accepted)} (got {dtype})")
    shapes, rows = [tuple(x.shape) for x in outs], [tuple(x.shape) for x in lses]
    packed = len(shapes) > 0 and len(shapes[0]) == 3
    of_rows = [(*shape[1::-1],) if packed else shape[:-1] for shape in shapes]
    if len(shapes) == 0 or rows != of_rows or any(shape != shapes[0] for shape in shapes):
        raise ValueError(
            "merge needs one lse [.., rows] for each out [.., rows, dim], all of one shape (packed: [heads, total] and "
            f"[total, heads, dim]; got outs {[list(x) for x in shapes]} and lses {[list(x) for x in rows]})"
        )
    return packed
