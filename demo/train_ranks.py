"""Trains a small transformer in PyTorch on several processes, each with a part of every sequence, and on one.

    ./dev demo train --ranks 2      or, with PyTorch and onepass installed:  python3 demo/train_ranks.py --ranks 2

The sequences are a random word, repeated (demo/train_torch.py). All layers but attention see a rank's own letters. The
first layer's attention is onepass.torch.context_parallel.attention with learnt sinks and slopes; the second calls
PyTorch's function inside the block context_parallel.sdpa. Gradients of parameters are added up over the ranks.
"""

import argparse
import contextlib
import datetime
import pathlib
import tempfile

import onepass.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from train_torch import LETTERS, Model

context_parallel = onepass.torch.context_parallel
WORD, COPIES, BATCH = 13, 3, 16


def logits_of(model: Model, text: Tensor, layout: context_parallel.Layout) -> Tensor:
    """The logits of a rank's letters."""
    x = model.letters(text)
    for layer in model.layers:
        q, k, v = layer.qkv(layer.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        if layer.slopes is None:
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            a = context_parallel.attention(
                q, k, v, layout=layout, causal=True, alibi_slopes=layer.slopes, sinks=layer.sinks
            )
        x = x + layer.out(a.transpose(1, 2).flatten(2))
        x = x + layer.mlp(x)
    return model.head(x)


def train(rank: int, ranks: int, steps: int) -> list[float]:
    """The loss of each step, in nats a letter: the same for any number of ranks, up to rounding."""
    torch.manual_seed(0)
    model, draw = Model(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    layout = context_parallel.Layout.zigzag(WORD * COPIES - 1, ranks)
    counts = (layout.positions(rank) >= WORD - 1).float()  # letters that the word decides
    losses = []
    for _ in range(steps):
        text = torch.randint(LETTERS, (BATCH, WORD), generator=draw).repeat(1, COPIES)
        mine, following = layout.shard(text[:, :-1], rank, dim=1), layout.shard(text[:, 1:], rank, dim=1)
        with context_parallel.sdpa(layout):
            logits = logits_of(model, mine, layout)
        each = functional.cross_entropy(logits.transpose(1, 2), following, reduction="none") * counts
        loss = each.sum() / (BATCH * (WORD * (COPIES - 1)))
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if ranks > 1:
            for x in (total, *(p.grad for p in model.parameters())):
                dist.all_reduce(x)
        optimizer.step()
        losses.append(total.item())
    return losses


def work(rank: int, ranks: int, folder: pathlib.Path, steps: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    losses = train(rank, ranks, steps)
    if rank == 0:
        torch.save(losses, folder / "losses")
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> tuple[list[float], list[float]] | None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(KeyboardInterrupt):
        folder = pathlib.Path(name)
        torch.multiprocessing.spawn(work, (options.ranks, folder, options.steps), nprocs=options.ranks)
        several, one = torch.load(folder / "losses"), train(0, 1, options.steps)
        for step in [*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1]:
            print(f"step {step:4}: loss {several[step]:.4f} on {options.ranks} ranks, {one[step]:.4f} on one")
        return several, one
    return None


if __name__ == "__main__":
    main()
