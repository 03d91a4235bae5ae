"""Errors of fp32 results over many draws, beside one device's."""

import torch
from context_parallel_cases import MASKS, of_rows, one_device, sharded, textbook, together
from onepass.context_parallel import Layout
from rank_processes import gathered

DRAWS = 8


def drawn(seed, length=300):
    """Inputs of many numbers, so that sums of squared errors over all draws say how exact a scheme is."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((4, 1.5), (2, 1.0), (2, 1.0), (4, 1.0))
    return [s * torch.randn(1, h, length, 32, generator=draw) for h, s in shapes]


def pooled(rank, ranks, folder):
    """On rank 0: (scheme, mask, name) -> the squared error of fp32 results over one device's, both of all draws."""
    mine, theirs = {}, {}
    for mask, options in MASKS.items():
        for seed in range(DRAWS):
            tensors, layout = drawn(seed), Layout.zigzag(300, ranks)
            call = *tensors, of_rows(tensors[0], True)
            if rank == 0:
                one, exact = one_device(*call, **options), textbook(*call, **options)
            for scheme in ("gather", "ring", "ulysses"):
                found = sharded(layout, rank, *call, scheme=scheme, **options)
                by_rank = gathered(found)
                if rank > 0:
                    continue
                for name, x in together(layout, by_rank, 300).items():
                    key = scheme, mask, name
                    mine[key] = mine.get(key, 0.0) + (x - exact[name]).square().sum().item()
                    theirs[key] = theirs.get(key, 0.0) + (one[name] - exact[name]).square().sum().item()
    return {key: (x / theirs[key]) ** 0.5 for key, x in mine.items()}
