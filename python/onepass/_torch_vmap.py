"""vmap of the operators: examples become entries of the batch, or a call each."""

from typing import Any

import torch
from torch import library as operators

from ._flex.torch_gradients import BufferGradients, Captured, Refusing, Tied
from ._torch_autograd import Differentiable, dispatched
from ._torch_op import DIFFERENTIABLE, INPUTS, NAMES, OPERATORS, Call
from ._torch_second import Along, Gradients, Second, dispatched_backward


def _each(op: Any, info: Any, in_dims: Any, args: Any) -> tuple[Any, ...]:
    """One call for each example, for what does not fold into the batch."""

    def pick(x: Any, dim: Any, i: Any) -> Any:
        if isinstance(dim, (list, tuple)):
            return [pick(y, d, i) for y, d in zip(x, dim)]
        return x if dim is None else x.select(dim, i)

    results = [op(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])


def _folds(c: Any, d: Any) -> bool:
    """True if examples become entries of the batch: nothing in the call depends on the index of an entry."""
    return (
        c.q.dim() - (d.q is not None) == 4
        and c.dropout_p == 0
        and not (c.score_mod or c.mask_mod)
        and all(getattr(c, name) is None for name in INPUTS if name not in (*DIFFERENTIABLE, "bool_mask"))
        and d.sinks is None
    )


def forward(info: Any, in_dims: Any, *args: Any) -> Any:
    args, in_dims = args[: len(NAMES)], in_dims[: len(NAMES)]  # without the buffers of differentiable()
    c, d = Call(*args), Call(*in_dims)
    if not _folds(c, d):
        return _each(dispatched, info, in_dims, args)
    n, batch = info.batch_size, c.q.movedim(d.q, 0).shape[1] if d.q is not None else c.q.shape[0]

    def front(name: str) -> Any:
        """Example first."""
        x, dim = getattr(c, name), getattr(d, name)
        return x.movedim(dim, 0) if dim is not None else x.expand(n, *x.shape)

    new = {name: front(name).flatten(0, 1) for name in "qkv"}
    for name, rank in (("bias", 4), ("bool_mask", 4), ("alibi_slopes", 2)):
        x = getattr(c, name)
        if x is None:
            continue
        own = x.dim() - (getattr(d, name) is not None)
        if getattr(d, name) is None and (own < rank or x.shape[0] == 1):
            continue  # the same for all
        x = front(name)
        x = x.reshape(n, *(1,) * (rank - own), *x.shape[1:])
        new[name] = x.expand(n, batch, *x.shape[2:]).flatten(0, 1)
    out, *rows = dispatched(*c._replace(**new))
    rows = (x.unflatten(0, (n, batch)) if x.dim() > 1 else x.expand(n, 0) for x in rows)
    return (out.unflatten(0, (n, batch)), *rows), (0, 0, 0)


def backward(info: Any, in_dims: Any, *args: Any) -> Any:
    return _each(dispatched_backward, info, in_dims, args)


def _along(info: Any, in_dims: Any, *args: Any) -> Any:
    return _each(Along.apply, info, in_dims, args)


def _gradients(info: Any, in_dims: Any, call: Any, *args: Any) -> Any:
    return backward(info, in_dims[1:], *args)


def _second(info: Any, in_dims: Any, *args: Any) -> Any:
    return _each(Second.apply, info, in_dims, args)


def _captured(info: Any, in_dims: Any, *args: Any) -> Any:
    return _each(Captured.apply, info, in_dims, args)


def _buffer_gradients(info: Any, in_dims: Any, *args: Any) -> Any:
    return _each(BufferGradients.apply, info, in_dims, args)


def _tied(info: Any, in_dims: Any, *args: Any) -> Any:
    return Tied.apply(*args), in_dims[0]


def _refusing(info: Any, in_dims: Any, x: Any) -> Any:
    return Refusing.apply(x), in_dims[0]


_rules: tuple[tuple[Any, Any], ...] = (
    (Differentiable, forward),
    (Along, _along),
    (Gradients, _gradients),
    (Second, _second),
    (Captured, _captured),
    (BufferGradients, _buffer_gradients),
    (Tied, _tied),
    (Refusing, _refusing),
)
for _function, _rule in _rules:
    _function.vmap = staticmethod(_rule)
operators.register_vmap("onepass::attention", forward, lib=OPERATORS)
operators.register_vmap("onepass::attention_backward", backward, lib=OPERATORS)
