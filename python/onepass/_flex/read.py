"""Texts of score_mod and mask_mod as expressions of symbols. src/expression/expression.cpp is the reader of kernels."""

from typing import Any

from .arithmetic import boolean, integer, literal, neg, number
from .captured import kind_of
from .symbol import Symbol
from .text import _BINDS
from .trace import inputs

_WORDS = {"and": "&&", "or": "||"}
_NUMBERS = {"fabs": "abs", "fmin": "min", "fmax": "max"}  # which make numbers of integers
_NUMBERS |= {x: x for x in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "floor", "ceil")}
_NUMBERS |= {f"{name}f": op for name, op in _NUMBERS.items()}
_PAIRS = ("||", "&&", "==", "!=", "<=", ">=", "<<", ">>")
_CASTS = {"float": number, "int": integer, "bool": boolean}
_LEVELS = 11  # beyond the tightest binary operator


def expression(text: str, buffers: dict[str, Any]) -> Symbol:
    """The expression of a text that a kernel has accepted. buffers: arrays by name, read by its loads.

    Raises:
      NotImplementedError: for a text that only a CUDA compiler reads.
    """
    reader = _Reader(_tokens(text), buffers)
    found = reader.ternary()
    return found if reader.at == len(reader.tokens) else reader.refuse()


def _tokens(text: str) -> list[str]:
    found, i = [], 0
    while i < len(text):
        c, end = text[i], i + 1
        if c.isspace():
            i += 1
            continue
        if c.isdigit() or (c == "." and text[end : end + 1].isdigit()):
            hexadecimal = text[i : i + 2] in ("0x", "0X")
            while end < len(text) and (
                text[end].isalnum()
                or text[end] in "._"
                or (text[end] in "+-" and text[end - 1] in "eE" and not hexadecimal)
            ):
                end += 1
        elif c.isalpha() or c == "_":
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
        elif text[i : i + 2] in _PAIRS:
            end += 1
        found.append(_WORDS.get(text[i:end], text[i:end]))
        i = end
    return found


class _Reader:
    """Recursive descent, with C++'s precedence and conversions."""

    def __init__(self, tokens: list[str], buffers: dict[str, Any]) -> None:
        self.tokens, self.buffers, self.at = tokens, buffers, 0
        self.names = {"score": Symbol("score", "float"), **{x.op: x for x in inputs((None,) * 4)}}
        self.names |= {"true": literal(True), "false": literal(False), "INFINITY": literal(float("inf"))}

    def refuse(self) -> Any:
        raise NotImplementedError(
            "onepass does not support gradients of mod_buffers for an expression that only CUDA compiles"
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def want(self, token: str) -> None:
        if not self.accept(token):
            self.refuse()

    def ternary(self) -> Any:
        condition = self.binary(1)
        if not self.accept("?"):
            return condition
        a = self.ternary()
        self.want(":")
        b = self.ternary()
        a, b = (a, b) if a.kind == b.kind else _common(a, b)
        return Symbol("where", a.kind, (boolean(condition), a, b))

    def binary(self, level: int) -> Any:
        if level == _LEVELS:
            return self.unary()
        left = self.binary(level + 1)
        while _BINDS.get(self.peek()) == level:
            left = _combined(self.next(), left, self.binary(level + 1))
        return left

    def unary(self) -> Any:
        if self.accept("+"):
            return _promoted(self.unary())
        if self.accept("-"):
            return neg(_promoted(self.unary()))
        if self.accept("!"):
            return Symbol("!", "bool", (boolean(self.unary()),))
        if self.accept("~"):
            return Symbol("~", "int", (integer(self.unary()),))
        return self.primary()

    def primary(self) -> Any:
        token = self.next()
        if token == "(":
            if self.peek() in _CASTS and self.tokens[self.at + 1 : self.at + 2] == [")"]:
                cast = _CASTS[self.next()]
                self.want(")")
                return cast(self.unary())
            found = self.ternary()
            self.want(")")
            return found
        if token[:1].isdigit() or token[:1] == ".":
            return _number(token)
        if token in _CASTS:
            return _CASTS[token](*self.arguments())
        if token in self.names:
            return self.names[token]
        if token in ("abs", "min", "max"):
            args = [_promoted(x) for x in self.arguments()]
            args = list(_common(*args)) if len(args) == 2 else args
            return Symbol(token, args[0].kind, tuple(args))
        if token in _NUMBERS:
            return Symbol(_NUMBERS[token], "float", tuple(map(number, self.arguments())))
        return self.element(self.buffers[token]) if token in self.buffers else self.refuse()

    def arguments(self) -> list[Any]:
        close = {"(": ")", "[": "]"}.get(self.next()) or self.refuse()
        found = [self.ternary()]
        while self.accept(","):
            found.append(self.ternary())
        self.want(close)
        return found

    def element(self, array: Any) -> Symbol:
        bare = self.peek() not in ("(", "[")
        at = (literal(0),) * array.ndim if bare else tuple(map(integer, self.arguments()))
        return Symbol("load", kind_of(array), at, value=array)


def _promoted(x: Symbol) -> Any:
    return x if x.kind == "float" else integer(x)


def _common(a: Symbol, b: Symbol) -> tuple[Any, Any]:
    return (number(a), number(b)) if "float" in (a.kind, b.kind) else (integer(a), integer(b))


def _combined(op: str, a: Symbol, b: Symbol) -> Symbol:
    if op in ("&&", "||"):
        return Symbol(op, "bool", (boolean(a), boolean(b)))
    if op in ("|", "^", "&") and a.kind == b.kind == "bool":
        return Symbol({"|": "||", "^": "!=", "&": "&&"}[op], "bool", (a, b))
    a, b = _common(a, b)
    comparison = op in ("==", "!=", "<", "<=", ">", ">=")
    return Symbol(op, "bool" if comparison else a.kind, (a, b))


def _number(token: str) -> Any:
    if token[:2] in ("0x", "0X"):
        return literal(int(token, 16))
    return literal(int(token) if token.isdigit() else float(token.rstrip("fF")))
