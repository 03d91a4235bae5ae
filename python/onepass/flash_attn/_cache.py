"""Attention to a cache: new keys and values are appended, then all are read. flash-attn 2 and 3 share it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

import onepass.torch
from onepass.flash_attn._words import checked, chunked
from onepass.flash_attn.layers.rotary import apply_rotary_emb


class Rotary(NamedTuple):
    cos: Any = None
    sin: Any = None
    interleaved: bool = True
    positions: Any = None  # of the first new token of each sequence; None: the length of its cache


class Place(NamedTuple):
    """Where the keys of each sequence are, and how packed queries and new keys are divided."""

    lengths: Any = None
    batch_idx: Any = None
    leftpad: Any = None
    table: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_new: Any = None
    max_seqlen_q: Any = None


def with_cache(
    q: Tensor,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    words: dict[str, Any],
    rotary: Rotary,
    place: Place,
    *,
    qv: Any = None,
    attention_chunk: int = 0,
    return_lse: bool = False,
) -> Any:
    """out of ``[batch, seq, heads, dim]`` or of packed queries ``[total, heads, dim]``; with return_lse (out, lse)."""
    _consistent(k, v, rotary, place)
    turns, is_fp8 = rotary.cos is not None, q.dtype == torch.float8_e4m3fn
    if turns and is_fp8:
        rotary = rotary._replace(cos=rotary.cos.to(torch.bfloat16), sin=rotary.sin.to(torch.bfloat16))
    packed = place.cu_seqlens_q is not None
    batch = len(place.cu_seqlens_q) - 1 if packed else len(q)
    new = 0 if k is None else k.shape[1] if place.cu_seqlens_new is None else place.cu_seqlens_new.diff()
    used, table, capacity = _lengths(place, batch, k_cache.shape[1], new, q.device)
    if table is None:
        k_cache, v_cache = (x[:batch].transpose(1, 2) for x in (k_cache, v_cache))
    q, qv = (x if packed or x is None else x.transpose(1, 2) for x in (q, qv))
    read, k_first = (k_cache, True) if qv is None else _neighbours(k_cache, v_cache)
    words |= {"seqused_k": used if k is None else used + new, "page_table": table}
    if packed:
        words |= {"cu_seqlens_q": place.cu_seqlens_q, "max_seqlen_q": place.max_seqlen_q}
    if place.leftpad is not None:
        keys = torch.arange(capacity, device=q.device)
        words["bool_mask"] = (keys >= place.leftpad[:, None])[:, None, None]
    if attention_chunk:
        rows = place.cu_seqlens_q.diff() if packed else q.shape[2]
        known = capacity if words["seqused_k"] is None else words["seqused_k"]
        last = torch.as_tensor(known - rows, dtype=torch.int32, device=q.device).expand(batch).contiguous()
        words |= chunked(attention_chunk, last, place.leftpad)
    if k is not None:
        in_order = words["mask"] is not None or words["window"] != (-1, -1)
        alike = place.cu_seqlens_q is place.cu_seqlens_new if packed else k.dim() == 4 and new == q.shape[2]
        fused = turns and in_order and alike and rotary.positions is None and not is_fp8
        if turns and not fused:
            turned = _rotated(q.to(torch.bfloat16) if is_fp8 else q, rotary, used, place.cu_seqlens_q, in_order)
            q = turned.to(q.dtype)
        checked(_beside(q, qv, k_first), read, v_cache, words)  # a call that is refused has not changed the cache
        turned = _append(k, v, k_cache, v_cache, used, table, rotary, place.cu_seqlens_new, words, q if fused else None)
        q = q if turned is None else turned
    result: Any = onepass.torch.attention(_beside(q, qv, k_first), read, v_cache, **words, return_lse=return_lse)
    out = result[0] if return_lse else result
    out = out if packed else out.transpose(1, 2)
    return (out, result[1]) if return_lse else out


def _consistent(k: Any, v: Any, rotary: Rotary, place: Place) -> None:
    if rotary.cos is not None and k is None:
        raise ValueError("rotary_cos requires new keys k and values v (got k=None)")
    if (k is None) != (v is None):
        raise ValueError(f"k and v must be given together (got {'k' if k is None else 'v'}=None)")
    if k is not None and place.lengths is None:
        raise ValueError("cache_seqlens must be given with new keys k (got None)")


def _lengths(place: Place, batch: int, page_size: int, new: Any, device: Any) -> tuple[Any, Any, int]:
    """(lengths before the call, page table, capacity); the page of a sequence can be its row of a dense cache."""
    used, table = place.lengths, place.table
    if isinstance(used, int):
        used = torch.full((batch,), used, dtype=torch.int32, device=device)
    if table is not None and used is not None:
        _fits(used + new, table, page_size)
    if place.batch_idx is not None:  # rows of the page table, or of a dense cache
        table = place.batch_idx[:, None] if table is None else table.index_select(0, place.batch_idx)
    elif table is None and place.cu_seqlens_q is not None:
        table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
    capacity = page_size * (1 if table is None else table.shape[1])
    if used is None and table is not None:
        used = torch.full((batch,), capacity, dtype=torch.int32, device=device)
    return used, table, capacity


def _fits(most: Any, block_table: Any, page_size: int) -> None:
    """Refuses lengths beyond a block table where the host can see them, with flash-attn's kind of error."""
    capacity = block_table.shape[1] * page_size
    if most.is_cuda or most.numel() == 0 or is_compiling() or int(most.max()) <= capacity:
        return
    raise RuntimeError(
        f"cache_seqlens plus the new keys must be at most {capacity} tokens, the {block_table.shape[1]} pages of "
        f"{page_size} that block_table has for a sequence (got {int(most.max())})"
    )


