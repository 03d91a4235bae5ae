"""Autograd and autocast of the operators, and the way past PyTorch's dispatcher for calls that need none of it."""

import threading
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from . import _onepass
from ._options import _MASKS
from ._torch_forward_mode import PLAIN_KINDS, at_once
from ._torch_op import (
    CACHE,
    DIFFERENTIABLE,
    INPUTS,
    NAMES,
    OPERATORS,
    TANGENTS,
    Call,
    attention,
    attention_backward,
    compute,
    compute_backward,
    compute_tangents,
    new_results,
)
from ._torch_second import Along, Gradients, dispatched_backward, no_forward_mode, options_of, recorded, transformed


def _gradients(inputs: Any, options: Any, out: Any, lse: Any, wanted: Any, dout: Any, dlse: Any) -> Any:
    """By the differentiable inputs, or None."""
    if dout is None and dlse is None or not any(wanted):
        return (None,) * len(wanted)
    c = Call(*inputs, *options)
    if any(getattr(c, name) is not None for name in CACHE):
        raise RuntimeError(f"attention to a cache ({', '.join(CACHE)}) does not support gradients")
    if c.fp8 is not None:
        raise RuntimeError("FP8 attention does not support gradients")
    if torch.are_deterministic_algorithms_enabled():
        c = c._replace(deterministic=True)
    dout = torch.zeros_like(out) if dout is None else dout
    ready = backward(dout, dlse, out, lse, wanted, c)
    return [(g if g.dtype == x.dtype else g.to(x.dtype)) if w else None for g, x, w in zip(ready, inputs, wanted)]


class _Recorded(torch.autograd.Function):
    """Results that have been computed, as what the differentiable inputs led to; torch.cpp and `record` call it."""

    forward = staticmethod(_onepass.torch_tell)
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad
        if not is_compiling():
            grads = _onepass.torch_gradients(saved, ctx.kept, wanted, dout, dlse)
            if grads is not None:
                return grads
        present, options = ctx.kept
        given = iter(saved)
        inputs = [next(given) if present >> i & 1 else None for i in range(len(INPUTS))]
        if options[0] is not None:  # mod_buffers, after lse
            options = (list(saved[-options[0] :]), *options[1:])
        want = iter(wanted)
        all_wanted = [x is not None and next(want) for x in inputs[: len(DIFFERENTIABLE)]]
        grads = _gradients(inputs, options, next(given), next(given), all_wanted, dout, dlse)
        return *(g for g, x in zip(grads, inputs) if x is not None), None


_record = super(torch.autograd.Function, _Recorded).apply  # without what torch.func needs


def record(c: Any, out: Any, lse: Any) -> Any:
    """(out, lse) with a history."""
    inputs, (mod_buffers, *options) = c[: len(INPUTS)], options_of(c)
    present = sum(1 << i for i, x in enumerate(inputs) if x is not None)
    saved = (*(x for x in inputs if x is not None), out, lse, *(mod_buffers or ()))
    options = (len(mod_buffers) if mod_buffers else None, *options)
    given = (x for x in c[: len(DIFFERENTIABLE)] if x is not None)
    return _record(*given, (saved, (present, options), (out, lse)))


class Differentiable(torch.autograd.Function):
    """The operator by its arguments, in the form that torch.func needs, which costs 20 us more a call.

    _torch_vmap adds the rule for vmap to it, to Along, to Gradients and to Second.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        return attention(*args[: len(NAMES)])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        c = Call(*inputs[: len(NAMES)])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])
        saved = (*c[: len(INPUTS)], *output[:2], *(c.mod_buffers or ()))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.options = options_of(c)[1:]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        inputs, buffers = ctx.saved_tensors[: len(INPUTS)], ctx.saved_tensors[len(INPUTS) + 2 :]
        c = Call(*inputs, list(buffers) or None, *ctx.options)
        given = dict(zip(NAMES, tangents))
        if any(tangent is not None for tangent in tangents[len(NAMES) :]):
            raise NotImplementedError("onepass.torch.attention does not support a tangent of mod_buffers")
        for name in INPUTS:
            if given[name] is not None and name not in TANGENTS:
                raise NotImplementedError(f"onepass.torch.attention does not support a tangent of {name}")
        if any(getattr(c, name) is not None for name in CACHE):
            raise RuntimeError(f"attention to a cache ({', '.join(CACHE)}) does not support forward mode")
        if c.fp8 is not None or not c.k.dtype.itemsize > 1:
            raise RuntimeError("FP8 attention does not support forward mode")
        if c.k.dtype != c.q.dtype:
            raise RuntimeError(f"forward mode does not support {c.q.dtype} q with {c.k.dtype} k and v")
        arguments = (*c, *(given[name] for name in TANGENTS))
        if not transformed():  # primals may be dual tensors
            arguments = tuple(forward_ad.unpack_dual(x).primal if isinstance(x, torch.Tensor) else x for x in arguments)
        tout, tlse, *_ = Along.apply(*arguments) if recorded() else compute_tangents(*arguments)
        return tout, tlse, None

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any, _: Any) -> tuple[Any, ...]:
        inputs, (out, lse, *mod_buffers) = ctx.saved_tensors[: len(INPUTS)], ctx.saved_tensors[len(INPUTS) :]
        wanted = list(ctx.needs_input_grad[: len(DIFFERENTIABLE)])
        grads = _gradients(inputs, (mod_buffers or None, *ctx.options), out, lse, wanted, dout, dlse)
        return *grads, *(None,) * (len(ctx.needs_input_grad) - len(grads))


def differentiable(c: Any) -> Any:
    """The results of a Call. Its buffers stand behind it once more, because autograd sees no tensor in a list."""
    return Differentiable.apply(*c, *(c.mod_buffers or ()))


# PyTorch (2.15) has no public access to the dispatcher's thread state, to calls below autograd, or to whether forward
# mode is on. That is why torch._C is used here and below.
_include, _exclude = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set


def _state() -> tuple[Any, ...]:
    return _include().raw_repr(), _exclude().raw_repr()


def _plain_state() -> Any:
    """The dispatcher's thread state with nothing active but autograd."""
    states = []
    thread = threading.Thread(target=lambda: states.append(_state()))  # a new one has no mode of the caller's
    thread.start()
    thread.join()
    return states[0]


