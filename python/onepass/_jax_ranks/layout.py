"""Shards of JAX arrays, one behind the other along the dimension of positions."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from onepass import _ranks


class Layout(_ranks.layout.Layout):
    """A sequence that is cut into units, and each rank's units. Any length and any cuts; a rank may be empty.

    Unit u is positions cuts[u] to cuts[u + 1]. Rank r holds the units order[shares[r]:shares[r + 1]]. A sharded array
    has ``ranks * rows`` rows: rank after rank, its positions in ascending order, and behind them padding.
    """

    @property
    def rows(self) -> int:
        """The rows of each shard: as many as the largest has positions, and at least one."""
        return max(1, *(self.count(r) for r in range(self.ranks)))

    def positions(self) -> np.ndarray:
        """int32: the position of each row of a sharded array, 0 in padding; for rotary embedding and position ids."""
        return np.maximum(self._places(), 0)

    def _places(self) -> np.ndarray:
        places = np.full(self.ranks * self.rows, -1, np.int32)
        for r in range(self.ranks):
            for run, rows in self.runs(r):
                places[r * self.rows + rows.start : r * self.rows + rows.stop] = run
        return places

    def shard(self, x: Any, axis: int = 2) -> Any:
        """The sharded array of an array of all positions; padding is 0."""
        x = jnp.asarray(x)
        if x.shape[axis] != self.length:
            raise ValueError(f"x must have {self.length} positions in dimension {axis} (got {x.shape[axis]})")
        places = self._places()
        shown = places.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]) >= 0
        padded = jnp.concatenate(
            [x, jnp.zeros_like(x, shape=[1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)])], axis
        )
        return jnp.where(shown, jnp.take(padded, np.maximum(places, 0), axis), jnp.zeros((), x.dtype))

    def whole(self, x: Any, axis: int = 2) -> Any:
        """The array of all positions of a sharded array."""
        x = jnp.asarray(x)
        if x.shape[axis] != self.ranks * self.rows:
            raise ValueError(f"x must have {self.ranks * self.rows} rows in dimension {axis} (got {x.shape[axis]})")
        places = self._places()
        rows = np.flatnonzero(places >= 0)
        return jnp.take(x, rows[np.argsort(places[rows])], axis)
