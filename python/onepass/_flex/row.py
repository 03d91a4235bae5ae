"""Rows: captured arrays whose last dimension has no index. Operations are unrolled, element by element."""

import functools
from typing import Any

from .symbol import CALLS, Method, Operand, refuse

MOST = 64  # elements of a row


class Row(Operand):
    """Some symbols side by side, which broadcast if there is one."""

    ndim = 1

    def __init__(self, symbols: Any) -> None:
        self.symbols = list(symbols)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.symbols),)

    def elements(self) -> list[Any]:
        return self.symbols

    def __getitem__(self, index: int) -> Any:
        return self.symbols[index]

    def __getattr__(self, name: str) -> Any:
        if (name in CALLS or name in REDUCTIONS) and not name.startswith("_"):
            return Method(name, self)
        raise AttributeError(f"score_mod and mask_mod do not support .{name} of a row")


def applied(name: str, args: Any, kwargs: Any, shown: str) -> Any:
    """The operation on rows; another operand counts as a row of one element."""
    if name in REDUCTIONS:
        return REDUCTIONS[name](*args, **kwargs)
    if name not in CALLS:
        refuse(shown)
    rows = [x.elements() if hasattr(type(x), "elements") else [x] for x in args]
    count = max(map(len, rows))
    if any(len(row) not in (1, count) for row in rows):
        refuse(f"rows of {' and '.join(str(len(row)) for row in rows)} elements in one operation")
    return Row(CALLS[name](*(row[i % len(row)] for row in rows), **kwargs) for i in range(count))


def _reduction(operation: str) -> Any:
    def reduced(row: Any, dim: Any = None, *, axis: Any = None, keepdim: bool = False) -> Any:
        if (dim if axis is None else axis) not in (None, -1, 0) or keepdim:
            refuse("a reduction that keeps a dimension of a row")
        return functools.reduce(CALLS[operation], row.elements())

    return reduced


def dot(a: Any, b: Any) -> Any:
    return REDUCTIONS["sum"](applied("mul", (a, b), {}, "dot"))


REDUCTIONS = {
    "any": _reduction("logical_or"),
    "all": _reduction("logical_and"),
    "sum": _reduction("add"),
    "amax": _reduction("maximum"),
    "amin": _reduction("minimum"),
    "dot": dot,
    "inner": dot,
}


def unsqueeze(x: Any, dim: int) -> Any:
    """A row of one element."""
    if dim not in (-1, 0):
        refuse(f"unsqueeze({dim})")
    return Row([x])


CALLS["unsqueeze"] = unsqueeze
