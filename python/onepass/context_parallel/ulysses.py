"""Heads are dealt out, each with the whole sequence: any number of heads, and fewer K/V heads than ranks."""

from typing import Any

import torch

from onepass import _onepass
from onepass._ranks.plan import Plan

from .call import F32, Call, Scheme, Side, heads_of, results_of, rows_of
from .ranks import Ranks

_plan = _onepass.context_parallel


class Ulysses(Scheme):
    def __init__(self, ranks: Ranks, plan: Plan, call: Call, heads: int, heads_kv: int) -> None:
        self.ranks, self.plan, self.call, self.me = ranks, plan, call, ranks.me
        self.groups = (ranks,)
        self.layout, size = plan.layout, ranks.size
        shares = [_plan.heads_of(heads, heads_kv, size, r) for r in range(size)]
        self.mine, self.read = [h for h, _ in shares], [kv for _, kv in shares]  # by rank
        self.calls = _plan.head_calls(heads, heads_kv, size, self.me)
        self.shared = sum(b - a for a, b in self.read) > heads_kv  # a K/V head is read by several ranks

    def _to_heads(self, *given: Any) -> list[torch.Tensor]:
        """(this rank's rows of all heads, the ranks' heads) of each -> all rows of this rank's heads."""
        everybody, count = range(self.ranks.size), self.layout.count
        blocks = [[x[:, slice(*of[r])] for x, of in given] for r in everybody]
        shapes = [[(x.shape[0], _len(of[self.me]), count(r), *x.shape[3:]) for x, of in given] for r in everybody]
        return [self.layout.whole(x) for x in zip(*self.ranks.all_to_all(blocks, shapes)())]

    def _to_rows(self, *given: Any) -> list[torch.Tensor]:
        """(all rows of this rank's heads, the ranks' heads) of each -> this rank's rows of all heads.

        Heads that ranks share are added in the order of ranks.
        """
        everybody, count = range(self.ranks.size), self.layout.count(self.me)
        blocks = [[self.layout.shard(x, r) for x, _ in given] for r in everybody]
        shapes = [[(x.shape[0], _len(of[r]), count, *x.shape[3:]) for x, of in given] for r in everybody]
        found = self.ranks.all_to_all(blocks, shapes)()
        results = []
        for i, (x, of) in enumerate(given):
            y = x.new_zeros(x.shape[0], max(b for _, b in of), count, *x.shape[3:])
            for r in everybody:
                y[:, slice(*of[r])] += found[r][i]
            results.append(y)
        return results

    def _heads(self, call: Any) -> tuple[slice, slice, slice]:
        """A call's query heads and K/V heads by their places here, and its query heads among all."""
        (begin, end), kv = call
        first = self.mine[self.me][0]
        return slice(begin, end), slice(*kv), slice(first + begin, first + end)

    def forward(self, side: Side, q: Any, k: Any, v: Any) -> Any:
        q, k, v = self._to_heads((q, self.mine), (k, self.read), (v, self.read))
        out, lse, most = results_of(q, v, self.call.return_max)
        for h, kv, of in map(self._heads, self.calls):
            for part in self.plan.whole_parts():
                q_part, *into = rows_of(part.rows, *heads_of(h, q, out, most))
                keys = rows_of(part.keys, k[:, kv], v[:, kv])
                lse[:, h, slice(*part.rows)] = self.call.forward(part, side, of, (q_part, *keys), *into)
        return *self._home_of(out, lse, most), (q, k, v, out, lse)

    def _home_of(self, *results: Any) -> Any:
        return [None if x is None else self._to_rows((x, self.mine))[0] for x in results]

    def saved(self, *tensors: Any) -> Any:
        return self._to_heads(*zip(tensors, (self.mine, self.read, self.read, self.mine, self.mine)))

    def backward(self, side: Side, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        (dout,) = self._to_heads((dout, self.mine))
        if dlse is not None:
            (dlse,) = self._to_heads((dlse, self.mine))
        dq, dk, dv = (torch.zeros_like(x, dtype=F32) for x in (q, k, v))
        for h, kv, of in map(self._heads, self.calls):
            for part in self.plan.whole_parts():
                rows = [None if x is None else x[:, h] for x in (dout, dlse, q, out, lse)]
                d, dl, q_part, o, s = rows_of(part.rows, *rows)
                keys = rows_of(part.keys, k[:, kv], v[:, kv])
                into = {"dq": dq[:, h, slice(*part.rows)]}
                g = self.call.backward(part, side, of, (d, dl, q_part, *keys, o, s), into)
                for x, name in ((dk, "dk"), (dv, "dv")):
                    x[:, kv, slice(*part.keys)] += g[name]
        return self._home(dq, dk, dv, q.dtype)

    def _home(self, dq: Any, dk: Any, dv: Any, dtype: Any) -> Any:
        if not self.shared:  # each is whole already: half to send
            dk, dv = dk.to(dtype), dv.to(dtype)
        (dq,) = self._to_rows((dq.to(dtype), self.mine))
        dk, dv = self._to_rows((dk, self.read), (dv, self.read))
        return dq, dk.to(dtype), dv.to(dtype)


def _len(pair: Any) -> int:
    return int(pair[1] - pair[0])
