"""Generates text the way an inference engine does: a paged cache, and a running batch that sequences join and leave.

A small decoder with random weights, in NumPy. Each step is one batch of whatever there is to do: the whole prompts of
the sequences that joined, one token of each that is under way. Per layer, onepass.append_kv rotates the new queries and
keys and writes keys and values into pages, and one onepass.attention call reads them through the page table. At the end
every logit that was sampled from is compared with a forward pass over the whole text.

    ./dev demo generate [--sequences 12] [--tokens 40] [--page-size 16] [--pages 60] [--seed 0]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onepass
from numpy.typing import NDArray

VOCABULARY, WIDTH, LAYERS, HEADS, HEADS_KV, DIM = 96, 256, 4, 8, 2, 32

Array = NDArray[np.float32]
Attend = Callable[[int, Array, Array, Array], Array]


class Decoder:
    """Pre-norm transformer: rotary attention with grouped heads, and a GELU layer; the embedding is the last layer."""

    def __init__(self, rng: np.random.Generator, positions: int) -> None:
        def matrix(rows: int, columns: int) -> Array:
            return rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)

        self.embedding = matrix(WIDTH, VOCABULARY).T.copy()
        self.layers = [
            {
                "qkv": matrix(WIDTH, (HEADS + 2 * HEADS_KV) * DIM),
                "out": matrix(HEADS * DIM, WIDTH),
                "up": matrix(WIDTH, 4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ]
        angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def logits(self, tokens: NDArray[np.int64], attend: Attend) -> Array:
        """[tokens, vocabulary]; attend(layer, q, k, v) -> [tokens, heads, dim] sees to positions, cache and mask."""
        x = self.embedding[tokens]
        for n, w in enumerate(self.layers):
            qkv = (_norm(x) @ w["qkv"]).reshape(len(tokens), HEADS + 2 * HEADS_KV, DIM)
            q, k, v = np.split(qkv, [HEADS, HEADS + HEADS_KV], axis=1)  # views: nothing is copied
            x = x + attend(n, q, k, v).reshape(len(tokens), -1) @ w["out"]
            x = x + _gelu(_norm(x) @ w["up"]) @ w["down"]
        return _norm(x) @ self.embedding.T


def _norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class Sequence:
    def __init__(self, prompt: list[int], wanted: int) -> None:
        self.tokens, self.prompt, self.wanted = list(prompt), len(prompt), wanted
        self.cached = 0  # tokens whose keys and values are in the pages
        self.pages: list[int] = []
        self.logits: list[Array] = []

    def finished(self) -> bool:
        return len(self.tokens) - self.prompt >= self.wanted


class Engine:
    def __init__(self, decoder: Decoder, pages: int, page_size: int) -> None:
        shape = (LAYERS, pages, page_size, HEADS_KV, DIM)
        self.decoder, self.page_size = decoder, page_size
        self.k, self.v = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.free = list(range(pages))
        self.running: list[Sequence] = []

    def pages_for(self, sequence: Sequence) -> int:
        return -(-(sequence.prompt + sequence.wanted) // self.page_size)

    def join(self, sequence: Sequence) -> bool:
        """Takes the sequence if there are pages for all that it will be."""
        if self.pages_for(sequence) > len(self.free):
            return False
        sequence.pages = [self.free.pop() for _ in range(self.pages_for(sequence))]
        self.running.append(sequence)
        return True

    def step(self) -> tuple[int, int]:
        """One token more for every running sequence; those that are finished leave, and their pages with them."""
        new = [s.tokens[s.cached :] for s in self.running]
        cu_seqlens = np.cumsum([0] + [len(tokens) for tokens in new], dtype=np.int32)
        before = np.array([s.cached for s in self.running], np.int32)
        after = before + np.diff(cu_seqlens)
        table = np.full((len(self.running), max(len(s.pages) for s in self.running)), -1, np.int32)
        for row, s in zip(table, self.running, strict=True):
            row[: len(s.pages)] = s.pages
        cache: dict[str, Any] = {"cu_seqlens_q": cu_seqlens, "page_table": table}

        def attend(n: int, q: Array, k: Array, v: Array) -> Array:
            rotary: dict[str, Any] = {"cos": self.decoder.cos, "sin": self.decoder.sin}
            q = onepass.append_kv(k, v, self.k[n], self.v[n], cache_seqlens=before, q=q, **rotary, **cache)
            return onepass.attention(q, self.k[n], self.v[n], mask="causal_bottom_right", seqused_k=after, **cache)

        last = self.decoder.logits(np.concatenate(new), attend)[cu_seqlens[1:] - 1]
        for s, row in zip(self.running, last, strict=True):
            s.cached = len(s.tokens)
            s.logits.append(row)
            s.tokens.append(int(row.argmax()))
        for s in [s for s in self.running if s.finished()]:
            self.running.remove(s)
            self.free += s.pages
        return len(new), int(cu_seqlens[-1])


def whole(decoder: Decoder, tokens: list[int]) -> Array:
    """The logits of every position by one forward pass without a cache."""

    def attend(_: int, q: Array, k: Array, v: Array) -> Array:
        q, k = (_rotated(x, decoder.cos, decoder.sin) for x in (q, k))
        heads_first = [x.transpose(1, 0, 2)[None] for x in (q, k, v)]
        return onepass.attention(*heads_first, mask="causal_bottom_right")[0].transpose(1, 0, 2)

    return decoder.logits(np.asarray(tokens), attend)


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    cos, sin = cos[: len(x), None], sin[: len(x), None]
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def generate(
    sequences: int, tokens: int, page_size: int, pages: int, seed: int, say: Callable[[str], object] = print
) -> float:
    rng = np.random.default_rng(seed)
    decoder = Decoder(rng, positions=200 + 2 * tokens)
    engine = Engine(decoder, pages, page_size)
    waiting = [
        Sequence(rng.integers(0, VOCABULARY, rng.integers(1, 200)).tolist(), int(rng.integers(tokens // 2, 2 * tokens)))
        for _ in range(sequences)
    ]
    everything, steps, done, began = list(waiting), 0, 0, time.perf_counter()
    while waiting or engine.running:
        while waiting and engine.join(waiting[0]):
            waiting.pop(0)
        if not engine.running:
            raise ValueError(f"{pages} pages of {page_size} keys do not hold one sequence")
        batch, rows = engine.step()
        steps, done = steps + 1, done + batch
        if steps % 20 == 1:
            say(f"step {steps:4}: {batch:3} sequences, {rows:4} new rows, {len(engine.free):3} of {pages} pages free")
    seconds = time.perf_counter() - began
    say(f"{done} tokens in {steps} steps, {done / seconds:.0f} a second")
    worst = 0.0
    for s in everything:
        expected = whole(decoder, s.tokens[:-1])[s.prompt - 1 :]
        worst = float(np.maximum(worst, np.abs(np.array(s.logits) - expected).max()))  # NaN stays
    say(f"logits are within {worst:.1e} of a forward pass over the whole texts")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=40, help="average number of tokens per sequence")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not generate(**vars(options)) <= 1e-4:
        raise SystemExit("the logits from the cache differ from those of the whole texts")


if __name__ == "__main__":
    main()
