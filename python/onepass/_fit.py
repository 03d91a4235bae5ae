"""The library's own check that the arrays of a call fit together, from shapes and dtypes alone."""

from typing import Any

import numpy as np

from . import _onepass

_BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8}  # as the extension takes what no buffer can say


def without_values(shape: Any, dtype: Any, looked_at: bool = True) -> Any:
    """An array as the extension takes it, of almost no memory; dtype is a name. Integers are 0 if looked at."""
    if dtype in _BITS:
        return (without_values(shape, _BITS[dtype].__name__),)
    dtype = np.dtype(dtype)
    if dtype == np.int32 and looked_at:
        return np.zeros(shape, dtype)
    strides = [dtype.itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides)


def check(options: dict[str, Any], arrays: Any, mod_buffers: Any = (), fp8: Any = None) -> None:
    """Raises what does not fit, in the library's sentences.

    Args:
      options: what ``_options.options`` gives, without arrays.
      arrays: by their roles, ``without_values``. With ``dout`` it is a backward, with ``tout`` a jvp.
      mod_buffers: (name, array) of each.
      fp8: what ``fp8_options`` gives, of a call that quantizes.
    """
    call = {**options, "stream": 0, "workspace": None, "mod_buffers": list(mod_buffers)}
    call |= dict.fromkeys(_ROLES) | arrays
    _onepass.explain_fp8(call, fp8) if fp8 else _onepass.explain(call)


# Tensors that a call may leave out; one that the operator does not have is not looked at.
_ROLES = [name for name, *_ in _onepass.attention_tensors() if name not in ("q", "k", "v", "out", "dout")]
_ROLES += ["tbias", "tsinks"]
