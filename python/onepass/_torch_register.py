"""onepass as a flash attention implementation of PyTorch's: kernels for the operators that its dispatcher calls.

SDPA, ``torch.nn.attention.varlen`` and nested jagged tensors call these operators. PyTorch validates the tensors and
records the gradients; here is only what computes. The operators' shapes and results are those of PyTorch's schemas.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

import onepass
import onepass.torch

from ._torch_op import _readable
from .flash_attn._three import gaps
from .flash_attn._words import bound, words_of

NAME = "onepass"


def add(activate: bool) -> None:
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl") or not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(
            f"register must run in a PyTorch with register_flash_attention_impl and library.get_kernel, 2.11 or later "
            f"(got {torch.__version__}); sdpa() works in every PyTorch"
        )
    if NAME not in attention.list_flash_attention_impls():
        attention.register_flash_attention_impl(NAME, register_fn=_activate)
    if activate and attention.current_flash_attention_impl() != NAME:
        attention.activate_flash_attention_impl(NAME)


class _Handle:
    """PyTorch keeps it while the implementation is active."""

    def __init__(self) -> None:
        self.library: Any = torch.library.Library("aten", "IMPL")
        kernel = torch.library.get_kernel
        self.theirs = kernel("aten::_scaled_dot_product_flash_attention_for_cpu", "CPU")
        self.theirs_backward = kernel("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "CPU")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")  # that is its purpose
            for device in ("CPU", "CUDA"):
                for name, function in KERNELS.items():
                    self.library.impl(name, function, device)
            for name, function in ("", self.on_cpu), ("_backward", self.on_cpu_backward):
                name = f"_scaled_dot_product_flash_attention_for_cpu{name}"
                self.library.impl(name, function, "CPU", with_keyset=True)

    def remove(self) -> None:
        self.library._destroy()
        self.library = None

    def on_cpu(
        self,
        keys: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Any = None,
        scale: Any = None,
    ) -> Any:
        if _left_to_pytorch(q):
            return self.theirs.call_boxed(keys, q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        words = _dense(dropout_p, is_causal, scale) | {"bias": attn_mask}
        out, lse = _forward(q, k, v, words, torch.empty_like(_readable(q)))
        return out, lse.transpose(1, 2).contiguous().transpose(1, 2)

    def on_cpu_backward(
        self,
        keys: Any,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Any = None,
        scale: Any = None,
    ) -> Any:
        if _left_to_pytorch(q):
            given = dropout_p, is_causal
            mask = {"attn_mask": attn_mask, "scale": scale}
            return self.theirs_backward.call_boxed(keys, dout, q, k, v, out, lse, *given, **mask)
        return _backward(dout, q, k, v, out, lse, _dense(dropout_p, is_causal, scale) | {"bias": attn_mask})


def _activate() -> _Handle:
    return _Handle()


def _left_to_pytorch(q: Tensor) -> bool:
    """Its own CPU kernel keeps what onepass does not support."""
    return q.dtype == torch.float64 or q.shape[-1] > 512


def _dense(dropout_p: float, is_causal: bool, scale: Any) -> dict[str, Any]:
    _refuse_dropout(dropout_p)
    return {"mask": "causal_top_left" if is_causal else None, "scale": scale}


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise RuntimeError(
            f"dropout_p must be 0 in a registered flash attention (got {dropout_p}); "
            "onepass.torch.scaled_dot_product_attention supports it"
        )


@torch.no_grad()
def _forward(q: Tensor, k: Tensor, v: Tensor, words: dict[str, Any], out: Any = None) -> tuple[Any, Any]:
    q, k, v = (_readable(x) for x in (q, k, v))
    return onepass.torch.attention(q, k, v, **words, out=out, return_lse=True)


@torch.no_grad()
def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, words: dict[str, Any], **shape: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dout, q, k, v, out = (_readable(x) for x in (dout, q, k, v, out))
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    into = dict(zip(("dq", "dk", "dv"), grads))
    words = words | {"deterministic": torch.are_deterministic_algorithms_enabled()}
    onepass.attention_backward(dout, q, k, v, out, lse.contiguous(), **words, into=into, **shape)
    return grads


def _auxiliary(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rng_state, what is unused, and the debug mask: a call without dropout has none of them."""
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return state, torch.zeros((), dtype=torch.uint64, device=q.device), torch.empty(0, dtype=q.dtype, device=q.device)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> Any:
    out, lse = _forward(q, k, v, _dense(dropout_p, is_causal, scale), torch.empty_like(_readable(q)))
    return out, lse, None, None, q.shape[2], k.shape[2], *_auxiliary(q)


def _sdpa_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: Any = None,
) -> Any:
    return _backward(dout, q, k, v, out, lse, _dense(dropout_p, is_causal, scale))


def _words(
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    scale: Any,
    window: Any,
    alibi_slopes: Any = None,
) -> dict[str, Any]:
    """flash-attn's own arguments are bottom-right; a dense call has tokens before heads."""
    _refuse_dropout(dropout_p)
    window = tuple(-1 if side is None else side for side in window)
    words = words_of(0.0, scale, is_causal, window, 0.0, alibi_slopes, False)
    if cum_seq_q is None:
        return words | {"layout": "bshd"}
    bounds = {"max_seqlen_q": bound(max_q), "max_seqlen_k": bound(max_k)}
    return words | bounds | {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k}


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: Any = None,
    window_size_left: Any = None,
    window_size_right: Any = None,
    seqused_k: Any = None,
    alibi_slopes: Any = None,
    block_table: Any = None,
    num_splits: Any = None,
    out: Any = None,
) -> Any:
    window = window_size_left, window_size_right
    words = _words(cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale, window, alibi_slopes)
    if block_table is not None:
        words |= {"cu_seqlens_k": None, "seqused_k": seqused_k, "page_table": block_table}
    elif seqused_k is not None and cum_seq_q is not None:
        sums = gaps(words, cum_seq_q, cum_seq_k, None, seqused_k)
        words |= {"cu_seqlens_q": sums[0], "cu_seqlens_k": sums[1]}
    elif seqused_k is not None:
        words["seqused_k"] = seqused_k
    return *_forward(q, k, v, words, out), *_auxiliary(q)


def _flash_into(out: Tensor, *args: Any, **words: Any) -> Any:
    return _flash(*args, **words, out=out)[1]


def _flash_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,
    unused: Any,
    *,
    scale: Any = None,
    window_size_left: Any = None,
    window_size_right: Any = None,
) -> Any:
    window = window_size_left, window_size_right
    words = _words(cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale, window)
    return _backward(dout, q, k, v, out, lse, words)


KERNELS: dict[str, Any] = {
    "_flash_attention_forward": _flash,
    "_flash_attention_forward_no_dropout_inplace": _flash_into,
    "_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_flash_attention": _sdpa,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}
