"""Attention as primitives of JAX: its value, and its derivative along tangents. The gradients are its transpose.

A custom_vjp has no forward mode, and the transpose of a custom_jvp is that of its operations, among which a custom call
has none. So these primitives have the rules themselves. Reverse mode transposes `along` and never evaluates it.
_jax_second.py has the derivatives of these derivatives.
"""

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._jax_run import DATA, MOD, folded, looped


def primitive_of(name: str, compute: Any, types: Any) -> Primitive:
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
value = primitive_of("onepass_attention", _value, _value_types)
# call, wanted: values, out, lse, tangents of the names wanted -> tout, tlse
along = primitive_of("onepass_attention_along", _along, _along_types)


def attention(call: Any, values: Any) -> Any:
    """(out, lse or None, row maxima or None), differentiable."""
    found = iter(_called(call, values))
    return next(found), next(found) if call.return_lse else None, next(found) if call.return_max else None


def _called(call: Any, values: Any) -> Any:
    return value.bind(*values, call=call)


# Within jit, because jax.shard_map outside of jit does not know primitives of others.
_called = jax.jit(_called, static_argnums=0, inline=True)


# ---------------------------------------------------------------------------------------------------- derivatives
def is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def zero_of(primal: Any) -> ad.Zero:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def _of_buffers() -> Any:
    return importlib.import_module("onepass._jax_buffers")  # which imports this file


def _value_jvp(values: Any, tangents: Any, *, call: Any) -> tuple[Any, Any]:
    given = {name: t for name, t in zip(call.names, tangents) if not is_zero(t)}
    if not given:
        found = value.bind(*values, call=call)
        return found, [zero_of(x) for x in found]
    learned = {name: given.pop(name) for name in tuple(given) if name.startswith(MOD)}
    call.refuse_gradients(values, tuple(given))
    if learned:
        call.refuse_buffers(values, tuple(learned), _of_buffers().read_by_score(call, values))
    out, lse, *most = value.bind(*values, call=dataclasses.replace(call, return_lse=True))
    parts = [along.bind(*values, out, lse, *given.values(), call=call, wanted=tuple(given))] if given else []
    if learned:
        parts.append(_of_buffers().along.bind(*values, out, lse, *learned.values(), call=call, wanted=tuple(learned)))
    tout, tlse = (sum(x[1:], x[0]) for x in zip(*parts))
    if not call.return_lse:
        return [out, *most], [tout, *map(zero_of, most)]
    return [out, lse, *most], [tout, tlse, *map(zero_of, most)]


ad.primitive_jvps[value] = _value_jvp


# ----------------------------------------------------------------------------------------------------------- vmap
def in_front(operands: Any, dims: Any) -> tuple[Any, list[bool], int]:
    """The operands with mapped axes first, which of them are mapped, and the size of the axes."""
    mapped = [d is not None for d in dims]
    moved = [jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(operands, dims, mapped)]
    return moved, mapped, next(x.shape[0] for x, m in zip(moved, mapped) if m)


def one_of(x: Any, mapped: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:] if mapped else x.shape, x.dtype)


def _value_vmap(operands: Any, dims: Any, *, call: Any) -> tuple[Any, Any]:
    operands, mapped, size = in_front(operands, dims)
    job = call.job(*(one_of(operands[i], mapped[i]) for i in (0, 2)))

    def once(*values: Any) -> Any:
        return value.bind(*values, call=call)

    loops = job.loops(mapped)
    found = looped(once, mapped, operands) if loops else folded(job, size, mapped, operands, lambda _, *x: once(*x))
    return found, (0,) * len(found)


def _along_vmap(operands: Any, dims: Any, *, call: Any, wanted: tuple[str, ...]) -> tuple[Any, Any]:
    """A call for each example, or one for all where each has its own q and the tangents are those of q, k and v."""
    operands, mapped, size = in_front(operands, dims)
    forward = dataclasses.replace(call, return_lse=True, return_max=False).job(
        *(one_of(operands[i], mapped[i]) for i in (0, 2))
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


batching.primitive_batchers[value] = _value_vmap
batching.primitive_batchers[along] = _along_vmap
