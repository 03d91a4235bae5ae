"""Trains a small transformer that is written for flash-attn twice: with onepass in its place, and with a textbook.

    pip install torch
    python3 demo/train_flash_attn.py

The task is that of train_torch.py: a random word, repeated, whose next letter only attention can know. Words are of
different lengths here and stand packed side by side, nothing is padded. Afterwards the model writes words to their
ends from a cache, which flash_attn_with_kvcache rotates, appends to and reads.
"""

import argparse
import sys
from collections.abc import Callable, Iterable

import onepass.flash_attn
import torch
from torch import Tensor
from torch.nn import functional

sys.modules["flash_attn"] = onepass.flash_attn  # all that changes in code for flash-attn

from flash_attn import flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402

WIDTH, HEADS, LETTERS, LAYERS, POSITIONS = 64, 4, 16, 2, 64
DIM = WIDTH // HEADS
Attend = Callable[[Tensor], Tensor]  # qkv [.., 3, heads, dim] to [.., heads, dim]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(WIDTH), *(torch.nn.Linear(WIDTH, n * WIDTH) for n in (3, 1))
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 4 * WIDTH),
            torch.nn.GELU(),
            torch.nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        x = x + self.out(attend(self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, DIM))).flatten(-2))
        return x + self.mlp(x)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.head = torch.nn.Embedding(LETTERS, WIDTH), torch.nn.Linear(WIDTH, LETTERS)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        turns = torch.arange(POSITIONS)[:, None] * 1000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, text: Tensor, attends: Iterable[Attend]) -> Tensor:
        """Logits of letters of any shape; attends: of each layer."""
        x = self.letters(text)
        for layer, attend in zip(self.layers, attends):
            x = layer(x, attend)
        return self.head(x)

    def packed(self, text: Tensor, lengths: Tensor, ours: bool) -> Tensor:
        """Logits of sequences side by side."""
        cu_seqlens = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        longest = int(lengths.max())

        def attend(qkv: Tensor) -> Tensor:
            turned = [apply_rotary_emb(x, self.cos, self.sin, cu_seqlens=cu_seqlens) for x in qkv.unbind(1)[:2]]
            qkv = torch.stack([*turned, qkv[:, 2]], 1)
            if ours:
                return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, longest, causal=True)
            return torch.cat([textbook(*x.unbind(1)) for x in qkv.split(lengths.tolist())])

        return self(text, [attend] * LAYERS)

    def from_cache(self, k_cache: Tensor, v_cache: Tensor, used: Tensor) -> Attend:
        rotary = dict(rotary_cos=self.cos, rotary_sin=self.sin, rotary_interleaved=False)

        def attend(qkv: Tensor) -> Tensor:
            q, k, v = qkv.unbind(2)
            return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **rotary, cache_seqlens=used, causal=True)

        return attend

    @torch.no_grad()
    def write(self, text: Tensor, count: int) -> Tensor:
        """text [batch, letters] and the `count` likeliest letters behind it, one by one from a cache."""
        caches = torch.zeros(LAYERS, 2, len(text), POSITIONS, HEADS, DIM, device=text.device)
        used, new = torch.zeros(len(text), dtype=torch.int32, device=text.device), text
        for _ in range(count):
            logits = self(new, [self.from_cache(k, v, used) for k, v in caches])
            used = used + new.shape[1]
            new = logits[:, -1:].argmax(-1)
            text = torch.cat([text, new], 1)
        return text


def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one sequence, [tokens, heads, dim]."""
    scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def train(ours: bool, steps: int, device: str) -> tuple[list[float], Model]:
    """(the loss of each step, in nats a letter; the model)."""
    torch.manual_seed(0)
    model, draw = Model().to(device), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        sizes = torch.randint(6, 15, (16,), generator=draw)
        words = [torch.randint(LETTERS, (n,), generator=draw) for n in sizes.tolist()]
        text = torch.cat([x.repeat(2) for x in words])
        known = torch.cat([y for x in words for y in (torch.full_like(x, -100), x.roll(-1))])  # a new word is chance
        logits = model.packed(text.to(device), 2 * sizes.to(device), ours)
        loss = functional.cross_entropy(logits, known.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def main(arguments: list[str] | None = None) -> tuple[list[float], list[float], Tensor]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    (mine, model), (theirs, _) = (train(ours, options.steps, options.device) for ours in (True, False))
    for step in [*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1]:
        print(f"step {step:4}: loss {mine[step]:.4f} with onepass, {theirs[step]:.4f} with a textbook")
    words = torch.randint(LETTERS, (8, 10), generator=torch.Generator().manual_seed(2)).to(options.device)
    written = model.write(torch.cat([words, words[:, :3]], 1), 7)[:, 13:]
    right = (written == words[:, 3:]).float().mean().item()
    print(f"of {written.numel()} letters written from a cache {100 * right:.0f} % are those of the words")
    return mine, theirs, written


if __name__ == "__main__":
    main()
