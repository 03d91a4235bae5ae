"""The values of an expression on arrays, for masks that are drawn or listed and for gradients of captured arrays."""

import operator
from typing import Any

from .symbol import Symbol

_OPERATORS: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": operator.and_,
    "||": operator.or_,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "neg": operator.neg,
    "~": operator.invert,
    "!": operator.invert,
    "abs": abs,
}
_NAMES = {"min": "minimum", "max": "maximum"}


class Evaluation:
    """xp: numpy or torch. inputs: the arrays of "score", "batch", .. by name, which broadcast. stand_ins: pairs of a
    captured array and the one that is read in its place."""

    def __init__(self, xp: Any, inputs: dict[str, Any], stand_ins: Any = ()) -> None:
        self.xp, self.inputs, self.stand_ins = xp, inputs, stand_ins
        self.known: dict[int, Any] = {}

    def __call__(self, x: Symbol) -> Any:
        if id(x) not in self.known:
            self.known[id(x)] = self._value(x)
        return self.known[id(x)]

    def _value(self, x: Symbol) -> Any:
        if x.op in self.inputs:
            return self.inputs[x.op]
        if x.op == "literal":
            return self._array(x.value)
        if x.op == "load":
            return self._element(x)
        args = [self(a) for a in x.args]
        if x.op in _OPERATORS:
            return _OPERATORS[x.op](*args)
        if x.op in ("/", "%"):
            return self._division(x, *args)
        if x.op in ("float", "int", "bool"):
            return self._cast(args[0], x.op)
        return getattr(self.xp, _NAMES.get(x.op, x.op))(*args)

    def array(self, x: Symbol) -> Any:
        """The array that a load reads."""
        return next((mine for theirs, mine in self.stand_ins if theirs is x.value), x.value)

    def indices(self, x: Symbol) -> list[Any]:
        """Where a load reads its array."""
        return [self._clamped(self(a), self.array(x).shape[d] - 1) for d, a in enumerate(x.args)]

    def _element(self, x: Symbol) -> Any:
        found = self.array(x)[tuple(self.indices(x))]
        return self._cast(found, x.kind) if x.kind != "bool" else found

    def _clamped(self, i: Any, last: int) -> Any:
        return self._cast(self.xp.clip(i, 0, last), "int")

    def _division(self, x: Symbol, a: Any, b: Any) -> Any:
        if x.kind == "float":
            return a / b
        divisor = self.xp.where(b == 0, self._array(1), b)
        q = abs(a) // abs(divisor) * self.xp.where((a < 0) != (divisor < 0), self._array(-1), self._array(1))
        return self.xp.where(b == 0, self._array(0), q if x.op == "/" else a - q * divisor)

    def _array(self, value: Any) -> Any:
        if hasattr(self.xp, "as_tensor"):
            device = self.inputs["k_index"].device
            floating = self.inputs["score"].dtype if "score" in self.inputs else self.xp.float32
            return self.xp.as_tensor(value, dtype=floating if type(value) is float else None, device=device)
        return self.xp.asarray(value)

    def _cast(self, x: Any, kind: str) -> Any:
        floating = self.inputs["score"].dtype if "score" in self.inputs else self.xp.float32
        integer = self.xp.int32 if self.xp.__name__ == "jax.numpy" else self.xp.int64  # JAX has 64 bits on request
        dtype = {"float": floating, "int": integer, "bool": getattr(self.xp, "bool_", None) or self.xp.bool}[kind]
        return x.to(dtype) if hasattr(x, "to") else self.xp.asarray(x).astype(dtype)
