"""Arrays on CUDA devices: on which stream a call runs, how arrays are handed over on it, where memory comes from.

A call goes to the stream on which the library of q would work itself: PyTorch's and CuPy's current stream. Nothing is
synchronised and nothing copied. Other libraries (JAX) have no stream to put the call on and no way to learn when it is
done: it goes to the legacy default stream and is waited for. No library is ever imported here.
"""

import functools
import glob
import importlib.util
import os
import sys
from typing import Any

from . import _numpy as np
from . import _onepass

_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def torch_capsule(x: Any) -> Any:
    """A DLPack capsule without any waiting. x.__dlpack__ is Python, takes 3 us and wants x's device to be current."""
    try:
        return sys.modules["torch"].utils.dlpack.to_dlpack(x)
    except (RuntimeError, BufferError):
        return x  # sparse, quantized and the like: the extension says what is expected


def is_cupy(x: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def cuda_index(x: Any) -> Any:
    """The CUDA device that `x` is on, or None."""
    if x is None or isinstance(x, np.ndarray):
        return None
    if is_torch(x):
        return x.get_device() if x.is_cuda else None
    if not hasattr(type(x), "__dlpack_device__"):
        return None
    kind, index = x.__dlpack_device__()
    return index if kind in _CUDA else None


class Host:
    """Calls on CPU arrays."""

    stream, workspace = 0, None
    torch_is_plain = False  # once _kinds has seen in this call that torch records and differentiates nothing

    def handed_over(self, x: Any, writable: bool = False) -> Any:
        return torch_capsule(x) if is_torch(x) and x.is_cpu else x

    def finish(self) -> None:
        pass


def nvrtc_wheels() -> Any:
    """Where pip has put NVRTC (nvidia-cuda-nvrtc, which frameworks bring along): nvidia/*/lib, the newest first."""
    try:
        spec = importlib.util.find_spec("nvidia")  # a namespace of folders; nothing is imported
    except (ImportError, ValueError):
        return []
    folders = (spec and spec.submodule_search_locations) or ()
    found = [path for folder in folders for path in glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.[0-9]*"))]
    return sorted(found, key=lambda path: int("0" + path.rsplit(".so.", 1)[1].split(".")[0]), reverse=True)


@functools.cache
def find_nvrtc() -> None:
    """Tells the extension, which opens NVRTC when it first needs it. The loader's own and $ONEPASS_NVRTC go before."""
    _onepass.offer_nvrtc(nvrtc_wheels())


class Cuda:
    """A call on a CUDA device, with what of its library it needs."""

    torch_is_plain = False

    def __init__(self, q: Any, index: Any) -> None:
        find_nvrtc()
        self.torch: Any = sys.modules["torch"] if is_torch(q) else None
        self.cupy: Any = sys.modules["cupy"] if is_cupy(q) else None
        self.device, self.stream, self.workspace = index, 0, None  # None: the library's own, in stream order
        if self.torch:
            self.stream = self.torch.cuda.current_stream(index).cuda_stream
            self.workspace = self.torch_workspace
        elif self.cupy:
            with self.cupy.cuda.Device(index):
                self.stream = self.cupy.cuda.get_current_stream().ptr
            self.workspace = self.cupy_workspace

    def handed_over(self, x: Any, writable: bool = False) -> Any:
        """A DLPack capsule of `x`, valid for work on the call's stream. Of q's own library it needs no waiting."""
        if cuda_index(x) is None:
            return x  # in host memory; the extension says what is expected
        if self.torch and is_torch(x):
            return torch_capsule(x)
        if self.cupy and is_cupy(x):
            return x.__dlpack__(stream=-1)
        stream = self.stream or 1  # DLPack calls the legacy default stream 1
        if writable:
            try:
                return x.__dlpack__(stream=stream, max_version=(1, 0))  # says whether the memory is read-only
            except TypeError:
                pass  # a producer from before versions
        return x.__dlpack__(stream=stream)

    def finish(self) -> None:
        """After the call has been enqueued."""
        if not (self.torch or self.cupy):
            _onepass.synchronize(self.device)

    # Both libraries reuse freed memory in stream order, so it may be freed as soon as the call has been enqueued.
    def torch_workspace(self, size: int) -> tuple[Any, ...]:
        memory = self.torch.empty(size, dtype=self.torch.uint8, device=f"cuda:{self.device}")
        return memory, memory.data_ptr()

    def cupy_workspace(self, size: int) -> tuple[Any, ...]:
        with self.cupy.cuda.Device(self.device):
            memory = self.cupy.empty(size, dtype=self.cupy.uint8)
        return memory, memory.data.ptr


def place_of(q: Any) -> Any:
    """Host or Cuda: where a call with this q runs."""
    index = cuda_index(q)
    return Host() if index is None else Cuda(q, index)
