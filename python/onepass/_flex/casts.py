"""The operations of symbols: casts, constants of a symbol's kind, and methods of tensors that change nothing."""

from typing import Any

from .arithmetic import boolean, integer, named, number, symbol

for _names, _cast in (
    (("float", "double", "half", "bfloat16"), number),
    (("int", "long", "short"), integer),
    (("bool",), boolean),
):
    named(*_names)(_cast)


def of_dtype(x: Any, dtype: Any) -> Any:
    name = getattr(dtype, "__name__", None) or str(getattr(dtype, "name", dtype))
    name = name.rpartition(".")[2]
    return boolean(x) if name.startswith("bool") else number(x) if "float" in name else integer(x)


@named("to", "type", "astype")
def to(a: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    for x in (*args, dtype):
        if x is not None and (isinstance(x, type) or str(x).startswith(("torch.", "float", "int", "bool"))):
            a = of_dtype(a, x)
    return symbol(a)


@named("type_as")
def type_as(a: Any, other: Any) -> Any:
    return {"float": number, "int": integer, "bool": boolean}[symbol(other).kind](a)


@named("clone", "contiguous", "positive")
def same(a: Any) -> Any:
    return symbol(a)


def _constant(name: str, value: Any) -> None:
    def like(a: Any, *size: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return full(a, value, dtype)

    named(f"{name}_like", f"new_{name}")(like)


def full(a: Any, value: Any, dtype: Any) -> Any:
    if dtype is not None:
        return of_dtype(value, dtype)
    return type_as(value, a)


_constant("zeros", 0)
_constant("ones", 1)


@named("full_like")
def full_like(a: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return full(a, fill_value, dtype)


@named("new_full")
def new_full(a: Any, size: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return full(a, fill_value, dtype)
