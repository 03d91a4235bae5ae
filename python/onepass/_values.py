"""Values of arguments, checked: what is not accepted raises one sentence that names the argument."""

import operator
import sys
from collections.abc import Mapping, Set
from typing import Any

from . import _arrays


def number(name: str, x: Any, accepted: str = "a number") -> float:
    if isinstance(x, (str, bytes, bytearray)):  # float() reads them
        raise TypeError(f"{name} must be {accepted} (got {x!r})")
    refuse_lost_gradient(name, x)
    try:
        return float(x)
    except OverflowError:
        raise ValueError(f"{name} must be {accepted} (got an integer beyond the range of float64)") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {accepted} (got {x!r})") from None


def refuse_lost_gradient(name: str, x: Any) -> None:
    """Raises a RuntimeError about an option that is a tensor whose gradient PyTorch would record."""
    if getattr(x, "requires_grad", False) is True and sys.modules["torch"].is_grad_enabled():
        raise RuntimeError(f"{name}.requires_grad is set, but onepass does not return its gradient; pass {name}.item()")


def parts(name: str, x: Any) -> Any:
    """The elements of a list, tuple or other iterable."""
    try:
        return list(x)
    except TypeError:
        raise TypeError(f"{name} must be a list of arrays (got {type(x).__name__})") from None


def arrays(name: str, x: Any) -> Any:
    """The arrays of a list, tuple or other iterable."""
    found = parts(name, x)
    for i, array in enumerate(found):
        if not hasattr(array, "dtype") and not hasattr(type(array), "__dlpack__"):
            raise TypeError(f"{name}[{i}] must be {_arrays.KINDS} (got {type(array).__name__})")
    return found


def integer(name: str, x: Any, low: Any, high: Any, accepted: str) -> Any:
    try:
        value = operator.index(x)
    except TypeError:
        raise TypeError(f"{name} must be {accepted} (got {x!r})") from None
    if not low <= value <= high:
        raise ValueError(f"{name} must be {accepted} (got {value})")
    return value


def threads_of(x: Any) -> Any:
    return 0 if x is None else integer("threads", x, 1, 4096, "None (all cores) or an integer from 1 to 4096")


def seed_of(x: Any, name: str = "seed") -> int:
    return integer(name, x, 0, 2**64 - 1, "an integer from 0 to 2^64 - 1")


SEED = "an integer from 0 to 2^64 - 1 or an int64 array of one element"


def is_array(x: Any) -> bool:
    """True of what holds values in memory, which kernels can read when they run; not of a number of NumPy's."""
    return hasattr(type(x), "__dlpack__")


def seed_array(x: Any) -> Any:
    """A seed in memory as int64 [1]."""
    dtype, shape = str(x.dtype).rpartition(".")[2], tuple(x.shape)
    if dtype != "int64" or shape not in ((), (1,)):
        raise (ValueError if dtype == "int64" else TypeError)(
            f"seed must be {SEED} (got {dtype} of shape {list(shape)})"
        )
    return x.reshape(1)


def window_sides(window: Any) -> tuple[Any, ...]:
    """(left, right), not looked at yet."""
    if window is None:
        return -1, -1
    try:
        if isinstance(window, (Mapping, Set)):  # unpacking them gives keys, and members in any order
            raise TypeError
        left, right = window
    except (TypeError, ValueError):
        accepted = "a pair (left, right) of integers, -1 for unbounded"
        raise ValueError(f"window must be {accepted} (got {window!r})") from None
    return left, right


def text(name: str, x: Any) -> Any:
    try:
        x.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text without lone surrogates (got {ascii(x)[:200]})") from None
    return x
