"""NumPy's arrays among the variables of a function, which cannot be indexed by symbols themselves."""

import inspect
import sys
import types
from typing import Any

from .captured import Captured


def wrapped(function: Any) -> Any:
    """The function with NumPy's arrays among its variables as Captured: NumPy asks no index for its own meaning."""
    if sys.modules.get("numpy") is None or not isinstance(function, types.FunctionType):
        return function
    return _wrapped(function, {})


def _wrapped(function: Any, done: dict[int, Any]) -> Any:
    if id(function) in done:
        return done[id(function)]
    closure = [_contents(cell) for cell in function.__closure__ or ()]
    used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    if not any(_holds_array(x, 3) for x in (*closure, *used.values(), *(function.__defaults__ or ()))):
        return function
    scope = dict(function.__globals__)
    cells = tuple(types.CellType() for _ in closure)
    new = types.FunctionType(function.__code__, scope, function.__name__, None, cells)
    done[id(function)] = new
    scope.update({name: _replaced(x, done) for name, x in used.items()})
    for cell, x in zip(cells, closure):
        if x is not _EMPTY:
            cell.cell_contents = _replaced(x, done)
    new.__defaults__ = tuple(_replaced(x, done) for x in function.__defaults__ or ()) or None
    new.__kwdefaults__ = function.__kwdefaults__
    return new


_EMPTY = object()


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return _EMPTY


def _names(code: Any) -> set[str]:
    inner = (x for x in code.co_consts if isinstance(x, types.CodeType))
    return set(code.co_names).union(*(_names(x) for x in inner))


def _is_array(x: Any) -> bool:
    numpy = sys.modules["numpy"]
    return isinstance(x, numpy.ndarray) and x.ndim > 0


def _holds_array(x: Any, depth: int) -> bool:
    if isinstance(x, types.FunctionType) and depth:
        variables = inspect.getclosurevars(x)
        return any(_holds_array(y, depth - 1) for y in (*variables.nonlocals.values(), *variables.globals.values()))
    if isinstance(x, (list, tuple)) and len(x) <= 64:
        return any(_holds_array(y, depth) for y in x)
    return _is_array(x)


def _replaced(x: Any, done: dict[int, Any]) -> Any:
    if _is_array(x):
        return Captured(x)
    if isinstance(x, types.FunctionType):
        return _wrapped(x, done)
    if isinstance(x, (list, tuple)) and len(x) <= 64 and type(x) in (list, tuple):
        return type(x)(_replaced(y, done) for y in x)
    return x
