"""onepass.torch.attention with return_entropy: a function of autograd that calls onepass.attention and its backward."""

import sys
from typing import Any

import torch

import onepass

from . import _quantize
from ._torch_op import (
    _BACKWARD_WORDS,
    _GRADIENTS,
    CACHE,
    DIFFERENTIABLE,
    FP8,
    WORDS,
    _arguments,
    _packed,
    _readable,
    new_out,
)
from ._torch_second import no_forward_mode


def forward(c: Any, return_max: Any) -> tuple[Any, ...]:
    """(out, lse, row maxima or None, entropies) of a Call. torch.compile breaks its graph here."""
    function = torch.compiler.disable(_applied) if "torch._dynamo" in sys.modules else _applied
    found: tuple[Any, ...] = function(c, return_max)
    return found


def _applied(c: Any, return_max: Any) -> Any:
    # PyTorch 2.11 loses elements of a named tuple that _replace made before the graph breaks.
    c = _autocast(c)._replace(return_lse=True, return_max=bool(return_max))
    return _Entropy.apply(c, *c[: len(DIFFERENTIABLE)])


def _autocast(c: Any) -> Any:
    """q, k and v in autocast's dtype."""
    device = c.q.device.type
    if not torch.is_autocast_enabled(device):
        return c
    dtype = torch.get_autocast_dtype(device)
    wide = (torch.float32, torch.float16, torch.bfloat16)
    return c._replace(**{name: x.to(dtype) for name in "qkv" if (x := getattr(c, name)).dtype in wide})


class _Entropy(torch.autograd.Function):
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(ctx: Any, c: Any, *differentiable: Any) -> tuple[Any, ...]:
        of = dict(zip(DIFFERENTIABLE, differentiable))
        q, k, v = (_readable(of[name]) for name in "qkv")
        attention: Any = onepass.attention  # whose overloads do not know dicts of options
        out, lse, *most, entropy = attention(
            q,
            k,
            v,
            **_arguments(c, (*CACHE, *FP8, *WORDS)),
            accumulation=c.accumulation or "exact",
            fp8=False if c.fp8 is None else _quantize.fp8_of(c.fp8),
            out=new_out(q, v, _packed(c), c.out_dtype),
            return_entropy=True,
        )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*most)
        ctx.save_for_backward(*differentiable, out, lse, entropy)
        ctx.call = c._replace(**dict.fromkeys(DIFFERENTIABLE))  # the others have no gradient
        return out, lse, (most[0] if most else None), entropy

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any, _: Any, dentropy: Any) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[1:]
        found = iter(_Gradients.apply(ctx.call, wanted, *ctx.saved_tensors, dout, dlse, dentropy))
        return None, *(next(found) if wants else None for wants in wanted)


class _Gradients(torch.autograd.Function):
    """The gradients that are wanted, with a history that says that they have no derivative."""

    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(ctx: Any, call: Any, wanted: Any, *tensors: Any) -> tuple[Any, ...]:
        *given, out, lse, entropy, dout, dlse, dentropy = tensors
        c = call._replace(**dict(zip(DIFFERENTIABLE, given)))
        attention_backward: Any = onepass.attention_backward  # whose stub does not know dicts of options
        found = attention_backward(
            _readable(torch.zeros_like(out) if dout is None else dout),
            *(_readable(x) for x in given[:3]),
            out,
            lse,
            dlse=_readable(dlse),
            entropy=None if dentropy is None else entropy,
            dentropy=_readable(dentropy),
            grads=[name for name, wants in zip(_GRADIENTS, wanted) if wants],
            deterministic=c.deterministic or torch.are_deterministic_algorithms_enabled(),
            **_arguments(c, _BACKWARD_WORDS),
        )
        dtypes = (x.dtype for x, wants in zip(given, wanted) if wants)
        return tuple(x.to(dtype) for x, dtype in zip(found, dtypes))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        raise NotImplementedError("onepass.torch.attention with return_entropy does not support second derivatives")
