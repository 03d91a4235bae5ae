"""xFormers' bias classes: masks without elements, and the lengths of packed sequences."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class AttentionBias:
    """The base of the others."""


class LowerTriangularMask(AttentionBias):
    """Query i sees keys 0 to i."""

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """Query i sees keys 0 to i, and a tensor is added to the scores."""

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias


class LowerTriangularFromBottomRightMask(AttentionBias):
    """The last query sees all keys, the one before it all but the last."""

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


@dataclasses.dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """The same, of which a query sees the last _window_size keys."""

    _window_size: int


@dataclasses.dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    window_left: int
    window_right: int


@dataclasses.dataclass
class Lengths:
    """Sequences one after another: where they start, the end too."""

    seqstart: Tensor
    max_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def of(cls, lengths: Sequence[int], device: Any = None) -> Lengths:
        starts = list(itertools.accumulate(lengths, initial=0))
        return cls(torch.tensor(starts, dtype=torch.int32, device=device), max(lengths, default=0), starts)

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None) -> list[Tensor]:
        if x.shape[:2] != (1, self.seqstart_py[-1]):
            raise ValueError(f"x must have shape [1, {self.seqstart_py[-1]}, ...] (got {list(x.shape)})")
        ends = itertools.accumulate(batch_sizes or [1] * (len(self.seqstart_py) - 1), initial=0)
        starts = [self.seqstart_py[n] for n in ends]
        parts = x.split([b - a for a, b in itertools.pairwise(starts)], 1)
        return [part.reshape(n, -1, *x.shape[2:]) for n, part in zip(batch_sizes or [1] * len(parts), parts)]


@dataclasses.dataclass
class PaddedLengths(Lengths):
    """Each sequence has room for `padding` keys, of which seqlen count."""

    seqlen: Tensor
    padding: int

    @classmethod
    def padded(cls, lengths: Sequence[int], padding: int, device: Any = None) -> PaddedLengths:
        starts = list(range(0, (len(lengths) + 1) * padding, padding))[: len(lengths) + 1]
        start, used = (torch.tensor(x, dtype=torch.int32, device=device) for x in (starts, list(lengths)))
        return cls(start, max(lengths, default=0), starts, used, padding)


@dataclasses.dataclass
class BlockDiagonalMask(AttentionBias):
    """Packed sequences ``[1, total, heads, dim]``: queries see the keys of their own sequence."""

    q_seqinfo: Lengths
    k_seqinfo: Lengths
    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> Any:
        q = Lengths.of(q_seqlen, device)
        return cls(q, q if kv_seqlen is None else Lengths.of(kv_seqlen, device))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[Any, Tensor]:
        """(the mask, the tensors ``[batch, seq, ...]`` as one ``[1, total, ...]``)."""
        mask = cls.from_seqlens([x.shape[1] for x in tensors for _ in range(x.shape[0])], device=tensors[0].device)
        mask._batch_sizes = [x.shape[0] for x in tensors]
        return mask, torch.cat([x.reshape(1, -1, *x.shape[2:]) for x in tensors], 1)

    def split_queries(self, tensor: Tensor) -> list[Tensor]:
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: Tensor) -> list[Tensor]:
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    split = split_queries

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Query i of a sequence sees its keys 0 to i."""


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """The last query of a sequence sees all of its keys."""


@dataclasses.dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    _window_size: int = 0


@dataclasses.dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    _window_size: int = 0


@dataclasses.dataclass
class BlockDiagonalPaddedKeysMask(AttentionBias):
    """Packed queries; K and V ``[1, sequences * padding, heads, dim]``."""

    q_seqinfo: Lengths
    k_seqinfo: PaddedLengths

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        causal_diagonal: Any = None,
        *,
        device: Any = None,
    ) -> Any:
        return cls(Lengths.of(q_seqlen, device), PaddedLengths.padded(kv_seqlen, kv_padding, device))


class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The last query of a sequence sees all of its keys."""
