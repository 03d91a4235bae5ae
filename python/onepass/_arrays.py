"""Arrays of any library as views: how they are handed to the extension, and how results of the same kind are made.

Nothing is ever copied. A kind of array is known by its type's module, so torch or jax is never imported here.
"""

import sys

import numpy as np

from . import _onepass

_DATA = ("float32", "float16", "bfloat16")


def _is_torch(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def exported(name, x):
    """What the extension reads `x` through: `x` itself, or (bits,) for bfloat16 in NumPy, which no buffer can say."""
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        if x.dtype.kind != "V" and x.dtype.isnative:
            return x
        if x.dtype.name == "bfloat16":
            return (x.view(np.uint16),)
        raise TypeError(
            f"{name} is {x.dtype.str if not x.dtype.isnative else x.dtype.name}; "
            "native float32, float16 and ml_dtypes.bfloat16 are accepted"
        )
    if _is_torch(x):
        if not x.requires_grad:
            return x
        if sys.modules["torch"].is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient and onepass would lose it: pass {name}.detach(), or call "
                "under torch.no_grad()"
            )
        return x.detach()
    if hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__"):
        return x
    raise TypeError(
        f"{name} is a {type(x).__name__}; a NumPy array, a torch tensor or an array with DLPack is accepted"
    )


_names = {}  # of dtypes seen; naming one takes as long as a small call


def dtype_name(name, x):
    """The name of the element type of q or out: float32, float16 or bfloat16."""
    known = _names.get(x.dtype)
    if known:
        return known
    dtype = str(x.dtype).rpartition(".")[2]
    if dtype not in _DATA:
        raise TypeError(f"{name} is {dtype}; float32, float16 and bfloat16 are accepted")
    return _names.setdefault(x.dtype, dtype)


def _order_like(x, rank):
    """Dimensions from the slowest to the fastest in memory, as in x; the last is the fastest. None: row-major."""
    strides = getattr(x, "strides", None)
    if strides is None and hasattr(x, "stride"):
        strides = x.stride()
    if not isinstance(strides, tuple) or len(strides) != rank or 0 in strides:
        return None
    order = (*sorted(range(rank - 1), key=lambda i: -abs(strides[i])), rank - 1)
    return None if order == tuple(range(rank)) else order


class _Native:
    """A result that is filled by the extension and then imported by the library of q (`namespace.from_dlpack`)."""

    def __init__(self, namespace, raw):
        self.namespace, self.raw = namespace, raw


def new(like, shape, dtype=None, ordered=True, fill=None):
    """An array of the kind and device of `like`, of its dtype if none is named, in its memory order."""
    order = _order_like(like, len(shape)) if ordered else None
    permuted = shape if order is None else [shape[i] for i in order]
    if isinstance(like, np.ndarray):
        array = np.empty(permuted, dtype or like.dtype)
    elif _is_torch(like):
        torch = sys.modules["torch"]
        array = torch.empty(permuted, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    else:
        namespace = getattr(like, "__array_namespace__", lambda: np)()
        return _Native(namespace, _onepass.empty(list(shape), dtype or dtype_name("q", like), fill))
    if order is not None:
        inverse = sorted(order, key=order.__getitem__)
        array = array.transpose(inverse) if isinstance(array, np.ndarray) else array.permute(inverse)
    if fill is not None:
        array[...] = fill
    return array


def target(name, x):
    """What the extension writes `x` (from `new`, or given by the caller) through."""
    return x.raw if isinstance(x, _Native) else exported(name, x)


def finished(x):
    """The array the caller gets."""
    return x.namespace.from_dlpack(x.raw) if isinstance(x, _Native) else x