def _rotated(q: Tensor, rotary: Rotary, used: Any, cu_seqlens: Any, in_order: bool) -> Tensor:
    """Without an order among them, all queries of a sequence stand at the first new position."""
    first = used if rotary.positions is None else rotary.positions
    tables = rotary.cos, rotary.sin, rotary.interleaved
    if cu_seqlens is not None:
        if in_order:
            return apply_rotary_emb(q, *tables, seqlen_offsets=first, cu_seqlens=cu_seqlens)
        first = first.repeat_interleave(cu_seqlens.diff().long(), output_size=len(q))
        return apply_rotary_emb(q[:, None], *tables, seqlen_offsets=first)[:, 0]
    rows = q.transpose(1, 2)
    if in_order:
        return apply_rotary_emb(rows, *tables, seqlen_offsets=first).transpose(1, 2)
    return (
        apply_rotary_emb(rows.flatten(1, 2)[:, None], *tables, seqlen_offsets=first).reshape(rows.shape).transpose(1, 2)
    )


def _append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    used: Any,
    table: Any,
    rotary: Rotary,
    cu_seqlens: Any,
    words: dict[str, Any],
    q: Any,
) -> Any:
    """Writes k (rotated) and v to the caches; the rotated q, if q is given."""
    scales = words
    if k.dtype == torch.float8_e4m3fn:  # they have the cache's scale already, and bf16 holds each of their numbers
        k, v, scales = k.to(torch.bfloat16), v.to(torch.bfloat16), {}
    if rotary.cos is not None and rotary.positions is not None:
        tables = rotary.cos, rotary.sin, rotary.interleaved
        k, rotary = apply_rotary_emb(k, *tables, seqlen_offsets=rotary.positions, cu_seqlens=cu_seqlens), Rotary()
    if cu_seqlens is None:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return onepass.torch.append_kv(
        k,
        v,
        k_cache,
        v_cache,
        cache_seqlens=used,
        page_table=table,
        cu_seqlens_q=cu_seqlens,
        cos=rotary.cos,
        sin=rotary.sin,
        interleaved=rotary.interleaved,
        k_descale=scales.get("k_descale"),
        v_descale=scales.get("v_descale"),
        q=q,
    )


def _neighbours(k: Tensor, v: Tensor) -> tuple[Tensor, bool]:
    """(the tensor whose last dimension k and v divide, whether k comes first): what q and qv are multiplied with."""
    apart = v.storage_offset() - k.storage_offset()
    same = k.shape[:-1] == v.shape[:-1] and k.stride() == v.stride() and k.dtype == v.dtype
    same = same and k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    if not same or k.stride(-1) != 1 or apart not in (k.shape[-1], -v.shape[-1]):
        raise ValueError(
            "qv requires k and v that divide the last dimension of one tensor [..., dim + dim_v], which is read as K "
            "(got tensors that are not neighbours)"
        )
    first = k if apart > 0 else v
    whole = first.as_strided((*k.shape[:-1], k.shape[-1] + v.shape[-1]), k.stride(), first.storage_offset())
    return whole, apart > 0


def _beside(q: Tensor, qv: Any, k_first: bool) -> Tensor:
    return q if qv is None else torch.cat((q, qv) if k_first else (qv, q), -1)


class _ForwardOnly(torch.autograd.Function):
    """Attention of tensors that require gradients: flash-attn computes it, and refuses the backward."""

    @staticmethod
    def forward(ctx: Any, what: str, words: Any, *qkv: Any) -> Any:
        ctx.what = what
        return onepass.torch.attention(*(x.detach() for x in qkv), **words)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(f"{ctx.what} does not support gradients")


def forward_only(what: str, *qkv: Any, **words: Any) -> Any:
    if torch.is_grad_enabled() and any(x.requires_grad for x in qkv):
        return _ForwardOnly.apply(what, words, *qkv)
    return onepass.torch.attention(*qkv, **words)


def to_pages(*qkv: Any, **words: Any) -> Any:
    return forward_only("attention to pages (block_table)", *qkv, **words)
