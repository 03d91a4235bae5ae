"""Arrays of any library as views: how they are handed to the extension, and how results of the same kind are made.

No data is copied. A kind of array is known by its type's module, so torch or jax is never imported here.
"""

import sys
from typing import Any

from . import _kinds, _onepass
from . import _numpy as np
from ._devices import cuda_index, is_cupy, is_jax, is_torch

DATA = ("float32", "float16", "bfloat16")
_FLOAT8 = "float8_e4m3fn"  # of q, k and v of a forward
KINDS = "a NumPy array, a torch tensor or an array with DLPack"


def exported(name: str, x: Any, place: Any, writable: bool = False, convert: Any = None) -> Any:
    """How the extension reads or writes `x`: through `x` itself, (bits,) for float8 and for bfloat16 in NumPy, which
    no buffer can say, or a DLPack capsule of an array on a CUDA device, for a call that runs at `place`. `convert`
    names the dtype that a small array is converted to."""
    if x is None:
        return None
    if convert:
        view, same = exported(name, x, place), _kinds.converted(name, x, convert)  # in this order: the first may refuse
        return view if same is x else exported(name, same, place)
    kind = type(x)
    if kind is np.ndarray or isinstance(x, np.ndarray):
        if kind is not np.ndarray:
            _kinds.refuse_masked(name, x)
        if x.dtype.kind != "V" and x.dtype.num < 256 and x.dtype.isnative:  # those from 256 on are other packages'
            return x
        if x.dtype.name == "bfloat16":
            return (x.view(np.uint16),)
        if x.dtype.name == _FLOAT8:
            return (x.view(np.uint8),)
        raise TypeError(
            f"{name} must be native float32, float16, ml_dtypes.bfloat16 or ml_dtypes.float8_e4m3fn "
            f"(got {x.dtype.str if not x.dtype.isnative else x.dtype.name})"
        )
    if is_torch(x):
        torch = sys.modules["torch"]
        if not place.torch_is_plain or kind is not torch.Tensor or x.requires_grad or x.is_neg():
            x = _kinds.plain_tensor(name, x, torch, place)
        if x.dtype is getattr(torch, _FLOAT8, None):
            return (place.handed_over(x.view(torch.uint8), writable),)
        view = place.handed_over(x, writable)
        if view is x and x.is_nested:
            raise TypeError(f"{name} must not be a nested tensor; pack the sequences, with cu_seqlens")
        return view
    _kinds.refuse_without_values(name, x)
    if hasattr(type(x), "__dlpack__") or hasattr(type(x), "__array_interface__"):
        return place.handed_over(x, writable)
    raise TypeError(f"{name} must be {KINDS} (got {type(x).__name__})")


_names: dict[Any, str] = {}  # of dtypes seen; naming one takes as long as a small call


def dtype_name(name: str, x: Any) -> Any:
    """The name of the element type of a tensor of numbers, such as float32; float8_e4m3fn of q alone."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        raise TypeError(f"{name} must be {KINDS} (got {type(x).__name__})")
    known = _names.get(dtype)
    if known and (known != _FLOAT8 or name == "q"):
        return known
    word = str(dtype).rpartition(".")[2]
    if word not in DATA and not (name == "q" and word == _FLOAT8):
        accepted = "float16, bfloat16 or float8_e4m3fn" if name == "q" else "float16 or bfloat16"
        raise TypeError(f"{name} must be float32, {accepted} (got {word})")
    return _names.setdefault(dtype, word)


def result_dtype(q: Any) -> Any:
    """The dtype of a new out, or None: q's."""
    return "bfloat16" if dtype_name("q", q) == _FLOAT8 else None


def _order_like(x: Any, rank: Any) -> Any:
    """Dimensions from the slowest to the fastest in memory, as in x; the last is the fastest. None: row-major."""
    strides = getattr(x, "strides", None)
    if strides is None and hasattr(x, "stride"):
        strides = x.stride()
    if rank < 2 or not isinstance(strides, tuple) or len(strides) != rank or 0 in strides:
        return None
    order = (*sorted(range(rank - 1), key=lambda i: -abs(strides[i])), rank - 1)
    return None if order == tuple(range(rank)) else order


class _Native:
    """A result that is filled by the extension and then imported by the library of q (`namespace.from_dlpack`)."""

    def __init__(self, namespace: Any, raw: Any) -> None:
        self.namespace, self.raw = namespace, raw


def rows_of(q: Any, packed: Any) -> tuple[int, ...]:
    """The shape of a number for each row, such as the LSE."""
    return tuple(q.shape[1::-1] if packed else q.shape[:-1])


def new(like: Any, shape: Any, dtype: Any = None, ordered: bool = True, fill: Any = None) -> Any:
    """An array of the kind and device of `like`, of its dtype if none is named, in its memory order."""
    order = _order_like(like, len(shape)) if ordered else None
    permuted = shape if order is None else [shape[i] for i in order]
    if isinstance(like, np.ndarray):
        array = np.empty(permuted, dtype or like.dtype)
    elif is_torch(like):
        torch = sys.modules["torch"]
        array = torch.empty(permuted, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    elif is_cupy(like):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            array = cupy.empty(permuted, dtype=dtype or like.dtype)
    elif is_jax(like) and cuda_index(like) is not None:
        # A buffer that is not shared yet, so that writing to it breaks no promise of JAX's.
        return sys.modules["jax"].numpy.full(shape, fill or 0, dtype=dtype or like.dtype, device=like.device)
    elif cuda_index(like) is not None:
        raise TypeError(
            f"cannot make a result like a {type(like).__module__.partition('.')[0]} {type(like).__name__} on "
            f"cuda:{cuda_index(like)}: give out, or use torch, cupy or jax arrays"
        )
    else:
        namespace = getattr(like, "__array_namespace__", lambda: np)()
        return _Native(namespace, _onepass.empty(list(shape), dtype or dtype_name("q", like), fill))
    if order is not None:
        inverse = sorted(order, key=order.__getitem__)
        array = array.permute(inverse) if is_torch(array) else array.transpose(inverse)
    if fill is not None:
        array[...] = fill
    return array


def target(name: str, x: Any, place: Any) -> Any:
    """How the extension writes `x` (from `new`, or given by the caller)."""
    return x.raw if isinstance(x, _Native) else exported(name, x, place, writable=True)


def finished(x: Any) -> Any:
    """The array the caller gets."""
    return x.namespace.from_dlpack(x.raw) if isinstance(x, _Native) else x
