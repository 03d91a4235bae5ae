"""The keys that a rank sees come to it, so each query meets all its keys in one call."""

from typing import Any

import torch

from onepass._ranks.plan import Plan, add_up, head_groups

from .call import F32, Call, Scheme, Side, heads_of, results_of, rows_first, rows_last, rows_of
from .ranks import Ranks, beside


class Gather(Scheme):
    """K, V and their gradients may travel in groups of heads: a group comes while the one before is computed."""

    def __init__(self, ranks: Ranks, plan: Plan, call: Call, head_groups: int) -> None:
        self.ranks, self.plan, self.call, self.head_groups, self.me = ranks, plan, call, head_groups, ranks.me
        self.groups = (ranks,)

    def _send(self, k: Any, v: Any) -> Any:
        """K and V of some heads on their way; a function that waits and puts them in order.

        K and V lie side by side and rows before heads, so that rows which follow each other come to their place.
        """
        plan, me, everybody = self.plan, self.me, range(self.ranks.size)
        out = [[] if r == me else plan.moves(me, r) for r in everybody]
        come = [[] if r == me else plan.moves(r, me) for r in everybody]
        dims, pair = [k.shape[3], v.shape[3]], (rows_first(k), rows_first(v))
        kv = k.new_empty(plan.gathered(me), *k.shape[:2], sum(dims))
        blocks = [[tuple(x[a] for x in pair) for a, _ in moves] or [kv[:0]] for moves in out]
        shapes = [[(_len(a), *kv.shape[1:]) for a, _ in moves] or [kv[:0].shape] for moves in come]
        into = [kv[moves[0][1]] if len(moves) == 1 else None for moves in come]
        wait = self.ranks.all_to_all(blocks, shapes, into)
        for a, b in plan.moves(me, me):
            beside(tuple(x[a] for x in pair), kv[b])

        def arrive() -> Any:
            for moves, found in zip(come, wait()):
                for (_, b), x in zip(moves, found) if len(moves) > 1 else ():
                    kv[b] = x
            return rows_last(kv).split(dims, 3)

        return arrive

    def _coming(self, k: Any, v: Any, groups: Any) -> Any:
        """K and V that are seen, a group of heads after the other; the next one is under way."""
        ahead = self._send(*heads_of(groups[0][1], k, v))
        for following in [*groups[1:], None]:
            arrive, ahead = ahead, following and self._send(*heads_of(following[1], k, v))
            yield arrive()

    def forward(self, side: Side, q: Any, k: Any, v: Any) -> Any:
        out, lse, most = results_of(q, v, self.call.return_max)
        groups = head_groups(q.shape[1], k.shape[1], self.head_groups)
        for (h, _), (k_all, v_all) in zip(groups, self._coming(k, v, groups)):
            for part in self.plan.gather_parts(self.me):
                q_part, *into = rows_of(part.rows, *heads_of(h, q, out, most))
                keys = rows_of(part.keys, k_all, v_all)
                lse[:, h, slice(*part.rows)] = self.call.forward(part, side, h, (q_part, *keys), *into)
        return out, lse, most, (q, k, v, out, lse)

    def _leaf(self, parts: Any, side: Side, h: slice, given: Any, keys: Any, dq: Any) -> Any:
        """The gradients of gathered K and V, side by side and rows first, by the queries of some calls; None is zero.

        The call with the most keys writes, the others add to it.
        """
        if not parts:
            return None
        k_all, v_all = keys
        rows, dims = k_all.shape[2], [k_all.shape[3], v_all.shape[3]]
        first = max(parts, key=lambda part: _len(slice(*part.keys)))
        new = k_all.new_empty if first.keys == (0, rows) else k_all.new_zeros
        total = new(rows, *k_all.shape[:2], sum(dims), dtype=F32)
        for part in (first, *(x for x in parts if x is not first)):
            mine = rows_of(part.keys, *rows_last(total).split(dims, 3))
            (dq_part,) = rows_of(part.rows, dq)
            into = {"dq": dq_part, **(dict(zip(("dk", "dv"), mine)) if part is first else {})}
            dout, dlse, q, out, lse = rows_of(part.rows, *given)
            g = self.call.backward(part, side, h, (dout, dlse, q, *rows_of(part.keys, *keys), out, lse), into)
            for x, name in zip(mine, ("dk", "dv")) if part is not first else ():
                x.add_(g[name])
        return total

    def _sums(self, side: Side, h: slice, given: Any, keys: Any, dq: Any) -> list[Any]:
        """Sums that go home, one tensor for each of the plan's nodes; None is zero."""
        if not self.plan.kind.by_unit:
            return [self._leaf(self.plan.gather_parts(self.me), side, h, given, keys, dq)]
        order, slots = self.plan.of_units(self.me), []
        for i, parts in enumerate(self.plan.unit_parts(self.me)):
            slots.append(self._leaf(parts, side, h, given, keys, dq))
            add_up(slots, order.additions.get(i, ()))
        return [slots[i] for i in order.slots]

    def _go_home(self, sums: list[Any], shape: Any) -> Any:
        """Sums on their way to the ranks that hold the keys; a function that waits and adds in the tree's order.

        shape: of this rank's sum, rows first.
        """
        plan, me, everybody = self.plan, self.me, range(self.ranks.size)

        def zeros(rows: int) -> Any:
            return torch.zeros(rows, *shape[1:], dtype=F32, device=self.device)

        def of(r: int) -> Any:
            for node, x in zip(plan.nodes(me), sums):
                for a, b in plan.moves(r, me, node):
                    yield zeros(_len(a)) if x is None else x[b]

        nothing = zeros(0)
        blocks = [[nothing] if r == me else list(of(r)) or [nothing] for r in everybody]
        come = [[a for node in plan.nodes(r) for a, _ in plan.moves(me, r, node)] for r in everybody]
        shapes = [[] if r == me else [(_len(a), *shape[1:]) for a in rows] for r, rows in enumerate(come)]
        wait = self.ranks.all_to_all(blocks, [x or [nothing.shape] for x in shapes])

        def whole(moves: Any, left: Any) -> Any:
            """The sum of a node, with all rows of this rank."""
            pieces = [(a, next(left)) for a, _ in moves]
            rows = sum(_len(a) for a, _ in pieces)
            if len(pieces) == 1 and rows == shape[0]:
                return pieces[0][1]
            x = (torch.empty if rows == shape[0] else torch.zeros)(shape, dtype=F32, device=self.device)
            for a, piece in pieces:
                x[a] = piece
            return x

        mine = list(of(me))

        def arrive(*into: Any) -> None:
            found, slots = wait(), []
            for r in everybody:
                left = iter(mine if r == me else found[r])
                for node in plan.nodes(r):
                    slots.append(whole(plan.moves(me, r, node), left))
                    add_up(slots, plan.home().additions.get(len(slots) - 1, ()))
            (slot,) = plan.home().slots
            for x, to in zip(rows_last(slots[slot]).split([x.shape[3] for x in into], 3), into):
                torch.add(x, 0.0, out=to)  # -0 becomes 0, so that absent terms and terms of 0 have the same bits

        return arrive

    def backward(
        self, side: Side, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dtype: Any = None
    ) -> Any:
        """dtype: of the gradients, q's by default."""
        self.device, under_way = q.device, []
        dq, dk, dv = (torch.empty_like(x, dtype=t) for x, t in ((q, F32), (k, dtype), (v, dtype)))
        groups = head_groups(q.shape[1], k.shape[1], self.head_groups)
        for (h, kv), keys in zip(groups, self._coming(k, v, groups)):
            sums = self._sums(side, h, heads_of(h, dout, dlse, q, out, lse), keys, *heads_of(h, dq))
            shape = (k.shape[2], k.shape[0], _len(kv), k.shape[3] + v.shape[3])
            under_way.append((kv, self._go_home(sums, shape)))
        dq = dq.to(dtype or q.dtype)
        for kv, arrive in under_way:
            arrive(dk[:, kv], dv[:, kv])
        return dq, dk, dv


def _len(s: slice) -> int:
    return int(s.stop - s.start)
