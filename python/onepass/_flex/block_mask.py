"""PyTorch's BlockMask from a mask_mod, whose lists of tiles are made only when they are read."""

from typing import Any

import torch
from torch.nn.attention import flex_attention as theirs

from .. import _kinds
from .._block_mask import block_mask
from . import trace
from .arithmetic import boolean, literal
from .captured import Captured
from .functions import logical_and, logical_or
from .symbol import Symbol
from .text import Buffers, text

_LISTS = {"kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"}
_LISTS |= {"q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"}


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """A mask_mod that shows every key."""
    return batch.new_ones(size=(), dtype=torch.bool, device=batch.device)


def or_masks(*mask_mods: Any) -> Any:
    """A mask_mod that shows what at least one of the mask_mods shows."""
    return _joined(mask_mods, logical_or, False)


def and_masks(*mask_mods: Any) -> Any:
    """A mask_mod that shows what all of the mask_mods show."""
    return _joined(mask_mods, logical_and, True)


def _joined(mask_mods: Any, join: Any, empty: bool) -> Any:
    if not all(callable(mask_mod) for mask_mod in mask_mods):
        raise RuntimeError(f"all inputs must be mask_mods, which are functions (got {mask_mods})")

    def joined(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        found = [mask_mod(b, h, q_idx, kv_idx) for mask_mod in mask_mods]
        if not isinstance(b, Symbol):  # tensors, of PyTorch's own function
            result = b.new_full((), empty, dtype=torch.bool)
            for x in found:
                result = result & x if empty else result | x
            return result
        result = literal(empty) if not found else boolean(found[0])
        for x in found[1:]:
            result = join(result, x)
        return result

    return joined


class BlockMask(theirs.BlockMask):
    """``torch.nn.attention.flex_attention.BlockMask``; the lists of tiles of ``create_block_mask`` are made on demand.

    onepass's kernels skip tiles by the expression of the mask_mod itself, so that a call needs no list.
    """

    _made_of: Any = None  # (mask_mod, B, H, device, separate_full_blocks), until mask_mod is replaced
    _seen: Any = None  # the expression of mask_mod

    @property
    def shape(self) -> tuple[int, ...]:
        return theirs.BlockMask.shape.fget(self) if self._made_of is None else (*self._made_of[1:3], *self.seq_lengths)

    def __getattr__(self, name: str) -> Any:
        if name not in _LISTS or self._made_of is None:
            raise AttributeError(f"'BlockMask' object has no attribute {name!r}")
        self._make_lists()
        return self.__dict__[name]

    def expression(self) -> Any:
        """The expression of the visible keys; mask_mod is called for it once, not at each use."""
        if self._made_of is None or self.mask_mod is not self._made_of[0]:
            return listed(self)
        of = self.mask_mod, self._made_of[1:3], self.seq_lengths, self._made_of[3]
        if not _kinds.keeps(torch):  # its symbols may hold tensors of the trace alone
            return _expression(*of)
        if self._seen is None:
            with _kinds.to_keep(torch):
                self._seen = _expression(*of)
        return self._seen

    def _make_lists(self) -> None:
        mask_mod, batch, heads, device, separate = self._made_of
        buffers = Buffers()
        seen = text(_expression(mask_mod, (batch, heads), self.seq_lengths, device), buffers)
        made = block_mask(
            seen,
            *self.seq_lengths,
            batch=batch,
            heads=heads,
            tile=self.BLOCK_SIZE,
            mod_buffers=buffers.given(),
            exact=True,
            device=device if device.type == "cuda" else "cpu",
        )
        states = made.states_like(torch.empty(0, device=device))
        for dimension, (length, size) in zip((2, 3), zip(self.seq_lengths, self.BLOCK_SIZE)):
            if length % size:  # PyTorch pads the last tile with hidden elements
                states.select(dimension, -1).clamp_(max=1)
        some, full = states > 0, states == 2
        lists = theirs.BlockMask.from_kv_blocks(
            *_ordered(some & ~full if separate else some),
            *(_ordered(full) if separate else (None, None)),
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=mask_mod,
            seq_lengths=self.seq_lengths,
        )
        self.__dict__.update({name: getattr(lists, name) for name in _LISTS})


def create_block_mask(
    mask_mod: Any,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: Any = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """``torch.nn.attention.flex_attention.create_block_mask`` without its mask of Q_LEN x KV_LEN elements.

    Args:
      mask_mod: a function of (b, h, q_idx, kv_idx), true where the query may attend to the key.
      B, H, Q_LEN, KV_LEN: the sizes; B and H are 1 or None for a mask that all entries or heads share.
      device: of the tensors; None is PyTorch's current accelerator, or the CPU where none is present.
      BLOCK_SIZE: rows and keys of a tile, a number or a pair.
      _compile: accepted, and without effect: nothing is evaluated here.
      separate_full_blocks: False: lists of tiles call full tiles partial ones.
      compute_dq_write_order, dq_kv_order: also make these lists, for PyTorch's kernels; onepass does not read them.

    Returns:
      A ``BlockMask`` of onepass and of PyTorch.

    Raises:
      TypeError: for a mask_mod that is not a function, or that computes something that onepass cannot express.
    """
    if not callable(mask_mod):
        raise TypeError(f"mask_mod must be a function of (b, h, q_idx, kv_idx) (got {type(mask_mod).__name__})")
    if not isinstance(dq_kv_order, bool):
        raise ValueError(f"dq_kv_order must be a bool (got {dq_kv_order!r})")
    orders: Any = getattr(theirs, "_compute_dq_write_order_from_block_mask", None)
    if compute_dq_write_order and orders is None:
        raise ValueError("create_block_mask does not support compute_dq_write_order with this version of PyTorch")
    device = torch.device(device or torch.accelerator.current_accelerator(check_available=True) or "cpu")
    self = BlockMask.__new__(BlockMask)
    self.seq_lengths = (Q_LEN, KV_LEN)
    self.BLOCK_SIZE = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    self.mask_mod = mask_mod
    self.dq_write_order = self.dq_write_order_full = self.dq_kv_order = self.dq_kv_order_spt = None
    self._made_of = (mask_mod, B or 1, H or 1, device, separate_full_blocks)
    self.expression()  # refuses what cannot be traced
    if compute_dq_write_order:
        self.dq_write_order, self.dq_write_order_full = orders(self, dq_kv_order=dq_kv_order)
        self.dq_kv_order_spt = dq_kv_order
    return self


def _expression(mask_mod: Any, batch_heads: Any, lengths: Any, device: Any = None) -> Any:
    batch, heads = (None if n == 1 else n for n in batch_heads)  # 1: shared by any number
    return trace.call_with(mask_mod, trace.inputs((batch, heads, *lengths), device))


def listed(mask: Any) -> Any:
    """The expression of a BlockMask that consists of lists: full tiles, and partial ones where mask_mod is true.

    It is made once for each mask, and again after its lists or its mask_mod have changed.
    """
    lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    if not _kinds.keeps(torch) or any(x is not None and x.is_inference() for x in lists):
        return _of_lists(mask)
    of = (mask.mask_mod, *lists), [x if x is None else x._version for x in lists]
    known = mask.__dict__.get("_onepass")  # (of, the expression)
    if known is None or known[0][1] != of[1] or any(x is not y for x, y in zip(known[0][0], of[0])):
        with _kinds.to_keep(torch):
            known = mask.__dict__["_onepass"] = of, _of_lists(mask)
    return known[1]


def _of_lists(mask: Any) -> Any:
    batch, heads, rows, _ = mask.kv_indices.shape
    columns = -(-mask.seq_lengths[1] // mask.BLOCK_SIZE[1])
    tiles = _dense(mask.kv_num_blocks, mask.kv_indices, columns).int()
    if mask.full_kv_num_blocks is not None:
        tiles = torch.where(_dense(mask.full_kv_num_blocks, mask.full_kv_indices, columns), 2, tiles)
    b, h, q, k = trace.inputs((batch, heads, None, None))
    tile = Captured(tiles.expand(batch, heads, rows, columns).contiguous())[
        b if batch > 1 else 0, h if heads > 1 else 0, q // mask.BLOCK_SIZE[0], k // mask.BLOCK_SIZE[1]
    ]
    if mask.mask_mod is theirs.noop_mask or mask.mask_mod is noop_mask:
        return tile > 0
    inside = _expression(mask.mask_mod, (batch, heads), (None, None), mask.kv_indices.device)
    return (tile == 2) | (tile == 1) & inside


def _dense(counts: Any, indices: Any, columns: int) -> Any:
    """True for the tiles of a list: the first counts[..] of indices[.., :].

    A number beyond the tiles names none. PyTorch's PagedAttention lists -1 for pages that no sequence has yet.
    """
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    listed = listed & (indices >= 0) & (indices < columns)
    dense = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    dense.scatter_(-1, torch.where(listed, indices, columns).long(), True)  # what is not listed, beside the tiles
    return dense[..., :columns]


def _ordered(dense: Any) -> tuple[Any, Any]:
    """(counts, indices) of the true tiles of each row, in order, before the others."""
    indices = torch.argsort(dense.int(), dim=-1, descending=True, stable=True)
    return dense.sum(-1).to(torch.int32), indices.to(torch.int32)
