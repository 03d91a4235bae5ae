"""onepass in PyTorch: differentiable, compilable attention, and PyTorch's own function on top of it.

``onepass.torch.attention`` takes all of onepass's arguments, ``onepass.torch.scaled_dot_product_attention`` is
``torch.nn.functional.scaled_dot_product_attention``, and ``with onepass.torch.sdpa():`` puts it in its place.
"""

import importlib

from torch.utils import _pytree

from . import _options, _torch_checks, _torch_fake, _torch_op, _torch_vmap  # noqa: F401  rules of the operators
from ._quantized import Quantized
from ._torch_append import append_kv
from ._torch_attention import attention
from ._torch_cascade import cascade
from ._torch_merge import merge
from ._torch_place import register, sdpa
from ._torch_sdpa import scaled_dot_product_attention
from ._torch_statistics import key_mass, weights

__all__ = ["append_kv", "attention", "cascade", "merge", "quantize", "register", "scaled_dot_product_attention", "sdpa"]
__all__ += ["Quantized", "key_mass", "weights"]
_FLEX = ["BlockMask", "and_masks", "create_block_mask", "flex_attention", "noop_mask", "or_masks"]
__all__ += _FLEX

_pytree.register_pytree_node(
    Quantized, lambda x: (list(x), x.how), lambda x, how: Quantized(*x, hadamard=how[0], seed=how[1])
)


def __getattr__(name):  # what is imported when it is first asked for
    if name in _FLEX:  # with PyTorch's flex_attention, which takes longer to import than onepass
        globals().update({x: getattr(importlib.import_module("onepass._torch_flex"), x) for x in _FLEX})
        return globals()[name]
    if name != "context_parallel":
        raise AttributeError(f"module 'onepass.torch' has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module("onepass.context_parallel")


def __dir__():
    return sorted(__all__)


def quantize(x, *, factors="head", hadamard=False, seed=0, mean=False, layout="bhsd", threads=None):
    """``onepass.quantize`` as an operator that torch.compile traces. It has no gradients.

    Args, Returns, Raises: as ``onepass.quantize``; the ``Quantized`` that it returns holds tensors.
    """
    _torch_checks.check_tensors(("x",), (x,), 1)
    _torch_checks.refuse_lost((("x", x),), "quantize")
    _options.tokens_first(layout)
    number = _torch_op.signed(seed)
    data, descale, taken = _torch_op.quantize(x.detach(), factors, hadamard, number, mean, threads, layout)
    return Quantized(data, descale, taken if mean else None, hadamard=hadamard, seed=seed)
