"""The demo that trains: a character-level transformer learns a text, forward and backward of its attention by onepass.

    ./dev demo train      or, with onepass installed:  python3 demo/train.py --png loss.png

The same model is trained a second time, step by step in turn, with PyTorch's attention through autograd where PyTorch
is installed, else with standard attention in NumPy: the same seed gives the same curve. Prints losses and times, draws
the curve, and lets the model write.
"""

import argparse
import copy
import importlib.util
import math
import pathlib
import statistics
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import picture
from transformer import Adam, Array, Attention, Onepass, Transformer, Weights, initial_weights, qk_clip, qkv_views

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Standard:
    """The textbook: scores and weights of seq x seq in memory. In float64 too."""

    name = "standard attention"

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def forward(self, qkv: Array) -> tuple[Array, tuple[Array, Array]]:
        xp = self.xp
        q, k, v = qkv_views(xp, qkv)
        s = q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
        hidden = xp.tril(xp.ones_like(s[0, 0])) == 0
        s[..., hidden] = -math.inf
        p = xp.exp(s - xp.amax(s, -1)[..., None])
        p = p / p.sum(-1)[..., None]
        return xp.swapaxes(p @ v, 1, 2), (qkv, p)

    def backward(self, dout: Array, kept: tuple[Array, Array]) -> Array:
        xp, (qkv, p) = self.xp, kept
        q, k, v = qkv_views(xp, qkv)
        do, dqkv = xp.swapaxes(dout, 1, 2), xp.empty_like(qkv)
        dq, dk, dv = qkv_views(xp, dqkv)
        dp = do @ xp.swapaxes(v, -1, -2)
        ds = p * (dp - (p * dp).sum(-1)[..., None]) / math.sqrt(q.shape[-1])
        dq[...], dk[...], dv[...] = ds @ k, xp.swapaxes(ds, -1, -2) @ q, xp.swapaxes(p, -1, -2) @ do
        return dqkv


class Torch:
    """PyTorch's attention, its gradients by autograd. Arrays of all libraries are read in place."""

    name = "PyTorch"

    def __init__(self, xp: ModuleType) -> None:
        import torch

        self.torch = torch
        self.back: Any = {"numpy": np.asarray, "cupy": getattr(xp, "from_dlpack", None)}.get(xp.__name__, lambda x: x)

    def forward(self, qkv: Array) -> tuple[Array, tuple[Array, Array]]:
        leaf = self.torch.as_tensor(qkv).detach().requires_grad_()
        q, k, v = (x.transpose(1, 2) for x in leaf.unbind(2))
        out = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.back(out.detach()), (leaf, out)

    def backward(self, dout: Array, kept: tuple[Array, Array]) -> Array:
        leaf, out = kept
        out.backward(self.torch.as_tensor(dout))
        return self.back(leaf.grad)


