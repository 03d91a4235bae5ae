"""A process group: exchanges that may be under way together, agreement, and failures that all ranks hear of."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

_agreed: dict[str, set[str]] = {}  # kinds of calls on CUDA, by the group
_MOST_AGREED = 4096  # then all ranks of the group forget them at once: a new seed is a new kind
_failed: dict[str, str] = {}  # groups that cannot be used any more, and why
_FACTS = 8  # that a call compares
_POLL = 0.1  # seconds between looks at the store


class Ranks:
    """The ranks of a group, or one rank where torch.distributed is not initialized."""

    noun = "rank"  # in sentences

    def __init__(self, group: Any) -> None:
        alone = group is None and not (dist.is_available() and dist.is_initialized())
        self.group: Any = None if alone else group or dist.group.WORLD
        self.me: int = 0 if alone else dist.get_rank(self.group)
        self.size: int = 1 if alone else dist.get_world_size(self.group)
        if self.me < 0:
            raise ValueError("group must have this process as a member")
        self.name: str = getattr(self.group, "group_name", "")
        if self.name in _failed:
            raise RuntimeError(f"the process group cannot be used any more: {_failed[self.name]}")

    # ------------------------------------------------------------------------------------------------ exchanges
    def all_to_all(
        self, blocks: Sequence[Sequence[Any]], shapes: Sequence[Sequence[Any]], into: Sequence[Any] | None = None
    ) -> Callable[[], Any]:
        """Blocks of shapes[r] from each rank r, while blocks[r] go to rank r: a function that waits for them.

        A block is a tensor, or a tuple of tensors that lie side by side in the last dimension. into[r]: contiguous
        memory for what comes from rank r; None is new memory.
        """
        if self.size == 1:
            return lambda: [list(x) for x in blocks]
        totals = [sum(math.prod(shape) for shape in x) for x in shapes]
        counts = [sum(map(_numbers, x)) for x in blocks]
        sent = _message(blocks, sum(counts))
        memory = [sent.new_empty(n) if x is None else x.view(-1) for n, x in zip(totals, into or [None] * self.size)]
        # Groups do not know float8, whose elements are bytes.
        here, *there = (x.view(torch.uint8) if x.element_size() == 1 else x for x in (sent, *memory))
        if sent.is_cuda:
            work = dist.all_to_all(there, list(here.split(counts)), group=self.group, async_op=True)
        else:  # gloo has no lists
            received = here.new_empty(sum(totals))
            work = dist.all_to_all_single(received, here, totals, counts, group=self.group, async_op=True)

        def wait() -> Any:
            self._wait(work, sent)
            if not sent.is_cuda:
                for x, y in zip(there, received.split(totals)):
                    x.copy_(y)
            sizes = ([math.prod(shape) for shape in x] for x in shapes)
            return [
                [y.view(shape) for y, shape in zip(x.split(n), of)] if n else []
                for x, n, of in zip(memory, sizes, shapes)
            ]

        return wait

    def send(self, block: torch.Tensor, to: int | None, source: int | None, shape: Any) -> Callable[[], Any]:
        """The block of rank source, of this shape, while the block goes to rank `to`. Every rank takes part."""
        empty = block.new_empty(0)
        blocks = [[block if r == to else empty] for r in range(self.size)]
        shapes = [[shape if r == source else (0,)] for r in range(self.size)]
        wait = self.all_to_all(blocks, shapes)
        return lambda: None if source is None else wait()[source][0] if self.size > 1 else block

    def of_first(self, number: torch.Tensor, device: Any) -> int:
        """Rank 0's number, int64 of one element."""
        if self.size > 1:
            mine = number.to(device)
            root = dist.get_global_rank(self.group, 0)
            self._wait(dist.broadcast(mine, root, group=self.group, async_op=True), mine)
            number = mine
        return int(number)

    def _wait(self, work: Any, kept: Any) -> None:
        """Until an exchange is done. On the CPU it looks whether a rank has failed meanwhile."""
        if kept.is_cuda:
            work.wait()  # of the stream
            return
        pause, look = 20e-6, time.monotonic() + _POLL
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
            if time.monotonic() > look:
                self._hear()
                look = time.monotonic() + _POLL
        try:
            work.wait()
        except RuntimeError as error:
            self._hear(1.0)
            raise self._lost(f"an exchange failed, because a rank has ended: {_line(error)}") from None

    # ------------------------------------------------------------------------------------------------- failures
    def _key(self) -> str:
        return f"onepass/context_parallel/{self.name}"

    def tell(self, error: BaseException) -> None:
        """Leaves the sentence of a failure for the other ranks, which wait for this one."""
        if self.size > 1 and self.name not in _failed:
            sentence = f"rank {self.me} has failed: {_line(error)}"
            _failed[self.name] = sentence
            _store().set(self._key(), sentence)

    def _hear(self, patience: float = 0.0) -> None:
        end = time.monotonic() + patience
        try:
            while not _store().check([self._key()]):
                if time.monotonic() >= end:
                    return
                time.sleep(0.05)
            sentence = _store().get(self._key()).decode()
        except RuntimeError:  # the process that keeps the store has ended
            return
        raise self._lost(sentence)

    def _lost(self, sentence: str) -> RuntimeError:
        _failed[self.name] = sentence
        return RuntimeError(sentence)

    # ------------------------------------------------------------------------------------------------ agreement
    def agree(self, device: Any, complaint: Exception | None, facts: dict[str, Any]) -> None:
        """Raises the same sentence on every rank if one has a complaint, or if their facts differ.

        Facts are compared in every call on the CPU, and in the first call of a kind on CUDA.
        """
        if self.size == 1:
            if complaint:
                raise complaint
            return
        kind, agreed = repr(facts), _agreed.setdefault(self.name, set())
        if device.type == "cuda" and not complaint and kind in agreed:
            return
        digests = [int(complaint is not None)]
        digests += [int(hashlib.sha256(repr(x).encode()).hexdigest()[:14], 16) for x in facts.values()]
        digests += [0] * (1 + _FACTS - len(digests))  # a rank with a complaint has none
        mine = torch.tensor(digests, dtype=torch.int64, device=device)
        everybody = mine.new_empty(self.size * len(digests))
        self._wait(dist.all_gather_into_tensor(everybody, mine, group=self.group, async_op=True), mine)
        table = everybody.view(self.size, -1).tolist()
        if not any(row != table[0] or row[0] for row in table):
            if len(agreed) >= _MOST_AGREED:
                agreed.clear()
            agreed.add(kind)
            return
        texts: list[Any] = [None] * self.size
        said = (type(complaint).__name__, str(complaint)) if complaint else None
        dist.all_gather_object(texts, (said, {name: repr(x) for name, x in facts.items()}), group=self.group)
        raise _disagreement(texts, self.noun)


