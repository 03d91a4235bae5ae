"""Two axes of a mesh: heads are dealt out within a node (ulysses), and the keys of other nodes come (gather).

Only K and V of a rank's own heads travel between nodes. Collectives are outside of the switch over ranks.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onepass._ranks.layout import node_layouts
from onepass._ranks.plan import plan_of

from .call import Sums
from .gather import Gather
from .schemes import Ulysses


@dataclasses.dataclass(frozen=True)
class Mesh(Ulysses):
    """plan: of all ranks. axis: within a node, with `within` ranks; between: nodes."""

    between: str = ""
    within: int = 1

    @property
    def ranks(self) -> int:
        return self.within

    @property
    def axes(self) -> Any:
        return self.between, self.axis

    def _nodes(self) -> Any:
        return [node_layouts(self.plan.layout, self.within, n) for n in range(self.plan.layout.ranks // self.within)]

    def _gather(self) -> Gather:
        nodes: Any = self._nodes()[0][0]
        return Gather(plan_of(self.plan.kind._replace(layout=nodes)), self.call, self.between, nodes.rows)

    def _here(self, table: Any) -> Any:
        """The part of a table by nodes of this device's node."""
        return jnp.array(table)[jax.lax.axis_index(self.between)]

    def _whole(self, found: Any) -> Any:
        nodes = self._nodes()
        table = np.zeros((len(nodes), nodes[0][0].rows), np.int32)
        for n, (_, layout) in enumerate(nodes):
            for r in range(self.within):
                for run, rows in layout.runs(r):
                    table[n, run.start : run.stop] = r * self.rows + np.arange(rows.start, rows.stop)
        found = jnp.moveaxis(found, 0, 2)
        found = found.reshape(*found.shape[:2], self.within * self.rows, *found.shape[4:])
        return jnp.take(found, self._here(table), 2, mode="clip")

    def _shards(self, x: Any) -> Any:
        nodes = self._nodes()
        table = np.full((len(nodes), self.within, self.rows), x.shape[2], np.int32)  # beyond the end: padding
        for n, (_, layout) in enumerate(nodes):
            for r in range(self.within):
                for run, rows in layout.runs(r):
                    table[n, r, rows] = run
        return jnp.moveaxis(jnp.take(x, self._here(table), 2, mode="fill", fill_value=0), 2, 0)

    def _everybody(self, *keys: Any) -> Any:
        return self._gather().everybody(*keys)

    def _results(self, r: int, side: Any, of: slice, q: Any, k: Any, v: Any) -> Any:
        yield slice(None), self._gather().results(r // self.within, side, of, q, k, v)

    def _gradients(self, r: int, side: Any, sums: Sums, heads: Any, given: Any, k: Any, v: Any) -> None:
        h, kv, of = heads
        found, (dkv,) = self._gather().gradients(r // self.within, side, of, given, k, v)
        sums.add("dq", found.pop("dq"), (slice(None), h))
        for name, x in zip(("dk", "dv"), jnp.split(dkv, [k.shape[3]], 3)):
            sums.add(name, x, (slice(None), kv))
        for name, x in found.items():
            sums.add(name, x, ...)

    def _home(self, dk: Any, dv: Any) -> Any:
        home = self._gather().arrived([jnp.concatenate([dk, dv], 3)])
        return jnp.split(home, [dk.shape[3]], 3)
