"""Rotary position embeddings of queries and keys (Su et al., RoFormer, arXiv:2104.09864), in PyTorch's operators."""

from typing import Any

import torch
from torch import Tensor

from onepass.flash_attn._words import of_qkv


def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
) -> Any:
    """Rotates the first ``2 * cos.shape[-1]`` elements of each head by the token's position.

    Args:
      x: ``[batch, seq, heads, dim]``; with cu_seqlens ``[total, heads, dim]``.
      cos, sin: ``[positions, rotary_dim / 2]``.
      interleaved: pairs are elements ``(2i, 2i + 1)``; else ``(i, i + rotary_dim / 2)``.
      inplace: write into x too.
      seqlen_offsets: the position of the first token, an int or ``[batch]``.
      cu_seqlens: ``[batch + 1]``, prefix sums of packed lengths.

    Returns:
      A tensor like x, computed in float32 and rounded once.
    """
    positions = _positions(x.shape[-3], x.device, seqlen_offsets, cu_seqlens).clamp(max=len(cos) - 1)
    cos, sin = (table[positions].unsqueeze(-2).float() for table in (cos, sin))
    result = _turned(x, cos, sin, interleaved)
    return _written(x, result) if inplace else result


apply_rotary_emb_func = apply_rotary_emb  # its name in flash-attn 1


def apply_rotary_emb_torch(x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    """Rotates ``[batch, seq, heads, dim]`` by cos and sin ``[seq, rotary_dim / 2]``, with or without batch in front.

    It computes in the tensors' own precision: the reference of flash-attn's tests.
    """
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(f"cos must have at most dim / 2 = {x.shape[-1] // 2} columns (got {cos.shape[-1]})")
    return _turned(x, cos.unsqueeze(-2), sin.unsqueeze(-2), interleaved, compute=None)


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Any,
    sin: Any,
    cos_k: Any = None,
    sin_k: Any = None,
    interleaved: bool = False,
    seqlen_offsets: Any = 0,
    num_heads_q: Any = None,
) -> Any:
    """Rotates q and k in place.

    Args:
      qkv: ``[batch, seq, 3, heads, dim]``; with num_heads_q ``[batch, seq, num_heads_q + 2 * heads_k, dim]``.
      cos_k, sin_k: tables of k; by default those of q.
      The others: as ``apply_rotary_emb`` takes them.
    """
    q, k, v = of_qkv(qkv, num_heads_q)
    q = apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    k = apply_rotary_emb(k, cos_k, sin_k, interleaved, seqlen_offsets=seqlen_offsets)
    return _written(qkv, torch.stack([q, k, v], 2) if qkv.dim() == 5 else torch.cat([q, k, v], 2))


def apply_rotary_emb_kv_(kv: Tensor, cos: Any, sin: Any, interleaved: bool = False, seqlen_offsets: Any = 0) -> Any:
    """Rotates k of ``[batch, seq, 2, heads, dim]`` in place; the others as ``apply_rotary_emb`` takes them."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv must have shape [batch, seq, 2, heads, dim] (got {list(kv.shape)})")
    k, v = kv.unbind(2)
    return _written(kv, torch.stack([apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=seqlen_offsets), v], 2))


def _positions(tokens: Any, device: Any, offsets: Any, cu_seqlens: Any) -> Any:
    """``[seq]``, ``[batch, seq]`` or ``[total]``."""
    offsets = offsets if isinstance(offsets, int) else offsets.long()
    place = torch.arange(tokens, device=device)
    if cu_seqlens is None:
        return place + (offsets if isinstance(offsets, int) else offsets[:, None])
    sequence = torch.searchsorted(cu_seqlens, place, right=True, out_int32=True).long() - 1
    sequence = sequence.clamp(max=len(cu_seqlens) - 2)  # tokens behind the last sequence
    return place - cu_seqlens[sequence] + (offsets if isinstance(offsets, int) else offsets[sequence])


def _turned(x: Any, cos: Any, sin: Any, interleaved: bool, compute: Any = torch.float32) -> Any:
    """x rotated by cos and sin, which broadcast to its heads; computed in `compute`, or in the dtype of x."""
    half = cos.shape[-1]
    head, rest = x[..., : 2 * half].to(compute or x.dtype), x[..., 2 * half :]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


class _WrittenToLeaf(torch.autograd.Function):
    """Writes into a leaf that requires a gradient, as flash-attn does: its gradient is that of the values before."""

    @staticmethod
    def forward(ctx: Any, x: Any, result: Any) -> Any:
        x.detach().copy_(result)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        return None, gradient


def _written(x: Any, result: Any) -> Any:
    if x.is_leaf and x.requires_grad and torch.is_grad_enabled():
        return _WrittenToLeaf.apply(x, result)
    return x.copy_(result)
