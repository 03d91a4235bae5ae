"""flash-attn's functions below autograd, as ring attention and others call them."""

from typing import Any

import torch
from torch import Tensor

import onepass
import onepass.torch
from onepass.flash_attn._words import bound, our_lse, seeded, their_lse


@torch.no_grad()
def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
) -> tuple[Any, ...]:
    """(out, lse, None, rng_state); rng_state is the dropout's seed."""
    words, rng_state = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes
    )
    out, lse = onepass.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)), **words, return_lse=True)
    return out.transpose(1, 2), their_lse(lse), None, rng_state


@torch.no_grad()
def _flash_attn_backward(
    dout: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Any,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Any = None,
) -> None:
    """Writes dq, dk and dv."""
    words, _ = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes, rng_state
    )
    dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
    lse, into = our_lse(softmax_lse), {"dq": dq.transpose(1, 2), "dk": dk.transpose(1, 2), "dv": dv.transpose(1, 2)}
    onepass.attention_backward(dout, q, k, v, out, lse, **words, deterministic=deterministic, into=into)


@torch.no_grad()
def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Any = None,
    leftpad_k: Any = None,
    seqused_k: Any = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[Any, ...]:
    """(out, lse, None, rng_state) of packed sequences."""
    if leftpad_k is not None or (seqused_k is not None and block_table is None):
        raise NotImplementedError("onepass does not support leftpad_k, and seqused_k only with a block_table")
    if num_splits > 1:
        raise RuntimeError(f"num_splits must be 0 or 1 (got {num_splits}): onepass chooses the splits itself")
    words, rng_state = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes
    )
    if block_table is None:
        words["cu_seqlens_k"] = cu_seqlens_k
    else:
        words |= {"seqused_k": cu_seqlens_k.diff() if seqused_k is None else seqused_k, "page_table": block_table}
    bounds = {"max_seqlen_q": bound(max_seqlen_q), "max_seqlen_k": bound(max_seqlen_k)}
    out, lse = onepass.torch.attention(q, k, v, **words, **bounds, cu_seqlens_q=cu_seqlens_q, return_lse=True)
    return out, their_lse(lse), None, rng_state


@torch.no_grad()
def _flash_attn_varlen_backward(
    dout: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Any,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Any = None,
    zero_tensors: bool = False,
) -> None:
    """Writes dq, dk and dv of packed sequences."""
    words, _ = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes, rng_state
    )
    words |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "deterministic": deterministic}
    words |= {"max_seqlen_q": bound(max_seqlen_q), "max_seqlen_k": bound(max_seqlen_k)}
    into = {"dq": dq, "dk": dk, "dv": dv}
    onepass.attention_backward(dout, q, k, v, out, our_lse(softmax_lse), **words, into=into)
