"""PyTorch's scaled_dot_product_attention by onepass: tensors of any rank as four dimensions and back."""

from typing import Any

import torch
from torch.compiler import is_compiling

from . import _onepass, _torch_checks
from ._torch_attention import attention


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """``torch.nn.functional.scaled_dot_product_attention``, computed by onepass: its arguments, shapes and meaning.

    Args:
      query: ``[..., heads_q, seq_q, dim]``, of any rank from 2 on; float32, float16 or bfloat16.
      key: ``[..., heads_kv, seq_k, dim]``; leading dimensions broadcast.
      value: ``[..., heads_kv, seq_k, dim_v]``.
      attn_mask: bool (True may attend) or floating, added to the scores, with a gradient; broadcastable to
        ``[..., heads_q, seq_q, seq_k]``. ``torch.nn.attention.bias.CausalBias`` is not expanded.
      dropout_p: drawn by PyTorch's CPU generator: the same torch.manual_seed gives the same result. The dropped
        weights are not those that PyTorch's own kernels drop.
      is_causal: query i sees keys 0..i.
      scale: default ``1 / sqrt(dim)``.
      enable_gqa: heads_q may be a multiple of heads_kv.

    Returns:
      ``[..., heads_q, seq_q, dim_v]``. A row that sees no key gives 0.

    Raises:
      ValueError, TypeError, RuntimeError: one sentence; also for float64, and head dims beyond onepass's.
    """
    if not (is_compiling() or query is None or key is None or value is None):
        out = _onepass.torch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    _torch_checks.check_tensors(("query", "key", "value", "attn_mask"), (query, key, value, attn_mask), 3)
    mask = "causal_top_left" if is_causal else None
    if attn_mask is not None:
        if is_causal:
            raise RuntimeError("attn_mask and is_causal=True are mutually exclusive")
        variant = getattr(attn_mask, "variant", None)  # torch.nn.attention.bias.CausalBias
        if variant is not None:
            sizes, rows_keys = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (query.shape[-2], key.shape[-2])
            if sizes != rows_keys:
                raise ValueError(
                    f"attn_mask must be a causal mask of {rows_keys}, the lengths of query and key (got {sizes})"
                )
            mask = "causal_top_left" if variant.name == "UPPER_LEFT" else "causal_bottom_right"
            attn_mask = None
    q, k, v, lead = _four(query, key, value, enable_gqa)
    if attn_mask is not None and len(lead) != 1:
        attn_mask = _four_mask(attn_mask, lead)
    is_bool = attn_mask is not None and attn_mask.dtype == torch.bool
    words = {"bool_mask" if is_bool else "bias": attn_mask}
    out = attention(q, k, v, mask=mask, dropout_p=dropout_p, scale=scale, **words)
    if len(lead) == 1:
        return out
    rank = max(query.dim(), key.dim(), value.dim())
    return out.reshape(*lead, *out.shape[1 if rank > 2 else 2 :])


def _four(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[Any, ...]:
    """q, k and v as [batch, heads, seq, dim], and the dimensions before heads."""
    rank = max(query.dim(), key.dim(), value.dim())
    if query.dim() == key.dim() == value.dim() == 4 and key.shape[:2] == value.shape[:2]:  # heads are not expanded
        (batch, heads), (batch_kv, heads_kv) = query.shape[:2], key.shape[:2]
        groups = enable_gqa and heads_kv > 0 and heads % heads_kv == 0
        if batch == batch_kv and (heads == heads_kv or groups):
            return query, key, value, query.shape[:1]
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(
            f"query, key and value must have at least 2 dimensions (got {query.dim()}, {key.dim()} and {value.dim()})"
        )
    q, k, v = (x.reshape((1,) * (max(rank, 3) - x.dim()) + tuple(x.shape)) for x in (query, key, value))
    lead = [x.shape[:-3] for x in (q, k, v)]
    try:
        lead = torch.broadcast_shapes(*lead)
    except RuntimeError:
        of_q, of_k, of_v = (list(x) for x in lead)
        raise ValueError(
            f"the dimensions of query, key and value before heads must broadcast (got {of_q}, {of_k} and {of_v})"
        ) from None
    heads = (q.shape[-3], k.shape[-3], v.shape[-3])
    if enable_gqa:
        if heads[1] == 0 or heads[2] == 0 or heads[0] % heads[1] or heads[0] % heads[2]:
            raise ValueError(f"the heads of query must be a multiple of those of key and value (got {heads})")
        if heads[1] != heads[2]:
            k, v = (x.repeat_interleave(heads[0] // x.shape[-3], -3) for x in (k, v))
    else:
        common = next((n for n in heads if n != 1), 1)  # max() would compare symbolic sizes
        if any(n not in (1, common) for n in heads):
            raise ValueError(
                f"query, key and value must have the same number of heads, or 1, without enable_gqa=True (got {heads})"
            )
        q = q.expand(*q.shape[:-3], common, *q.shape[-2:])
        if not heads[1] == heads[2] == 1:
            k, v = (x.expand(*x.shape[:-3], common, *x.shape[-2:]) for x in (k, v))
    q, k, v = (x.expand(*lead, *x.shape[-3:]) for x in (q, k, v))
    if len(lead) != 1:
        q, k, v = (x.unsqueeze(0) if not lead else x.flatten(0, len(lead) - 1) for x in (q, k, v))
    return q, k, v, lead


def _four_mask(mask: Any, lead: Any) -> Any:
    """A mask over [*lead, heads, seq_q, seq_k] as one over [batch, heads, seq_q, seq_k]."""
    if mask.dim() <= 3:
        return mask
    return mask.expand(*lead, *mask.shape[-3:]).flatten(0, len(lead) - 1) if lead else mask
