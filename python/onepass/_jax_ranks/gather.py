"""The keys that a rank sees come to it, so each query meets all its keys in one call."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from onepass._ranks.plan import add_up, head_groups

from .call import F32, Sums, out_dtype, rows_of
from .device import Device, joined, nothing, side_sums
from .exchange import Everything, exchange_of


@dataclasses.dataclass(frozen=True)
class Gather(Device):
    """head_groups: K, V and their gradients travel in groups of heads, one after the other."""

    head_groups: int = 1

    def _groups(self, q: Any, k: Any, v: Any) -> Any:
        """(query heads, K, V, done) of each group; done(results) of a group lets the next one begin."""
        groups = head_groups(q.shape[1], k.shape[1], self.head_groups)
        for h, kv in groups:

            def done(results: Any) -> Any:
                nonlocal k, v
                (k, v), results = jax.lax.optimization_barrier(((k, v), results))
                return results

            yield h, k[:, kv], v[:, kv], done if len(groups) > 1 else lambda results: results

    def _exchange(self, node: int | None = None) -> Any:
        return exchange_of(self.plan, self.rows, node if self.plan.kind.by_unit else None)

    def everybody(self, *arrays: Any) -> list[Any]:
        """Buffers with the rows of all shards that this rank sees."""
        return self._exchange().come(self.axis, *arrays)

    def _entries(self, r: int, node: int | None = None) -> list[Any]:
        """The keys that rank r sees, in their order."""
        exchange = self._exchange(node)
        found = [entry for source in range(self.ranks) for entry in exchange.entries(source, r)]
        return sorted(found, key=lambda entry: int(entry.keys.start))

    def _seen(self, r: int, x: Any) -> Any:
        blocks = [x[:, :, entry.buffer] for entry in self._entries(r)]
        return jnp.concatenate(blocks, 2) if blocks else x[:, :, :0]

    def forward(self, side: Any, q: Any, k: Any, v: Any) -> Any:
        found = [done(self._forward(side, h, q[:, h], *keys)) for h, *keys, done in self._groups(q, k, v)]
        return joined(found, 1)

    def _forward(self, side: Any, h: slice, q: Any, k: Any, v: Any) -> Any:
        def branch(r: int) -> Any:
            return lambda side, q, k, v: self.results(r, side, h, q, k, v)

        return self.by_rank(branch, side, q, *self.everybody(k, v))

    def results(self, r: int, side: Any, h: slice, q: Any, k: Any, v: Any) -> Any:
        """(out, lse, row maxima) of rank r. k, v: the buffers of everybody."""
        k, v = self._seen(r, k), self._seen(r, v)
        found = [nothing(q[:, :, :0], v, out_dtype(q), self.call.return_max)]
        for part in sorted(self.plan.gather_parts(r), key=lambda part: tuple(part.rows)):
            given = (*rows_of(part.rows, q), *rows_of(part.keys, k, v))
            found.append(self.call.forward(part, side, h, given, out_dtype(q)))
        out, *of_rows = joined(found, 2)
        return self.padded(out), *map(self.padded_lse, of_rows)

    def backward(self, side: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        dq, dkv, total = [], [], side_sums(side).by_name
        for h, k_group, v_group, done in self._groups(q, k, v):
            given = [None if x is None else x[:, h] for x in (dout, dlse, q, out, lse)]
            sums, home = done(self._backward(side, h, given, k_group, v_group))
            dq.append(sums.pop("dq"))
            dkv.append(home)
            total = {name: total[name] + x for name, x in sums.items()}
        dk, dv = jnp.split(jnp.concatenate(dkv, 1), [k.shape[3]], 3)
        return {"dq": jnp.concatenate(dq, 1), **total}, dk, dv

    def _backward(self, side: Any, h: slice, given: Any, k: Any, v: Any) -> Any:
        """(sums by name, gradients of this rank's K and V side by side)"""

        def branch(r: int) -> Any:
            return lambda side, given, k, v: self.gradients(r, side, h, given, k, v)

        sums, home = self.by_rank(branch, side, given, *self.everybody(k, v))
        return sums, self.arrived(home)

    def gradients(self, r: int, side: Any, h: slice, given: Any, k: Any, v: Any) -> Any:
        """(sums by name, for each of the plan's nodes a buffer with gradients of K and V side by side)"""
        keys, sums = (self._seen(r, k), self._seen(r, v)), side_sums(side)
        sums.zeros("dq", given[2].shape)
        home = []
        found = self._sums(r, side, h, given, keys, sums)
        for node in range(max(len(self.plan.nodes(rank)) for rank in range(self.ranks))):
            x = jnp.zeros((*k.shape[:2], self._exchange(node).total, k.shape[3] + v.shape[3]), F32)
            if node < len(found) and found[node] is not None:
                for entry in self._entries(r, node):
                    x = x.at[:, :, entry.buffer].set(found[node][:, :, entry.keys])
            home.append(x)
        return sums.by_name, home

    def arrived(self, home: list[Any]) -> Any:
        """The gradients of this rank's K and V side by side, from the buffers of all ranks."""
        exchanges = [self._exchange(node) for node in range(len(home))]
        found = [exchange.go_home(self.axis, x) for exchange, x in zip(exchanges, home)]

        def branch(r: int) -> Any:
            return lambda *found: self._total(r, exchanges, found)

        if all(isinstance(exchange, Everything) for exchange in exchanges):  # rows of a rank are at the same place
            return branch(0)(*found)
        return self.by_rank(branch, *found)

    def _total(self, r: int, exchanges: Any, found: Any) -> Any:
        """The sum of the gradients that came home to rank r, in the order of the plan."""
        slots: list[Any] = []
        order, shape = self.plan.home(), (*found[0].shape[:2], self.rows, found[0].shape[3])
        for rank in range(self.ranks):
            for node in range(len(self.plan.nodes(rank))):
                places = exchanges[node].returned(r, rank)
                x: Any = jnp.zeros(shape, F32) if places else None
                for buffer, shard in places:
                    x = x.at[:, :, shard].set(found[node][:, :, buffer])
                slots.append(x)
                add_up(slots, order.additions.get(len(slots) - 1, ()))
        (slot,) = order.slots
        total = slots[slot]  # absent terms and terms of 0 have the same bits; XLA would drop "+ 0.0"
        return jnp.zeros(shape, F32) if total is None else jnp.where(total == 0, 0.0, total)  # -0 becomes 0

    def _sums(self, r: int, side: Any, h: slice, given: Any, keys: Any, sums: Sums) -> list[Any]:
        """An array to go home for each of the plan's nodes; None is zero."""
        if not self.plan.kind.by_unit:
            return [self._leaf(self.plan.gather_parts(r), side, h, given, keys, sums)]
        order, slots = self.plan.of_units(r), []
        for i, parts in enumerate(self.plan.unit_parts(r)):
            slots.append(self._leaf(parts, side, h, given, keys, sums))
            add_up(slots, order.additions.get(i, ()))
        return [slots[i] for i in order.slots]

    def _leaf(self, parts: Any, side: Any, h: slice, given: Any, keys: Any, sums: Sums) -> Any:
        """The gradients of gathered K and V, side by side, by the queries of some calls. Others are added to sums."""
        if not parts:
            return None
        total, whole = Sums(), (slice(None), slice(None))
        for name, x in zip(("dk", "dv"), keys):
            total.zeros(name, x.shape)
        for part in parts:
            dout, dlse, q, out, lse = rows_of(part.rows, *given)
            g = self.call.backward(part, side, h, (dout, dlse, q, *rows_of(part.keys, *keys), out, lse))
            for to, name, rows in ((sums, "dq", part.rows), (total, "dk", part.keys), (total, "dv", part.keys)):
                to.add(name, g[name], (*whole, slice(*rows)))
            sums.side(g, part, h)
        return jnp.concatenate([total.by_name["dk"], total.by_name["dv"]], 3)
