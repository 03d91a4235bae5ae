"""onepass.append_kv as an operator of PyTorch."""

from typing import Any

import torch

from . import _append, _keywords, _torch_checks, _torch_op


@_keywords.shared("onepass.torch.append_kv", without=("q_out",), of=_append.append_kv)
def append_kv(k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, **options: Any) -> Any:
    """``onepass.append_kv`` as an operator that torch.compile traces. It has no gradients; q rotates into a new tensor.

    Args, Returns, Raises: as ``onepass.append_kv``.
    """
    arrays = {"k_new": k_new, "v_new": v_new, "k_cache": k_cache, "v_cache": v_cache}
    given = _keywords.given(append_kv, options, **arrays)
    call = {name: given[name] for name in _torch_op.APPEND}
    tensors = {name: x for name, x in call.items() if name not in ("interleaved", "threads", "layout")}
    _torch_checks.check_tensors(_torch_op.APPEND, tensors.values(), 4)
    lost = (x for x in tensors.items() if x[0] not in ("k_cache", "v_cache"))  # which are the caller's to write to
    _torch_checks.refuse_lost(lost, "append_kv")
    with torch.no_grad():
        q_out = _torch_op.append_kv(*call.values())
    return None if call["q"] is None else q_out
