"""Block masks that are built on a CUDA device, in stream order: nothing is copied to the host or waited for."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _options
from . import _numpy as np


def like_of(device: Any, buffers: Mapping[str, Any]) -> Any:
    """An array of PyTorch or CuPy on the CUDA device where tiles are made, or None: they are made on the CPU."""
    if device is not None:
        return _of_torch(device)
    like = next((x for x in buffers.values() if _devices.cuda_index(x) is not None), None)
    if _devices.is_torch(like):
        return like if _kinds.keeps(sys.modules["torch"]) else None
    return like if _devices.is_cupy(like) else None


def _of_torch(device: Any) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"device must be None without PyTorch (got {device!r})", name="torch") from error
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be the CPU or a CUDA device (got {device})")
    if place.type == "cpu" or not _kinds.keeps(torch):
        return None
    if (place.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"device must be one of the {count} CUDA devices that PyTorch finds (got {device})")
    return torch.empty(0, device=place)


def moved(x: Any, like: Any) -> Any:
    """A NumPy array as an array of the kind and on the device of `like`; other arrays as they are."""
    if not isinstance(x, np.ndarray):
        return x
    if _devices.is_torch(like):
        known = x.astype(np.float32) if x.dtype.name == "bfloat16" else x  # torch reads no ml_dtypes
        return sys.modules["torch"].from_numpy(np.require(known, requirements="CW")).to(like.device)
    if _devices.is_cupy(like):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            return cupy.asarray(x)
    return x


def there(x: Any, like: Any) -> Any:
    """A buffer where `like` is, or in CPU memory for None: through the CPU, unless PyTorch copies it itself."""
    if _devices.is_jax(x) and _devices.is_jax(like):
        return x  # tracers too
    if _devices.cuda_index(x) == _devices.cuda_index(like):
        return moved(x, like)
    if _devices.is_torch(x) and _devices.is_torch(like):
        return x.to(like.device)
    return moved(_in_numpy(x), like)


def _in_numpy(x: Any) -> Any:
    if _devices.is_torch(x):
        x = x.detach().cpu()
        return (x.float() if x.dtype is sys.modules["torch"].bfloat16 else x).numpy()
    return x.get() if _devices.is_cupy(x) else np.asarray(x)


def exported(buffers: Mapping[str, Any], like: Any) -> list[Any]:
    """The buffers as the extension reads them where `like` is."""
    place, out = _devices.place_of(like), []
    for name, x in buffers.items():
        x = _options.of_one(there(x, like))
        x = _kinds.converted(f"mod buffer {name}", x, "int32") if _options.is_int64(x) else x
        out.append((name, _arrays.exported(f"mod buffer {name}", x, place)))
    return out


def states(mask_mod: str, buffers: Mapping[str, Any], shape: tuple[int, ...], exact: bool, like: Any) -> Any:
    """int32 ``[batch, heads, row_tiles, key_tiles]`` of the kind and on the device of `like`."""
    place = _devices.place_of(like)
    batch, heads, seq_q, seq_k, tile_q, tile_k = shape
    made = _arrays.new(like, (batch, heads, -(-seq_q // tile_q), -(-seq_k // tile_k)), "int32", ordered=False)
    target = _arrays.target("states", made, place)
    _onepass.block_mask_states(mask_mod, exported(buffers, like), shape, exact, target, place.stream, place.workspace)
    place.finish()
    return made
