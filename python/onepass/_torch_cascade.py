"""onepass.cascade by the operators of onepass.torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import _cascade
from ._torch_attention import attention
from ._torch_merge import merge


def cascade(
    q: Any, levels: Iterable[Mapping[str, Any]], *, sinks: Any = None, return_lse: bool = False, **options: Any
) -> Any:
    """``onepass.cascade`` without ``out``, with gradients by q, sinks, and the k and v of levels without a cache.

    Args, Returns, Raises: as ``onepass.cascade``.
    """
    parts = _cascade.parts_of(q, levels, sinks, options)
    out, lse = merge(
        *zip(*(attention(q, k, v, out_dtype=torch.float32, return_lse=True, **own) for k, v, own in parts))
    )
    return (out.to(q.dtype), lse) if return_lse else out.to(q.dtype)
