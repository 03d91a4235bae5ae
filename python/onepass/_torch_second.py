"""Derivatives of derivatives: the autograd functions of the backward and of forward mode, and what both end in."""

from typing import Any

import torch
from torch.compiler import is_compiling

from ._torch_op import (
    DIFFERENTIABLE,
    INPUTS,
    NAMES,
    TANGENTS,
    Call,
    attention_backward,
    compute_second,
    compute_tangents,
)


def options_of(c: Any) -> Any:
    return c[len(INPUTS) :]


def no_forward_mode(ctx: Any, *tangents: Any) -> None:
    raise NotImplementedError("onepass.torch.attention does not support forward mode over a derivative")


def transformed() -> Any:
    """True if torch.func is active. It sees an autograd.Function, but not one inside an operator.

    PyTorch (2.15) has no public function that tells.
    """
    return not is_compiling() and torch._C._are_functorch_transforms_active()


def dispatched_backward(*args: Any) -> Any:
    return Gradients.apply(attention_backward, *args) if transformed() else attention_backward(*args)


class Along(torch.autograd.Function):
    """The derivative along tangents, and the result of which it is one.

    Its own gradients by the tangents are those of a backward. Those by the other inputs are second derivatives.
    """

    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(*args: Any) -> Any:
        return compute_tangents(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        c, tangents = Call(*inputs[: len(NAMES)]), inputs[len(NAMES) :]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])
        _save(ctx, c, (*output, *tangents))

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any, *_: Any) -> Any:
        c, (tout, tlse, out, lse, *tangents) = _saved(ctx)
        needs = ctx.needs_input_grad
        if dout is None and dlse is None:
            return (None,) * len(needs)
        dout = torch.zeros_like(out) if dout is None else dout
        wanted = [needs[NAMES.index(name)] for name in DIFFERENTIABLE]
        along = dict(zip(TANGENTS, needs[len(NAMES) :]))
        by_tangents = (None,) * len(DIFFERENTIABLE)
        if any(along.values()):
            asked = [along.get(name, False) for name in DIFFERENTIABLE]
            by_tangents = dispatched_backward(dout, dlse, out, lse, asked, *c)
        second = _second(wanted, dout, dlse, out, lse, tout, tlse, None, None, c, tangents)
        first = dict(zip(DIFFERENTIABLE, by_tangents))
        return (
            *second,
            *(None,) * (len(NAMES) - len(second)),
            *(_cast(first[name], t) if along[name] else None for name, t in zip(TANGENTS, tangents)),
        )


class Gradients(torch.autograd.Function):
    """The backward. Its derivatives, in reverse mode too, are those of the gradients along tangents."""

    @staticmethod
    def forward(call: Any, *args: Any) -> Any:
        return call(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, dout, dlse, out, lse, wanted, *args = inputs
        ctx.set_materialize_grads(False)
        ctx.wanted = wanted
        _save(ctx, Call(*args), (dout, dlse, out, lse))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """A Hessian is symmetric: the gradients are the derivatives along the cotangents.

        Those by out and lse are None, because they are in those by q, k, v, bias and sinks.
        """
        c, (dout, dlse, out, lse) = _saved(ctx)
        given = {name: x for name, x, wants in zip(DIFFERENTIABLE, cotangents, ctx.wanted) if wants}
        needs = ctx.needs_input_grad
        if all(x is None for x in given.values()):
            return (None,) * len(needs)
        _refuse_second(c, given)
        tangents = [_cast(given.get(name), getattr(c, name)) for name in TANGENTS]
        arguments = (*c, *tangents)
        tout, tlse, *_ = (Along.apply if recorded() else compute_tangents)(*arguments)
        wanted = [*needs[6:], *(False,) * len(NAMES)][: len(DIFFERENTIABLE)]  # the dispatcher leaves defaults out
        second = _second(wanted, dout, dlse, out, lse, tout, tlse, None, None, c, tangents)
        grads = (None, tout, None if dlse is None else tlse, None, None, None, *second, *(None,) * len(NAMES))
        return grads[: len(needs)]

    @staticmethod
    def jvp(ctx: Any, *along: Any) -> Any:
        c, (dout, dlse, out, lse) = _saved(ctx)
        tdout, tdlse, tout, tlse = along[1:5]
        given = dict(zip(NAMES, along[6:]))
        _refuse_second(c, given)
        tout = torch.zeros_like(out) if tout is None else tout
        tlse = torch.zeros_like(lse) if tlse is None else tlse
        tangents = [given.get(name) for name in TANGENTS]  # the dispatcher leaves defaults out
        second = _second(ctx.wanted, dout, dlse, out, lse, tout, tlse, tdout, tdlse, c, tangents, cast=False)
        return tuple(dout.new_zeros(0) if x is None else x for x in second)  # as the backward's results


def _save(ctx: Any, c: Any, beside: Any) -> None:
    """A Call and tensors beside it."""
    saved = (*c[: len(INPUTS)], *beside, *(c.mod_buffers or ()))
    ctx.save_for_backward(*saved)
    ctx.save_for_forward(*saved)
    ctx.options, ctx.beside = options_of(c)[1:], len(beside)


def _saved(ctx: Any) -> Any:
    inputs, rest = ctx.saved_tensors[: len(INPUTS)], ctx.saved_tensors[len(INPUTS) :]
    return Call(*inputs, list(rest[ctx.beside :]) or None, *ctx.options), rest[: ctx.beside]


def _cast(x: Any, like: Any) -> Any:
    return x if x is None or like is None or x.dtype == like.dtype else x.to(like.dtype)


def _refuse_second(c: Any, along: Any) -> None:
    """along: tangents or cotangents by the inputs' names."""
    for name, x in along.items():
        if x is not None and name not in TANGENTS:
            raise NotImplementedError(f"onepass.torch.attention does not support second derivatives along {name}")


def _second(
    wanted: Any,
    dout: Any,
    dlse: Any,
    out: Any,
    lse: Any,
    tout: Any,
    tlse: Any,
    tdout: Any,
    tdlse: Any,
    c: Any,
    tangents: Any,
    cast: bool = True,
) -> Any:
    """The derivatives of the wanted gradients along tangents of TANGENTS, dout and dlse, and None for the others."""
    wanted = [bool(x) for x in wanted]
    if not any(wanted):
        return (None,) * len(wanted)
    _refuse_second(c, {})
    arguments = (wanted, dout, dlse, out, lse, tout, tlse, tdout, tdlse, *c, *tangents)
    found = (Second.apply if recorded() else compute_second)(*arguments)
    inputs = c[: len(DIFFERENTIABLE)]
    return [(_cast(x, of) if cast else x) if w else None for x, of, w in zip(found, inputs, wanted)]


def recorded() -> bool:
    """True if what is computed may be differentiated again."""
    return bool(torch.is_grad_enabled() or transformed())


class Second(torch.autograd.Function):
    """Second derivatives, which cannot be differentiated again."""

    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(*args: Any) -> Any:
        return compute_second(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        raise RuntimeError("onepass.torch.attention does not support third derivatives")
