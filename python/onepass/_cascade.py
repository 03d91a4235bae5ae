"""Attention to keys in levels: what many sequences share is read once."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from . import _arrays, _options
from . import _numpy as np
from ._devices import is_cupy, is_torch

_OF_THE_CALL = ("sinks", "out", "out_dtype", "partial", "return_lse", "return_max", "q")  # of all levels together


def parts_of(q: Any, levels: Iterable[Mapping[str, Any]], sinks: Any, options: Mapping[str, Any]) -> list[Any]:
    """The (k, v, options) of each level's call of attention."""
    _arrays.dtype_name("q", q)
    shape = tuple(q.shape)
    if len(shape) != 3:
        raise ValueError(f"q must be packed, [total, heads, dim] (got {list(shape)})")
    if "partial" in options:
        raise TypeError("cascade does not accept 'partial', which its levels always are")
    levels = list(levels)
    if not levels:
        raise ValueError("levels must hold at least one level (got none)")
    calls = []
    for i, level in enumerate(levels):
        if not isinstance(level, Mapping):
            raise TypeError(f"levels[{i}] must be a dict of attention's arguments (got {type(level).__name__})")
        for name in ("k", "v"):
            if level.get(name) is None:
                raise TypeError(f"levels[{i}] must have {name!r}")
        for name in _OF_THE_CALL:
            if name in level:
                raise TypeError(f"levels[{i}] must not have {name!r}, which is cascade's own")
        own = {**options, **level}
        k, v = own.pop("k"), own.pop("v")
        # A level without lengths is one sequence: all rows see all of its keys.
        if own.get("cu_seqlens_q") is None:
            own["cu_seqlens_q"] = _lengths(q, shape[0])
        if all(own.get(name) is None for name in ("cu_seqlens_k", "seqused_k", "page_table")):
            own["cu_seqlens_k"] = _lengths(q, k.shape[0])
        if i + 1 == len(levels) and sinks is not None:
            own["sinks"] = sinks  # of one part only
        calls.append((k, v, own))
    return calls


def cascade(
    q: Any,
    levels: Iterable[Mapping[str, Any]],
    *,
    sinks: Any = None,
    return_lse: bool = False,
    return_max: Any = False,
    out: Any = None,
    **options: Any,
) -> Any:
    """Attention of packed rows to keys in levels, each of which is read once: shared prompts, then own keys.

    A level is a call of ``attention`` whose sequences are groups of rows that share keys. The keys of the levels are
    disjoint. Partial results are float32, and one ``merge`` joins them.

    Args:
      q: ``[total, heads_q, dim]``, the rows of all sequences.
      levels: dicts of ``attention``'s arguments: ``k`` and ``v``, and what the level needs: ``cu_seqlens_q`` with the
        groups of rows, ``cu_seqlens_k`` or ``seqused_k`` and ``page_table`` with their keys, ``mask``. Without
        ``cu_seqlens_q`` all rows are one group. Masks count positions within a level: a level that comes before all
        rows needs none, and the last has ``"causal_bottom_right"`` for rows of several new tokens.
      sinks: as ``attention``; they join once.
      return_lse: True: the result is ``(out, lse)``.
      return_max: as ``attention``, over the keys of all levels; the maxima come last.
      out: where to write; by default a new array of q's dtype.
      options: arguments of ``attention`` for every level, such as scale, softcap, max_seqlen_q and threads.

    Returns:
      As ``attention``.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    from . import attention, merge

    asked = _options.asks_for_max(return_max)
    parts = []
    for k, v, own in parts_of(q, levels, sinks, options):
        part = _arrays.new(q, (*q.shape[:-1], v.shape[-1]), "float32", fill=0.0)
        parts.append(attention(q, k, v, out=part, partial=True, return_lse=True, return_max=asked, **own))
    if out is None:
        out = _arrays.new(q, tuple(parts[0][0].shape), _arrays.result_dtype(q))
    outs, lses, *maxima = zip(*parts)
    found = [*merge(outs, lses, out=out, threads=options.get("threads"))][: 1 + return_lse]
    found += largest(maxima, return_max)
    return tuple(found) if len(found) > 1 else found[0]


def largest(maxima: Any, return_max: Any) -> list[Any]:
    """The row maxima of all levels, [heads, total], or of heads, from those of each."""
    for of_levels in maxima:
        most = functools.reduce(lambda a, b: a.maximum(b) if hasattr(a, "maximum") else np.maximum(a, b), of_levels)
        if return_max == "head":
            most = _options.of_heads(most, {"cu_seqlens_q": most})
        return [most]
    return []


def _lengths(q: Any, total: int) -> Any:
    if not is_torch(q) and not is_cupy(q):
        return np.array([0, total], np.int32)
    lengths = _arrays.new(q, (2,), "int32", ordered=False)
    lengths[0], lengths[1] = 0, total
    return lengths
