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
        torch = importlib.import_module("torch")
        place = torch.device(device)
        return torch.empty(0, device=place) if place.type == "cuda" and _kinds.keeps(torch) else None
    like = next((x for x in buffers.values() if _devices.cuda_index(x) is not None), None)
    if _devices.is_torch(like):
        return like if _kinds.keeps(sys.modules["torch"]) else None
    return like if _devices.is_cupy(like) else None


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


def _there(x: Any, like: Any) -> Any:
    """A buffer where `like` is."""
    if _devices.is_torch(x) and _devices.is_torch(like) and x.device != like.device:
        x = x.to(like.device)
    return readable(moved(x, like))


def readable(array: Any) -> Any:
    """A buffer of a dtype and rank that the extension reads."""
    array = _options.of_one(array)
    return _kinds.converted("mod buffer", array, "int32") if _options.is_int64(array) else array


def states(mask_mod: str, buffers: Mapping[str, Any], shape: tuple[int, ...], exact: bool, like: Any) -> Any:
    """int32 ``[batch, heads, row_tiles, key_tiles]`` of the kind and on the device of `like`."""
    place = _devices.place_of(like)
    there = {name: _there(x, like) for name, x in buffers.items()}
    exported = [(name, _arrays.exported(f"mod buffer {name}", x, place)) for name, x in there.items()]
    batch, heads, seq_q, seq_k, tile_q, tile_k = shape
    made = _arrays.new(like, (batch, heads, -(-seq_q // tile_q), -(-seq_k // tile_k)), "int32", ordered=False)
    target = _arrays.target("states", made, place)
    _onepass.block_mask_states(mask_mod, exported, shape, exact, target, place.stream, place.workspace)
    place.finish()
    return made
