"""onepass.jax.attention with return_entropy: a function with a rule for reverse mode, and for no other."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(call: Any, values: Any) -> tuple[Any, ...]:
    """(out, lse, row maxima or None, entropies) of a Call that asks for LSEs and entropies."""
    return call.forward(values)


def _forward(call: Any, given: Any) -> tuple[Any, Any]:
    values = tuple(x.value for x in given)
    wanted = tuple(name for name, x in zip(call.names, given) if x.perturbed)
    call.refuse_gradients(values, wanted)
    found = attention(call, values)
    return found, (values, found, dict.fromkeys(wanted))  # names are keys, because they are not traced


def _backward(call: Any, kept: Any, cotangents: Any) -> tuple[Any]:
    values, (out, lse, _, entropy), wanted = kept
    dout, dlse, _, dentropy = (None if isinstance(x, SymbolicZero) else x for x in cotangents)
    upstream = {"out": out, "lse": lse, "dout": jnp.zeros_like(out) if dout is None else dout}
    upstream |= {} if dlse is None else {"dlse": dlse}
    upstream |= {} if dentropy is None else {"entropy": entropy, "dentropy": dentropy}
    return (call.backward(values, upstream, tuple(wanted)),)


attention.defvjp(_forward, _backward, symbolic_zeros=True)
