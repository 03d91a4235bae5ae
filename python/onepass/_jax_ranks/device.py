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

    def by_rank(self, branch: Any, *given: Any) -> Any:
        """branch(rank) of this device's rank, on the same arrays."""
        return jax.lax.switch(jax.lax.axis_index(self.axis), [branch(r) for r in range(self.ranks)], *given)

    def to_each(self, blocks: Any) -> Any:
        """[ranks, ..]: block r goes to rank r, and block r of the result is rank r's."""
        return jax.lax.all_to_all(blocks, self.axis, 0, 0)

    def padded(self, x: Any) -> Any:
        return _extended(x, self.rows, 0.0)

    def padded_lse(self, x: Any) -> Any:
        return _extended(x, self.rows, -jnp.inf)

    def added(self, x: Any) -> Any:
        """The sum of all ranks' arrays, in the order of ranks."""
        return sum_of(jax.lax.all_gather(x, self.axis))


def _extended(x: Any, rows: int, value: float) -> Any:
    pad = [(0, rows - n if i == 2 else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, pad, constant_values=value)


def sum_of(blocks: Any) -> Any:
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def joined(found: Any, shape: Any, dtype: Any) -> Any:
    """(out, lse) of calls that have each row once, in the order of rows."""
    found = sorted(found, key=lambda x: x[0])
    if not found:
        return jnp.zeros((*shape[:2], 0, shape[3]), dtype), jnp.zeros((*shape[:2], 0), F32)
    return tuple(jnp.concatenate([x[i] for x in found], 2) for i in (1, 2))


def side_sums(side: Any) -> Sums:
    sums = Sums()
    for name in SIDE:
        if name in side:
            sums.zeros(f"d{name}", side[name].shape)
    return sums
