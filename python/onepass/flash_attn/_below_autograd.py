"""flash-attn's functions below autograd, as ring attention and others call them."""

import torch

import onepass
import onepass.torch
from onepass.flash_attn._words import bound, our_lse, seeded, their_lse


@torch.no_grad()
def _flash_attn_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
):
    """(out, lse, None, rng_state); rng_state is the dropout's seed."""
    words, rng_state = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes
    )
    out, lse = onepass.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)), **words, return_lse=True)
    return out.transpose(1, 2), their_lse(lse), None, rng_state


@torch.no_grad()
def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    """Writes dq, dk and dv."""
    words, _ = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes, rng_state
    )
    onepass.attention_backward(
        *(x.transpose(1, 2) for x in (dout, q, k, v, out)),
        our_lse(softmax_lse),
        **words,
        deterministic=deterministic,
        into={"dq": dq.transpose(1, 2), "dk": dk.transpose(1, 2), "dv": dv.transpose(1, 2)},
    )


@torch.no_grad()
def _flash_attn_varlen_forward(
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
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
    block_table=None,
    leftpad_k=None,
    seqused_k=None,
    zero_tensors=False,
    num_splits=0,
):
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
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
    zero_tensors=False,
):
    """Writes dq, dk and dv of packed sequences."""
    words, _ = seeded(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes, rng_state
    )
    onepass.attention_backward(
        dout,
        q,
        k,
        v,
        out,
        our_lse(softmax_lse),
        **words,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=bound(max_seqlen_q),
        max_seqlen_k=bound(max_seqlen_k),
        deterministic=deterministic,
        into={"dq": dq, "dk": dk, "dv": dv},
    )
