"""onepass.cascade by the operators of onepass.torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import _cascade, _options
from ._torch_attention import attention
from ._torch_merge import merge


def cascade(
    q: Any,
    levels: Iterable[Mapping[str, Any]],
    *,
    sinks: Any = None,
    return_lse: bool = False,
    return_max: Any = False,
    **options: Any,
) -> Any:
    """``onepass.cascade`` without ``out``, with gradients by q, sinks, and the k and v of levels without a cache.

    Args, Returns, Raises: as ``onepass.cascade``.
    """
    words = {"out_dtype": torch.float32, "partial": True, "return_lse": True}
    words["return_max"] = _options.asks_for_max(return_max)
    parts = _cascade.parts_of(q, levels, sinks, options)
    outs, lses, *maxima = zip(*(attention(q, k, v, **words, **own) for k, v, own in parts))
    out, lse = merge(outs, lses)
    found = [out.to(q.dtype), *([lse] if return_lse else ()), *_cascade.largest(maxima, return_max)]
    return tuple(found) if len(found) > 1 else found[0]
