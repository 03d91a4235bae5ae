"""The plan of a kind of call: the calls and the moves of each rank, from the library's C++."""

import bisect
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from onepass import _onepass, _values

from .layout import Layout, sides

_plan = _onepass.context_parallel
Rows = tuple[int, int]
Node = tuple[int, int]
SCHEMES = ("gather", "ring", "ulysses")
# Operations and bytes a second of a CPU rank, for the model that chooses a scheme: an assumption, whose ratio counts.
_CPU = (1e11, 1e9)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _kept(method: _Method) -> _Method:
    """A method of Plan whose answers are kept."""

    @functools.wraps(method)
    def answer(self: "Plan", *given: Any) -> Any:
        key = method.__name__, *given
        if key not in self.kept:
            self.kept[key] = method(self, *given)
        return self.kept[key]

    return cast(_Method, answer)


class Kind(NamedTuple):
    """Everything that a plan depends on."""

    layout: Layout
    left: int
    right: int
    documents: tuple[int, ...]
    packed: bool  # calls may have several documents
    distances: bool  # positions of keys matter beyond the mask
    by_unit: bool  # calls have rows of one unit
    key_multiple: int  # calls begin with a key at a multiple of it in the document


def kind_of(layout: Layout, given: dict[str, Any], batch: int) -> Kind:
    """The kind of a call by its arguments; ValueErrors about the mask."""
    documents = () if given["documents"] is None else tuple(int(x) for x in given["documents"])
    n = layout.length
    if documents and (documents[0] != 0 or documents[-1] != n or any(a > b for a, b in zip(documents, documents[1:]))):
        raise ValueError(f"documents must ascend from 0 to {n}, the length of the layout (got {list(documents)[:8]})")
    for name in ("score_mod", "mask_mod"):
        if documents and re.search(r"\bbatch\b", given[name] or ""):
            raise ValueError(f"{name} does not support 'batch' with documents")
    slopes, dropout = given["alibi_slopes"], given["dropout_p"] != 0
    one_document = dropout or any(given.get(x) is not None for x in ("bias", "bool_mask", "score_mod", "mask_mod"))
    packed = batch == 1 and not one_document and (slopes is None or slopes.ndim == 1)
    distances = one_document or slopes is not None
    by_unit = bool(given.get("reproducible"))
    return Kind(
        layout, *sides(given["causal"], given["window"]), documents, packed, distances, by_unit, 4 if dropout else 1
    )


def _uneven_cut(kind: Kind) -> int | None:
    """A cut whose place in its document dropout cannot begin with."""
    begins = kind.documents or (0,)
    place = ((cut, cut - begins[bisect.bisect_right(begins, cut) - 1]) for cut in kind.layout.cuts)
    return next((cut for cut, at in place if at % kind.key_multiple and cut < kind.layout.length), None)


def refuse_uneven(kind: Kind) -> None:
    if (cut := _uneven_cut(kind)) is not None:
        raise ValueError(
            f"dropout in scheme 'ring' needs cuts at multiples of 4 in their document (got {cut}): make the layout "
            "with multiple=4, or take scheme='gather'"
        )


def check_scheme(scheme: str) -> None:
    if scheme not in (*SCHEMES, "auto"):
        raise ValueError(f"scheme must be one of {', '.join(map(repr, SCHEMES))} or 'auto' (got {scheme!r})")


def only_of_gather(given: dict[str, Any]) -> str | None:
    """An option of the call, with its value, that only the scheme gather supports."""
    groups = _values.integer("head_groups", given["head_groups"], 1, 2**31 - 1, "a positive integer")
    return "reproducible=True" if given["reproducible"] else f"head_groups={groups}" if groups > 1 else None


def needs_gather(given: dict[str, Any]) -> bool:
    """True if only gather supports the call, which scheme="auto" then is. Another scheme is refused."""
    option = only_of_gather(given)
    if option and given["scheme"] not in ("gather", "auto"):
        raise ValueError(f"{option} needs scheme='gather' (got {given['scheme']!r})")
    return option is not None


def scheme_of(
    given: dict[str, Any], kind: Kind, of_rows: Sequence[str], on_mesh: bool, shape: tuple[int, ...], on_cuda: bool
) -> str:
    """The scheme that is asked for, or the fastest one by a model that serves the call.

    Args:
      of_rows: the names of inputs that have rows.
      shape: batch, heads of q and of k, dims of q and of v, and bytes of an element.
    """
    asked = str(given["scheme"])
    if not on_mesh and needs_gather(given):
        return "gather"
    if of_rows and (asked == "ulysses" or on_mesh):
        raise ValueError(
            f"scheme '{'mesh' if on_mesh else asked}' does not support a {of_rows[0]} with rows; give "
            "[batch|1, heads|1, 1, length]"
        )
    if on_mesh:
        return "mesh"
    if asked == "ring":
        refuse_uneven(kind)
    if asked != "auto":
        return asked
    visibility = _plan.Visibility(kind.left, kind.right, list(kind.documents))
    found = _plan.estimates(kind.layout.plan, visibility, shape, None if on_cuda else _CPU)
    unfit = ["ulysses"] * bool(of_rows) + ["ring"] * (_uneven_cut(kind) is not None)
    return next(str(name) for name, *_ in found if name not in unfit)