class TwoRanks:
    """The ranks of a mesh: between nodes, and within this node."""

    def __init__(self, between: Any, within: Any) -> None:
        self.between, self.within = Ranks(between), Ranks(within)
        self.between.noun = "node"
        self.me = self.between.me * self.within.size + self.within.me
        self.size = self.between.size * self.within.size

    def agree(self, device: Any, complaint: Exception | None, facts: dict[str, Any]) -> None:
        """A node's sentence becomes the complaint of all its ranks to those of other nodes."""
        try:
            self.within.agree(device, complaint, facts)
        except (ValueError, TypeError, RuntimeError) as error:
            complaint, facts = error, {}
        self.between.agree(device, complaint, facts)

    def of_first(self, number: torch.Tensor, device: Any) -> int:
        mine = torch.tensor([self.within.of_first(number, device)])
        return self.between.of_first(mine, device)


def ranks_of(group: Any) -> Any:
    """The ranks of a process group, of a DeviceMesh of two dimensions, or of a pair of groups."""
    if hasattr(group, "get_group"):
        group = [group.get_group(i) for i in range(group.ndim)] if group.ndim > 1 else group.get_group()
    if not isinstance(group, (tuple, list)):
        return Ranks(group)
    if len(group) != 2:
        raise ValueError(
            f"group must be one process group or two, between nodes and within this one (got {len(group)})"
        )
    return TwoRanks(*group)


def _disagreement(texts: list[Any], noun: str) -> Exception:
    kinds = {"TypeError": TypeError, "RuntimeError": RuntimeError}
    for rank, (said, _) in enumerate(texts):
        if said:
            return kinds.get(said[0], ValueError)(f"{noun} {rank}: {said[1]}")
    first = texts[0][1]
    for name, value in first.items():
        for rank, (_, facts) in enumerate(texts):
            if facts[name] != value:
                got = f"{noun} 0 has {_short(value)}, {noun} {rank} has {_short(facts[name])}"
                return ValueError(f"{name} must be the same on all {noun}s ({got})")
    return ValueError("all ranks must make the same call")


def _numbers(block: Any) -> int:
    return sum(x.numel() for x in block) if isinstance(block, tuple) else int(block.numel())


def _message(blocks: Sequence[Sequence[Any]], numbers: int) -> torch.Tensor:
    """All blocks in one piece of memory: that of the only block, if it is contiguous."""
    full = [b for x in blocks for b in x if _numbers(b)]
    if len(full) == 1 and isinstance(full[0], torch.Tensor) and full[0].is_contiguous():
        return full[0].view(-1)
    first = next(b for x in blocks for b in x)  # every rank has an entry, which may be empty
    message, at = (first[0] if isinstance(first, tuple) else first).new_empty(numbers), 0
    for b in full:
        place = message[at : (at := at + _numbers(b))]
        if isinstance(b, tuple):
            beside(b, place.view(*b[0].shape[:-1], -1))
        else:
            place.view(b.shape).copy_(b)
    return message


def beside(tensors: tuple[torch.Tensor, ...], into: torch.Tensor) -> None:
    """Tensors side by side in the last dimension of contiguous memory."""
    if into.element_size() == 1:  # cat does not know float8
        tensors, into = tuple(x.view(torch.uint8) for x in tensors), into.view(torch.uint8)
    torch.cat(tensors, -1, out=into)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:198] + ".."


def _line(error: BaseException) -> str:
    return _short((str(error).splitlines() or [type(error).__name__])[0])


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
