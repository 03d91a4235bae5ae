"""The demo that trains, in JAX: the same character-level transformer, its attention by onepass.jax inside of jit.

    python3 demo/train_jax.py      with onepass and jax installed

It is trained a second time with jax.nn.dot_product_attention, step by step in turn: the same seed gives the same curve.
"""

import argparse
import functools
import math
import pathlib
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import onepass.jax
from transformer import initial_weights

ROOT = pathlib.Path(__file__).resolve().parents[1]
ATTENTIONS = {"onepass.jax": onepass.jax.dot_product_attention, "jax.nn": jax.nn.dot_product_attention}

Attention = Callable[..., jax.Array]
Weights = dict[str, jax.Array]
State = tuple[Weights, Weights, Weights, jax.Array | int]


def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """RMSNorm."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def loss_of(weights: Weights, text: jax.Array, heads: int, attention: Attention) -> jax.Array:
    """Cross entropy, in nats a character, of each next character of text [batch, seq + 1]."""
    w, tokens, targets = weights, text[:, :-1], text[:, 1:]
    batch, seq = tokens.shape
    x = w["embed"][tokens] + w["position"][:seq]
    for n in range(sum(name.endswith(".qkv") for name in w)):
        qkv = (norm(x, w[f"{n}.norm"]) @ w[f"{n}.qkv"]).reshape(batch, seq, 3, heads, -1)
        q, k, v = (qkv[:, :, i] for i in range(3))  # [batch, seq, heads, dim]
        x = x + attention(q, k, v, is_causal=True).reshape(batch, seq, -1) @ w[f"{n}.out"]
        x = x + jax.nn.gelu(norm(x, w[f"{n}.mlp_norm"]) @ w[f"{n}.up"]) @ w[f"{n}.down"]
    log_p = jax.nn.log_softmax(norm(x, w["norm"]) @ w["unembed"])
    return -jnp.take_along_axis(log_p, targets[..., None], axis=-1).mean()


@functools.partial(jax.jit, static_argnames=("heads", "rate", "attention"))
def step(state: State, text: jax.Array, *, heads: int, rate: float, attention: Attention) -> tuple[State, jax.Array]:
    """One step of Adam (Kingma and Ba 2015): state is (weights, first moments, second moments, steps)."""
    w, m, v, steps = state
    loss, gradients = jax.value_and_grad(loss_of)(w, text, heads, attention)
    steps = steps + 1
    m = jax.tree.map(lambda m, d: 0.9 * m + 0.1 * d, m, gradients)
    v = jax.tree.map(lambda v, d: 0.99 * v + 0.01 * d * d, v, gradients)
    now = rate * jnp.minimum(1.0, steps / 20) / (1 - 0.9**steps)
    w = jax.tree.map(lambda w, m, v: w - now * m / (jnp.sqrt(v / (1 - 0.99**steps)) + 1e-8), w, m, v)
    return (w, m, v, steps), loss


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "LICENSE", help="the text to learn")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of --heads")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    o = parser.parse_args(arguments)
    if o.width % o.heads:
        parser.error(f"--width must be a multiple of --heads ({o.heads}), got {o.width}")

    text = o.text.read_text(encoding="utf-8")
    letters = sorted(set(text))
    data = np.array([letters.index(c) for c in text])
    if len(data) <= o.seq:
        parser.error(f"{o.text} has {len(data)} characters; --seq {o.seq} needs more")
    rng = np.random.default_rng(o.seed)
    weights = jax.tree.map(jnp.asarray, initial_weights(rng, len(letters), o.seq, o.width, o.layers))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    states = dict.fromkeys(ATTENTIONS, (weights, zeros, zeros, 0))
    losses: dict[str, list[float]] = {name: [] for name in ATTENTIONS}
    seconds: dict[str, list[float]] = {name: [] for name in ATTENTIONS}
    print(f"{sum(x.size for x in weights.values())} weights on {jax.devices()[0]}\n")
    print("  step" + "".join(f"{name:>22}" for name in ATTENTIONS))
    for i in range(o.steps):
        start = rng.integers(len(data) - o.seq, size=(o.batch, 1))
        batch = jnp.asarray(data[start + np.arange(o.seq + 1)])
        for name in list(ATTENTIONS)[:: 1 if i % 2 == 0 else -1]:
            begin = time.perf_counter()
            states[name], loss = step(states[name], batch, heads=o.heads, rate=o.rate, attention=ATTENTIONS[name])
            losses[name].append(float(loss))
            seconds[name].append(time.perf_counter() - begin)
        if i % max(1, o.steps // 10) == 0 or i == o.steps - 1:
            print(f"{i + 1:6}" + "".join(f"{losses[name][i]:22.4f}" for name in ATTENTIONS), flush=True)
    print()
    for name in ATTENTIONS:
        print(f"{name:20}{1e3 * statistics.median(seconds[name]):9.1f} ms a step, the median")
    apart = max(abs(a - b) for a, b in zip(*losses.values()))
    print(f"the largest difference between the two losses is {apart:.1e}")
    assert math.isfinite(apart)
    return losses


if __name__ == "__main__":
    main()
