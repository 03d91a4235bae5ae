"""Symbols: what a user's score_mod or mask_mod is called with, and what its operations return.

A symbol is a node of an expression. NumPy, PyTorch and Python's operators all end in `CALLS`.
"""

import sys
from typing import Any

INFINITY = float("inf")
SUPPORTED = (
    "+ - * / // %, comparisons, & | ^ ~, where, abs, minimum, maximum, clamp, exp, log, sqrt, pow, tanh, sigmoid, sin, "
    "cos, floor, ceil, casts, and arrays indexed by integers"
)


def refuse(operation: str, hint: str = "") -> Any:
    """Raises a TypeError about an operation that no text can say."""
    raise TypeError(f"score_mod and mask_mod do not support {operation}" + (hint or f"; they support {SUPPORTED}"))


class Operand:
    """An operand of Python's operators and of functions of NumPy and PyTorch."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called("torch", func.__name__, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return called("np", ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return called("np", func.__name__, args, kwargs)


class Symbol(Operand):
    """A number, an integer or a bool that is known when the kernel runs.

    op: an operator of the language, a function, or "score", "batch", "head", "q_index", "k_index", "literal", "load",
    "where" and the casts "float", "int", "bool". args: its operands. kind: "float", "int" or "bool".
    low, high: bounds of an int. value: of a literal, or the array of a load. device: of the call's tensors, or None.
    """

    shape = ()
    ndim = 0
    __array_priority__ = 1000.0

    def __init__(
        self,
        op: str,
        kind: str,
        args: tuple[Any, ...] = (),
        low: Any = -INFINITY,
        high: Any = INFINITY,
        value: Any = None,
        device: Any = None,
    ) -> None:
        self.op, self.kind, self.args, self.value, self.device = op, kind, args, value, device
        self.low: Any = low if kind == "int" else 0 if kind == "bool" else -INFINITY
        self.high: Any = high if kind == "int" else 1 if kind == "bool" else INFINITY
        for x in args:
            if self.device is None:
                self.device = x.device

    def __repr__(self) -> str:
        return f"<a symbol of a {self.kind}, of {self.op}>"

    @property
    def dtype(self) -> Any:
        torch = sys.modules["torch"]
        return {"float": torch.float32, "int": torch.int32, "bool": torch.bool}[self.kind]

    def __getattr__(self, name: str) -> Any:
        if name in CALLS and not name.startswith("_"):
            return Method(name, self)
        raise AttributeError(f"score_mod and mask_mod do not support .{name}; they support {SUPPORTED}")

    def __bool__(self) -> Any:
        refuse("if, and, or, not and chained comparisons of what they compute", "; use where, & | and ~")

    def __index__(self) -> Any:
        refuse("integers that are known only when the kernel runs as Python's")

    def __float__(self) -> Any:
        refuse("float() of what they compute", "; use .float() or .astype(float)")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        refuse("a conversion to an array", "; arrays that they index must be variables of the function itself")

    def __iter__(self) -> Any:
        refuse("iteration")


_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
_BINARY |= {"pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_BINARY |= {"lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"}
_UNARY = {"neg": "neg", "pos": "positive", "invert": "bitwise_not", "abs": "abs"}


def _give_operators(cls: Any) -> None:
    """Gives the class Python's operators, which are the operations of these names."""

    def both(name: str, call: str) -> None:
        setattr(cls, f"__{name}__", lambda self, other: applied(call, self, other))
        setattr(cls, f"__r{name}__", lambda self, other: applied(call, other, self))

    def one(name: str, call: str) -> None:
        setattr(cls, f"__{name}__", lambda self, *other: applied(call, self, *other))

    for name, call in _BINARY.items():
        both(name, call)
    for name, call in (*_UNARY.items(), *((x, x) for x in ("lt", "le", "gt", "ge", "eq", "ne"))):
        one(name, call)
    cls.__hash__ = object.__hash__


_give_operators(Operand)


class Method:
    """A bound method of a symbol."""

    def __init__(self, name: str, symbol: Any) -> None:
        self.name, self.symbol = name, symbol

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return applied(self.name, self.symbol, *args, **kwargs)


CALLS: dict[str, Any] = {}  # by name: arithmetic.py, functions.py and casts.py fill it


def called(module: str, name: str, args: Any, kwargs: Any) -> Any:
    """The function of a library on symbols."""
    plain = name[2:-2] if name[:2] == "__" == name[-2:] else name
    return applied(plain, *args, shown=f"{module}.{name}", **kwargs)


def applied(name: str, *args: Any, shown: str = "", **kwargs: Any) -> Any:
    """The operation of that name; of a row it is computed element by element. shown: its name in a refusal."""
    for x in args:
        if hasattr(type(x), "elements"):
            from . import row

            return row.applied(name, args, kwargs, shown or name)
    if name not in CALLS:
        refuse(shown or name)
    return CALLS[name](*args, **kwargs)
