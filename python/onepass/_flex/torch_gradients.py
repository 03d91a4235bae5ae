"""Gradients of tensors that a score_mod reads, and row maxima: rows of scores are computed again, some at a time."""

import dataclasses
import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .derivative import by_loads
from .scores import Steps, by_elements, by_head, floats, scores, upstream, weights

_ELEMENTS = 1 << 22  # of scores at a time


def learned(arrays: Any) -> list[Any]:
    """The tensors of a call whose gradient is asked for."""
    if not torch.is_grad_enabled():
        return []
    return [x for x in arrays if isinstance(x, torch.Tensor) and x.requires_grad]


def scale_of(query: Any, scale: Any) -> Any:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


class Rows:
    """Scores of a call in strips of rows, -inf where a key is not visible; all tensors have heads before rows."""

    def __init__(self, query: Any, key: Any, steps: Steps, stand_ins: Any = ()) -> None:
        self.query, self.key, self.steps, self.stand_ins = query, floats(torch, key), steps, stand_ins

    def strips(self) -> Any:
        batch, heads, rows, _ = self.query.shape
        n = max(1, _ELEMENTS // max(1, batch * heads * self.key.shape[2]))
        return [slice(first, min(first + n, rows)) for first in range(0, rows, n)]

    def scores(self, strip: Any) -> Any:
        """(scores of the rows, the evaluation of expressions over them)"""

        def take(x: Any) -> Any:
            return x if x.shape[2] == 1 else x[:, :, strip]

        rows = floats(torch, self.query[:, :, strip])
        return scores(torch, self.steps, rows, self.key, strip.start, take, self.stand_ins)


@torch.no_grad()
def max_scores(query: Any, key: Any, scale: Any, score: Any, seen: Any) -> Any:
    """The largest score of each row, ``[batch, heads, rows]`` in float32; -inf in a row that sees no key."""
    rows = Rows(query, key, Steps(scale_of(query, scale), score, seen))
    found = [rows.scores(strip)[0].amax(-1) for strip in rows.strips()] if rows.key.shape[2] else []
    return torch.cat(found, -1) if found else query.new_full(query.shape[:3], -math.inf, dtype=torch.float32)


def with_gradients(out: Any, lse: Any, query: Any, key: Any, value: Any, steps: Steps, tensors: Any) -> Any:
    """(out, lse) whose backward also has the gradients of the score's tensors that require one.

    All tensors have heads before rows. The gradient has no derivative of its own.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    beside = [None if x is None else x.detach() for x in (getattr(steps, name) for name in _TENSORS)]
    nothing: Any = dict.fromkeys(_TENSORS)
    call = (dataclasses.replace(steps, **nothing), tuple(tensors))
    return _Captured.apply(call, out, lse, query.detach(), key.detach(), value.detach(), *beside, *tensors)


_TENSORS = ("alibi_slopes", "bias", "bool_mask", "block_mask")


class _Captured(torch.autograd.Function):
    @staticmethod
    def forward(call: Any, out: Any, lse: Any, *others: Any) -> Any:
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[2:])  # all but out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        lse, query, key, value, *others = ctx.saved_tensors
        steps, arrays = ctx.call
        beside, tensors = others[: len(_TENSORS)], others[len(_TENSORS) :]
        steps = dataclasses.replace(steps, **dict(zip(_TENSORS, beside)))
        sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in tensors]
        rows = Rows(query, key, steps, tuple(zip(arrays, tensors)))
        loads = by_loads(steps.score) if dout is not None or dlse is not None else []
        loads = [(load, slope) for load, slope in loads if any(x is load.value for x in arrays)]
        value = floats(torch, value)
        for strip in rows.strips() if loads else ():
            found, run = rows.scores(strip)
            weight = weights(torch, found, lse[:, :, strip])
            by_weight = None if dout is None else by_head(floats(torch, dout[:, :, strip]), value)
            slope = upstream(torch, weight, by_weight, None if dlse is None else dlse[:, :, strip])
            for load, at, part in by_elements(torch, loads, weight, slope, run):
                total = next(total for total, x in zip(sums, arrays) if x is load.value)
                if at:
                    total.index_put_(at, part, accumulate=True)
                else:
                    total += part.sum()
        none = (None,) * (3 + len(_TENSORS))
        return None, dout, dlse, *none, *(x.to(t.dtype) for x, t in zip(sums, tensors))
