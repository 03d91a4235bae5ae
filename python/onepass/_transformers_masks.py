"""The masks of transformers as expressions, in place of bools for every row and key."""

import inspect
import re
import sys
from typing import Any

import torch
from transformers import masking_utils as theirs

from ._flex.block_mask import BlockMask, create_block_mask
from ._flex.text import Buffers, text


def expression_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = theirs.causal_mask_function,
    attention_mask: Any = None,
    local_size: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    config: Any = None,
    **kwargs: Any,
) -> Any:
    """A BlockMask in place of the mask that `sdpa_mask` makes, or None where that makes none.

    NotImplemented for models that do not accept a BlockMask, and for a mask function that no text can say.
    """
    if not _takes_block_masks(type(config).__module__):
        return NotImplemented
    padding = theirs.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    lengths = (q_length, kv_length)
    if allow_is_causal_skip and theirs._ignore_causal_mask_sdpa(padding, *lengths, q_offset, kv_offset, local_size):
        return None
    if allow_is_bidirectional_skip and theirs._ignore_bidirectional_mask_sdpa(padding, kv_length, local_size):
        return None
    if padding is not None:
        mask_function = theirs.and_masks(mask_function, theirs.padding_mask_function(padding))
    # A cache counts on in its own tensor before the mask is read.
    q_offset, kv_offset = (x.clone() if isinstance(x, torch.Tensor) else x for x in (q_offset, kv_offset))
    mask_function = theirs.add_offsets_to_mask_function(mask_function, q_offset, kv_offset)
    try:
        return create_block_mask(mask_function, batch_size, None, *lengths, device=device)
    except (AttributeError, TypeError):  # an operation that is not supported
        return NotImplemented


def words_of(mask: BlockMask) -> dict[str, Any]:
    """The arguments of attention for a mask of `expression_mask`."""
    buffers = Buffers()
    return {"mask_mod": text(mask.expression(), buffers), "mod_buffers": buffers.given()}


@torch.compiler.assume_constant_result
def layers_tell_their_window(configuration: str) -> bool:
    """True if the source of this configuration's model passes windows to its attention function."""
    return _in_source(configuration, r"sliding_window=(self\.|getattr\()")


@torch.compiler.assume_constant_result
def _takes_block_masks(configuration: str) -> bool:
    """True if the source of this configuration's model accepts BlockMasks."""
    return _in_source(configuration, r"_supports_flex_attn = True")


def _in_source(configuration: str, pattern: str) -> bool:
    known = _found.get((configuration, pattern))
    if known is None:
        modeling: Any = sys.modules.get(configuration.replace("configuration_", "modeling_"))
        try:
            known = re.search(pattern, inspect.getsource(modeling)) is not None
        except (OSError, TypeError):  # its source is not found
            known = False
        _found[configuration, pattern] = known
    return known


_found: dict[tuple[str, str], bool] = {}