_INCLUDED, _EXCLUDED = _plain_state()


def undispatched(tensors: Any) -> bool:
    """True if a call may bypass the dispatcher: plain tensors, and no active mode, transformation or recorder."""
    if is_compiling() or forward_ad._current_level >= 0:
        return False
    # A mode includes keys, autocast takes some from the excluded ones; PyTorch's backward (2.11) excludes one more.
    included, excluded = _state()
    if included & ~_INCLUDED or _EXCLUDED & ~excluded:
        return False
    for x in tensors:
        if x is not None and (type(x) not in PLAIN_KINDS or x.is_meta or x.is_neg() or x._is_zerotensor()):
            return False
    return True


def forward(c: Any) -> Any:
    """(out, lse or None, row maxima or None) of a Call that torch.cpp has not taken."""
    records = needs_gradient(c)
    c = c._replace(return_lse=c.return_lse or records)
    if not undispatched(c[: len(INPUTS)]):
        return dispatched(*c)
    if not records:
        return compute(c)
    with torch.no_grad():
        out, lse, most = compute(c)
    return *record(c, out, lse), most


def dispatched(*args: Any) -> Any:
    if transformed():
        c = Call(*args)._replace(return_lse=True)
        return at_once(c, True) or differentiable(c)
    return attention(*args)


def backward(dout: Any, dlse: Any, out: Any, lse: Any, wanted: Any, c: Any) -> Any:
    """The gradients that are wanted; whatever for the others."""
    if not torch.is_grad_enabled() and undispatched((dout, dlse, *c[: len(INPUTS)])):
        return compute_backward(dout, dlse, out, lse, wanted, c)
    return dispatched_backward(dout, dlse, out, lse, wanted, *c)


def needs_gradient(c: Any) -> bool:
    if torch.is_grad_enabled():
        for x in c[: len(DIFFERENTIABLE)]:
            if x is not None and x.requires_grad:
                return True
    return False


def _below_autograd(op: Any) -> Any:
    def call(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return call


_forward_below, _backward_below = _below_autograd(attention), _below_autograd(attention_backward)


def _has_tangents(tensors: Any) -> bool:
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _with_autograd(*args: Any) -> Any:
    if not transformed() and _has_tangents(args[: len(INPUTS)]):
        c = Call(*args)._replace(return_lse=True)
        return at_once(c, False) or differentiable(c)
    if transformed() or not needs_gradient(args):
        return _forward_below(*args)
    c = Call(*args)._replace(return_lse=True)
    with torch.no_grad():
        out, lse, most = _forward_below(*c)
    return *record(c, out, lse), most


def _backward_with_autograd(*args: Any) -> Any:
    return _backward_below(*args) if transformed() else Gradients.apply(_backward_below, *args)


OPERATORS.impl("attention", _with_autograd, "Autograd")
OPERATORS.impl("attention_backward", _backward_with_autograd, "Autograd")


# ---------------------------------------------------------------------------------------------------- autocast
def _autocast(device: Any) -> Any:
    def cast(*args: Any) -> Any:
        """q, k and v in autocast's dtype, as PyTorch's own; biases, slopes and sinks lose nothing."""
        dtype = torch.get_autocast_dtype(device)
        qkv = (x.to(dtype) if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x for x in args[:3])
        torch.set_autocast_enabled(device, False)  # only reached where it is True
        try:
            return attention(*qkv, *args[3:])
        finally:
            torch.set_autocast_enabled(device, True)

    return cast


OPERATORS.impl("attention", _autocast("cpu"), "AutocastCPU")
OPERATORS.impl("attention", _autocast("cuda"), "AutocastCUDA")


# --------------------------------------------------------------------------------------------- past the dispatcher
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # from PyTorch 2.10 on; else the general path takes every call
    _onepass.torch_register(
        {
            "exchange": torch.Tensor.__dlpack_c_exchange_api__,
            "names": NAMES,
            "defaults": Call(None, None, None)._replace(return_lse=False),
            "inputs": len(INPUTS),
            "masks": _MASKS,
            "causal": "causal_top_left",
            "Tensor": torch.Tensor,
            "Parameter": torch.nn.Parameter,
            "included": _include,
            "excluded": _exclude,
            "plain_included": _INCLUDED,
            "plain_excluded": _EXCLUDED,
            "forward_ad": forward_ad,
            "is_grad_enabled": torch.is_grad_enabled,
            "is_deterministic": torch.are_deterministic_algorithms_enabled,
            "empty_like": torch.empty_like,
            "bool": torch.bool,
            "float32": torch.float32,
            "record": _record,
            "new_results": new_results,
            "threads": torch.get_num_threads,
            "place": torch.__path__[0],  # also of torch.libs beside it
        }
    )
