"""The positions that each rank holds."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onepass import _onepass

_plan = _onepass.context_parallel
_Layout = TypeVar("_Layout", bound="Layout")


class Layout:
    """A sequence that is cut into units, and each rank's units. Any length and any cuts; a rank may be empty.

    Unit u is positions cuts[u] to cuts[u + 1]. Rank r holds the units order[shares[r]:shares[r + 1]]. Its shard has
    their positions in ascending order.
    """

    def __init__(self, cuts: Sequence[int], order: Sequence[int], shares: Sequence[int]) -> None:
        self._set(_plan.Layout(list(cuts), list(order), list(shares)))

    def _set(self, plan: Any) -> None:
        self.plan, self.ranks, self.length = plan, plan.ranks, plan.length
        self._key = tuple(plan.cuts), tuple(plan.order), tuple(plan.shares)
        self._hash = hash(self._key)

    @classmethod
    def _of(cls: type[_Layout], make: Callable[..., Any], *given: Any) -> _Layout:
        layout = cls.__new__(cls)
        layout._set(make(*given))
        return layout

    @classmethod
    def contiguous(cls: type[_Layout], length: int, ranks: int, *, units: int = 0, multiple: int = 1) -> _Layout:
        """Rank after rank: for full attention and windows. Cuts are rounded to a multiple of ``multiple``."""
        return cls._of(_plan.Layout.contiguous, length, ranks, units, multiple)

    @classmethod
    def zigzag(cls: type[_Layout], length: int, ranks: int, *, units: int = 0, multiple: int = 1) -> _Layout:
        """The first unit with the last, the second with the last but one: equal work under a causal mask."""
        return cls._of(_plan.Layout.zigzag, length, ranks, units, multiple)

    @classmethod
    def documents(cls: type[_Layout], documents: Sequence[int], ranks: int, *, multiple: int = 1) -> _Layout:
        """documents: where they begin, and the length. Long ones are cut like zigzag; short ones stay whole."""
        return cls._of(_plan.Layout.documents, [int(x) for x in documents], ranks, multiple)

    cuts = property(lambda self: self._key[0])
    order = property(lambda self: self._key[1])
    shares = property(lambda self: self._key[2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout(cuts={self.cuts}, order={self.order}, shares={self.shares})"

    @functools.lru_cache(maxsize=4096)  # noqa: B019  equal layouts share it, and it is bounded
    def runs(self, rank: int) -> tuple[tuple[range, slice], ...]:
        """A rank's positions as ranges in ascending order, each with its rows in the shard."""
        return tuple((range(*positions), slice(*rows)) for positions, rows in self.plan.runs(rank))

    def count(self, rank: int) -> int:
        """The number of positions that a rank holds."""
        return sum(len(run) for run, _ in self.runs(rank))

    def work(self, *, causal: bool = False, window: Any = (-1, -1), documents: Any = None) -> list[int]:
        """The number of visible pairs of each rank's queries."""
        left, right = sides(causal, window)
        return list(_plan.work(self.plan, _plan.Visibility(left, right, [int(x) for x in documents or ()])))


def node_layouts(layout: _Layout, within: int, node: int) -> tuple[_Layout, _Layout]:
    """(the layout of nodes, the layout of a node's rows among its ranks). Rank r is rank r % within of its node."""
    nodes, ranks = _plan.node_layouts(layout.plan, within, node)
    return type(layout)._of(lambda: nodes), type(layout)._of(lambda: ranks)


def sides(causal: bool, window: Any) -> tuple[int, int]:
    """(left, right) of a mask, -1 for unbounded."""
    left, right = (-1, -1) if window is None else window
    if causal and right not in (-1, 0):
        raise ValueError(f"window's right side must be -1 or 0 with causal=True (got {right})")
    if min(left, right) < -1:
        raise ValueError(f"window must be a pair of integers from -1, unbounded (got {(left, right)})")
    return int(left), 0 if causal else int(right)
