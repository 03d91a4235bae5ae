"""Functions of JAX's users on symbols: their jaxpr, step by step."""

from typing import Any

import jax
import jax.numpy as jnp

from . import arithmetic, casts, functions  # noqa: F401  what symbols can do
from .arithmetic import literal, number, quotient, rest
from .captured import Captured, load
from .symbol import CALLS, Symbol, refuse

_SAME = "add sub mul neg abs sign max min exp exp2 log log1p expm1 tanh logistic sqrt rsqrt sin cos tan floor ceil pow "
_SAME += "square lt le gt ge eq ne"
_NAMED = {name: name for name in _SAME.split()}
_NAMED |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}
_NAMED |= {"shift_left": "bitwise_left_shift", "shift_right_arithmetic": "bitwise_right_shift"}
_INNER = {"floor_divide": "floor_divide", "remainder": "remainder"}  # jitted functions that have a name here
_SAME_ELEMENT = ("squeeze", "reshape", "broadcast_in_dim", "copy", "copy_p", "expand_dims")


def call_with(function: Any, symbols: list[Symbol]) -> Any:
    """The result of a function for symbols."""
    kinds = {"float": jnp.float32, "int": jnp.int32}
    closed = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct((), kinds[x.kind]) for x in symbols])
    results = _run(closed.jaxpr, closed.consts, symbols)
    if len(results) != 1:
        refuse(f"{len(results)} results", "; they return one")
    return _element(results[0])


def _run(jaxpr: Any, consts: Any, args: Any) -> list[Any]:
    known = dict(zip(jaxpr.constvars, consts))
    known.update(zip(jaxpr.invars, args))

    def read(x: Any) -> Any:
        return x.val if hasattr(x, "val") else known[x]

    for step in jaxpr.eqns:
        results = _step(step, [read(x) for x in step.invars])
        known.update(zip(step.outvars, results))
    return [read(x) for x in jaxpr.outvars]


def _element(x: Any) -> Any:
    """A symbol; an array of one element stands for it."""
    if isinstance(x, list):
        return x[0] if len(x) == 1 else refuse("arrays of what they compute")
    if isinstance(x, Symbol):
        return x
    if isinstance(x, Captured) or isinstance(x, (jax.Array, jax.core.Tracer)):
        return load(x)
    return literal(x.item() if hasattr(x, "item") else x)


def _without_symbols(step: Any, args: list[Any]) -> Any:
    """A step of captured arrays and numbers alone, as JAX computes it."""
    bound = step.primitive.get_bind_params(step.params)
    inner, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair before JAX 0.10
    if any(isinstance(x, (jax.Array, jax.core.Tracer)) for x in args):
        found = step.primitive.bind(*inner, *args, **params)
        return list(found) if step.primitive.multiple_results else [found]
    with jax.ensure_compile_time_eval():
        found = step.primitive.bind(*inner, *args, **params)
    found = list(found) if step.primitive.multiple_results else [found]
    return [x.item() if x.shape == () else x for x in found]


def _step(step: Any, args: list[Any]) -> Any:
    if not any(isinstance(x, (Symbol, Captured, list)) for x in args):
        return _without_symbols(step, args)
    name, params = step.primitive.name, step.params
    inner = params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")
    if inner is not None:
        if params.get("name") in _INNER:
            return [CALLS[_INNER[params["name"]]](*map(_element, args))]
        closed = hasattr(inner, "consts")
        return _run(inner.jaxpr if closed else inner, inner.consts if closed else (), args)
    if name in _SAME_ELEMENT and step.outvars[0].aval.size == step.invars[0].aval.size:
        return [args[0]]
    if name == "concatenate":
        return [[y for x in args for y in (x if isinstance(x, list) else [_element(x)])]]
    if name in ("dynamic_slice", "gather"):
        return [_read(name, args, params)]
    if name not in _NAMED and name not in _OTHERS:
        refuse(f"JAX's {name}")
    elements = [_element(x) for x in args]
    return [CALLS[_NAMED[name]](*elements) if name in _NAMED else _OTHERS[name](elements, params)]


def _read(name: str, args: list[Any], params: Any) -> Any:
    array, sizes = args[0], params["slice_sizes"]
    if isinstance(array, (Symbol, list)):
        refuse("indices of what they compute")
    array = array if isinstance(array, Captured) else Captured(array)
    if name == "dynamic_slice":
        at = dict(enumerate(map(_element, args[1:])))
    else:
        numbers = params["dimension_numbers"]
        indices = args[1] if isinstance(args[1], list) else [_element(args[1])]
        at = dict(zip(numbers.start_index_map, indices))
    whole = [d for d, n in enumerate(sizes) if n != 1]
    if any(sizes[d] != array.shape[d] for d in whole):
        refuse("slices of arrays")
    return array.read({d: x for d, x in at.items() if d not in whole})


def _convert(x: list[Any], params: Any) -> Any:
    return casts.of_dtype(x[0], params["new_dtype"])


def _select(x: list[Any], params: Any) -> Any:
    if len(x) != 3:
        refuse("select_n of more than two")
    return functions.where(x[0], x[2], x[1])


def _rem(x: list[Any], params: Any) -> Any:
    return CALLS["fmod"](*x) if x[0].kind == "float" else rest(*x)


def _div(x: list[Any], params: Any) -> Any:
    return CALLS["div"](*x) if x[0].kind == "float" else quotient(*x)


_OTHERS: dict[str, Any] = {
    "convert_element_type": _convert,
    "select_n": _select,
    "rem": _rem,
    "div": _div,
    "integer_pow": lambda x, params: CALLS["pow"](x[0], params["y"]),
    "clamp": lambda x, params: CALLS["clamp"](x[1], x[0], x[2]),
    "reduce_precision": lambda x, params: number(x[0]),
}
