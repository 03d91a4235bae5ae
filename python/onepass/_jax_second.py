"""The gradients as a primitive of JAX, and second derivatives: the derivatives and the transposes of both modes.

A Hessian is symmetric. One custom call, backward_jvp, is therefore forward mode over the gradients (`second`) and its
own transpose. It is also the transpose of forward mode over forward mode (`twice`), which itself has no kernel.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._jax_derivative import along, in_front, is_zero, one_of, primitive_of, zero_of
from ._jax_run import MOD, folded, looped

_ONCE = "onepass.jax.attention does not support {}"
TWICE = _ONCE.format("forward mode over forward mode")
THRICE = _ONCE.format("third derivatives")
BESIDE_BUFFERS = _ONCE.format("second derivatives beside a gradient of mod_buffers")


def _upstream(operands: Any, dlse: bool) -> dict[str, Any]:
    return dict(zip(("out", "lse", "dout", *(("dlse",) if dlse else ())), operands))


@functools.partial(jax.jit, static_argnames=("call", "wanted", "dlse"), inline=True)
def _gradients(*operands: Any, call: Any, wanted: tuple[str, ...], dlse: bool) -> list[Any]:
    n = len(call.names)
    found = dict(zip(call.names, call.backward(operands[:n], _upstream(operands[n:], dlse), wanted)))
    return [found[name] for name in wanted]


def _gradients_types(*types: Any, call: Any, wanted: tuple[str, ...], dlse: bool) -> Any:
    return _gradients.trace(*types, call=call, wanted=wanted, dlse=dlse).jaxpr.out_avals


_STATIC = ("call", "wanted", "dlse", "names", "beside")


@functools.partial(jax.jit, static_argnames=_STATIC, inline=True)
def _second(*operands: Any, call: Any, wanted: Any, dlse: bool, names: Any, beside: Any) -> list[Any]:
    n = len(call.names)
    m = n + 3 + dlse
    tangents = dict(zip(names, operands[m:]))
    rest = dict(zip(beside, operands[m + len(names) :]))
    return list(call.second(operands[:n], _upstream(operands[n:m], dlse), tangents, rest, wanted))


def _second_types(*types: Any, call: Any, wanted: Any, **_: Any) -> Any:
    of = dict(zip(call.names, types))
    return [of[name] for name in wanted]


# call, wanted, dlse: values, out, lse, dout and perhaps dlse -> the gradients of the names wanted
gradients = primitive_of("onepass_attention_gradients", _gradients, _gradients_types)
# and names, beside: behind them tangents of these names and of dout and dlse -> the derivatives of the gradients
second = primitive_of("onepass_attention_second", _second, _second_types)
# call, first, then: values, out, lse, tangents of the names `first` and `then` -> the second derivatives of out and lse
twice = Primitive("onepass_attention_twice")
# count, sentence: results, their number, and tangents -> derivatives that may be traced (a loss may detach them), not
# computed
_refused = Primitive("onepass_attention_refused")


def refusal(sentence: str) -> Any:
    def refuse(*operands: Any, **_: Any) -> Any:
        raise NotImplementedError(sentence)

    return refuse


def _refuse(*operands: Any, sentence: str, **_: Any) -> Any:
    raise NotImplementedError(sentence)


for _one_of_them, _refusal in ((twice, refusal(TWICE)), (_refused, _refuse)):
    _one_of_them.multiple_results = True
    _one_of_them.def_impl(_refusal)
    mlir.register_lowering(_one_of_them, _refusal)
twice.def_abstract_eval(lambda *types, call, **_: list(types[len(call.names) : len(call.names) + 2]))
_refused.def_abstract_eval(lambda *types, count, sentence: list(types[:count]))

# Within jit, as attention itself (_jax_derivative._called).
_gradients_called = jax.jit(gradients.bind, static_argnames=("call", "wanted", "dlse"), inline=True)
_second_called = jax.jit(second.bind, static_argnames=_STATIC, inline=True)


def refused(found: Any, tangents: Any, sentence: str) -> Any:
    """Derivatives of results that are refused where they are computed."""
    return _refused.bind(*found, *(t for t in tangents if not is_zero(t)), count=len(found), sentence=sentence)


def _moves_buffers(given: dict[str, Any]) -> bool:
    return any(name.startswith(MOD) for name in given)


# ------------------------------------------------------------------------------------------------ the gradients
def _along_transpose(cotangents: Any, *operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    values, (out, lse), tangents = operands[:n], operands[n : n + 2], operands[n + 2 :]
    dout, dlse = cotangents
    upstream = [jnp.zeros(out.shape, out.dtype) if isinstance(dout, ad.Zero) else dout]
    upstream += [] if isinstance(dlse, ad.Zero) else [dlse]
    asked = tuple(name for name, t in zip(wanted, tangents) if ad.is_undefined_primal(t))
    made = _gradients_called(*values, out, lse, *upstream, call=call, wanted=asked, dlse=len(upstream) == 2)
    found = dict(zip(asked, made))
    return [None] * (n + 2) + [found.get(name) for name in wanted]


def _gradients_jvp(primals: Any, tangents: Any, *, call: Any, wanted: Any, dlse: bool) -> tuple[Any, Any]:
    """The tangents of out and lse are not looked at: they follow from those of the values."""
    n = len(call.names)
    found = gradients.bind(*primals, call=call, wanted=wanted, dlse=dlse)
    given = {name: t for name, t in zip(call.names, tangents) if not is_zero(t)}
    if _moves_buffers(given):
        return found, refused(found, tangents, BESIDE_BUFFERS)
    beside = {name: t for name, t in zip(("tdout", "tdlse"), tangents[n + 2 :]) if not is_zero(t)}
    if not given and not beside:
        return found, [zero_of(x) for x in found]
    operands = (*primals, *given.values(), *beside.values())
    how = {"call": call, "wanted": wanted, "dlse": dlse, "names": tuple(given), "beside": tuple(beside)}
    return found, second.bind(*operands, **how)


def _gradients_transpose(cotangents: Any, *operands: Any, call: Any, wanted: Any, dlse: bool) -> list[Any]:
    n = len(call.names)
    given = {name: t for name, t in zip(wanted, cotangents) if not isinstance(t, ad.Zero)}
    made = along.bind(*operands[: n + 2], *given.values(), call=call, wanted=tuple(given))
    asked = map(ad.is_undefined_primal, operands[n + 2 :])
    return [None] * (n + 2) + [x if asks else None for x, asks in zip(made, asked)]


# -------------------------------------------------------------------------------------------- second derivatives
def _second_jvp(primals: Any, tangents: Any, **how: Any) -> tuple[Any, Any]:
    m = len(how["call"].names) + 3 + how["dlse"]
    found = second.bind(*primals, **how)
    if not all(map(is_zero, tangents[:m])):
        return found, refused(found, tangents, THRICE)
    linear = dict(zip((*how["names"], *how["beside"]), tangents[m:]))
    kept = {name: t for name, t in linear.items() if not is_zero(t)}
    how |= {which: tuple(name for name in how[which] if name in kept) for which in ("names", "beside")}
    return found, second.bind(*primals[:m], *kept.values(), **how)


def _second_transpose(cotangents: Any, *operands: Any, **how: Any) -> list[Any]:
    call, names = how["call"], how["names"]
    n = len(call.names)
    m = n + 3 + how["dlse"]
    given = {name: t for name, t in zip(how["wanted"], cotangents) if not isinstance(t, ad.Zero)}
    asked = {name: ad.is_undefined_primal(x) for name, x in zip((*names, *how["beside"]), operands[m:])}
    by_inputs = tuple(name for name in names if asked[name])
    found: dict[str, Any] = {}
    if by_inputs:
        reversed_ = {**how, "wanted": by_inputs, "names": tuple(given), "beside": ()}
        found = dict(zip(by_inputs, _second_called(*operands[:m], *given.values(), **reversed_)))
    if any(asked[name] for name in how["beside"]):
        made = along.bind(*operands[: n + 2], *given.values(), call=call, wanted=tuple(given))
        found |= {name: x for name, x in zip(("tdout", "tdlse"), made) if asked.get(name)}
    return [None] * m + [found.get(name) for name in (*names, *how["beside"])]


def _along_jvp(primals: Any, tangents: Any, *, call: Any, wanted: tuple[str, ...]) -> tuple[Any, Any]:
    n = len(call.names) + 2
    found = along.bind(*primals, call=call, wanted=wanted)
    parts = []
    given = {name: t for name, t in zip(wanted, tangents[n:]) if not is_zero(t)}
    if given:
        parts.append(along.bind(*primals[:n], *given.values(), call=call, wanted=tuple(given)))
    then = {name: t for name, t in zip(call.names, tangents) if not is_zero(t)}
    if _moves_buffers(then):
        return found, refused(found, tangents, BESIDE_BUFFERS)
    if then:
        parts.append(twice.bind(*primals, *then.values(), call=call, first=wanted, then=tuple(then)))
    if not parts:
        return found, [zero_of(x) for x in found]
    return found, [sum(x[1:], x[0]) for x in zip(*parts)]


def _twice_jvp(primals: Any, tangents: Any, **how: Any) -> tuple[Any, Any]:
    n = len(how["call"].names) + 2 + len(how["first"])
    found = twice.bind(*primals, **how)
    if not all(map(is_zero, tangents[:n])):
        return found, refused(found, tangents, THRICE)
    kept = {name: t for name, t in zip(how["then"], tangents[n:]) if not is_zero(t)}
    return found, twice.bind(*primals[:n], *kept.values(), **{**how, "then": tuple(kept)})


def _twice_transpose(cotangents: Any, *operands: Any, call: Any, first: Any, then: Any) -> list[Any]:
    n = len(call.names) + 2
    m = n + len(first)
    dout, dlse = cotangents
    out = operands[n - 2]
    upstream = [jnp.zeros(out.shape, out.dtype) if isinstance(dout, ad.Zero) else dout]
    upstream += [] if isinstance(dlse, ad.Zero) else [dlse]
    asked = tuple(name for name, x in zip(then, operands[m:]) if ad.is_undefined_primal(x))
    how = {"call": call, "wanted": asked, "dlse": len(upstream) == 2, "names": first, "beside": ()}
    found = dict(zip(asked, _second_called(*operands[:n], *upstream, *operands[n:m], **how)))
    return [None] * m + [found.get(name) for name in then]


ad.primitive_jvps[along], ad.primitive_transposes[along] = _along_jvp, _along_transpose
ad.primitive_jvps[gradients], ad.primitive_transposes[gradients] = _gradients_jvp, _gradients_transpose
ad.primitive_jvps[second], ad.primitive_transposes[second] = _second_jvp, _second_transpose
ad.primitive_jvps[twice], ad.primitive_transposes[twice] = _twice_jvp, _twice_transpose
ad.primitive_jvps[_refused] = ad.primitive_transposes[_refused] = _refuse


# ----------------------------------------------------------------------------------------------------------- vmap
def _gradients_vmap(operands: Any, dims: Any, *, call: Any, wanted: Any, dlse: bool) -> tuple[Any, Any]:
    operands, mapped, size = in_front(operands, dims)
    ones = [one_of(x, m) for x, m in zip(operands, mapped)]
    names = tuple(_upstream(ones, dlse))
    job = call.backward_job(ones[: len(call.names)], names, wanted)

    def once(*values: Any) -> Any:
        return gradients.bind(*values, call=call, wanted=wanted, dlse=dlse)

    loops = job.loops(mapped)
    found = looped(once, mapped, operands) if loops else folded(job, size, mapped, operands, lambda _, *x: once(*x))
    return found, (0,) * len(found)


def loop(primitive: Primitive) -> Any:
    """A call for each example."""

    def rule(operands: Any, dims: Any, **how: Any) -> tuple[Any, Any]:
        operands, mapped, _ = in_front(operands, dims)
        found = looped(functools.partial(primitive.bind, **how), mapped, operands)
        return found, (0,) * len(found)

    return rule


def _refused_vmap(operands: Any, dims: Any, *, count: int, sentence: str) -> tuple[Any, Any]:
    operands, mapped, size = in_front(operands, dims)
    results = [x if m else jnp.broadcast_to(x, (size, *x.shape)) for x, m in zip(operands[:count], mapped)]
    return _refused.bind(*results, *operands[count:], count=count, sentence=sentence), (0,) * count


batching.primitive_batchers[gradients] = _gradients_vmap
batching.primitive_batchers[second] = loop(second)
batching.primitive_batchers[twice] = loop(twice)
batching.primitive_batchers[_refused] = _refused_vmap
