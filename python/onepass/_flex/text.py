"""Expressions of symbols as texts of the language of score_mod and mask_mod (docs/features/score_mod.md)."""

import sys
from typing import Any

from .symbol import Symbol, refuse

# How tightly C++'s operators bind. Those of a level group from the left.
_BINDS = {"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7}
_BINDS |= {"<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10}
_UNARY, _ATOM = 11, 12
_SIGNS = {"neg": "-", "!": "!", "~": "~"}
_INPUTS = ("score", "batch", "head", "q_index", "k_index")


class Buffers:
    """The arrays that texts read, and their names in the order in which they are met."""

    def __init__(self, given: Any = None) -> None:
        self.names: list[str] = [] if given is None else [*given]
        self.arrays: list[Any] = [] if given is None else [*given.values()]

    def name(self, array: Any) -> str:
        for name, x in zip(self.names, self.arrays):
            if x is array:
                return name
        number = len(self.names)
        while f"t{number}" in self.names:
            number += 1
        self.names.append(f"t{number}")
        self.arrays.append(array)
        return self.names[-1]

    def given(self) -> Any:
        """The mod_buffers of a call."""
        return dict(zip(self.names, map(_readable, self.arrays))) or None


_READABLE = {"float64": "float32", **dict.fromkeys(("int8", "int16", "uint8", "uint16", "uint32"), "int32")}


def _readable(array: Any) -> Any:
    """The array in a dtype that buffers may have; a call converts int64 itself."""
    dtype = _READABLE.get(str(getattr(array, "dtype", "")).rpartition(".")[2])
    if dtype is None:
        return array
    torch = sys.modules.get("torch")
    return array.to(getattr(torch, dtype)) if hasattr(array, "to") and torch else array.astype(dtype)


def text(symbol: Symbol, buffers: Buffers) -> str:
    return _text(symbol, buffers, {})[0]


def _text(x: Symbol, buffers: Buffers, known: dict[int, tuple[str, int]]) -> tuple[str, int]:
    """(text, how tightly its outermost operator binds)."""
    found = known.get(id(x))
    if found is None:
        found = known[id(x)] = _new_text(x, buffers, known)
    return found


def _new_text(x: Symbol, buffers: Buffers, known: dict[int, tuple[str, int]]) -> tuple[str, int]:
    if x.op in _INPUTS:
        return x.op, _ATOM
    if x.op == "literal":
        return _literal(x), _ATOM
    parts = [_text(a, buffers, known) for a in x.args]
    if x.op in _BINDS:
        level = _BINDS[x.op]
        (left, left_level), (right, right_level) = parts
        left = left if left_level >= level else f"({left})"
        right = right if right_level > level else f"({right})"
        return f"{left} {x.op} {right}", level
    if x.op in _SIGNS:
        (of, level) = parts[0]
        return _SIGNS[x.op] + (of if level == _ATOM else f"({of})"), _UNARY
    inner = [of for of, _ in parts]
    if x.op == "where":
        condition, a, b = inner
        return f"({condition} ? {a} : {b})", _ATOM
    if x.op == "load":
        name = buffers.name(x.value)
        return f"{name}[{', '.join(inner)}]" if inner else name, _ATOM
    return f"{x.op}({', '.join(inner)})", _ATOM


def _literal(x: Symbol) -> str:
    value = x.value
    if x.kind == "bool":
        return "true" if value else "false"
    if x.kind == "int":
        if not -(2**31) <= value < 2**31:
            refuse(f"the integer {value}", "; integers must fit in 32 bits")
        return str(value) if value >= 0 else f"({value})" if value > -(2**31) else "(-2147483647 - 1)"
    if value != value:
        return "(INFINITY - INFINITY)"
    size = abs(value)
    sign = "-" if value < 0 else ""
    if size >= 3.4028235677973366e38:  # rounds to infinity in float32
        digits = "INFINITY"
    else:
        digits = "0.0f" if size < 7.1e-46 else f"{size!r}f"
    return f"({sign}{digits})" if sign else digits
