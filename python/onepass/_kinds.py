"""Arrays that mean more than their memory says, or that are read-only: each becomes plain, or is refused.

A lazily negated tensor, a mask beside the values, a recorder that sees no call of onepass: reading or writing the
memory alone would be silently wrong. No library is ever imported here.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from . import _numpy as np


def refuse_masked(name: str, x: Any) -> None:
    """The array of a subclass of np.ndarray."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and onepass does not read its mask: pass {name}.data or {name}.filled(...), "
            "and a bool_mask that is True where a query may attend"
        )


def recorder(torch: Any) -> str | None:
    """The recorder of torch's operations that repeats them later, or None."""
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    # No public function of PyTorch (2.15) tells of an active mode or transformation, here and in keeps().
    if torch._C._len_torch_dispatch_stack():
        proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
        if proxies is not None and proxies.get_proxy_mode() is not None:
            return "torch.fx"
    return None


def keeps(torch: Any) -> bool:
    """False in a trace, a mode or a transformation of torch: a later call cannot use the tensors that are made then."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    )


@contextlib.contextmanager
def to_keep(torch: Any) -> Iterator[None]:
    """A later call may save the tensors that are made inside for its backward, in inference mode too."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def plain_tensor(name: str, x: Any, torch: Any, place: Any) -> Any:
    """`x` as a torch tensor whose memory holds its values."""
    kind = type(x)
    if kind is not torch.Tensor and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(
            f"{name} must be a plain torch.Tensor (got a {kind.__module__}.{kind.__name__}, whose values are not in "
            "memory of its own)"
        )
    if found := recorder(torch):
        raise RuntimeError(
            f"{name} is being recorded by {found}, which does not see onepass: call onepass.torch.attention, or "
            "call onepass outside of the recording"
        )
    differentiating = torch.autograd.forward_ad._current_level >= 0
    if differentiating and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        raise RuntimeError(f"{name} has a tangent, which onepass does not support: pass {name}.detach()")
    place.torch_is_plain = not differentiating
    if x.requires_grad:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, which onepass does not record: call onepass.torch.attention, which has "
                f"the gradients of q, k, v, bias, sinks and alibi_slopes, pass {name}.detach(), or call under "
                "torch.no_grad()"
            )
        x = x.detach()
    return x.resolve_neg() if x.is_neg() else x


def refuse_without_values(name: str, x: Any) -> None:
    """The array of another library."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(x, jax.Array):
        return
    if isinstance(x, jax.core.Tracer):
        raise TypeError(f"{name} is being traced by JAX and has no values: use onepass.jax inside jit, grad or vmap")
    if x.is_deleted():
        raise ValueError(f"the memory of {name}, a jax Array, has been deleted or donated")


def refuse_immutable(x: Any, name: str = "out") -> None:
    """The array of the caller's `out`. Memory that is marked read-only is the extension's to refuse."""
    for library, kind in (("jax", "Array"), ("tensorflow", "Tensor")):
        module = sys.modules.get(library)
        if module is not None and isinstance(x, getattr(module, kind, ())):
            raise TypeError(
                f"{name} must be a NumPy array, a torch tensor, a CuPy array or None (got a {library} {kind}, which is "
                "immutable)"
            )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and x.is_neg():
        raise ValueError(f"{name} must be a plain tensor (got a negated view)")


# Other dtypes of sinks, slopes and prefix sums; they are small, so they are converted.
CONVERTED = {"float32": ("float16", "bfloat16", "float64"), "int32": ("int64",)}
_names: dict[Any, str] = {}  # of dtypes seen


def _values(x: Any) -> Any:
    """An array in host memory as NumPy's."""
    if isinstance(x, np.ndarray):
        return x
    return x.detach().numpy() if hasattr(x, "detach") else np.array(x.tolist())


def converted(name: str, x: Any, dtype: Any) -> Any:
    """`x` of `dtype`, float32 or int32, where another type stands for the same numbers; else `x` as it is."""
    given = getattr(x, "dtype", None)
    if given is np.dtype(dtype):
        return x
    given = _names.get(given) or _names.setdefault(given, str(given).rpartition(".")[2])
    if given == dtype or given not in CONVERTED[dtype]:
        return x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        y, on_host = x.to(getattr(torch, dtype)), x.is_cpu
    elif hasattr(x, "astype"):
        with np.errstate(over="ignore"):
            y, on_host = x.astype(dtype), isinstance(x, np.ndarray) or x.__dlpack_device__()[0] == 1
    else:
        return x
    if on_host and given in ("int64", "float64"):  # a device's values are not waited for
        before, after = _values(x), _values(y)
        lost = np.argwhere(after != before if dtype == "int32" else np.isinf(after) & ~np.isinf(before))
        for index in map(tuple, lost.tolist()):
            raise ValueError(
                f"{name}[{', '.join(map(str, index))}] must be in the range of {dtype} (got {before[index]})"
            )
    return y
