"""A mesh of two dimensions: heads are dealt out within a node (ulysses), and the keys of other nodes come (gather).

Only K and V of a rank's own heads travel between nodes.
"""

from typing import Any

import torch

from onepass._ranks.layout import Layout
from onepass._ranks.plan import Plan

from .call import F32, Call, Side, results_of
from .gather import Gather
from .ranks import Ranks
from .ulysses import Ulysses


class _FromHead(Side):
    """The side inputs of a call on some heads, which count from 0 there."""

    def __init__(self, side: Side, first: int) -> None:
        self.side, self.first = side, first

    def _here(self, h: slice) -> slice:
        return slice(self.first + h.start, self.first + h.stop)

    def of(self, part: Any, h: slice) -> dict[str, Any]:
        return self.side.of(part, self._here(h))

    def names(self, part: Any) -> list[str]:
        return self.side.names(part)

    def take(self, part: Any, h: slice, g: dict[str, Any]) -> None:
        self.side.take(part, self._here(h), g)


class Mesh(Ulysses):
    """ranks: of this node. between: the ranks of the other nodes that have this rank's place."""

    def __init__(self, ranks: Ranks, between: Ranks, plan: Plan, rows: Layout, call: Call, heads: Any) -> None:
        super().__init__(ranks, plan, call, *heads)
        self.layout, self.between, self.groups = rows, between, (ranks, between)

    def _each(self) -> Any:
        """The heads of each call by their places here, and a gather of their keys."""
        for h, kv, of in map(self._heads, self.calls):
            call = self.call._replace(first_head=of.start)
            yield h, kv, of.start, Gather(self.between, self.plan, call, 1)

    def forward(self, side: Side, q: Any, k: Any, v: Any) -> Any:
        q, k, v = self._to_heads((q, self.mine), (k, self.read), (v, self.read))
        out, lse, most = results_of(q, v, self.call.return_max)
        for h, kv, first, gather in self._each():
            found = gather.forward(_FromHead(side, first), q[:, h], k[:, kv], v[:, kv])
            for x, y in zip((out, lse, most), found):
                if x is not None:
                    x[:, h] = y
        return *self._home_of(out, lse, most), (q, k, v, out, lse)

    def backward(self, side: Side, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        (dout,) = self._to_heads((dout, self.mine))
        if dlse is not None:
            (dlse,) = self._to_heads((dlse, self.mine))
        dq, dk, dv = (torch.zeros_like(x, dtype=F32) for x in (q, k, v))
        for h, kv, first, gather in self._each():
            rows = [None if x is None else x[:, h] for x in (dout, dlse)]
            given = *rows, q[:, h], k[:, kv], v[:, kv], out[:, h], lse[:, h]
            dq[:, h], *dkv = gather.backward(_FromHead(side, first), *given, dtype=F32)
            dk[:, kv] += dkv[0]
            dv[:, kv] += dkv[1]
        return self._home(dq, dk, dv, q.dtype)
