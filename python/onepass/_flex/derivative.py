"""The derivatives of an expression by the elements of arrays that it reads, themselves expressions."""

from typing import Any

from .arithmetic import literal, neg
from .symbol import CALLS, Symbol

_LN2 = 0.6931471805599453


def by_loads(result: Symbol) -> list[tuple[Symbol, Any]]:
    """(load, derivative of the result by the element that it reads) for every load of a float."""
    slopes: dict[int, Any] = {id(result): literal(1.0)}
    found = []
    for x in _results_first(result):
        slope = slopes.get(id(x))
        if slope is None:
            continue
        if x.op == "load":
            found.append((x, slope))
            continue
        for a, part in zip(x.args, _parts(x, slope)):
            if part is not None and a.kind == "float" and a.op != "literal":
                known = slopes.get(id(a))
                slopes[id(a)] = part if known is None else known + part
    return found


def _results_first(result: Symbol) -> list[Symbol]:
    order: list[Symbol] = []
    seen: set[int] = set()

    def visit(x: Symbol) -> None:
        if id(x) in seen or x.kind != "float":
            return
        seen.add(id(x))
        for a in x.args:
            visit(a)
        order.append(x)

    visit(result)
    return order[::-1]


def _parts(x: Symbol, g: Any) -> Any:
    """The slope g of the value of x, by each operand; at a corner that of the branch which gave the value."""
    where = CALLS["where"]
    y: Any = x
    a: Any = x.args[0] if x.args else None
    b: Any = x.args[1] if len(x.args) > 1 else None
    by_step: dict[str, Any] = {
        "+": lambda: (g, g),
        "-": lambda: (g, neg(g)),
        "*": lambda: (g * b, g * a),
        "/": lambda: (g / b, neg(g / b * y)),
        "neg": lambda: (neg(g),),
        "abs": lambda: (where(a < 0.0, neg(g), g),),
        "min": lambda: (where(b < a, 0.0, g), where(b < a, g, 0.0)),
        "max": lambda: (where(a < b, 0.0, g), where(a < b, g, 0.0)),
        "where": lambda: (None, where(a, g, 0.0), where(a, 0.0, g)),
        "exp": lambda: (g * y,),
        "exp2": lambda: (g * y * _LN2,),
        "log": lambda: (g / a,),
        "log2": lambda: (g / (a * _LN2),),
        "sqrt": lambda: (g * 0.5 / y,),
        "tanh": lambda: (g * (1.0 - y * y),),
        "sin": lambda: (g * CALLS["cos"](a),),
        "cos": lambda: (neg(g * CALLS["sin"](a)),),
    }
    return by_step[x.op]() if x.op in by_step else ()  # floor, ceil and casts are flat
