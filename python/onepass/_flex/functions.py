"""The operations of symbols: choices, functions of one number, comparisons and bits."""

from typing import Any

from .arithmetic import boolean, literal, mul, named, neg, number, pair, symbol, wider
from .symbol import CALLS, INFINITY, Symbol, refuse


@named("abs", "absolute", "fabs")
def abs_(a: Any) -> Any:
    a = symbol(a)
    return Symbol("abs", a.kind, (a,), 0, max(-a.low, a.high)) if a.kind != "bool" else a


def _choice(op: str, a: Any, b: Any, bound: Any) -> Any:
    a, b = pair(a, b)
    return Symbol(op, "int" if a.kind == "bool" else wider(a, b), (a, b), bound(a.low, b.low), bound(a.high, b.high))


@named("minimum", "min", "fmin")
def minimum(a: Any, b: Any) -> Any:
    return _choice("min", a, b, min)


@named("maximum", "max", "fmax")
def maximum(a: Any, b: Any) -> Any:
    return _choice("max", a, b, max)


@named("clamp", "clip")
def clamp(a: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    a = symbol(a)
    a = a if low is None else maximum(a, low)
    return a if high is None else minimum(a, high)


@named("clamp_min")
def clamp_min(a: Any, min: Any) -> Any:
    return maximum(a, min)


@named("clamp_max")
def clamp_max(a: Any, max: Any) -> Any:
    return minimum(a, max)


@named("where", "select")
def where(condition: Any, a: Any, b: Any) -> Any:
    a, b = pair(a, b)
    condition = boolean(condition)
    if condition.op == "literal" and a.kind == b.kind:
        return a if condition.value else b
    return Symbol("where", wider(a, b), (condition, a, b), min(a.low, b.low), max(a.high, b.high))


@named("masked_fill")
def masked_fill(a: Any, mask: Any, value: Any) -> Any:
    return where(mask, value, a)


def _function(name: str, *names: str) -> None:
    named(name, *names)(lambda a: Symbol(name, "float", (number(a),)))


for _name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos"):
    _function(_name)


def _rounded(name: str) -> Any:
    def function(a: Any) -> Any:
        a = symbol(a)
        return a if a.kind != "float" else Symbol(name, "float", (a,))

    return named(name)(function)


floor, ceil = _rounded("floor"), _rounded("ceil")


@named("trunc", "fix")
def trunc(a: Any) -> Any:
    return where(symbol(a) < 0, ceil(a), floor(a))


@named("sign")
def sign(a: Any) -> Any:
    a = symbol(a)
    zero, one = (0.0, 1.0) if a.kind == "float" else (0, 1)
    return where(a > zero, one, where(a < zero, -one, zero))


@named("sigmoid", "expit", "special_expit", "logistic")
def sigmoid(a: Any) -> Any:
    return 1.0 / (1.0 + CALLS["exp"](neg(number(a))))


@named("relu")
def relu(a: Any, inplace: bool = False) -> Any:
    a = symbol(a)
    return maximum(0.0 if a.kind == "float" else 0, a)  # of equals the first: the derivative of 0 is 0


@named("rsqrt")
def rsqrt(a: Any) -> Any:
    return 1.0 / CALLS["sqrt"](a)


@named("reciprocal")
def reciprocal(a: Any) -> Any:
    return 1.0 / number(a)


@named("log1p")
def log1p(a: Any) -> Any:
    return CALLS["log"](1.0 + number(a))


@named("expm1")
def expm1(a: Any) -> Any:
    return CALLS["exp"](a) - 1.0


@named("log10")
def log10(a: Any) -> Any:
    return CALLS["log"](a) * 0.4342944819032518


@named("tan")
def tan(a: Any) -> Any:
    return CALLS["sin"](a) / CALLS["cos"](a)


@named("square")
def square(a: Any) -> Any:
    return mul(a, a)


@named("pow", "power", "float_power")
def power(a: Any, b: Any) -> Any:
    if isinstance(b, (int, float)) and float(b).is_integer() and 0 <= b <= 16:
        a, result = symbol(a), None
        for bit in bin(int(b))[2:]:  # from the highest
            result = None if result is None else mul(result, result)
            if bit == "1":
                result = a if result is None else mul(result, a)
        one = literal(1 if a.kind == "int" else 1.0)
        result = one if result is None else result
        return number(result) if isinstance(b, float) else result
    if isinstance(b, (int, float)) and b in (0.5, -0.5, -1, -2):
        root = CALLS["sqrt"](a) if b in (0.5, -0.5) else number(a) if b == -1 else square(number(a))
        return root if b == 0.5 else 1.0 / root
    return CALLS["exp2"](number(b) * CALLS["log2"](a))  # NaN for a negative a


def _comparison(op: str, *names: str) -> None:
    def function(a: Any, b: Any) -> Any:
        a, b = pair(a, b)
        if a.kind == "int" and op == "<" and a.low >= b.high:  # an index that is not negative
            return literal(False)
        return Symbol(op, "bool", (a, b))

    named(*names)(function)


_comparison("<", "lt", "less")
_comparison("<=", "le", "less_equal")
_comparison(">", "gt", "greater")
_comparison(">=", "ge", "greater_equal")
_comparison("==", "eq", "equal")
_comparison("!=", "ne", "not_equal")


@named("logical_and")
def logical_and(a: Any, b: Any) -> Any:
    return Symbol("&&", "bool", (boolean(a), boolean(b)))


@named("logical_or")
def logical_or(a: Any, b: Any) -> Any:
    return Symbol("||", "bool", (boolean(a), boolean(b)))


@named("logical_not")
def logical_not(a: Any) -> Any:
    return Symbol("!", "bool", (boolean(a),))


@named("logical_xor")
def logical_xor(a: Any, b: Any) -> Any:
    return Symbol("!=", "bool", (boolean(a), boolean(b)))


def _bits(op: str, of_bools: Any, *names: str) -> None:
    def function(a: Any, b: Any) -> Any:
        a, b = symbol(a), symbol(b)
        if a.kind == b.kind == "bool" and of_bools is not None:
            return of_bools(a, b)
        if "float" in (a.kind, b.kind):
            refuse(f"{op} of a float")
        within = a.low >= 0 and b.low >= 0 and op == "&"
        return Symbol(op, "int", (a, b), *((0, min(a.high, b.high)) if within else (-INFINITY, INFINITY)))

    named(*names)(function)


_bits("&", logical_and, "bitwise_and", "and")
_bits("|", logical_or, "bitwise_or", "or")
_bits("^", logical_xor, "bitwise_xor", "xor")
_bits("<<", None, "bitwise_left_shift", "left_shift", "lshift")
_bits(">>", None, "bitwise_right_shift", "right_shift", "rshift")


@named("bitwise_not", "invert")
def bitwise_not(a: Any) -> Any:
    a = symbol(a)
    if a.kind == "float":
        refuse("~ of a float")
    return logical_not(a) if a.kind == "bool" else Symbol("~", "int", (a,), -1 - a.high, -1 - a.low)
