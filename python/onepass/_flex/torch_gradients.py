"""Gradients of tensors that a score_mod reads, and row maxima: rows of scores are computed again, some at a time."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch.compiler import is_compiling

from .._torch_second import recorded
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


def tensor_of(x: Any) -> Any:
    """x, and an array of NumPy's as a tensor; a copy, because it may be read-only."""
    return torch.from_numpy(np.array(x)) if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biuf" else x


def tied(x: Any, tensors: Any) -> Any:
    """An input of attention whose score reads these tensors, and whose gradient they change."""
    return Tied.apply(x, *tensors) if learned((x,)) and tensors and not is_compiling() else x


def with_gradients(
    out: Any, lse: Any, query: Any, key: Any, value: Any, steps: Steps, arrays: Any, wanted: Any
) -> tuple[Any, Any]:
    """(out, lse) whose backward also has the gradients of the score's tensors that require one.

    All tensors have heads before rows. The gradients have no derivatives of their own.

    Args:
      arrays: all that the expressions read.
      wanted: those of them whose gradients are returned.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    beside = [tensor_of(getattr(steps, name)) for name in _TENSORS]
    tensors = [x if any(x is y for y in wanted) else tensor_of(x).detach() for x in arrays]
    nothing: Any = dict.fromkeys(_TENSORS)
    call = _Call(dataclasses.replace(steps, **nothing), tuple(arrays))
    function = _Compiled if is_compiling() else Captured
    found: tuple[Any, Any] = function.apply(call, out, lse, query, key, value, *beside, *tensors)
    return found


_TENSORS = ("alibi_slopes", "bias", "bool_mask", "block_mask")


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call without tensors, which are inputs of the functions below. A tuple's tensors would be, too.

    arrays: what the loads of the expressions name; tensors stand in for them.
    """

    steps: Steps
    arrays: tuple[Any, ...]


class _Compiled(torch.autograd.Function):
    """Results as they are, for torch.compile, which accepts no function that has a rule for forward mode."""

    @staticmethod
    def forward(call: Any, out: Any, lse: Any, *others: Any) -> Any:
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[2:])  # all but out

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        before = 3 + 3 + len(_TENSORS)
        wanted = tuple(ctx.needs_input_grad[before:])
        found: Any = ()
        if any(wanted) and not (dout is None and dlse is None):
            compute = buffer_gradients if is_compiling() else BufferGradients.apply
            found = compute(ctx.call, wanted, dout, dlse, *ctx.saved_tensors)
        given = iter(found)
        return None, dout, dlse, *(None,) * (before - 3), *(next(given, None) if x else None for x in wanted)


class Captured(_Compiled):
    """_torch_vmap adds the rule for vmap to it, to BufferGradients, to Tied and to Refusing."""

    @staticmethod
    def jvp(ctx: Any, _: Any, tout: Any, tlse: Any, *tangents: Any) -> Any:
        """The tangents of the results have those of all inputs but the buffers."""
        if any(t is not None for t in tangents[3 + len(_TENSORS) :]):
            raise NotImplementedError("onepass.torch does not support a tangent of mod_buffers or captured tensors")
        return tuple(None if t is None else t.view_as(t) for t in (tout, tlse))

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        if any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in (dout, dlse)):
            raise NotImplementedError(
                "onepass.torch does not support is_grads_batched beside a gradient of mod_buffers or captured tensors; "
                "use torch.func.vjp and torch.func.vmap"
            )
        return _Compiled.backward(ctx, dout, dlse)


def buffer_gradients(
    call: Any, wanted: Any, dout: Any, dlse: Any, lse: Any, query: Any, key: Any, value: Any, *others: Any
) -> tuple[Any, ...]:
    """The gradients of the wanted tensors: sums over strips of rows."""
    beside, tensors = others[: len(_TENSORS)], others[len(_TENSORS) :]
    rows = Rows(
        query, key, dataclasses.replace(call.steps, **dict(zip(_TENSORS, beside))), tuple(zip(call.arrays, tensors))
    )
    asked = [(array, x) for array, x, wants in zip(call.arrays, tensors, wanted) if wants]
    sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for _, x in asked]
    loads = [(load, slope) for load, slope in by_loads(call.steps.score) if any(x is load.value for x, _ in asked)]
    value = floats(torch, value)
    for strip in rows.strips() if loads else ():
        found, run = rows.scores(strip)
        weight = weights(torch, found, lse[:, :, strip])
        by_weight = None if dout is None else by_head(floats(torch, dout[:, :, strip]), value)
        slope = upstream(torch, weight, by_weight, None if dlse is None else dlse[:, :, strip])
        for load, at, part in by_elements(torch, loads, weight, slope, run):
            total = next(total for total, (x, _) in zip(sums, asked) if x is load.value)
            if at:
                total.index_put_(at, part, accumulate=True)
            else:
                total += part.sum()
    return tuple(total.to(x.dtype) for total, (_, x) in zip(sums, asked))


def _refuse_twice(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError("onepass.torch does not support second derivatives by mod_buffers or captured tensors")


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


class BufferGradients(torch.autograd.Function):
    forward, setup_context = staticmethod(buffer_gradients), staticmethod(_keep_nothing)
    backward = jvp = staticmethod(_refuse_twice)


class Refusing(torch.autograd.Function):
    """A tensor that may be differentiated no further."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.view_as(x)

    setup_context = staticmethod(_keep_nothing)
    backward = jvp = staticmethod(_refuse_twice)


class Tied(torch.autograd.Function):
    """A tensor as it is. Its gradient depends on the tensors beside it, by which it has no derivative.

    autograd runs the backward of Refusing only where a derivative by these tensors is asked for.
    """

    @staticmethod
    def forward(x: Any, *tensors: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        return None if tangent is None else tangent.view_as(tangent)

    @staticmethod
    def backward(ctx: Any, dx: Any) -> Any:
        tensors = ctx.saved_tensors
        if dx is not None and recorded():
            dx = Tied.apply(dx, *map(Refusing.apply, tensors))
        return dx, *(None,) * len(tensors)
