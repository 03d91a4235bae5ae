"""The work of a device: exchanges along an axis of the mesh, and the calls of its rank between them.

A rank is traced, and its plan is not, so the calls of all ranks are branches of a switch.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from onepass._ranks.plan import Plan

from .call import F32, SIDE, Call, Sums


@dataclasses.dataclass(frozen=True)
class Device:
    """The part that the schemes share. rows: of a shard, padding included."""

    plan: Plan
    call: Call
    axis: str
    rows: int

    @property
    def ranks(self) -> int:
        return self.plan.layout.ranks

    @property
    def axes(self) -> Any:
        """The axis or the axes along which the ranks of the layout are."""
        return self.axis

    def by_rank(self, branch: Any, *given: Any) -> Any:
        """branch(rank) of this device's rank, on the same arrays."""
        branches = [branch(r) for r in range(self.plan.layout.ranks)]
        return jax.lax.switch(jax.lax.axis_index(self.axes), branches, *given)

    def to_each(self, blocks: Any) -> Any:
        """[ranks, ..]: block r goes to rank r, and block r of the result is rank r's."""
        return jax.lax.all_to_all(blocks, self.axis, 0, 0)

    def padded(self, x: Any) -> Any:
        return _extended(x, self.rows, 0.0)

    def padded_lse(self, x: Any) -> Any:
        return None if x is None else _extended(x, self.rows, -jnp.inf)

    def added(self, x: Any) -> Any:
        """The sum of all ranks' arrays, in the order of ranks."""
        return sum_of(jax.lax.all_gather(x, self.axes))


def _extended(x: Any, rows: int, value: float) -> Any:
    pad = [(0, rows - n if i == 2 else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, pad, constant_values=value)


def sum_of(blocks: Any) -> Any:
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def nothing(q: Any, v: Any, dtype: Any, return_max: bool) -> tuple[Any, ...]:
    """(out, lse, row maxima) of rows that see no key; the last is None unless it is asked for."""
    lse = jnp.full(q.shape[:3], -jnp.inf, F32)
    return jnp.zeros((*q.shape[:3], v.shape[3]), dtype), lse, lse if return_max else None


def joined(found: Any, axis: int) -> Any:
    """The results of several calls, each one behind the other along an axis."""
    return tuple(None if x[0] is None else jnp.concatenate(x, axis) for x in zip(*found))


def side_sums(side: Any) -> Sums:
    sums = Sums()
    for name in SIDE:
        if name in side:
            sums.zeros(f"d{name}", side[name].shape)
    return sums
