"""FlashAttention-3's functions, computed by onepass on CUDA and on CPUs, forward and backward.

``sys.modules["flash_attn_interface"] = onepass.flash_attn_interface`` lets code that imports flash_attn_interface run
unchanged. Arguments and meaning are those of hopper/ in https://github.com/Dao-AILab/flash-attention; the few
differences are in docs/coming_from/flash_attn.md. ``num_splits``, ``pack_gqa``, ``sm_margin`` and
``scheduler_metadata`` are accepted and not used: onepass's plan decides them.
"""

from typing import Any

import torch
from torch import Tensor

import onepass.torch
from onepass.flash_attn._cache import Place, Rotary, to_pages, with_cache
from onepass.flash_attn._three import attend, check_qv, descaled, gaps, with_qv, words_of
from onepass.flash_attn._words import bound, chunked, of_qkv

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention on ``[batch, seq, heads, dim]``; K and V may have fewer heads; causal and windows are bottom-right.

    Args:
      q_descale, k_descale, v_descale: fp32 ``[batch, heads_k]``, of tensors in torch.float8_e4m3fn.
      attention_chunk: positions are divided into chunks of this many keys; a row sees only its own chunk.
      qv: ``[batch, seq_q, heads, dim_v]``, multiplied with v and added to the scores. q and qv, k and v are joined by a
        copy; dim + dim_v is at most 576. Its dtype is that of q, and not e4m3.

    Returns:
      out ``[batch, seq_q, heads, dim_v]``; with return_attn_probs ``(out, lse)``, lse ``[batch, heads, seq_q]``, -inf
      in rows that see no key. An fp8 q gives bfloat16.
    """
    words = words_of(softmax_scale, causal, window_size, softcap, deterministic)
    words |= descaled(q, k, q_descale, k_descale, v_descale)
    q, k = with_qv(q, k, v, qv)
    if attention_chunk:
        words |= chunked(attention_chunk, torch.full((len(q),), k.shape[1] - q.shape[1]).to(q.device, torch.int32))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    result: Any = attend(q, k, v, **words, return_lse=return_attn_probs)
    return (result[0].transpose(1, 2), result[1]) if return_attn_probs else result.transpose(1, 2)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of ``[batch, seq, 3, heads, dim]``, or of ``[batch, seq, heads_q + 2 * heads_k, dim]``."""
    words = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    words |= {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "deterministic": deterministic}
    words |= {"attention_chunk": attention_chunk, "return_attn_probs": return_attn_probs}
    return flash_attn_func(*of_qkv(qkv, num_heads_q), **words)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Packed sequences ``[total, heads, dim]`` with prefix sums.

    Args:
      seqused_q, seqused_k: int32 ``[batch]``, how many rows and keys of each sequence count. Other rows are 0.
      qv: ``[total_q, heads, dim_v]``, as in flash_attn_func.
      cu_seqlens_k: None for K and V ``[batch, seq_k, heads_k, dim]``, of which seqused_k keys count (no gradients).

    Returns:
      out ``[total_q, heads, dim_v]``; with return_attn_probs ``(out, lse)``, lse ``[heads, total_q]``.
    """
    words = words_of(softmax_scale, causal, window_size, softcap, deterministic)
    words |= descaled(q, k, q_descale, k_descale, v_descale)
    words |= {"max_seqlen_q": bound(max_seqlen_q), "max_seqlen_k": bound(max_seqlen_k)}
    batch, attention = len(cu_seqlens_q) - 1, attend
    q, k = with_qv(q, k, v, qv)
    if cu_seqlens_k is None:  # the keys of a sequence are its page
        if seqused_k is None:
            seqused_k = torch.full((batch,), k.shape[1], dtype=torch.int32, device=q.device)
        words |= {
            "seqused_k": seqused_k,
            "page_table": torch.arange(batch, device=q.device, dtype=torch.int32)[:, None],
        }
        attention = to_pages
    if seqused_q is not None or (seqused_k is not None and cu_seqlens_k is not None):
        cu_seqlens_q, cu_seqlens_k = gaps(words, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    words |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    if attention_chunk:
        keys = words["seqused_k"] if cu_seqlens_k is None else cu_seqlens_k.diff()
        words |= chunked(attention_chunk, (keys - cu_seqlens_q.diff()).to(torch.int32))
    return attention(q, k, v, **words, return_lse=return_attn_probs)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Any,
    v_cache: Any,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: Any = None,
    rotary_seqlens: Any = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Decoding: appends k and v (rotated) to the caches in place, then attends to them. No gradients.

    Args:
      q: ``[batch, seq, heads, dim]``, or packed by cu_seqlens_q ``[total, heads, dim]``.
      k_cache, v_cache: ``[batch, capacity, heads_k, dim]``, or pages of any size with a page_table.
      k, v: ``[batch, seq_new, heads_k, dim]``, or packed by cu_seqlens_k_new.
      qv: ``[batch, seq, heads, dim_v]``, multiplied with v_cache and added to the scores (MLA). k_cache and v_cache
        must divide the last dimension of one tensor.
      attention_chunk: as in flash_attn_func; keys that cache_leftpad hides count in no chunk.
      rotary_seqlens: the position of the first new token of each sequence; by default cache_seqlens.

    Returns:
      out; with return_softmax_lse ``(out, lse)``.
    """
    rotary = Rotary(rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens)
    place = Place(
        cache_seqlens, cache_batch_idx, cache_leftpad, page_table, cu_seqlens_q, cu_seqlens_k_new, bound(max_seqlen_q)
    )
    words = words_of(softmax_scale, causal, window_size, softcap, False)
    words |= descaled(q, k_cache, q_descale, k_descale, v_descale)
    if qv is not None:
        check_qv(q, k_cache, qv)
    given = q, k_cache, v_cache, k, v, words, rotary, place
    return with_cache(*given, qv=qv, attention_chunk=attention_chunk, return_lse=return_softmax_lse)


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Any = None, out_dtype: Any = None) -> Any:
    """(out, lse) from partial results.

    Args:
      out_partial: ``[parts, batch, seq, heads, dim]`` or ``[parts, total, heads, dim]``.
      lse_partial: ``[parts, batch, seq, heads]`` or ``[parts, total, heads]``.

    Returns:
      out of out_dtype (by default out_partial's) and lse, in the layout of a part.
    """
    packed = out_partial.dim() == 4
    outs = out_partial[:, None] if packed else out_partial
    lses = lse_partial[:, None] if packed else lse_partial
    merged, lse = onepass.torch.merge(outs.transpose(2, 3).unbind(0), lses.transpose(2, 3).contiguous().unbind(0))
    merged, lse = (x.transpose(1, 2)[0] if packed else x.transpose(1, 2) for x in (merged, lse))
    merged = merged.to(out_dtype or merged.dtype)
    return (merged if out is None else out.copy_(merged)), lse


def get_scheduler_metadata(*args: Any, **words: Any) -> None:
    """Nothing: the device reads the lengths itself, so a step needs no metadata."""
