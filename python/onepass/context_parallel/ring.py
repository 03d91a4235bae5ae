"""K and V go from rank to rank while each computes with those that it has: two shards in memory."""

from typing import Any

import torch

import onepass
from onepass._ranks.plan import Plan

from .call import F32, Call, Scheme, Side, results_of, rows_of
from .ranks import Ranks

_EVERY_HEAD = slice(0, None)
_MOST = 4  # partial results before they are merged


class States:
    """Partial results in fp32, merged a few at a time. Rows that a result lacks have an LSE of -inf there."""

    def __init__(self, shape: Any, device: Any) -> None:
        self.shape, self.device = shape, device
        self.states: list[Any] = []
        self.free: list[Any] = []  # by state: the rows that are taken

    def place(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a call writes (out, lse) of these rows."""
        for (out, lse), taken in zip(self.states, self.free):
            if all(rows[1] <= a or b <= rows[0] for a, b in taken):
                taken.append(rows)
                return out[:, :, slice(*rows)], lse[:, :, slice(*rows)]
        if len(self.states) == _MOST:
            self.states, self.free = [self.merged()], [[(0, self.shape[2])]]
        out = torch.empty(self.shape, dtype=F32, device=self.device)
        self.states.append((out, torch.full(self.shape[:3], -torch.inf, dtype=F32, device=self.device)))
        self.free.append([])
        return self.place(rows)

    def merged(self, out: Any = None) -> Any:
        if not self.states:
            out = torch.zeros(self.shape, dtype=F32, device=self.device) if out is None else out.zero_()
            return out, torch.full(self.shape[:3], -torch.inf, dtype=F32, device=self.device)
        return onepass.merge(*zip(*self.states), out=out)


class _Sum:
    """fp32 sums [batch, heads, rows, dims]. A first term that has all rows is written in place, without zeros."""

    def __init__(self, shape: Any, device: Any) -> None:
        self.shape, self.device = shape, device
        self._sum: Any = None

    def fresh(self, rows: Any) -> Any:
        """Memory for a first term; None if there is a sum already, or the term has not all rows."""
        if self._sum is not None or tuple(rows) != (0, self.shape[2]):
            return None
        self._sum = torch.empty(self.shape, dtype=F32, device=self.device)
        return self._sum

    def memory(self) -> Any:
        if self._sum is None:
            self._sum = torch.zeros(self.shape, dtype=F32, device=self.device)
        return self._sum

    def add(self, rows: Any, *terms: Any) -> None:
        """Terms that lie side by side."""
        (here,) = rows_of(rows, self.memory())
        for into, x in zip(here.split([x.shape[3] for x in terms], 3), terms):
            into.add_(x)


class Ring(Scheme):
    def __init__(self, ranks: Ranks, plan: Plan, call: Call) -> None:
        self.ranks, self.plan, self.call, self.me = ranks, plan, call, ranks.me
        self.groups = (ranks,)

    def _circulate(self, k: Any, v: Any) -> Any:
        """(source, its calls, K, V) of every rank, its own first; the next one is under way meanwhile."""
        plan, size = self.plan, self.ranks.size
        batch, heads, dims = k.shape[0], k.shape[1], (k.shape[3], v.shape[3])
        steps, count = plan.ring_steps, plan.layout.count
        message: Any = torch.cat([k, v], 3)
        for step in range(size):
            source, before = (self.me - step) % size, (self.me - 1 - step) % size
            wait = None
            if step + 1 < size:
                goes = (self.me + 1) % size if step < steps(source) else None
                comes = (self.me - 1) % size if step < steps(before) else None
                block = message if goes is not None else k[:, :, :0, :1]
                shape = (batch, heads, count(before), sum(dims))
                wait = self.ranks.send(block, goes, comes, shape)
            parts = plan.ring_parts(self.me, source)
            yield source, parts, *((None, None) if message is None else message.split(dims, 3))
            message = wait() if wait else None

    def forward(self, side: Side, q: Any, k: Any, v: Any) -> Any:
        out, lse, most = results_of(q, v, self.call.return_max)
        states = States(out.shape, q.device)
        for _, parts, k_s, v_s in self._circulate(k, v):
            for part in parts:
                into, into_lse = states.place(part.rows)
                keys = rows_of(part.keys, k_s, v_s)
                q_part, of_rows = rows_of(part.rows, q, most)
                into_lse.copy_(self.call.forward(part, side, _EVERY_HEAD, (q_part, *keys), into, of_rows))
        lse = states.merged(out)[1]
        return out, lse, most, (q, k, v, out, lse)

    def backward(self, side: Side, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        dims, wait = [k.shape[3], v.shape[3]], None
        dq, total = _Sum(q.shape, q.device), _Sum((*k.shape[:3], sum(dims)), k.device)
        for step, (source, parts, k_s, v_s) in enumerate(self._circulate(k, v)):
            dkv = total if step == 0 else _Sum((*k.shape[:2], self.plan.layout.count(source), sum(dims)), k.device)
            for part in parts:
                given = *rows_of(part.rows, dout, dlse, q), *rows_of(part.keys, k_s, v_s), *rows_of(part.rows, out, lse)
                into = {"dq": dq.fresh(part.rows)}
                if (pair := dkv.fresh(part.keys)) is not None:
                    into["dk"], into["dv"] = pair.split(dims, 3)
                into = {name: x for name, x in into.items() if x is not None}
                g = self.call.backward(part, side, _EVERY_HEAD, given, into)
                if "dq" not in into:
                    dq.add(part.rows, g["dq"])
                if "dk" not in into:
                    dkv.add(part.keys, g["dk"], g["dv"])
            if step > 0:  # straight home, while the next shard is computed
                self._arrive(wait, total)
                wait = self._home(step, source, dkv.memory() if parts else None, total.memory())
        self._arrive(wait, total)
        dk, dv = total.memory().split(dims, 3)
        return dq.memory().to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    def _home(self, step: int, source: int, dkv: Any, total: Any) -> Any:
        """Gradients of the shard of source on their way, and those of this rank's shard."""
        reader = (self.me + step) % self.ranks.size
        comes = reader if self.plan.ring_parts(reader, self.me) else None
        block = total[:, :, :0, :1] if dkv is None else dkv
        return self.ranks.send(block, None if dkv is None else source, comes, total.shape)

    def _arrive(self, wait: Any, total: _Sum) -> None:
        if wait is not None and (x := wait()) is not None:
            total.memory().add_(x)
