"""Arrays that a score_mod or mask_mod captures: each becomes a buffer of the text, read at indices that it computes."""

from typing import Any

from .symbol import CALLS, Method, Operand, Symbol, refuse


def kind_of(array: Any) -> str:
    name = str(array.dtype).rpartition(".")[2]
    return "bool" if name == "bool" else "float" if "float" in name else "int"


class Captured(Operand):
    """An array whose dimensions are indexed one after the other, as `table[h][q_idx - kv_idx]` does.

    at: for each dimension its index, a Symbol or an int, or None while it has none.
    """

    def __init__(self, array: Any, at: Any = None) -> None:
        self.array = array
        self.at = (None,) * len(array.shape) if at is None else at

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.array.shape[d] for d in self.open())

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        free = self.open()
        given = sum(1 for x in index if x is not Ellipsis)
        if given > len(free):
            raise IndexError(f"an array of shape {list(self.shape)} has {len(free)} dimensions (got {given} indices)")
        at, left = list(self.at), list(free)
        for i, x in enumerate(index):
            if x is Ellipsis:
                left = left[len(left) - (len(index) - 1 - i) :]
                continue
            d = left.pop(0)
            if not (isinstance(x, slice) and x == slice(None)):
                at[d] = self._index(x, d)
        return Captured(self.array, tuple(at)).read({})

    def read(self, at: dict[int, Any]) -> Any:
        """With symbols as indices of some open dimensions, which the kernel clamps to the array."""
        indices = list(self.at)
        for d, x in at.items():
            indices[self.open()[d]] = x
        found = Captured(self.array, tuple(indices))
        return found if found.open() else load(found)

    def __getattr__(self, name: str) -> Any:
        from .row import REDUCTIONS

        if name in REDUCTIONS or (name in CALLS and not name.startswith("_")):
            return Method(name, self)
        raise AttributeError(f"score_mod and mask_mod do not support .{name} of an array")

    def elements(self) -> list[Any]:
        """The symbols along the one dimension that has no index."""
        from .row import MOST

        if len(self.open()) != 1 or self.shape[0] > MOST:
            refuse(f"an array of shape {list(self.shape)} as an operand", f"; a row has at most {MOST} elements")
        return [self.read({0: literal}) for literal in _indices(self.shape[0])]

    def open(self) -> list[int]:
        """The dimensions without an index."""
        return [d for d, x in enumerate(self.at) if x is None]

    def _index(self, x: Any, d: int) -> Any:
        from . import arithmetic

        if isinstance(x, slice) or x is None:
            refuse("slices and None as indices")
        x = arithmetic.symbol(x)
        if x.kind == "float":
            refuse("a float as an index", "; use .long() or .astype(int)")
        size = self.array.shape[d]
        if x.op == "literal":
            if not -size <= x.value < size:
                raise IndexError(f"index {x.value} is out of range for dimension {d}, of {size} elements")
            return arithmetic.literal(x.value + size if x.value < 0 else int(x.value))
        x = arithmetic.integer(x)
        return CALLS["where"](x < 0, x + size, x) if x.low < 0 else x  # negative: from the end


def _indices(count: int) -> list[Any]:
    from .arithmetic import literal

    return [literal(i) for i in range(count)]


def load(x: Any) -> Symbol:
    """The element of an array without dimensions, or of a Captured that has all indices."""
    x = x if isinstance(x, Captured) else Captured(x)
    if x.open():
        refuse(f"an array of shape {list(x.shape)} as an operand", "; it must be indexed to one element")
    return Symbol("load", kind_of(x.array), x.at, value=x.array)
