"""The keys that a rank sees come to it, so each query meets all its keys in one call."""

from typing import Any

import torch

from onepass._ranks.plan import Plan, add_up, head_groups

from .call import F32, Call, Scheme, Side, heads_of, results_of, rows_of
from .ranks import Ranks


class Gather(Scheme):
    """K, V and their gradients may travel in groups of heads: a group comes while the one before is computed."""

    def __init__(self, ranks: Ranks, plan: Plan, call: Call, head_groups: int) -> None:
        self.ranks, self.plan, self.call, self.head_groups, self.me = ranks, plan, call, head_groups, ranks.me
        self.groups = (ranks,)

    def _send(self, k: Any, v: Any) -> Any:
        """K and V of some heads on their way; a function that waits and puts them in order."""
        plan, me, everybody = self.plan, self.me, range(self.ranks.size)
        out = [[] if r == me else plan.moves(me, r) for r in everybody]
        come = [[] if r == me else plan.moves(r, me) for r in everybody]
        head, dims = k.shape[:2], (k.shape[3], v.shape[3])
        blocks = [[x[:, :, a] for a, _ in moves for x in (k, v)] or [k[:, :, :0]] for moves in out]
        shapes = [[(*head, _len(a), d) for a, _ in moves for d in dims] or [(*head, 0, dims[0])] for moves in come]
        wait = self.ranks.all_to_all(blocks, shapes)

        def arrive() -> Any:
            k_all, v_all = (x.new_empty(*head, plan.gathered(me), x.shape[3]) for x in (k, v))
            for a, b in plan.moves(me, me):
                k_all[:, :, b], v_all[:, :, b] = k[:, :, a], v[:, :, a]
            for moves, found in zip(come, wait()):
                for i, (_, b) in enumerate(moves):
                    k_all[:, :, b], v_all[:, :, b] = found[2 * i], found[2 * i + 1]
            return k_all, v_all

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
        """The gradients of gathered K and V, side by side, by the queries of some calls."""
        k_all, v_all = keys
        total: Any = None
        for part in parts:
            first = total is None
            if first:
                total = k_all.new_zeros(*k_all.shape[:3], k_all.shape[3] + v_all.shape[3], dtype=F32)
            mine = rows_of(part.keys, *total.split([k_all.shape[3], v_all.shape[3]], 3))
            into = {"dq": dq[:, :, slice(*part.rows)], **(dict(zip(("dk", "dv"), mine)) if first else {})}
            dout, dlse, q, out, lse = rows_of(part.rows, *given)
            g = self.call.backward(part, side, h, (dout, dlse, q, *rows_of(part.keys, *keys), out, lse), into)
            if not first:
                for x, name in zip(mine, ("dk", "dv")):
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
        """Sums on their way to the ranks that hold the keys; a function that waits and adds in the tree's order."""
        plan, me, everybody = self.plan, self.me, range(self.ranks.size)
        like = next((x for x in sums if x is not None), None)
        zero = torch.zeros((), dtype=F32, device=self.device)

        def of(r: int) -> Any:
            for node, x in zip(plan.nodes(me), sums):
                for a, b in plan.moves(r, me, node):
                    yield zero.expand(*shape[:2], _len(a), shape[3]) if x is None else x[:, :, b]

        nothing = (like if like is not None else zero.expand(*shape[:2], 0, shape[3]))[:, :, :0]
        mine = list(of(me))
        blocks = [[nothing] if r == me else list(of(r)) or [nothing] for r in everybody]
        come = [[a for node in plan.nodes(r) for a, _ in plan.moves(me, r, node)] for r in everybody]
        shapes = [[] if r == me else [(*shape[:2], _len(a), shape[3]) for a in rows] for r, rows in enumerate(come)]
        shapes = [x or [(*shape[:2], 0, shape[3])] for x in shapes]
        wait = self.ranks.all_to_all(blocks, shapes)

        def arrive() -> Any:
            found, slots = wait(), []
            for r in everybody:
                left = iter(mine if r == me else found[r])
                for node in plan.nodes(r):
                    x = torch.zeros(shape, dtype=F32, device=self.device)
                    for a, _ in plan.moves(me, r, node):
                        x[:, :, a] = next(left)
                    slots.append(x)
                    add_up(slots, plan.home().additions.get(len(slots) - 1, ()))
            (slot,) = plan.home().slots
            return slots[slot].add_(0.0)  # -0 becomes 0, so that absent terms and terms of 0 have the same bits

        return arrive

    def backward(
        self, side: Side, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dtype: Any = None
    ) -> Any:
        """dtype: of the gradients, q's by default."""
        self.device, under_way = q.device, []
        dq, dk, dv = (torch.empty_like(x, dtype=t) for x, t in ((q, F32), (k, dtype), (v, dtype)))
        dims, groups = [k.shape[3], v.shape[3]], head_groups(q.shape[1], k.shape[1], self.head_groups)
        for (h, kv), keys in zip(groups, self._coming(k, v, groups)):
            sums = self._sums(side, h, heads_of(h, dout, dlse, q, out, lse), keys, dq[:, h])
            shape = (k.shape[0], kv.stop - kv.start, k.shape[2], sum(dims))
            under_way.append((kv, self._go_home(sums, shape)))
        for kv, arrive in under_way:
            dk[:, kv], dv[:, kv] = arrive().split(dims, 3)
        return dq.to(dtype or q.dtype), dk, dv


def _len(s: slice) -> int:
    return int(s.stop - s.start)
