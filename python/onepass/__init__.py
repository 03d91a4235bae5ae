"""onepass: exact attention in one pass, for NumPy, PyTorch, CuPy and anything with DLPack. Nothing is copied."""

import importlib
import math

from . import _arrays, _onepass, _unknown, _values
from ._append import append_kv
from ._attention import attention, call_of
from ._backward_jvp import backward_jvp
from ._block_mask import BlockMask, block_mask
from ._cascade import cascade
from ._flat_gemm import flat_gemm, linear
from ._gradients import attention_backward
from ._jvp import jvp
from ._merge import merge
from ._quantize import fp8_options, quantize
from ._quantized import Quantized
from ._softmax import merge_lse, softmax, softmax_backward
from ._statistics import key_mass, weights

__version__ = _onepass.__version__
__all__ = [
    "BlockMask",
    "Quantized",
    "append_kv",
    "attention",
    "attention_backward",
    "block_mask",
    "backward_jvp",
    "cascade",
    "explain",
    "flat_gemm",
    "jvp",
    "key_mass",
    "linear",
    "merge",
    "merge_lse",
    "quantize",
    "softmax",
    "softmax_backward",
    "unified_max_of",
    "weights",
    "__version__",
]

# Imported when they are first asked for: `onepass.torch` after `import onepass`. Each needs what it is named after.
_INTERFACES = ("flash_attn", "jax", "torch", "transformers")


def __getattr__(name):
    if name not in _INTERFACES:
        raise AttributeError(f"module 'onepass' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return importlib.import_module(f"onepass.{name}")
    except ImportError as error:
        raise AttributeError(f"onepass.{name} cannot be imported: {error}") from error


def __dir__():
    return sorted((*__all__, *_INTERFACES))


def unified_max_of(*lses):
    """A ``unified_max`` for scores such as those of earlier calls: the middle of what their lses (any arrays) hold."""
    for x in lses:
        if not hasattr(x, "dtype"):
            raise TypeError(f"lses must be {_arrays.KINDS} (got {type(x).__name__})")
    seen = [x[(x > -math.inf) & (x < math.inf)] for x in lses]
    seen = [x for x in seen if x.shape[0] > 0]
    if not seen:
        return 0.0
    return (min(float(x.min()) for x in seen) + max(float(x.max()) for x in seen)) / 2


def explain(q, k=None, v=None, *, target=None, **options):
    """A text that names the implementation that a call gets, and why the others are not chosen. Computes nothing.

    ``explain("fwd b1 h16/4 s1024 d64 fp32 causal_bottom_right")`` explains a problem line; ``explain(q, k, v,
    **options)`` explains a call of ``attention``, whose options it accepts (out included).

    Args:
      target: None for this machine, or a GPU's architecture, ``"sm_90"`` or ``"9.0"``. The text is then about the same
        call on a GPU of that kind. Neither a GPU nor a driver needs to be there.
    """
    target = "" if target is None else _values.text("target", str(target))
    if isinstance(q, str):
        if k is not None or v is not None or options:
            raise TypeError("explain(line) does not accept other arguments than target; the line has all options")
        return _onepass.explain_line(_values.text("the problem line", q), target)
    known = attention.__kwdefaults__
    if unknown := [name for name in options if name not in known]:
        _unknown.refuse("explain", unknown, known)
    given = {**known, **options, "q": q, "k": k}
    call = call_of(q, k, v, given)[-1]
    fp8 = given["fp8"]
    return _onepass.explain(call, target) if fp8 is False else _onepass.explain_fp8(call, fp8_options(fp8), target)
