"""onepass.append_kv as an operator of PyTorch."""

from typing import Any

import torch

from . import _options, _torch_checks, _torch_op, _unknown


def append_kv(
    k_new: Any,
    v_new: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    cache_seqlens: Any = None,
    slot_mapping: Any = None,
    positions: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cos: Any = None,
    sin: Any = None,
    cos_sin_cache: Any = None,
    interleaved: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
    q: Any = None,
    layout: str = "bhsd",
    threads: int | None = None,
    **unknown: Any,
) -> Any:
    """``onepass.append_kv`` as an operator that torch.compile traces. It has no gradients; q rotates into a new tensor.

    Args, Returns, Raises: as ``onepass.append_kv``.
    """
    if unknown:
        _unknown.refuse("onepass.torch.append_kv", unknown, _options.keywords(append_kv))
    caches, places = (k_cache, v_cache), (cache_seqlens, page_table, cu_seqlens_q)
    slots = slot_mapping, positions, cos_sin_cache
    tensors = (k_new, v_new, *caches, *places, cos, sin, q, k_descale, v_descale, *slots)
    _torch_checks.check_tensors(_torch_op.APPEND, tensors, 4)
    lost = dict(zip(_torch_op.APPEND, tensors))
    del lost["k_cache"], lost["v_cache"]  # the caller's to write to
    _torch_checks.refuse_lost(lost.items(), "append_kv")
    with torch.no_grad():
        q_out = _torch_op.append_kv(*tensors, interleaved, threads, layout)
    return None if q is None else q_out
