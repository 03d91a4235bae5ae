"""The operations of symbols, by the names that PyTorch, NumPy and JAX give them: numbers, and their arithmetic."""

from typing import Any

from .captured import Captured, load
from .symbol import CALLS, INFINITY, Symbol, refuse

_RANK = {"bool": 0, "int": 1, "float": 2}


def literal(x: Any) -> Any:
    kind = "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "float"
    x = x if kind == "bool" else int(x) if kind == "int" else float(x)  # JAX's have types of their own
    return Symbol("literal", kind, (), x, x, x)


def symbol(x: Any) -> Any:
    """A symbol, a Python number, or an array without dimensions as a symbol."""
    if isinstance(x, Symbol):
        return x
    if isinstance(x, (bool, int, float)):
        return literal(x)
    if type(x).__module__ == "numpy" and getattr(x, "shape", None) == ():
        return literal(x.item())
    if isinstance(x, Captured) or hasattr(x, "dtype"):
        return load(x)
    if hasattr(type(x), "elements"):
        refuse(f"a row of {len(x.elements())} elements as a result", "; they support any, all, sum, dot of rows")
    return refuse(f"a {type(x).__name__} as an operand")


def named(*names: str) -> Any:
    def register(function: Any) -> Any:
        for name in names:
            CALLS[name] = function
        return function

    return register


def wider(a: Any, b: Any) -> str:
    return a.kind if _RANK[a.kind] >= _RANK[b.kind] else b.kind


def number(x: Any) -> Any:
    """As a float; a Python integer is written as one."""
    x = symbol(x)
    if x.op == "literal":
        return literal(float(x.value))
    return x if x.kind == "float" else Symbol("float", "float", (x,))


def integer(x: Any) -> Any:
    x = symbol(x)
    if x.op == "literal" and x.kind != "float":
        return literal(int(x.value))
    return x if x.kind == "int" else Symbol("int", "int", (x,), x.low, x.high)


def boolean(x: Any) -> Any:
    x = symbol(x)
    return x if x.kind == "bool" else Symbol("bool", "bool", (x,))


def pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Both of one kind; integers beside floats become floats."""
    a, b = symbol(a), symbol(b)
    return (number(a), number(b)) if "float" in (a.kind, b.kind) else (a, b)


def _arithmetic(op: str, a: Any, b: Any, bounds: Any) -> Any:
    a, b = pair(a, b)
    if a.kind == "float":
        return Symbol(op, "float", (a, b))
    low, high = bounds(a, b)
    if a.op == b.op == "literal":
        return literal(low)
    return Symbol(op, "int", (a, b), low, high)


def _product(x: Any, y: Any) -> Any:
    return 0 if x == 0 or y == 0 else x * y  # 0 times infinity


def _products(a: Any, b: Any) -> Any:
    of = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(of), max(of)


@named("add")
def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    b = b if alpha == 1 else mul(b, alpha)
    a, b = symbol(a), symbol(b)
    if a.kind == b.kind == "bool":  # PyTorch's and NumPy's
        return CALLS["logical_or"](a, b)
    return _arithmetic("+", a, b, lambda x, y: (x.low + y.low, x.high + y.high))


@named("sub", "subtract")
def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    b = b if alpha == 1 else mul(b, alpha)
    return _arithmetic("-", a, b, lambda x, y: (x.low - y.high, x.high - y.low))


@named("rsub")
def rsub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return sub(b, a, alpha=alpha)


@named("mul", "multiply")
def mul(a: Any, b: Any) -> Any:
    a, b = symbol(a), symbol(b)
    if a.kind == b.kind == "bool":
        return CALLS["logical_and"](a, b)
    return _arithmetic("*", a, b, _products)


@named("neg", "negative")
def neg(a: Any) -> Any:
    a = symbol(a)
    if a.op == "literal":
        return literal(-a.value)
    return Symbol("neg", "float" if a.kind == "float" else "int", (a,), -a.high, -a.low)


@named("div", "divide", "true_divide", "truediv")
def div(a: Any, b: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode == "floor":
        return floor_divide(a, b)
    a, b = symbol(a), symbol(b)
    if rounding_mode is None or "float" in (a.kind, b.kind):
        q = Symbol("/", "float", (number(a), number(b)))
        return q if rounding_mode is None else CALLS["trunc"](q)
    return quotient(a, b)


def quotient(a: Any, b: Any) -> Any:
    """C's, of integers: towards 0."""
    if a.low < 0 or b.low <= 0:
        return Symbol("/", "int", (a, b))
    return Symbol("/", "int", (a, b), 0, a.high // b.low if a.high < INFINITY else INFINITY)


def rest(a: Any, b: Any) -> Any:
    """C's, of integers: with the sign of a."""
    a, b = symbol(a), symbol(b)
    high = min(a.high, b.high - 1) if b.low > 0 else INFINITY
    return Symbol("%", "int", (a, b), 0 if a.low >= 0 else -INFINITY, high)


@named("floor_divide", "floordiv")
def floor_divide(a: Any, b: Any) -> Any:
    a, b = symbol(a), symbol(b)
    if "float" in (a.kind, b.kind):
        return CALLS["floor"](div(a, b))
    if a.low >= 0 and b.low > 0:
        return quotient(a, b)
    return quotient(sub(a, remainder(a, b)), b)


@named("remainder", "mod")
def remainder(a: Any, b: Any) -> Any:
    """With the sign of b, as Python's."""
    a, b = symbol(a), symbol(b)
    if "float" in (a.kind, b.kind):
        return sub(a, mul(b, CALLS["floor"](div(a, b))))
    if a.low >= 0 and b.low > 0:
        return rest(a, b)
    positive = rest(add(rest(a, b), b), b)
    if b.low > 0:
        positive.low = 0
    return positive


@named("fmod")
def fmod(a: Any, b: Any) -> Any:
    a, b = symbol(a), symbol(b)
    return sub(a, mul(b, CALLS["trunc"](div(a, b)))) if "float" in (a.kind, b.kind) else rest(a, b)