class Sum(NamedTuple):
    additions: dict[int, list[tuple[int, int]]]  # by the slot that they wait for: (to, from)
    nodes: list[Node]
    slots: list[int]


def sum_of(count: int, given: list[Node]) -> Sum:
    additions, nodes, slots = _plan.sum(count, given)
    by_slot: dict[int, list[tuple[int, int]]] = {}
    for to, source, after in additions:
        by_slot.setdefault(after, []).append((to, source))
    return Sum(by_slot, nodes, slots)


def add_up(slots: list[Any], additions: Any) -> None:
    """The additions of a Sum that are due; None is zero, and what is added to may change in place."""
    for to, source in additions:
        a, b = slots[to], slots[source]
        slots[source] = None
        if a is None or b is None:
            slots[to] = b if a is None else a
        else:
            slots[to] += b


def head_groups(heads: int, heads_kv: int, groups: int) -> list[tuple[slice, slice]]:
    """Slices of query heads and of the K/V heads that they read: at most this many groups."""
    group, n = heads // max(1, heads_kv), max(1, min(groups, heads_kv))
    cuts = [heads_kv * i // n for i in range(n + 1)]
    return [(slice(a * group, b * group), slice(a, b)) for a, b in zip(cuts, cuts[1:])]


class Plan:
    def __init__(self, kind: Kind) -> None:
        self.kind, self.layout = kind, cast(Any, kind.layout)  # with the methods of its framework
        self._visibility = _plan.Visibility(kind.left, kind.right, list(kind.documents), kind.key_multiple)
        self.kept: dict[Any, Any] = {}

    @_kept
    def gather_parts(self, rank: int) -> Any:
        k = self.kind
        return _plan.gather_parts(k.layout.plan, self._visibility, rank, k.by_unit, k.packed, k.distances)

    @_kept
    def gathered(self, rank: int) -> int:
        """The number of keys that a rank sees."""
        return max((rows[1] for _, rows in _plan.gathered(self.layout.plan, self._visibility, rank)), default=0)

    @_kept
    def whole_parts(self) -> Any:
        """The calls of all queries with all keys."""
        k, one = self.kind, Layout.contiguous(self.layout.length, 1)
        return _plan.gather_parts(one.plan, self._visibility, 0, False, k.packed, k.distances)

    @_kept
    def ring_parts(self, rank: int, source: int) -> Any:
        k = self.kind
        return _plan.ring_parts(k.layout.plan, self._visibility, rank, source, k.packed, k.distances)

    @_kept
    def ring_steps(self, source: int) -> int:
        return int(_plan.ring_steps(self.layout.plan, self._visibility, source))

    @_kept
    def moves(self, source: int, rank: int, node: Node | None = None) -> list[tuple[slice, slice]]:
        """Rows of the shard of source, and rows of the keys that rank gathers."""
        found = _plan.moves(self.layout.plan, self._visibility, source, rank, node)
        return [(slice(*here), slice(*there)) for here, there in found]

    @_kept
    def nodes(self, rank: int) -> list[Node | None]:
        """The sums that a rank sends home: nodes of the tree over units, or one sum of everything."""
        return _plan.nodes_of(self.layout.plan, rank) if self.kind.by_unit else [None]

    @_kept
    def units(self, rank: int) -> Any:
        """(unit's rows, leaf) in ascending order."""
        return [(rows, leaf) for (_, rows), leaf in zip(self.layout.plan.units(rank), self.layout.plan.leaves(rank))]

    @_kept
    def unit_parts(self, rank: int) -> Any:
        """The calls of each unit, which has its rows."""
        parts = self.gather_parts(rank)
        return [
            [p for p in parts if begin <= p.rows[0] and p.rows[1] <= end and p.rows[0] < end]
            for (begin, end), _ in self.units(rank)
        ]

    @property
    def leaves(self) -> int:
        """The number of leaves of the tree: units, or ranks."""
        return len(self.layout.order) if self.kind.by_unit else self.layout.ranks

    @_kept
    def home(self) -> Sum:
        """The additions of what all ranks send, rank after rank."""
        ranks = range(self.layout.ranks)
        return sum_of(self.leaves, [(0, r) if n is None else n for r in ranks for n in self.nodes(r)])

    @_kept
    def of_units(self, rank: int) -> Sum:
        return sum_of(self.leaves, [(0, leaf) for _, leaf in self.units(rank)])


@functools.lru_cache(maxsize=256)
def plan_of(kind: Kind) -> Plan:
    return Plan(kind)
