"""Trains a small transformer in PyTorch twice: with onepass's attention, and with PyTorch's own.

    pip install torch
    python3 demo/train_torch.py

The sequences are a random word, repeated: what comes next can only be known by attending to where the word was before.
Sinks and ALiBi slopes are learnt with onepass.torch.attention in the first layer; the second calls PyTorch's function,
which the block `onepass.torch.sdpa()` replaces.
"""

import argparse
import contextlib

import onepass.torch
import torch
from torch import Tensor
from torch.nn import functional

WIDTH, HEADS, LETTERS = 64, 4, 16


class Layer(torch.nn.Module):
    def __init__(self, learnt: bool) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 4 * WIDTH),
            torch.nn.GELU(),
            torch.nn.Linear(4 * WIDTH, WIDTH),
        )
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.slopes = torch.nn.Parameter(0.5 ** torch.arange(1.0, HEADS + 1)) if learnt else None
        self.sinks = torch.nn.Parameter(torch.zeros(HEADS)) if learnt else None

    def forward(self, x: Tensor, ours: bool) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.slopes is None or self.sinks is None:
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif ours:
            a = onepass.torch.attention(q, k, v, mask="causal_bottom_right", alibi_slopes=self.slopes, sinks=self.sinks)
        else:
            a = textbook(q, k, v, self.slopes, self.sinks)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def textbook(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, sinks: Tensor) -> Tensor:
    """Attention with the options that PyTorch's function does not have."""
    i = torch.arange(q.shape[2], device=q.device)
    scores = q @ k.mT / q.shape[-1] ** 0.5 - slopes[:, None, None] * (i[:, None] - i).abs()
    scores = scores.masked_fill(i > i[:, None], -torch.inf)
    sinks = sinks[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, WIDTH)
        self.layers = torch.nn.ModuleList([Layer(learnt=True), Layer(learnt=False)])
        self.head = torch.nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor, ours: bool) -> Tensor:
        x = self.letters(text)
        for layer in self.layers:
            x = layer(x, ours)
        return self.head(x)


def train(ours: bool, steps: int, device: str) -> list[float]:
    """The loss of each step, in nats a letter."""
    torch.manual_seed(0)
    model, draw = Model().to(device), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        text = torch.randint(LETTERS, (16, 12), generator=draw).repeat(1, 3).to(device)
        with onepass.torch.sdpa() if ours else contextlib.nullcontext():
            logits = model(text[:, :-1], ours)
            loss = functional.cross_entropy(logits[:, 12:].flatten(0, 1), text[:, 13:].flatten())
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: list[str] | None = None) -> tuple[list[float], list[float]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    mine, theirs = (train(ours, options.steps, options.device) for ours in (True, False))
    for step in range(0, options.steps, max(1, options.steps // 10)):
        print(f"step {step:4}: loss {mine[step]:.4f} with onepass, {theirs[step]:.4f} with PyTorch")
    print(f"last:      loss {mine[-1]:.4f} with onepass, {theirs[-1]:.4f} with PyTorch")
    return mine, theirs


if __name__ == "__main__":
    main()
