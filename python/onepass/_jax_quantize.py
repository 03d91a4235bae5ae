"""Arrays of JAX to float8_e4m3fn, with their factors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _arrays, _jax_run, _options, _quantize, _values
from ._quantized import Quantized


def quantize(
    x: Any,
    *,
    factors: str = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    layout: str = "bhsd",
    threads: int | None = None,
) -> Any:
    """``onepass.quantize`` of JAX arrays, traced or not. It has no gradients; vmap loops.

    Args:
      layout: ``"bhsd"``: x is ``[batch, heads, rows, n]``; ``"bshd"``: ``[batch, rows, heads, n]``. Neither is copied.
        The first one or two dimensions may be left out: packed tokens ``[total, heads, n]`` are ``"bshd"``.
      The others: as ``onepass.quantize`` takes them, static.

    Returns:
      ``(y, descale)`` or ``(y, descale, mean)``: y of x's shape, and in either layout float32 descale ``[batch, heads,
      blocks]``, of which what shares a factor has size 1, and float32 mean ``[batch, heads, n]``.

    Raises:
      ValueError, TypeError: for a dtype, a rank or an option that does not fit, while tracing; where it runs, XLA
      raises the sentences of ``onepass.quantize`` (a row of 0 or of more than 256 numbers).
    """
    tokens_first = _options.tokens_first(layout)
    threads = _values.threads_of(threads)
    x = jnp.asarray(x)
    _arrays.dtype_name("x", x)
    shape = _quantize.four(x.shape, tokens_first)
    batch, heads, rows, n = (shape[0], shape[2], shape[1], shape[3]) if tokens_first else shape
    results = {
        "y": (shape, jnp.float8_e4m3fn),
        "descale": (_quantize.factor_sizes(factors, (batch, heads, rows, n)), jnp.float32),
    }
    if mean:
        results["mean"] = ((batch, heads, n), jnp.float32)
    call = jax.ffi.ffi_call(
        "onepass_quantize", [jax.ShapeDtypeStruct(*y) for y in results.values()], vmap_method="sequential"
    )
    attributes = {
        "operands": "x",
        "results": " ".join(results),
        "tokens_first": np.bool_(tokens_first),
        "hadamard": np.bool_(hadamard),
        "seed": _jax_run.bits(_values.seed_of(seed)),
        "threads": np.int64(threads),
    }
    once = "onepass.jax.quantize does not support gradients"
    y, *factors_and_mean = _jax_run.undifferentiable(lambda x: call(x, **attributes), once)(x.reshape(shape))
    return Quantized(y.reshape(x.shape), *factors_and_mean, hadamard=hadamard, seed=seed)
