"""Between padded batches and packed sequences."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def index_first_axis(x: Any, indices: Tensor) -> Any:
    """Rows `indices` of x."""
    return x.index_select(0, indices)


def index_put_first_axis(values: Any, indices: Tensor, first_axis_dim: int) -> Any:
    """`first_axis_dim` rows of zeros with `values` in the rows `indices`."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def index_first_axis_residual(x: Any, indices: Tensor) -> tuple[Any, ...]:
    """(rows `indices` of x, x itself)."""
    return x.index_select(0, indices), x


def _packed(hidden_states: Tensor, taken: Any, lengths: Any) -> tuple[Any, ...]:
    """(tokens where `taken`, their places in the flattened batch, prefix sums of the lengths, the longest)."""
    indices = taken.flatten().nonzero().flatten()
    cu_seqlens = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if len(lengths) else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Any = None) -> tuple[Any, ...]:
    """Packs ``[batch, seq, ...]`` where a mask ``[batch, seq]`` is not 0.

    Returns:
      (hidden_states ``[total, ...]``, their indices in the flattened batch, cu_seqlens, the longest sequence, how many
      tokens of each sequence are in attention_mask); tokens of unused_mask are packed too.
    """
    taken = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(-1, dtype=torch.int32)
    return *_packed(hidden_states, taken, taken.sum(-1, dtype=torch.int32)), used


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Any) -> Any:
    """Packs rows that hold several sequences each: ``attention_mask_in_length[b]`` lists their lengths, then zeros."""
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    taken = torch.arange(attention_mask_in_length.shape[-1], device=filled.device) < filled
    lengths = attention_mask_in_length.flatten()
    return _packed(hidden_states, taken, lengths[lengths != 0])


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Any:
    """``[batch, seqlen, ...]`` of zeros with the packed tokens at their places."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
