"""Forward mode in one call of the kernel, where nothing else is asked of PyTorch.

The autograd.Function of _torch_autograd computes attention, and then attention with its derivative; torch.func takes
1 to 3 ms for the two. Most calls need neither its history nor a second transformation: those of torch.func.jvp alone
and of a dual level, without a gradient in reverse mode. They compute both results once here.
"""

import contextlib
from typing import Any

import torch
from torch.autograd import forward_ad

from ._torch_op import CACHE, DEFAULTS, FORWARD_ONLY, INPUTS, TANGENTS, Call, compute_tangents

try:  # PyTorch (2.15) has no public view of the transformations that are active
    from torch._C._functorch import (
        TransformType,
        get_interpreter_stack,
        get_unwrapped,
        is_functorch_wrapped_tensor,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
except ImportError:  # another PyTorch: the general path takes all calls
    temporarily_pop_interpreter_stack = None
PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter)


def _one_jvp() -> bool:
    """True if torch.func.jvp is the only transformation."""
    stack = get_interpreter_stack()
    return len(stack) == 1 and stack[0].key() == TransformType.Jvp


def _unwrapped(x: Any) -> Any:
    return get_unwrapped(x) if is_functorch_wrapped_tensor(x) else x


def _parts(x: Any) -> Any:
    """(primal, tangent or None) of a tensor, or (None, None)."""
    if x is None:
        return None, None
    primal, tangent = forward_ad.unpack_dual(x)
    return _unwrapped(primal), None if tangent is None else _unwrapped(tangent)


def _is_plain(x: Any) -> bool:
    return (
        type(x) in PLAIN_KINDS
        and x.device.type in ("cpu", "cuda")
        and not (x.is_neg() or x._is_zerotensor() or is_functorch_wrapped_tensor(x))
        and not (x.requires_grad and torch.is_grad_enabled())
    )


def _leaves_alone() -> bool:
    """True if no mode of PyTorch wants to see the operator, and forward mode is on."""
    return torch._C._is_fwd_grad_enabled() and not (
        torch._C._len_torch_dispatch_stack()
        or torch.is_inference_mode_enabled()
        or torch.autograd._profiler_enabled()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or torch.are_deterministic_algorithms_enabled()
    )


def at_once(c: Any, transformed: bool) -> Any:
    """The operator's results with tangents, or None: then the general path computes or refuses the call. c: a Call."""
    if any(getattr(c, name) != getattr(DEFAULTS, name) for name in FORWARD_ONLY):
        return None
    if any(getattr(c, name) is not None for name in CACHE) or c.k.dtype != c.q.dtype or c.q.dtype.itemsize == 1:
        return None
    if temporarily_pop_interpreter_stack is None or transformed and not _one_jvp() or not _leaves_alone():
        return None
    pairs = dict(zip(INPUTS, map(_parts, c)))
    moving = {name: tangent for name, (_, tangent) in pairs.items() if tangent is not None}
    buffers = [_parts(x) for x in c.mod_buffers or ()]
    if not moving or not moving.keys() <= set(TANGENTS) or any(tangent is not None for _, tangent in buffers):
        return None
    primals = [primal for primal, _ in pairs.values()]
    given = [x for x in (*primals, *moving.values(), *(x for x, _ in buffers)) if x is not None]
    if not all(map(_is_plain, given)):
        return None
    options = c[len(INPUTS) + 1 :]
    arguments = Call(*primals, [x for x, _ in buffers] or None, *options)
    tangents = [moving.get(name) for name in TANGENTS]
    below = temporarily_pop_interpreter_stack() if transformed else contextlib.nullcontext()
    with below, torch.no_grad():
        tout, tlse, out, lse = compute_tangents(*arguments, *tangents)
    none = out.new_empty(0, dtype=torch.float32)  # the operator's third result
    return forward_ad.make_dual(out, tout), forward_ad.make_dual(lse, tlse), none
