"""xFormers' ``memory_efficient_attention`` and its bias classes, computed by onepass on CUDA and on CPUs.

``from onepass.xformers import memory_efficient_attention, LowerTriangularMask`` takes the place of ``xformers.ops``.
Biases may be those of this module or xFormers' own: they are known by the name of their class. Layout is
``[batch, seq, heads, dim]``, read in place (https://github.com/facebookresearch/xformers).
docs/coming_from/xformers.md has the arguments side by side.
"""

from typing import Any

import torch
from torch import Tensor

import onepass
import onepass.torch
from onepass._xformers_bias import (
    AttentionBias,
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalWithOffsetPaddedKeysMask,
    BlockDiagonalMask,
    BlockDiagonalPaddedKeysMask,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)
from onepass._xformers_call import Call, call_of

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalMask",
    "BlockDiagonalCausalWithOffsetPaddedKeysMask",
    "BlockDiagonalMask",
    "BlockDiagonalPaddedKeysMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
    "memory_efficient_attention",
    "memory_efficient_attention_backward",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
]


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """Attention with gradients by query, key, value and a bias tensor.

    Args:
      query, key, value: ``[batch, seq, heads, dim]``, ``[batch, seq, dim]`` (one head), or
        ``[batch, seq, groups, heads, dim]`` of which K and V are expanded views.
      attn_bias: None, a tensor that is added to the scores, or a bias class.
      p: dropout, drawn by PyTorch's CPU generator.
      op: not used: onepass's plan chooses the kernel.
      output_dtype: None or torch.float32.

    Returns:
      ``[batch, seq, heads, dim_v]``, in the form of query.
    """
    call = call_of(query, key, value, attn_bias)
    return call.result(
        onepass.torch.attention(*call.qkv, **call.words, dropout_p=p, scale=scale, out_dtype=output_dtype)
    )


def memory_efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """memory_efficient_attention without gradients."""
    with torch.no_grad():
        return memory_efficient_attention(query, key, value, attn_bias, p, scale, output_dtype=output_dtype)


@torch.no_grad()
def memory_efficient_attention_forward_requires_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """(out, lse) for memory_efficient_attention_backward; lse ``[batch, heads, seq]``, packed ``[1, heads, total]``."""
    _refuse_dropout(p)
    call = call_of(query, key, value, attn_bias)
    out, lse = onepass.torch.attention(*call.qkv, **call.words, scale=scale, out_dtype=output_dtype, return_lse=True)
    return call.result(out), call.lse(lse)


@torch.no_grad()
def memory_efficient_attention_backward(
    grad: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
) -> Any:
    """(dq, dk, dv)."""
    _refuse_dropout(p)
    call: Call = call_of(query, key, value, attn_bias)
    forms = [call.rows(x).contiguous() for x in (grad, output)]
    grads = onepass.attention_backward(forms[0], *call.qkv, forms[1], call.our_lse(lse), **call.words, scale=scale)
    return tuple(g.reshape(x.shape) for g, x in zip(grads, (query, key, value)))


def _refuse_dropout(p: float) -> None:
    if p:
        raise NotImplementedError(f"p must be 0 outside of autograd (got {p}); memory_efficient_attention supports it")
