"""Shards of PyTorch's tensors."""

from collections.abc import Sequence
from typing import Any

import torch

from onepass import _ranks


class Layout(_ranks.layout.Layout):
    __doc__ = _ranks.layout.Layout.__doc__

    def positions(self, rank: int, device: Any = None) -> torch.Tensor:
        """The positions of a rank's rows, int64, for rotary embedding and position ids."""
        ranges = [torch.arange(run.start, run.stop, device=device) for run, _ in self.runs(rank)]
        return torch.cat(ranges) if ranges else torch.arange(0, device=device)

    def shard(self, x: torch.Tensor, rank: int, dim: int = 2) -> torch.Tensor:
        """A rank's rows of a tensor of all positions; ``dim`` is the dimension of positions."""
        if x.shape[dim] != self.length:
            raise ValueError(f"x must have {self.length} positions in dimension {dim} (got {x.shape[dim]})")
        runs = [x.narrow(dim, run.start, len(run)) for run, _ in self.runs(rank)]
        return torch.cat(runs, dim) if runs else x.narrow(dim, 0, 0)

    def whole(self, shards: Sequence[torch.Tensor], dim: int = 2) -> torch.Tensor:
        """The tensor of all positions, from the shards of all ranks."""
        if len(shards) != self.ranks:
            raise ValueError(f"shards must be {self.ranks} tensors, one of each rank (got {len(shards)})")
        runs = [
            (run.start, x.narrow(dim, rows.start, len(run))) for r, x in enumerate(shards) for run, rows in self.runs(r)
        ]
        return torch.cat([x for _, x in sorted(runs, key=lambda part: part[0])], dim) if runs else shards[0]
