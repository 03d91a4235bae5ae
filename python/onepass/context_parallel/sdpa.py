"""PyTorch's function on shards."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .attention import attention
from .layout import Layout


@contextlib.contextmanager
def sdpa(layout: Layout, group: Any = None, **options: Any) -> Iterator[None]:
    """Inside the block ``torch.nn.functional.scaled_dot_product_attention`` attends to the keys of all ranks.

    Its tensors are this rank's rows. The block applies to all threads, and an error leaves PyTorch's function in place.

    Args:
      layout, group: as ``attention`` takes them.
      options: other keywords of ``attention``, such as ``scheme``, ``window`` and ``documents``.
    """
    functional = torch.nn.functional
    theirs = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        words = {"causal": is_causal, "dropout_p": dropout_p, "scale": scale, **options}
        if attn_mask is not None:
            words["bool_mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
        if not enable_gqa and query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]:
            heads = query.shape[1], key.shape[1]
            raise ValueError(f"query and key must have the same number of heads without enable_gqa=True (got {heads})")
        return attention(query, key, value, layout=layout, group=group, **words)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = theirs
