"""A call of xFormers' as a call of onepass's: the forms of its tensors, and the mask of its bias."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from onepass.flash_attn._three import gaps

_TOP, _BOTTOM = "causal_top_left", "causal_bottom_right"
# The exact class: another one, even if derived from these, may hide more.
_MASKS = {
    "LowerTriangularMask": _TOP,
    "LowerTriangularMaskWithTensorBias": _TOP,
    "LowerTriangularFromBottomRightMask": _BOTTOM,
    "LowerTriangularFromBottomRightLocalAttentionMask": _BOTTOM,
    "LocalAttentionFromBottomRightMask": None,
    "BlockDiagonalMask": None,
    "BlockDiagonalCausalMask": _TOP,
    "BlockDiagonalCausalLocalAttentionMask": _TOP,
    "BlockDiagonalCausalFromBottomRightMask": _BOTTOM,
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": _BOTTOM,
    "BlockDiagonalPaddedKeysMask": None,
    "BlockDiagonalLocalAttentionPaddedKeysMask": None,
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": _BOTTOM,
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": _BOTTOM,
    "BlockDiagonalGappyKeysMask": None,
    "BlockDiagonalCausalWithOffsetGappyKeysMask": _BOTTOM,
    "PagedBlockDiagonalPaddedKeysMask": None,
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": _BOTTOM,
}


@dataclasses.dataclass
class Call:
    qkv: tuple[Any, Any, Any]
    words: dict[str, Any]
    shape: Any  # of query
    packed: bool

    def rows(self, x: Tensor) -> Tensor:
        """A tensor in the form of query, in the form of q."""
        x = x.unsqueeze(2) if x.dim() == 3 else x.flatten(2, 3) if x.dim() == 5 else x
        return x[0] if self.packed else x

    def result(self, out: Tensor) -> Tensor:
        return out.reshape(*self.shape[:-1], out.shape[-1])

    def lse(self, lse: Tensor) -> Tensor:
        lse = lse[None] if self.packed else lse.transpose(1, 2)
        return lse.unflatten(1, self.shape[2:4]) if len(self.shape) == 5 else lse

    def our_lse(self, lse: Tensor) -> Tensor:
        return (lse[0] if self.packed else lse.transpose(1, 2)).contiguous()


def call_of(query: Tensor, key: Tensor, value: Tensor, bias: Any) -> Call:
    if not query.dim() == key.dim() == value.dim() or query.dim() not in (3, 4, 5):
        raise ValueError(
            "query, key and value must have shape [batch, seq, heads, dim], [batch, seq, dim] or "
            f"[batch, seq, groups, heads, dim] (got {query.dim()}, {key.dim()} and {value.dim()} dimensions)"
        )
    name = type(bias).__name__
    call = Call((query, key, value), {}, query.shape, hasattr(bias, "q_seqinfo"))
    q, k, v = call.rows(query), *(call.rows(_grouped(x)) for x in (key, value))
    if bias is None or (isinstance(bias, Tensor) and name not in _MASKS):
        call.words = {"layout": "bshd", "bias": _tensor(bias, query.dim())}
    elif name not in _MASKS:
        raise NotImplementedError(f"attn_bias does not support {name}; it supports {', '.join(_MASKS)} and tensors")
    else:
        call.words = {"mask": _MASKS[name], "window": _window(bias)}
        if call.packed:
            k, v = _lengths(call.words, bias, q, k, v)
        else:
            added = getattr(bias, "_subtensor", None) if hasattr(bias, "_subtensor") else getattr(bias, "_bias", None)
            added = added if name == "LowerTriangularMaskWithTensorBias" else None
            call.words |= {"layout": "bshd", "bias": _tensor(added, query.dim())}
    call.qkv = q, k, v
    return call


def _grouped(x: Tensor) -> Tensor:
    """K or V without the copies of an expanded group."""
    return x[:, :, :, :1] if x.dim() == 5 and x.stride(3) == 0 else x


def _tensor(bias: Any, dims: int) -> Any:
    if bias is None or dims == 4:
        return bias
    return bias.unsqueeze(1) if dims == 3 else bias.flatten(1, 2)


def _window(bias: Any) -> Any:
    size = getattr(bias, "_window_size", 0)
    if size:
        return size - 1, -1
    return getattr(bias, "window_left", -1), getattr(bias, "window_right", -1)


def _lengths(words: dict[str, Any], bias: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """(K, V), and in words where the rows and keys of each sequence are."""
    rows, keys = bias.q_seqinfo, bias.k_seqinfo
    cu_q, cu_k = rows.seqstart.to(q.device), keys.seqstart.to(q.device)
    used = keys.seqlen.to(q.device) if hasattr(keys, "seqlen") else None
    words |= {"cu_seqlens_q": cu_q, "max_seqlen_q": rows.max_seqlen, "max_seqlen_k": keys.max_seqlen}
    if hasattr(bias, "block_tables"):
        words |= {"seqused_k": used, "page_table": bias.block_tables.to(q.device)}
        return (x.unflatten(0, (-1, bias.page_size)) for x in (k, v))
    if hasattr(keys, "padding"):  # a sequence's part of the cache is its page
        table = torch.arange(len(cu_q) - 1, dtype=torch.int32, device=q.device)[:, None]
        words |= {"seqused_k": used, "page_table": table}
        return (x.unflatten(0, (-1, keys.padding)) for x in (k, v))
    if used is not None:
        first = keys.seqstart_py[0]
        k, v = k[first:], v[first:]
        cu_q, cu_k = gaps(words, cu_q, cu_k - first, None, used)
        words |= {"max_seqlen_k": None}
    words |= {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    return k, v