class Timed:
    """An attention and the seconds spent in it, where calls return when they are done."""

    def __init__(self, attention: Attention) -> None:
        self.attention, self.name, self.seconds = attention, attention.name, 0.0

    def timed(self, method: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = method(*arguments)
        self.seconds += time.perf_counter() - start
        return result

    def forward(self, qkv: Array) -> tuple[Array, Any]:
        return self.timed(self.attention.forward, qkv)

    def backward(self, dout: Array, kept: Any) -> Array:
        return self.timed(self.attention.backward, dout, kept)


def arrays_for(device: str) -> SimpleNamespace:
    """The library of the arrays on the device; NumPy to it and back; waiting for what has been started there."""
    if device == "cpu":
        return SimpleNamespace(xp=np, put=np.asarray, get=np.asarray, wait=lambda: None)
    if importlib.util.find_spec("cupy"):
        import cupy

        return SimpleNamespace(
            xp=cupy, put=cupy.asarray, get=cupy.asnumpy, wait=lambda: cupy.cuda.Device().synchronize()
        )
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return SimpleNamespace(
                xp=torch,
                put=lambda x: torch.as_tensor(x, device="cuda"),
                get=lambda x: x.cpu().numpy(),
                wait=torch.cuda.synchronize,
            )
    raise SystemExit("--device cuda needs CuPy, or PyTorch with CUDA")


def peer_for(options: argparse.Namespace) -> Callable[[ModuleType], Attention] | None:
    """The attention that onepass stands beside, or None."""
    found = "torch" if importlib.util.find_spec("torch") else "standard"
    wanted = found if options.beside == "auto" else options.beside
    if wanted == "torch" and found != "torch":
        raise SystemExit("--beside torch needs PyTorch")
    return {"torch": Torch, "standard": Standard, "none": None}[wanted]


class Contender:
    def __init__(
        self, options: argparse.Namespace, arrays: SimpleNamespace, weights: Weights, attention: Attention
    ) -> None:
        self.arrays, self.attention = arrays, Timed(attention)
        weights = {name: arrays.put(x) for name, x in weights.items()}
        self.model = Transformer(arrays.xp, weights, options.heads, self.attention)
        self.adam = Adam(arrays.xp, weights, options.rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.in_attention: list[float] = []
        # onepass's attention where --qk-clip bounds its scores
        self.threshold = options.qk_clip
        self.bounded = attention if isinstance(attention, Onepass) and self.threshold is not None else None
        self.largest: list[float] = []  # the largest score of each step
        self.clipped = 0  # heads that were clipped in a layer

    def step(self, tokens: Array, targets: Array) -> None:
        start, before = time.perf_counter(), self.attention.seconds
        of_layers: list[Array] = []
        if self.bounded:
            self.bounded.largest = of_layers
        loss, gradients = self.model.loss(tokens, targets)
        self.adam.step(gradients)
        if self.bounded:
            self.clipped += qk_clip(self.arrays.xp, self.model.w, of_layers, self.threshold)
            self.largest.append(max(float(most.max()) for most in of_layers))
        self.arrays.wait()
        self.seconds.append(time.perf_counter() - start)
        self.in_attention.append(self.attention.seconds - before)
        self.losses.append(float(loss))


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.arrays = options, arrays_for(options.device)
        try:
            text = options.text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise SystemExit(f"--text {options.text}: {e}") from None
        self.letters = sorted(set(text))
        self.data = np.array([self.letters.index(c) for c in text])
        if len(self.data) <= options.seq:
            raise SystemExit(f"{options.text} has {len(self.data)} characters; --seq {options.seq} needs more")
        self.one_hot = np.eye(len(self.letters), dtype=np.float32)
        self.rng = np.random.default_rng(options.seed)
        weights = initial_weights(self.rng, len(self.letters), options.seq, options.width, options.layers)
        self.size = sum(x.size for x in weights.values())
        peer = peer_for(options)
        self.contenders = [
            Contender(options, self.arrays, copy.deepcopy(weights), kind(self.arrays.xp))
            for kind in (Onepass, *([peer] if peer else []))
        ]

    def run(self, report: Callable[[int], None]) -> None:
        o, (ours, *peers) = self.options, self.contenders
        for step in range(o.steps):
            start = self.rng.integers(len(self.data) - o.seq, size=(o.batch, 1))
            text = self.one_hot[self.data[start + np.arange(o.seq + 1)]]
            batch = self.arrays.put(text[:, :-1]), self.arrays.put(text[:, 1:])
            order = (ours, *peers) if step % 2 == 0 else (*peers, ours)
            for contender in order:
                contender.step(*batch)
            if step % max(1, o.steps // 10) == 0 or step == o.steps - 1:
                report(step)

    def write(self, length: int, prompt: str = "The ") -> str:
        """The continuation of the prompt by the model of onepass, each character drawn from its softmax."""
        ids = [self.letters.index(c) for c in prompt if c in self.letters] or [0]
        for _ in range(length):
            seen = self.one_hot[ids[-self.options.seq :]][None]
            logits = self.arrays.get(self.contenders[0].model.forward(self.arrays.put(seen))[0])[0, -1]
            p = np.exp((logits - logits.max()) / 0.5)
            ids.append(self.rng.choice(len(p), p=p / p.sum()))
        return "".join(self.letters[i] for i in ids)


def say(text: str = "") -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> list[Contender]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "LICENSE", help="the text to learn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda needs CuPy or PyTorch")
    parser.add_argument("--beside", choices=("auto", "torch", "standard", "none"), default="auto")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of --heads")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of Adam")
    parser.add_argument("--qk-clip", type=float, metavar="TAU", help="bound of onepass's scores, by QK-clip")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    parser.add_argument("--write", type=int, default=300, help="number of characters that the model writes at the end")
    parser.add_argument("--png", type=pathlib.Path, default=pathlib.Path("loss.png"), help="file for the loss curve")
    options = parser.parse_args(arguments)
    if min(options.steps, options.batch, options.seq, options.layers, options.heads, options.width) < 1:
        parser.error("--steps, --batch, --seq, --layers, --heads and --width must be at least 1")
    if options.width % options.heads:
        parser.error(f"--width must be a multiple of --heads ({options.heads}), got {options.width}")
    if options.qk_clip is not None and not 0 < options.qk_clip < float("inf"):
        parser.error(f"--qk-clip must be a positive number (got {options.qk_clip})")
    if options.seed < 0:
        parser.error(f"--seed must be at least 0 (got {options.seed})")

    training = Training(options)
    contenders = training.contenders
    say(f"{options.text.name}: {len(training.data)} characters, {len(training.letters)} different")
    say(
        f"{options.layers} layers of width {options.width}, {options.heads} heads, {training.size} weights; "
        f"{options.batch} x {options.seq} characters a step, {training.arrays.xp.__name__} on {options.device}\n"
    )
    say("  step" + "".join(f"{c.attention.name:>22}" for c in contenders))

    def report(step: int) -> None:
        say(f"{step + 1:6}" + "".join(f"{c.losses[step]:22.4f}" for c in contenders))

    training.run(report)
    on_cpu = options.device == "cpu"  # elsewhere calls return before they are done
    say("\nmedian time of a step" + (", and of its attention, forward and backward" if on_cpu else ""))
    for c in contenders:
        attention = f"{1e3 * statistics.median(c.in_attention):9.1f} ms" if on_cpu else ""
        say(f"  {c.attention.name:20}{1e3 * statistics.median(c.seconds):9.1f} ms{attention}")
    if len(contenders) > 1:
        apart = max(abs(a - b) for a, b in zip(*(c.losses for c in contenders)))
        say(f"the two losses are never further apart than {apart:.1e}")
    if options.qk_clip is not None:
        c, of = contenders[0], options.steps * options.layers * options.heads
        shrank = f"{c.clipped} of {of} heads shrank"
        say(f"QK-clip at {options.qk_clip:g}: {shrank}; the largest score is {c.largest[-1]:.2f}")
    title = f"{options.text.name}, {options.layers} layers, {training.size} weights"
    options.png.parent.mkdir(parents=True, exist_ok=True)
    picture.curves({c.attention.name: c.losses for c in contenders}, title, "step", "loss", options.png)
    say(f"loss curve: {options.png}")
    if options.write:
        say("\nthe model writes:\n\n" + training.write(options.write))
    return contenders


if __name__ == "__main__":
    main()
