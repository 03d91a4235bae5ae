"""Gradients of tensors that a score_mod captures, and row maxima: rows of scores are computed again, some at a time."""

import math
from typing import Any

import torch

from .derivative import by_loads
from .evaluate import Evaluation

_ELEMENTS = 1 << 22  # of scores at a time


def learned(arrays: Any) -> list[Any]:
    """The tensors of a call whose gradient is asked for."""
    if not torch.is_grad_enabled():
        return []
    return [x for x in arrays if isinstance(x, torch.Tensor) and x.requires_grad]


class Rows:
    """Scores of a call in strips of rows, as its expressions have them; -inf where a key is not visible."""

    def __init__(self, query: Any, key: Any, scale: Any, score: Any, seen: Any, stand_ins: Any = ()) -> None:
        self.query, self.score, self.seen, self.stand_ins = query, score, seen, stand_ins
        self.groups = query.shape[1] // key.shape[1]
        self.key = key.float().repeat_interleave(self.groups, 1)
        self.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale

    def strips(self) -> Any:
        batch, heads, rows, _ = self.query.shape
        n = max(1, _ELEMENTS // max(1, batch * heads * self.key.shape[2]))
        return [slice(first, min(first + n, rows)) for first in range(0, rows, n)]

    def scores(self, strip: Any) -> Any:
        """(scores of the rows, the evaluation of expressions over them)"""
        device = self.query.device
        scores = self.query[:, :, strip].float() @ self.key.transpose(-2, -1) * self.scale
        inputs = {
            "score": scores,
            "batch": torch.arange(scores.shape[0], device=device)[:, None, None, None],
            "head": torch.arange(scores.shape[1], device=device)[:, None, None],
            "q_index": torch.arange(strip.start, strip.stop, device=device)[:, None],
            "k_index": torch.arange(scores.shape[3], device=device),
        }
        run = Evaluation(torch, inputs, self.stand_ins)
        found = scores if self.score is None else run(self.score).expand(scores.shape)
        return found if self.seen is None else torch.where(run(self.seen), found, -math.inf), run


@torch.no_grad()
def max_scores(query: Any, key: Any, scale: Any, score: Any, seen: Any) -> Any:
    """The largest score of each row, ``[batch, heads, rows]`` in float32; -inf in a row that sees no key."""
    rows = Rows(query, key, scale, score, seen)
    found = [rows.scores(strip)[0].amax(-1) for strip in rows.strips()] if rows.key.shape[2] else []
    return torch.cat(found, -1) if found else query.new_full(query.shape[:3], -math.inf, dtype=torch.float32)


def with_gradients(
    out: Any, lse: Any, query: Any, key: Any, value: Any, scale: Any, score: Any, seen: Any, tensors: Any
) -> Any:
    """(out, lse) whose backward also has the gradients of the score's tensors that require one."""
    call = (scale, score, seen, tuple(tensors))
    return _Captured.apply(out, lse, query.detach(), key.detach(), value.detach(), call, *tensors)


class _Captured(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Any, lse: Any, query: Any, key: Any, value: Any, call: Any, *tensors: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lse, query, key, value, *tensors)
        ctx.call = call
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        lse, query, key, value, *tensors = ctx.saved_tensors
        scale, score, seen, arrays = ctx.call
        stand_ins = tuple(zip(arrays, tensors))
        sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in tensors]
        rows = Rows(query, key, scale, score, seen, stand_ins)
        values = value.float().repeat_interleave(rows.groups, 1)
        loads = by_loads(score) if dout is not None or dlse is not None else []
        for strip in rows.strips() if loads else ():
            scores, run = rows.scores(strip)
            top = lse[:, :, strip, None]
            weights = torch.where(top == -math.inf, 0.0, (scores - top).exp())
            upstream = torch.zeros_like(weights)
            if dout is not None:
                by_weight = torch.where(weights == 0, 0.0, dout[:, :, strip].float() @ values.transpose(-2, -1))
                # Not the sum of dO * O, whose 16 bits would leave a rest where the sum over a row cancels.
                upstream = by_weight - (weights * by_weight).sum(-1, keepdim=True)
            if dlse is not None:
                upstream = upstream + dlse[:, :, strip, None]
            for load, slope in loads:
                i = next((i for i, x in enumerate(arrays) if x is load.value), None)
                if i is not None:  # 0 for a hidden key, whose slope may be infinite
                    part = torch.where(weights == 0, 0.0, weights * upstream * run(slope))
                    _add(sums[i], run.indices(load), part)
        return dout, dlse, None, None, None, None, *(x.to(t.dtype) for x, t in zip(sums, tensors))


def _add(total: Any, at: Any, part: Any) -> None:
    """total[at] += part, which is summed first over the dimensions in which `at` does not vary."""
    if not at:
        total += part.sum()
        return
    shape = torch.broadcast_shapes((1, 1, 1, 1), *(i.shape for i in at))
    over = [d for d in range(4) if shape[d] == 1 and part.shape[d] != 1]
    part = part.sum(over, keepdim=True) if over else part
    total.index_put_(tuple(i.expand(part.shape) for i in at), part, accumulate=True)
