"""A sequence that is sharded between ranks: a model's attention becomes calls of context_parallel.attention."""

import contextlib
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from transformers import masking_utils as theirs

from . import _transformers_masks as masks
from ._transformers_maxima import recorded
from ._transformers_weights import asked
from .context_parallel import Layout, attention
from .context_parallel.prepare import check_layout
from .context_parallel.ranks import ranks_of

# The window's overlay is here because layers tell their window; positions are here because the layout says them.
_SAID_ELSEWHERE = "sliding_window_overlay", "packed_sequence_mask_function"


class Block:
    """The layout, the group and the options of one ``with context_parallel(...)``."""

    def __init__(self, layout: Layout, group: Any, options: dict[str, Any]) -> None:
        ranks = ranks_of(group)
        check_layout(layout, ranks)
        self.layout, self.group, self.options, self.rank = layout, group, options, ranks.me
        # The position ids that were right, and their version then: one comparison for all layers.
        self._checked: tuple[Any, int] = lambda: None, 0

    def check_mask(
        self, mask_function: Any, attention_mask: Any = None, local_size: Any = None, config: Any = None, **more: Any
    ) -> None:
        """Refuses the masks of transformers that are not the order and window that `attend` is told of."""
        model, device = type(config), more.get("device", "cpu")
        window = local_size is None or local_size == getattr(config, "sliding_window", None)
        if not window or (local_size is not None and not masks.layers_tell_their_window(model.__module__)):
            self._refuse(device, f"context_parallel does not support the windows of {model.__name__}")
        if not _is_band(mask_function):
            self._refuse(device, f"context_parallel does not support the mask that {model.__name__} asks for")
        if attention_mask is not None and (torch.compiler.is_compiling() or not attention_mask.all()):
            self._refuse(device, "context_parallel does not support an attention_mask with padding; give documents")

    def attend(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        words: dict[str, Any],
        told: dict[str, Any],
    ) -> Any:
        """`attention` of this rank's rows. An attention_mask has a column for each position; told: by the layer."""
        device = query.device
        if key.shape[2] != query.shape[2]:
            got = f"got {query.shape[2]} rows of q and {key.shape[2]} of k"
            self._refuse(device, f"context_parallel does not support a cache that holds tokens ({got})")
        if asked(told):
            self._refuse(device, "context_parallel does not support output_attentions")
        if told["position_bias"] is not None:
            self._refuse(device, "context_parallel does not support position biases")
        self._check_positions(device, told.get("position_ids"))
        if attention_mask is not None:
            words["bool_mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask
        call = recorded(module, attention)
        return call(query, key, value, layout=self.layout, group=self.group, **words, **self.options)

    def _check_positions(self, device: Any, given: Any) -> None:
        """Each rank's model counts its rows from 0 unless it is told."""
        if given is None or given.dim() > 2 or torch.compiler.is_compiling():
            return
        # None: an inference tensor does not count its changes, and is compared in every layer.
        version = None if given.is_inference() else given._version
        if version is not None and given is self._checked[0]() and version == self._checked[1]:
            return
        whole = self.layout.positions(self.rank, given.device)
        right = [whole]
        if (documents := self.options.get("documents")) is not None:
            starts = torch.as_tensor(documents, device=given.device)
            right.append(whole - starts[torch.searchsorted(starts, whole, right=True) - 1])
        if not any(given.shape[-1] == len(x) and bool((given == x).all()) for x in right):
            self._refuse(device, f"position_ids must be layout.positions({self.rank}) (got others)")
        if version is not None:
            self._checked = weakref.ref(given), version

    def _refuse(self, device: Any, sentence: str) -> None:
        """Raises on all ranks: those without a complaint hear of it in their next call."""
        error = ValueError(sentence)
        if not torch.compiler.is_compiling():
            ranks_of(self.group).agree(torch.device(device), error, {})
        raise error


def _is_band(function: Any) -> bool:
    """True if a mask function of transformers says no more than an order of positions and a window."""
    if function in (theirs.causal_mask_function, theirs.bidirectional_mask_function):
        return True
    maker = getattr(function, "__qualname__", "").partition(".")[0]
    if maker not in ("and_masks", "remap_positions_for_packed_sequence"):
        return maker in _SAID_ELSEWHERE
    parts = inspect.getclosurevars(function).nonlocals
    return all(map(_is_band, parts.get("mask_functions") or [parts.get("mask_function")]))


@contextlib.contextmanager
def inside(block: Block) -> Iterator[None]:
    _blocks.append(block)
    try:
        yield
    finally:
        _blocks.remove(block)


def current() -> Block | None:
    """The innermost block, in all threads: the backward of PyTorch runs checkpointed layers in threads of its own."""
    return _blocks[-1] if _blocks else None


_blocks: list[Block] = []
