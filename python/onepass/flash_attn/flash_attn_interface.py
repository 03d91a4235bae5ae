"""The public functions of flash-attn 2."""

from typing import Any

import torch
from torch import Tensor

import onepass.torch
from onepass.flash_attn._below_autograd import (  # noqa: F401
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from onepass.flash_attn._cache import Place, Rotary, to_pages, with_cache
from onepass.flash_attn._words import bound, their_lse, words_of

USE_TRITON_ROCM = False
# The same as operators of PyTorch's, by which diffusers and others call them.
_wrapped_flash_attn_forward, _wrapped_flash_attn_backward = _flash_attn_forward, _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Attention on ``[batch, seq, heads, dim]``; K and V may have fewer heads; causal and windows are bottom-right.

    s_aux ``[heads]`` are sinks, which flash-attn 2 lacks; transformers passes them to functions that take them.

    Returns:
      out ``[batch, seq_q, heads, dim_v]``; with return_attn_probs ``(out, lse, None)``: lse ``[batch, heads, seq_q]``,
      +inf in rows that see no key, and no probabilities, which onepass never has.
    """
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if not return_attn_probs:
        return onepass.torch.attention(q, k, v, **words).transpose(1, 2)
    out, lse = onepass.torch.attention(q, k, v, **words, return_lse=True)
    return out.transpose(1, 2), their_lse(lse), None


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of ``[batch, seq, 3, heads, dim]``, read in place."""
    q, k, v = _slots("qkv", qkv, 2, 3, "[batch, seq, 3, heads, dim]")
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of q and kv ``[batch, seq, 2, heads, dim]``, read in place."""
    k, v = _slots("kv", kv, 2, 2, "[batch, seq, 2, heads, dim]")
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Packed sequences ``[total, heads, dim]`` with prefix sums; K and V may be pages of a block_table (no gradients).

    Returns:
      out ``[total_q, heads, dim_v]``; with return_attn_probs ``(out, lse, None)``, lse ``[heads, total_q]``.
    """
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    if block_table is None:
        words["cu_seqlens_k"] = cu_seqlens_k
    else:
        words |= {"seqused_k": cu_seqlens_k.diff(), "page_table": block_table}
    words |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": bound(max_seqlen_q), "max_seqlen_k": bound(max_seqlen_k)}
    attention = onepass.torch.attention if block_table is None else to_pages
    result = attention(q, k, v, **words, return_lse=return_attn_probs)
    return (result[0], their_lse(result[1]), None) if return_attn_probs else result


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Any,
    max_seqlen: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of ``[total, 3, heads, dim]``, read in place."""
    q, k, v = _slots("qkv", qkv, 1, 3, "[total, 3, heads, dim]")
    places = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    rest = softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, *places, dropout_p, softmax_scale, causal, window_size, *rest)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of q and kv ``[total, 2, heads, dim]``, read in place."""
    k, v = _slots("kv", kv, 1, 2, "[total, 2, heads, dim]")
    places = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    rest = softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, *places, dropout_p, softmax_scale, causal, window_size, *rest)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Any,
    v_cache: Any,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Decoding: appends k and v (rotated) to the caches in place, then attends to them. No gradients.

    Caches are ``[batch, capacity, heads_kv, dim]``, or pages with a block_table, of any page size. cache_batch_idx is
    a page table of pages as long as the capacity; what cache_leftpad hides goes into a mask. num_splits is onepass's
    to choose.
    """
    if cache_seqlens is not None and not isinstance(cache_seqlens, (int, torch.Tensor)):
        raise TypeError(f"cache_seqlens must be an int or an int32 tensor [batch] (got {type(cache_seqlens).__name__})")
    rotary = Rotary(rotary_cos, rotary_sin, rotary_interleaved)
    place = Place(cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    words = words_of(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, False, s_aux)
    result = with_cache(q, k_cache, v_cache, k, v, words, rotary, place, return_lse=return_softmax_lse)
    return (result[0], their_lse(result[1])) if return_softmax_lse else result


def _slots(name: str, x: Any, dim: Any, count: Any, expected: Any) -> Any:
    """The parts of a packed tensor along `dim`, views."""
    if x.dim() != dim + 3 or x.shape[dim] != count:
        raise ValueError(f"{name} must have shape {expected} (got {list(x.shape)})")
    return x.unbind(dim)


def _get_block_size_n(device: Any, head_dim: Any, is_dropout: Any, is_causal: bool) -> int:
    """Keys of a tile, which flash-attn's tests ask for."""
    return 128
