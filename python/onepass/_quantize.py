"""Numbers to float8_e4m3fn, with their factors."""

import sys
from typing import Any

from . import _arrays, _devices, _onepass, _options, _values
from . import _numpy as np
from ._quantized import Quantized

_FACTORS = ("block", "head", "tensor")
_FP8 = {"by_block": False, "hadamard": True, "center": False, "seed": 0}


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
    """x in float8_e4m3fn, and the factors that its numbers stand for multiples of.

    Factors are powers of 2, so that dividing by them rounds nothing, and large enough that no number is cut off at 448.
    A NaN or an infinity becomes NaN, with all that a rotation mixes with it, and enters no factor and no mean.

    Args:
      x: ``[batch, heads, rows, n]``, or without the first one or two dimensions, n from 1 to 256; float32, float16 or
        bfloat16, NumPy (with ml_dtypes) or PyTorch, read in place by any strides.
      factors: ``"block"``: one for every 128 rows, as small as can be, and x is read once; ``"head"``: one for each
        ``[rows, n]``, as with ``"block"`` of up to 128 rows; ``"tensor"``: one. These are a bound's, and x is read
        twice.
      hadamard: rotate each row: signs by ``seed``, then a Hadamard matrix over the largest power of two of neighbours
        that divides n. q and k rotated by one seed have the products of q and k, and outliers are spread over a row.
      seed: of the signs, 0 to 2^64 - 1.
      mean: take the mean of each column of a head out, and return it: ``v_mean`` of ``attention``.
      layout: ``"bhsd"``: x is as above. ``"bshd"``: x is ``[batch, rows, heads, n]``; packed tokens ``[total, heads,
        n]`` are ``"bshd"``. descale and mean are the same in either layout.
      threads: how many to use at most; None is all cores.

    Returns:
      ``(y, descale)`` or ``(y, descale, mean)``: y of x's shape, float32 descale ``[batch, heads, blocks]`` of which
      what shares a factor has size 1 (q_descale, k_descale or v_descale of ``attention``), float32 mean ``[batch,
      heads, n]``.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``.
    """
    place = _devices.place_of(x)
    _arrays.dtype_name("x", x)
    shape = tuple(x.shape)
    tokens_first = _options.tokens_first(layout)
    batch, heads, rows, n = four(shape, tokens_first)
    if tokens_first:
        heads, rows = rows, heads
    sizes = factor_sizes(factors, (batch, heads, rows, n))
    seed = _values.seed_of(seed)
    y = _float8(x, shape)
    descale = _arrays.new(x, sizes, "float32", ordered=False)
    taken = _arrays.new(x, (batch, heads, n), "float32", ordered=False) if mean else None
    _onepass.quantize(
        {
            "x": _arrays.exported("x", x, place),
            "y": _arrays.target("y", y, place),
            "descale": _arrays.target("descale", descale, place),
            "mean": None if taken is None else _arrays.target("mean", taken, place),
            "tokens_first": tokens_first,
            "hadamard": bool(hadamard),
            "seed": seed,
            "threads": _values.threads_of(threads),
            "stream": place.stream,
        }
    )
    place.finish()
    return Quantized(y, descale, taken, hadamard=hadamard, seed=seed)


def four(shape: Any, tokens_first: bool = False) -> tuple[int, ...]:
    """x's shape with all four dimensions."""
    if not 2 <= len(shape) <= 4:
        form = "[batch, rows, heads, n]" if tokens_first else "[batch, heads, rows, n]"
        raise ValueError(f"x must have the shape {form}, or fewer dimensions in front (got {list(shape)})")
    return (1,) * (4 - len(shape)) + tuple(shape)


def factor_sizes(factors: str, shape: Any) -> Any:
    """The shape of descale for an x of ``[batch, heads, rows, n]``."""
    if factors not in _FACTORS:
        raise ValueError(f"factors must be 'block', 'head' or 'tensor' (got {factors!r})")
    batch, heads, rows, _ = shape
    return {"block": (batch, heads, -(-rows // 128)), "head": (batch, heads, 1), "tensor": (1, 1, 1)}[factors]


def _float8(x: Any, shape: Any) -> Any:
    """A new array of float8_e4m3fn: of NumPy, which has it from ml_dtypes, or PyTorch."""
    if isinstance(x, np.ndarray):
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "float8_e4m3fn arrays of NumPy need the package ml_dtypes, which is not installed"
            ) from None
        return _arrays.new(x, shape, np.dtype(ml_dtypes.float8_e4m3fn))
    if "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor):
        return _arrays.new(x, shape, "float8_e4m3fn")
    raise TypeError(
        f"x must be a NumPy array or a torch tensor (got {type(x).__name__}); onepass.jax.quantize accepts JAX arrays"
    )


def fp8_options(fp8: Any) -> Any:
    """The extension's argument for attention's ``fp8``."""
    if fp8 is True:
        return _FP8
    try:
        given = dict(fp8)
    except (TypeError, ValueError):
        raise TypeError(f"fp8 must be a bool or a dict with the keys {', '.join(_FP8)} (got {fp8!r})") from None
    for name in given:
        if name not in _FP8:
            raise ValueError(f"fp8 does not support the key {name!r}; its keys are {', '.join(_FP8)}")
    options = _FP8 | given
    return {name: bool(options[name]) for name in ("by_block", "hadamard", "center")} | {
        "seed": _values.seed_of(options["seed"], "fp8's seed")
    }


def fp8_text(fp8: Any) -> Any:
    """fp8_options as a text, which a schema of PyTorch's can hold."""
    return ",".join(f"{name}={int(value)}" for name, value in fp8_options(fp8).items())


def fp8_of(text: Any) -> dict[str, Any]:
    """The inverse of fp8_text."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split(","))}
