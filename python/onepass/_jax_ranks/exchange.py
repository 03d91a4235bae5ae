"""Rows of shards on their way to the ranks that see them, and their gradients on their way home.

All ranks run one program, whose shapes are the same on every rank. A rank keeps what comes in a buffer, and a table
says where the rows of each pair of ranks are in it.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onepass._ranks.plan import Plan

Moves = Callable[[int, int], list[tuple[slice, slice]]]


class Entry(NamedTuple):
    """Rows that one rank sees in the shard of another."""

    buffer: slice
    shard: slice
    keys: slice  # among all keys that the rank sees


class Block(NamedTuple):
    """Rows that travel in one permutation: each sender's go to the rank `shift` places behind it."""

    shift: int
    buffer: slice
    runs: dict[int, list[slice]]  # rows in the shard of each sender

    @property
    def rows(self) -> int:
        return _len(self.buffer)

    def of(self, x: Any, ranks: int, axis: str) -> Any:
        """The rows of x that this rank sends. Behind its runs are other rows, which are not read."""
        first, *others = self.runs.values()
        if len(first) == 1 and all(runs == first for runs in others):
            return x[:, :, first[0]]
        # A run begins at a place of the block, and there the row of the shard jumps.
        begins, jumps = np.full((2, ranks, max(map(len, self.runs.values()))), self.rows, np.int32)
        for rank, runs in self.runs.items():
            place = row = 0
            for i, run in enumerate(runs):
                begins[rank, i], jumps[rank, i] = place, run.start - row
                place, row = place + run.stop - run.start, run.stop
        here, places = jax.lax.axis_index(axis), jnp.arange(self.rows)
        jumped = jnp.where(places[:, None] >= jnp.array(begins)[here], jnp.array(jumps)[here], 0)
        return jnp.take(x, places + jumped.sum(1), 2, mode="clip")


class Everything:
    """Each rank gets the shards of all ranks, one behind the other."""

    def __init__(self, ranks: int, rows: int, moves: Moves) -> None:
        self.ranks, self.rows, self._moves, self.total = ranks, rows, moves, ranks * rows

    def come(self, axis: str, *arrays: Any) -> list[Any]:
        return [jax.lax.all_gather(x, axis, axis=2, tiled=True) for x in arrays]

    def go_home(self, axis: str, x: Any) -> Any:
        return jax.lax.all_to_all(x, axis, 2, 2, tiled=True)

    def entries(self, source: int, rank: int) -> list[Entry]:
        begin = source * self.rows
        return [Entry(_moved(a, begin), a, b) for a, b in self._moves(source, rank)]

    def returned(self, source: int, rank: int) -> list[tuple[slice, slice]]:
        return [(slice(rank * self.rows, (rank + 1) * self.rows), slice(0, self.rows))]


class Seen:
    """Each rank gets the rows that it sees. Its buffer has its own shard, and behind it a place for each block.

    A rank that gets nothing of a block has zeros there, which are not read.
    """

    def __init__(self, ranks: int, rows: int, moves: Moves) -> None:
        self.ranks, self.rows, self.total = ranks, rows, rows
        self.blocks: list[Block] = []
        self._entries = {(r, r): [Entry(a, a, b) for a, b in moves(r, r)] for r in range(ranks)}
        for shift in range(1, ranks):
            found = {source: moves(source, (source + shift) % ranks) for source in range(ranks)}
            begin = 0
            for end in _ends([sum(_len(a) for a, _ in runs) for runs in found.values()]):
                self._add(shift, begin, end, found)
                begin = end

    def _add(self, shift: int, begin: int, end: int, found: dict[int, list[tuple[slice, slice]]]) -> None:
        """A block with rows begin to end of those that each sender sends."""
        block = Block(shift, slice(self.total, self.total + end - begin), {})
        for source, runs in found.items():
            at = 0
            for a, b in runs:
                first, last = max(at, begin), min(at + _len(a), end)
                if first < last:
                    here = slice(a.start + first - at, a.start + last - at)
                    buffer = slice(self.total + first - begin, self.total + last - begin)
                    entries = self._entries.setdefault((source, (source + shift) % self.ranks), [])
                    entries.append(Entry(buffer, here, _moved(here, b.start - a.start)))
                    block.runs.setdefault(source, []).append(here)
                at += _len(a)
        self.blocks.append(block)
        self.total += block.rows

    @property
    def sent(self) -> int:
        """The rows that all ranks send."""
        return sum(block.rows * len(block.runs) for block in self.blocks)

    def come(self, axis: str, *arrays: Any) -> list[Any]:
        """The buffers of arrays [batch, heads, rows, dim], which travel side by side."""
        cuts = list(itertools.accumulate(x.shape[3] for x in arrays[:-1]))
        found = [arrays]
        for block in self.blocks:
            rows = jnp.concatenate([block.of(x, self.ranks, axis) for x in arrays], 3)
            pairs = [(source, (source + block.shift) % self.ranks) for source in block.runs]
            found.append(jnp.split(jax.lax.ppermute(rows, axis, pairs), cuts, 3))
        return [jnp.concatenate(x, 2) for x in zip(*found)]

    def go_home(self, axis: str, x: Any) -> Any:
        """Blocks of a buffer, each back where its rows came from."""
        found = [x[:, :, : self.rows]]
        for block in self.blocks:
            pairs = [((source + block.shift) % self.ranks, source) for source in block.runs]
            found.append(jax.lax.ppermute(x[:, :, block.buffer], axis, pairs))
        return jnp.concatenate(found, 2)

    def entries(self, source: int, rank: int) -> list[Entry]:
        """The rows in the shard of source that rank sees, by their places in the buffer of rank."""
        return self._entries.get((source, rank), [])

    def returned(self, source: int, rank: int) -> list[tuple[slice, slice]]:
        """Where rows from rank are in the buffer of source after go_home, and where in its shard."""
        return [(entry.buffer, entry.shard) for entry in self.entries(source, rank)]


def _moved(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _len(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _ends(counts: list[int]) -> list[int]:
    """Where the rows of pairs are cut into blocks: at counts a quarter of the largest apart, so at four at most."""
    found = [max(counts)]
    for n in sorted(counts, reverse=True):
        if 4 * (found[-1] - n) >= found[0] > 0 < n:
            found.append(n)
    return [n for n in found[::-1] if n]


@functools.lru_cache(maxsize=256)
def exchange_of(plan: Plan, rows: int, node: int | None = None) -> Everything | Seen:
    """The exchange of a plan. rows: of a shard, padding included. node: only what this one of a rank's nodes sees."""
    ranks = plan.layout.ranks

    def moves(source: int, rank: int) -> list[tuple[slice, slice]]:
        if node is None:
            return plan.moves(source, rank)
        nodes = plan.nodes(rank)
        return plan.moves(source, rank, nodes[node]) if node < len(nodes) else []

    everything, seen = Everything(ranks, rows, moves), Seen(ranks, rows, moves)
    pairs = [(source, rank) for source in range(ranks) for rank in range(ranks) if source != rank]
    needed = sum(_len(a) for pair in pairs for a, _ in moves(*pair))
    saves = needed < (ranks - 1) * plan.layout.length and seen.sent < len(pairs) * rows
    return seen if saves else everything
