"""The public functions of flash-attn 2."""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

import onepass.torch
from onepass.flash_attn._below_autograd import (  # noqa: F401
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from onepass.flash_attn._words import bound, checked, their_lse, words_of
from onepass.flash_attn.layers.rotary import apply_rotary_emb

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
) -> Any:
    """Attention on ``[batch, seq, heads, dim]``; K and V may have fewer heads; causal and windows are bottom-right.

    Returns:
      out ``[batch, seq_q, heads, dim_v]``; with return_attn_probs ``(out, lse, None)``: lse ``[batch, heads, seq_q]``,
      +inf in rows that see no key, and no probabilities, which onepass never has.
    """
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
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
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
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
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
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
) -> Any:
    """Packed sequences ``[total, heads, dim]`` with prefix sums; K and V may be pages of a block_table (no gradients).

    Returns:
      out ``[total_q, heads, dim_v]``; with return_attn_probs ``(out, lse, None)``, lse ``[heads, total_q]``.
    """
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    if block_table is None:
        words["cu_seqlens_k"] = cu_seqlens_k
    else:
        words |= {"seqused_k": cu_seqlens_k.diff(), "page_table": block_table}
    words |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": bound(max_seqlen_q), "max_seqlen_k": bound(max_seqlen_k)}
    attention = onepass.torch.attention if block_table is None else _to_pages
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
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
) -> Any:
    """Decoding: appends k and v (rotated) to the caches in place, then attends to them. No gradients.

    Caches are ``[batch, capacity, heads_kv, dim]``, or pages with a block_table, of any page size. cache_batch_idx is
    a page table of pages as long as the capacity; what cache_leftpad hides goes into a mask. num_splits is onepass's
    to choose.
    """
    if cache_batch_idx is not None and block_table is not None:
        raise ValueError("cache_batch_idx and block_table are mutually exclusive")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos requires new keys k and values v (got k=None)")
    if (k is None) != (v is None):
        raise ValueError(f"k and v must be given together (got {'k' if k is None else 'v'}=None)")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens must be given with new keys k (got None)")
    words = words_of(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, False)
    batch, seq_q = q.shape[:2]
    used = cache_seqlens
    if isinstance(used, int):
        used = torch.full((batch,), used, dtype=torch.int32, device=q.device)
    elif used is not None and not isinstance(used, torch.Tensor):
        raise TypeError(f"cache_seqlens must be an int or an int32 tensor [batch] (got {type(used).__name__})")
    if block_table is not None and used is not None:
        _fits(used, 0 if k is None else k.shape[1], block_table, k_cache.shape[1])
    table = block_table if cache_batch_idx is None else cache_batch_idx[:, None]
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])
    if table is None:
        k_cache, v_cache = (x[:batch].transpose(1, 2) for x in (k_cache, v_cache))
    q = q.transpose(1, 2)
    if used is None and table is not None:
        used = torch.full((batch,), capacity, dtype=torch.int32, device=q.device)
    if cache_leftpad is not None:
        keys = torch.arange(capacity, device=q.device)
        words["bool_mask"] = (keys >= cache_leftpad[:, None])[:, None, None]
    words |= {"seqused_k": used if k is None else used + k.shape[1], "page_table": table}
    if k is not None and v is not None:
        local = words["window"] != (-1, -1)
        fused = rotary_cos is not None and (causal or local) and k.shape[1] == seq_q
        if rotary_cos is not None and not fused:  # without an order among the queries all stand at the first position
            rows = q.transpose(1, 2)
            if not (causal or local):
                rows = rows.flatten(1, 2)[:, None]
            rows = apply_rotary_emb(rows, rotary_cos, rotary_sin, rotary_interleaved, seqlen_offsets=used)
            q = rows.reshape(batch, seq_q, -1, q.shape[-1]).transpose(1, 2)
        checked(q, k_cache, v_cache, words)  # a call that is refused has not changed the cache
        rotated = onepass.torch.append_kv(
            k.transpose(1, 2),
            v.transpose(1, 2),
            k_cache,
            v_cache,
            seqused_k=used,
            page_table=table,
            cos=rotary_cos,
            sin=rotary_sin,
            interleaved=rotary_interleaved,
            q=q if fused else None,
        )
        q = q if rotated is None else rotated
    if not return_softmax_lse:
        return onepass.torch.attention(q, k_cache, v_cache, **words).transpose(1, 2)
    out, lse = onepass.torch.attention(q, k_cache, v_cache, **words, return_lse=True)
    return out.transpose(1, 2), their_lse(lse)


class _ToPages(torch.autograd.Function):
    """Attention to pages of tensors that require gradients: flash-attn computes it, and refuses the backward."""

    @staticmethod
    def forward(ctx: Any, words: Any, *qkv: Any) -> Any:
        return onepass.torch.attention(*qkv, **words)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError("attention to pages (block_table) does not support gradients")


def _to_pages(*qkv: Any, **words: Any) -> Any:
    if torch.is_grad_enabled() and any(x.requires_grad for x in qkv):
        return _ToPages.apply(words, *qkv)
    return onepass.torch.attention(*qkv, **words)


def _slots(name: str, x: Any, dim: Any, count: Any, expected: Any) -> Any:
    """The parts of a packed tensor along `dim`, views."""
    if x.dim() != dim + 3 or x.shape[dim] != count:
        raise ValueError(f"{name} must have shape {expected} (got {list(x.shape)})")
    return x.unbind(dim)


def _fits(used: Any, new: Any, block_table: Any, page_size: Any) -> None:
    """Refuses lengths beyond a block table where the host can see them, with flash-attn's kind of error."""
    if used.is_cuda or used.numel() == 0 or is_compiling():
        return
    capacity, most = block_table.shape[1] * page_size, int(used.max()) + new
    if most > capacity:
        raise RuntimeError(
            f"cache_seqlens plus the new keys must be at most {capacity} tokens, the {block_table.shape[1]} pages of "
            f"{page_size} that block_table has for a sequence (got {most})"
        )


def _get_block_size_n(device: Any, head_dim: Any, is_dropout: Any, is_causal: bool) -> int:
    """Keys of a tile, which flash-attn's tests ask for."""
    return 128
