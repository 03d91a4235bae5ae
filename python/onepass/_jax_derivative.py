"""Attention as primitives of JAX: its value, and its derivative along tangents. The gradients are its transpose.

A custom_vjp has no forward mode, and the transpose of a custom_jvp is that of its operations, among which a custom call
has none. So these primitives have the rules themselves. Reverse mode transposes `along` and never evaluates it.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._jax_run import DATA, folded, looped

ONCE = "onepass.jax.attention supports first derivatives only"


def _primitive(name: str, compute: Any, types: Any) -> Primitive:
    """A primitive of several results, and their types from those of its operands."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compute)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=True))
    return primitive


@functools.partial(jax.jit, static_argnames="call", inline=True)
def _value(*values: Any, call: Any) -> list[Any]:
    return [x for x in call.forward(values) if x is not None]


@functools.partial(jax.jit, static_argnames=("call", "wanted"), inline=True)
def _along(*operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    return list(call.along(operands[:n], dict(zip(wanted, operands[n + 2 :]))))


def _value_types(*types: Any, call: Any) -> Any:
    return _value.trace(*types, call=call).jaxpr.out_avals


def _along_types(*types: Any, call: Any, wanted: tuple[str, ...]) -> Any:
    return types[len(call.names) : len(call.names) + 2]


# call: values of its names -> out, and lse and row maxima where it asks for them
value = _primitive("onepass_attention", _value, _value_types)
# call, wanted: values, out, lse, tangents of the names wanted -> tout, tlse
along = _primitive("onepass_attention_along", _along, _along_types)


def attention(call: Any, values: Any) -> Any:
    """(out, lse or None, row maxima or None), differentiable."""
    found = iter(_called(call, values))
    return next(found), next(found) if call.return_lse else None, next(found) if call.return_max else None


def _called(call: Any, values: Any) -> Any:
    return value.bind(*values, call=call)


# Within jit, because jax.shard_map outside of jit does not know primitives of others.
_called = jax.jit(_called, static_argnums=0, inline=True)


# ---------------------------------------------------------------------------------------------------- derivatives
def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _zero(primal: Any) -> ad.Zero:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def _value_jvp(values: Any, tangents: Any, *, call: Any) -> tuple[Any, Any]:
    given = {name: t for name, t in zip(call.names, tangents) if not _is_zero(t)}
    if not given:
        found = value.bind(*values, call=call)
        return found, [_zero(x) for x in found]
    call.refuse_gradients(values, tuple(given))
    out, lse, *most = value.bind(*values, call=dataclasses.replace(call, return_lse=True))
    tout, tlse = along.bind(*values, out, lse, *given.values(), call=call, wanted=tuple(given))
    if not call.return_lse:
        return [out, *most], [tout, *map(_zero, most)]
    return [out, lse, *most], [tout, tlse, *map(_zero, most)]


def _along_transpose(gradients: Any, *operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    values, (out, lse), tangents = operands[:n], operands[n : n + 2], operands[n + 2 :]
    dout, dlse = gradients
    upstream = {"dout": jnp.zeros(out.shape, out.dtype) if isinstance(dout, ad.Zero) else dout, "out": out, "lse": lse}
    if not isinstance(dlse, ad.Zero):
        upstream["dlse"] = dlse
    asked = tuple(name for name, t in zip(wanted, tangents) if ad.is_undefined_primal(t))
    found = dict(zip(call.names, call.backward(values, upstream, asked)))
    return [None] * (n + 2) + [found[name] if name in asked else None for name in wanted]


def _along_jvp(primals: Any, tangents: Any, *, call: Any, wanted: tuple[str, ...]) -> tuple[Any, Any]:
    n = len(call.names) + 2
    found = along.bind(*primals, call=call, wanted=wanted)
    if not all(map(_is_zero, tangents[:n])):
        return found, _refused.bind(*found, *(t for t in tangents if not _is_zero(t)))
    given = {name: t for name, t in zip(wanted, tangents[n:]) if not _is_zero(t)}
    return found, along.bind(*primals[:n], *given.values(), call=call, wanted=tuple(given))


def _refuse(*operands: Any, **_: Any) -> Any:
    raise NotImplementedError(ONCE)


# tout, tlse, tangents -> their derivatives, which may be traced (a loss may detach tout) but not computed
_refused = Primitive("onepass_attention_second_derivative")
_refused.multiple_results = True
_refused.def_impl(_refuse)
_refused.def_abstract_eval(lambda tout, tlse, *_: [tout, tlse])
mlir.register_lowering(_refused, _refuse)

ad.primitive_jvps[value] = _value_jvp
ad.primitive_jvps[along] = _along_jvp
ad.primitive_transposes[along] = _along_transpose
ad.primitive_jvps[_refused] = ad.primitive_transposes[_refused] = _refuse


# ----------------------------------------------------------------------------------------------------------- vmap
def _in_front(operands: Any, dims: Any) -> tuple[Any, list[bool], int]:
    """The operands with mapped axes first, which of them are mapped, and the size of the axes."""
    mapped = [d is not None for d in dims]
    moved = [jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(operands, dims, mapped)]
    return moved, mapped, next(x.shape[0] for x, m in zip(moved, mapped) if m)


def _one(x: Any, mapped: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:] if mapped else x.shape, x.dtype)


def _value_vmap(operands: Any, dims: Any, *, call: Any) -> tuple[Any, Any]:
    operands, mapped, size = _in_front(operands, dims)
    job = call.job(*(_one(operands[i], mapped[i]) for i in (0, 2)))

    def once(*values: Any) -> Any:
        return value.bind(*values, call=call)

    loops = job.loops(mapped)
    found = looped(once, mapped, operands) if loops else folded(job, size, mapped, operands, lambda _, *x: once(*x))
    return found, (0,) * len(found)


def _along_vmap(operands: Any, dims: Any, *, call: Any, wanted: tuple[str, ...]) -> tuple[Any, Any]:
    """A call for each example, or one for all where each has its own q and the tangents are those of q, k and v."""
    operands, mapped, size = _in_front(operands, dims)
    forward = dataclasses.replace(call, return_lse=True, return_max=False).job(
        *(_one(operands[i], mapped[i]) for i in (0, 2))
    )
    names = (*call.names, "out", "lse", *(f"t{name}" for name in wanted))
    job = dataclasses.replace(forward, names=names)

    def once(*values: Any) -> Any:
        return along.bind(*values, call=call, wanted=wanted)

    if job.loops(mapped) or not mapped[0] or not set(wanted) <= set(DATA):
        found = looped(once, mapped, operands)
    else:
        found = folded(job, size, mapped, operands, lambda _, *x: once(*x))
    return found, (0, 0)


def _refused_vmap(operands: Any, dims: Any) -> tuple[Any, Any]:
    operands, mapped, size = _in_front(operands, dims)
    results = [x if m else jnp.broadcast_to(x, (size, *x.shape)) for x, m in zip(operands[:2], mapped)]
    return _refused.bind(*results, *operands[2:]), (0, 0)


batching.primitive_batchers[value] = _value_vmap
batching.primitive_batchers[along] = _along_vmap
batching.primitive_batchers[_refused] = _refused_vmap
