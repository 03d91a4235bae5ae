"""Block masks: which tiles of rows and keys a mask leaves."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from . import _arrays, _block_mask_device, _devices, _kinds, _onepass, _options, _values
from . import _numpy as np
from ._flex import trace

_LISTS = ("mixed", "full", "mixed_rows", "full_rows")


@dataclasses.dataclass(frozen=True, eq=False)
class TileLists:
    """List i is ``tiles[begin[i]:begin[i + 1]]``, ascending: int64 ``[lists + 1]`` and int32 ``[tiles]``."""

    begin: Any
    tiles: Any

    def of(self, i: int) -> Any:
        return self.tiles[self.begin[i] : self.begin[i + 1]]


@dataclasses.dataclass(frozen=True, eq=False)
class BlockMask:
    """Tiles of rows and keys: mixed ones, whose elements a mask tells apart, and full ones. All others are empty.

    The lists of a mask that was built on a device are made whenever they are read, of its states as they are then. This
    waits for the device.

    Attributes:
      batch: entries of the batch; 1 where one mask is shared.
      heads: heads; 1 where one mask is shared.
      seq_q: rows.
      seq_k: keys.
      tile_q: rows of a tile; the last one may be smaller.
      tile_k: keys of a tile; the last one may be smaller.
      mixed: lists of mixed tiles of keys, list ``(b * heads + h) * row_tiles + row_tile``.
      full: the same lists of full tiles.
      mixed_rows: the mixed tiles as lists of tiles of rows, list ``(b * heads + h) * key_tiles + key_tile``.
      full_rows: the full tiles as such lists.
      mask_mod: the mask that it was made of, or None.
      mod_buffers: the arrays that mask_mod reads, or None. Those of a mask that was built on a device are there.
    """

    batch: int
    heads: int
    seq_q: int
    seq_k: int
    tile_q: int
    tile_k: int
    mixed: TileLists
    full: TileLists
    mixed_rows: TileLists
    full_rows: TileLists
    mask_mod: str | None = None
    mod_buffers: Mapping[str, Any] | None = None

    @property
    def row_tiles(self) -> int:
        return -(-self.seq_q // self.tile_q)

    @property
    def key_tiles(self) -> int:
        return -(-self.seq_k // self.tile_k)

    @property
    def sparsity(self) -> float:
        """The share of tiles that are empty, from 0 to 1."""
        return self._counts()[2]

    def _counts(self) -> tuple[int, int, float]:
        """Mixed and full tiles, and sparsity."""
        tiles = self.batch * self.heads * self.row_tiles * self.key_tiles
        if "_on_device" in self.__dict__:
            states = self.states()
            mixed, full = (int(np.count_nonzero(states == value)) for value in (1, 2))
        else:
            mixed, full = self.mixed.tiles.size, self.full.tiles.size
        return mixed, full, 1 - (mixed + full) / tiles if tiles else 0.0

    def __getattr__(self, name: str) -> Any:
        """A list of a mask on a device. None is kept: a replay of a CUDA graph changes the states."""
        if name not in _LISTS or "_on_device" not in self.__dict__:
            raise AttributeError(f"'BlockMask' object has no attribute {name!r}")
        states = self.states().reshape(self.batch * self.heads * self.row_tiles, self.key_tiles)
        counts = [np.count_nonzero(states == value, axis=1) for value in (1, 2)]
        begins = [np.concatenate([[0], np.cumsum(n)]).astype(np.int64).tobytes() for n in counts]
        tiles = [np.nonzero(states == value)[1].astype(np.int32).tobytes() for value in (1, 2)]
        shape = self.batch, self.heads, self.seq_q, self.seq_k, self.tile_q, self.tile_k
        return _lists(_onepass.block_mask_of_lists(shape, *zip(begins, tiles)))[_LISTS.index(name)]

    def states(self) -> Any:
        """uint8 ``[batch, heads, row_tiles, key_tiles]``: 0 empty, 1 mixed, 2 full."""
        if "_on_device" in self.__dict__:
            states = self.__dict__["_on_device"]
            return np.asarray(states.cpu() if _devices.is_torch(states) else states.get()).astype(np.uint8)
        states = np.zeros((self.batch * self.heads * self.row_tiles, self.key_tiles), np.uint8)
        for value, lists in ((1, self.mixed), (2, self.full)):
            states[np.repeat(np.arange(len(states)), np.diff(lists.begin)), lists.tiles] = value
        return states.reshape(self.batch, self.heads, self.row_tiles, self.key_tiles)

    def in_call(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """block_mask, mask_tile_q, mask_tile_k, mask_mod and mod_buffers of a call whose block_mask this is.

        Its mask_mod is the call's, unless that has one. The states of a mask of NumPy are copied once for each device.
        """
        for name in ("mask_tile_q", "mask_tile_k"):
            if given[name] is not None:
                raise ValueError(f"{name} must be None with a BlockMask, which has its own tiles (got {given[name]!r})")
        self._check_lengths(given)
        states, own_buffers = self._arrays_like(given["q"])
        own = self.mask_mod is not None and given["mask_mod"] is None
        buffers = given["mod_buffers"]
        if own and own_buffers:
            buffers = {**dict(_options.mod_items(buffers or {})), **own_buffers}
        return {
            "block_mask": states,
            "mask_tile_q": self.tile_q,
            "mask_tile_k": self.tile_k,
            "mask_mod": self.mask_mod if own else given["mask_mod"],
            "mod_buffers": buffers,
        }

    def _check_lengths(self, given: Mapping[str, Any]) -> None:
        """Refuse a call of other lengths: the tiles of a mask with one row or column of tiles would repeat."""
        tokens = 1 if given["layout"] == "bshd" else 2
        packed = given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None
        of_keys = packed or given.get("page_table") is not None
        for name, unknown, own, tile in (
            ("q", packed, self.seq_q, self.tile_q),
            ("k", of_keys, self.seq_k, self.tile_k),
        ):
            shape = getattr(given[name], "shape", ())
            n = given[f"max_seqlen_{name}"] if unknown else shape[tokens] if len(shape) == 4 else None
            if isinstance(n, int) and -(-n // tile) != -(-own // tile):
                what = f"max_seqlen_{name}" if unknown else name
                tokens_of = "rows" if name == "q" else "keys"
                raise ValueError(f"block_mask must have {n} {tokens_of}, as {what} says (got {own})")

    def _arrays_like(self, q: Any) -> Any:
        """(states() in int32, mod_buffers) on the device of q; NumPy arrays become arrays of its kind."""
        torch: Any = sys.modules["torch"] if _devices.is_torch(q) else None
        place = q.device if torch else q.device.id if _devices.is_cupy(q) else None
        keeps = "_on_device" not in self.__dict__ and (torch is None or _kinds.keeps(torch))
        made = self.__dict__.setdefault("_made", {}) if keeps else {}  # by place
        if place not in made:
            with _kinds.to_keep(torch) if torch and keeps else contextlib.nullcontext():
                buffers = {name: _block_mask_device.there(x, q) for name, x in (self.mod_buffers or {}).items()}
                made[place] = self.states_like(q), buffers
        return made[place]

    def states_like(self, like: Any) -> Any:
        """states() in int32, of the kind and on the device of `like`: those of a mask that was built there."""
        own = self.__dict__.get("_on_device")
        kinds = (_devices.is_torch, _devices.is_cupy, _devices.cuda_index)
        if own is not None and all(kind(own) == kind(like) for kind in kinds):
            return own
        return _block_mask_device.moved(self.states().astype(np.int32), like)

    def __repr__(self) -> str:
        mixed, full, sparsity = self._counts()
        return (
            f"BlockMask(batch={self.batch}, heads={self.heads}, seq_q={self.seq_q}, seq_k={self.seq_k}, "
            f"tile=({self.tile_q}, {self.tile_k}), mixed={mixed}, full={full}, sparsity={sparsity:.3f})"
        )


def block_mask(
    mask: Any,
    seq_q: int | None = None,
    seq_k: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    tile: tuple[int, int] = (128, 128),
    mod_buffers: Mapping[str, Any] | None = None,
    exact: bool = False,
    mixed: tuple[Any, Any] | None = None,
    full: tuple[Any, Any] | None = None,
    device: Any = None,
) -> BlockMask:
    """The tiles that a mask leaves, by interval arithmetic over a mask_mod: no matrix of rows and keys is made.

    Args:
      mask: a mask_mod as text (docs/features/score_mod.md) or as a function (docs/features/flex_attention.md); or an
        array of bools ``[.., seq_q, seq_k]`` of 2 to 4
        dimensions in CPU memory; or None with the lists `mixed` and `full`.
      seq_q, seq_k: rows and keys. An array has them in its shape.
      batch, heads: how many masks there are; 1 where all share that of entry 0 or head 0.
      tile: rows and keys of a tile.
      mod_buffers: a dict of the arrays that a mask_mod reads.
      exact: a mask_mod's elements are looked at where bounds do not decide; otherwise such tiles are mixed.
      mixed, full: the caller's own lists as ``(begin, tiles)`` (see ``TileLists``).
      device: of PyTorch, such as ``"cuda"``: where the tiles of a mask_mod are made. None: where the mod_buffers are,
        those of PyTorch and CuPy. On a CUDA device this is put on the current stream. Only copies of mod_buffers in
        other memory are waited for. An int64 on a device is not checked: it wraps beyond int32.

    Returns:
      A ``BlockMask`` of NumPy arrays. One that was built on a device keeps its states there for calls.

    Raises:
      ValueError, TypeError: for a text that cannot be read, and for what does not fit.
      ModuleNotFoundError: for a device without PyTorch.
    """
    if callable(mask):
        shared = (None if n == 1 else n for n in (batch, heads))  # one mask may serve any number
        mask, mod_buffers = trace.mask_text(mask, (*shared, seq_q, seq_k), mod_buffers)
    tile_q, tile_k = (_values.integer("tile", x, 1, 2**31 - 1, "two positive numbers") for x in tile)
    if device is not None and not isinstance(mask, str):
        raise ValueError(f"device must be None without a mask_mod (got {device!r})")
    if mask is not None and not isinstance(mask, str):
        place = _devices.place_of(mask)
        return _of(_onepass.block_mask_of_tensor(_arrays.exported("bool_mask", mask, place), tile_q, tile_k))
    sizes = (("batch", batch), ("heads", heads), ("seq_q", seq_q), ("seq_k", seq_k))
    shape = (*(_values.integer(name, x, 0, 2**31 - 1, "a size") for name, x in sizes), tile_q, tile_k)
    if mask is None:
        if mixed is None and full is None:
            accepted = "text, a function or an array of bools, or None with lists mixed or full"
            raise TypeError(f"mask must be {accepted} (got None)")
        lists = ((np.zeros(1), ()) if x is None else x for x in (mixed, full))
        as_bytes = [(np.asarray(b, np.int64).tobytes(), np.asarray(t, np.int32).tobytes()) for b, t in lists]
        return _of(_onepass.block_mask_of_lists(shape, *as_bytes))
    text, given = _values.text("mask", mask), dict(_options.mod_items(mod_buffers or {}))
    if (like := _block_mask_device.like_of(device, given)) is not None:
        with _kinds.to_keep(sys.modules["torch"]) if _devices.is_torch(like) else contextlib.nullcontext():
            there = {name: _block_mask_device.there(x, like) for name, x in given.items()}
            states = _block_mask_device.states(text, there, shape, bool(exact), like)
        self = BlockMask.__new__(BlockMask)
        names = ("batch", "heads", "seq_q", "seq_k", "tile_q", "tile_k", "mask_mod", "mod_buffers", "_on_device")
        self.__dict__.update(zip(names, (*shape, mask, there or None, states)))
        return self
    made = _onepass.block_mask(text, _block_mask_device.exported(given, None), shape, bool(exact))
    return dataclasses.replace(_of(made), mask_mod=mask, mod_buffers=mod_buffers)


def _of(made: tuple[Any, ...]) -> BlockMask:
    return BlockMask(*made[0], *_lists(made))


def _lists(made: tuple[Any, ...]) -> list[TileLists]:
    return [TileLists(_numbers(b, np.int64), _numbers(t, np.int32)) for b, t in made[1:]]


def _numbers(x: bytes, dtype: Any) -> Any:
    """A copy: PyTorch 2.11 cannot compile a function of a read-only array in another object's memory."""
    return np.frombuffer(x, dtype).copy()
