"""The schemes ring and ulysses."""

from typing import Any

import jax
import jax.numpy as jnp

from onepass import _onepass

from .call import F32, Sums, out_dtype, rows_of
from .device import Device, nothing, side_sums, sum_of

_plan = _onepass.context_parallel


class Ring(Device):
    """K and V go from rank to rank while each computes with those that it has."""

    def _shift(self, x: Any, by: int) -> Any:
        """Rank r's array goes to rank r + by."""
        return jax.lax.ppermute(x, self.axis, [(r, (r + by) % self.ranks) for r in range(self.ranks)])

    def _steps(self, k: Any, v: Any) -> Any:
        """(step, K and V of rank r - step) of every step that somebody needs."""
        most = max((self.plan.ring_steps(s) for s in range(self.ranks)), default=0)
        for step in range(most + 1):
            yield step, k, v
            if step < most:
                k, v = self._shift(k, 1), self._shift(v, 1)

    def forward(self, side: Any, q: Any, k: Any, v: Any) -> Any:
        h, states = slice(0, q.shape[1]), []
        for step, k_step, v_step in self._steps(k, v):

            def branch(r: int, step: int = step) -> Any:
                def run(side: Any, q: Any, k: Any, v: Any) -> Any:
                    state = nothing(q, v, F32, self.call.return_max)
                    for part in self.plan.ring_parts(r, (r - step) % self.ranks):
                        given = (*rows_of(part.rows, q), *rows_of(part.keys, k, v))
                        before = tuple(rows_of(part.rows, *state))
                        after = merged([before, self.call.forward(part, side, h, given, F32)])
                        rows = slice(*part.rows)
                        state = tuple(None if x is None else x.at[:, :, rows].set(y) for x, y in zip(state, after))
                    return state

                return run

            states.append(self.by_rank(branch, side, q, k_step, v_step))
        out, lse, most = merged(states)
        return out.astype(out_dtype(q)), lse, most

    def backward(self, side: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        h, dims = slice(0, q.shape[1]), (k.shape[3], v.shape[3])
        total: Any = None
        sums: Any = side_sums(side)
        sums.zeros("dq", q.shape)
        sums = sums.by_name
        for step, k_step, v_step in self._steps(k, v):

            def branch(r: int, step: int = step) -> Any:
                def run(before: Any, side: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, *end: Any) -> Any:
                    sums, whole = Sums(), (slice(None), slice(None))
                    sums.by_name = dict(before)
                    sums.zeros("dkv", (*k.shape[:3], sum(dims)))
                    for part in self.plan.ring_parts(r, (r - step) % self.ranks):
                        d, dl, q_part, o, s = rows_of(part.rows, dout, dlse, q, *end)
                        g = self.call.backward(part, side, h, (d, dl, q_part, *rows_of(part.keys, k, v), o, s))
                        sums.add("dq", g["dq"], (*whole, slice(*part.rows)))
                        dkv = jnp.concatenate([g["dk"], g["dv"]], 3)
                        sums.add("dkv", dkv, (*whole, slice(*part.keys)))
                        sums.side(g, part, h)
                    return sums.by_name

                return run

            sums = self.by_rank(branch, sums, side, dout, dlse, q, k_step, v_step, out, lse)
            dkv = self._shift(sums.pop("dkv"), -step)  # home
            total = dkv if total is None else total + dkv
        return sums, total[..., : dims[0]], total[..., dims[0] :]


class Ulysses(Device):
    """Heads are dealt out, each with the whole sequence: any number of heads, and fewer K/V heads than ranks."""

    def _shares(self, q: Any, k: Any) -> tuple[list[Any], list[Any]]:
        """(query heads, the K/V heads that these read) by rank."""
        shares = [_plan.heads_of(q.shape[1], k.shape[1], self.ranks, r) for r in range(self.ranks)]
        return [h for h, _ in shares], [kv for _, kv in shares]

    def _to_heads(self, x: Any, of: Any) -> Any:
        """This rank's rows of all heads -> all rows of this rank's heads, padded to the most that a rank has."""
        most = max(b - a for a, b in of)
        blocks = [x[:, a:b] for a, b in of]
        blocks = [jnp.pad(b, [(0, most - n if i == 1 else 0) for i, n in enumerate(b.shape)]) for b in blocks]
        return self._whole(self.to_each(jnp.stack(blocks)))

    def _whole(self, found: Any) -> Any:
        """The rows of all ranks, [ranks, batch, heads, rows, ..], in the order of their positions."""
        layout = self.plan.layout
        runs = [(run.start, found[r, :, :, rows]) for r in range(self.ranks) for run, rows in layout.runs(r)]
        return jnp.concatenate([x for _, x in sorted(runs, key=lambda run: run[0])] or [found[0, :, :, :0]], 2)

    def _shards(self, x: Any) -> Any:
        """The other way; padding is 0."""
        blocks = []
        for r in range(self.ranks):
            runs = [x[:, :, run.start : run.stop] for run, _ in self.plan.layout.runs(r)]
            blocks.append(self.padded(jnp.concatenate(runs or [x[:, :, :0]], 2)))
        return jnp.stack(blocks)

    def _to_rows(self, x: Any, of: Any) -> Any:
        """All rows of this rank's heads -> its rows of all heads. Those that ranks share are added in their order."""
        found = self.to_each(self._shards(x))
        total = jnp.zeros((x.shape[0], max(b for _, b in of), *found.shape[3:]), x.dtype)
        for r, (a, b) in enumerate(of):
            total = total.at[:, a:b].add(found[r, :, : b - a])
        return total

    def _calls(self, r: int, heads: int, heads_kv: int) -> Any:
        """(query heads and K/V heads by their places here, query heads among all) of a rank's calls."""
        r %= self.ranks
        (first, _), _ = _plan.heads_of(heads, heads_kv, self.ranks, r)
        for (a, b), kv in _plan.head_calls(heads, heads_kv, self.ranks, r):
            yield slice(a, b), slice(*kv), slice(first + a, first + b)

    def forward(self, side: Any, q: Any, k: Any, v: Any) -> Any:
        heads, heads_kv = q.shape[1], k.shape[1]
        mine, read = self._shares(q, k)

        def branch(r: int) -> Any:
            def run(side: Any, q: Any, k: Any, v: Any) -> Any:
                state = nothing(q, v, out_dtype(q), self.call.return_max)
                for h, kv, of in self._calls(r, heads, heads_kv):
                    for rows, found in self._results(r, side, of, q[:, h], k[:, kv], v[:, kv]):
                        at = slice(None), h, rows
                        state = tuple(None if x is None else x.at[at].set(y) for x, y in zip(state, found))
                return state

            return run

        keys = self._everybody(*(self._to_heads(x, read) for x in (k, v)))
        out, *of_rows = self.by_rank(branch, side, self._to_heads(q, mine), *keys)
        shown = jnp.arange(self.rows) < self._count()
        home = [None if x is None else self._to_rows(x[..., None], mine)[..., 0] for x in of_rows]
        return self._to_rows(out, mine), *(None if x is None else jnp.where(shown, x, -jnp.inf) for x in home)

    def _count(self) -> Any:
        """The positions of this rank."""
        layout = self.plan.layout
        return jnp.array([layout.count(r) for r in range(layout.ranks)])[jax.lax.axis_index(self.axes)]

    def _everybody(self, *keys: Any) -> Any:
        """The K and V that calls slice, from all rows of this rank's heads."""
        return keys

    def _results(self, r: int, side: Any, of: slice, q: Any, k: Any, v: Any) -> Any:
        """(rows, results) of the calls of some heads."""
        for part in self.plan.whole_parts():
            given = (*rows_of(part.rows, q), *rows_of(part.keys, k, v))
            yield slice(*part.rows), self.call.forward(part, side, of, given, out_dtype(q))

    def _gradients(self, r: int, side: Any, sums: Sums, heads: Any, given: Any, k: Any, v: Any) -> None:
        """Adds the gradients of some heads to sums."""
        h, kv, of = heads
        for part in self.plan.whole_parts():
            d, dl, q, o, s = rows_of(part.rows, *given)
            g = self.call.backward(part, side, of, (d, dl, q, *rows_of(part.keys, k, v), o, s))
            for name, here, rows in (("dq", h, part.rows), ("dk", kv, part.keys), ("dv", kv, part.keys)):
                sums.add(name, g[name], (slice(None), here, slice(*rows)))
            sums.side(g, part, of)

    def _home(self, dk: Any, dv: Any) -> Any:
        """The gradients of all rows of this rank's K/V heads."""
        return dk, dv

    def backward(self, side: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        heads, heads_kv = q.shape[1], k.shape[1]
        mine, read = self._shares(q, k)

        def branch(r: int) -> Any:
            def run(side: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
                sums = side_sums(side)
                for name, x in (("dq", q), ("dk", k), ("dv", v)):
                    sums.zeros(name, x.shape)
                for h, kv, of in self._calls(r, heads, heads_kv):
                    given = [None if x is None else x[:, h] for x in (dout, dlse, q, out, lse)]
                    self._gradients(r, side, sums, (h, kv, of), given, k[:, kv], v[:, kv])
                return sums.by_name

            return run

        of_rows = [None if x is None else self._to_heads(x, mine) for x in (dout, q, out)]
        of_lse = [None if x is None else self._to_heads(x[..., None], mine)[..., 0] for x in (dlse, lse)]
        keys = self._everybody(*(self._to_heads(x, read) for x in (k, v)))
        sums = self.by_rank(branch, side, of_rows[0], of_lse[0], of_rows[1], *keys, of_rows[2], of_lse[1])
        sums["dq"] = self._to_rows(sums["dq"], mine)
        dk, dv = (self._to_rows(x, read) for x in self._home(sums.pop("dk"), sums.pop("dv")))
        return sums, dk, dv


def merged(states: Any) -> Any:
    """(out, lse, row maxima) in fp32 of partial results; the last is None where theirs are."""
    lses = jnp.stack([lse for _, lse, _ in states])
    top = lses.max(0)
    weights = jnp.exp(lses - jnp.where(jnp.isneginf(top), 0, top))
    total = weights.sum(0)
    some = jnp.where(total == 0, 1, total)
    out = sum_of([jnp.where(w[..., None] == 0, 0, x * (w / some)[..., None]) for (x, *_), w in zip(states, weights)])
    most = None if states[0][2] is None else jnp.stack([most for *_, most in states]).max(0)
    return out, jnp.where(total == 0, -jnp.inf, top + jnp.log(some)), most
