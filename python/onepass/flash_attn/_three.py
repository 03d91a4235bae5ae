"""FlashAttention-3's arguments as onepass's."""

from typing import Any

import torch
from torch import Tensor

import onepass.torch
from onepass.flash_attn import _words
from onepass.flash_attn._cache import forward_only


def words_of(
    softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, deterministic: bool
) -> dict[str, Any]:
    return _words.words_of(0.0, softmax_scale, causal, window_size, softcap, None, deterministic)


def descaled(q: Tensor, k: Tensor, q_descale: Any, k_descale: Any, v_descale: Any) -> dict[str, Any]:
    """The scales; that of q is given by K/V head there, by query head here."""
    given = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    given = {name: x for name, x in given.items() if x is not None}
    heads, groups = k.shape[-2], q.shape[-2] // max(k.shape[-2], 1)
    if q_descale is not None and groups > 1 and q_descale.shape[-1] == heads:
        given["q_descale"] = q_descale.repeat_interleave(groups, -1)
    return given


def gaps(words: dict[str, Any], cu_q: Tensor, cu_k: Any, used_q: Any, used_k: Any) -> tuple[Tensor, Any]:
    """Prefix sums in which each sequence is three: what counts, the rows that do not (no keys), the keys that do not.

    The lengths stay on the device. Rows that do not count see no key, and keys that do not count are seen by no row.
    """
    rows, zero = cu_q.diff(), torch.zeros_like(cu_q[1:])
    used_q = rows if used_q is None else used_q.to(cu_q.dtype)
    sums_q = _sums(torch.stack((used_q, rows - used_q, zero), 1))
    for name in ("q_descale", "k_descale", "v_descale"):
        if name in words and words[name].shape[0] > 1:
            words[name] = words[name].repeat_interleave(3, 0)
    if cu_k is None:  # pages: the sequences that do not count have none of them
        words["seqused_k"] = torch.stack((words["seqused_k"], zero, zero), 1).flatten()
        words["page_table"] = words["page_table"].repeat_interleave(3, 0)
        return sums_q, None
    keys = cu_k.diff()
    used_k = keys if used_k is None else used_k.to(cu_k.dtype)
    return sums_q, _sums(torch.stack((used_k, torch.zeros_like(keys), keys - used_k), 1))


def _sums(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.flatten().cumsum(0), (1, 0)).to(torch.int32)


def with_qv(q: Tensor, k: Tensor, v: Tensor, qv: Any) -> tuple[Tensor, Tensor]:
    """q k^T + qv v^T as one product."""
    if qv is None:
        return q, k
    check_qv(q, k, qv)
    return torch.cat((q, qv), -1), torch.cat((k, v), -1)


def check_qv(q: Tensor, k: Tensor, qv: Tensor) -> None:
    """The factors of q and k are not those of qv and v."""
    if torch.float8_e4m3fn in (q.dtype, k.dtype, qv.dtype):
        raise NotImplementedError("qv does not support float8_e4m3fn")
    if qv.dtype != q.dtype:
        raise TypeError(f"qv must be {q.dtype}, as q (got {qv.dtype})")


def attend(q: Tensor, k: Tensor, v: Tensor, **words: Any) -> Any:
    """Attention; that of e4m3 tensors that require gradients is computed, and refuses the backward, as there."""
    if q.dtype == torch.float8_e4m3fn:
        return forward_only("FP8 attention", q, k, v, **words)
    return onepass.torch.attention(q, k, v, **words)
