"""A character-level transformer with the gradient of every layer written out, attention by onepass.

Each layer is a function and its reverse: y, kept = layer(x, ...) and dx, ... = layer_back(dy, kept). They are written
for NumPy, and what they call is named alike in CuPy and PyTorch: `xp` is the library that the arrays are of. No
autograd takes part.
"""

import math
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import onepass
from numpy.typing import NDArray

GELU = math.sqrt(2 / math.pi)

Array = Any  # of the library `xp`
Weights = dict[str, Array]  # by name; gradients too


def norm(xp: ModuleType, x: Array, gain: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """RMSNorm."""
    r = 1 / xp.sqrt((x * x).mean(-1) + 1e-5)[..., None]
    return x * r * gain, (x * r, r, gain)


def norm_back(dy: Array, kept: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    unit, r, gain = kept
    d = dy * gain
    return r * (d - unit * (d * unit).mean(-1)[..., None]), (dy * unit).sum((0, 1))


def linear_back(dy: Array, x: Array, w: Array) -> tuple[Array, Array]:
    """The gradients of y = x w."""
    return dy @ w.T, x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def gelu(xp: ModuleType, x: Array) -> tuple[Array, tuple[Array, Array]]:
    t = xp.tanh(GELU * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + t), (x, t)


def gelu_back(dy: Array, kept: tuple[Array, Array]) -> Array:
    x, t = kept
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU * (1 + 0.134145 * x * x))


def cross_entropy(xp: ModuleType, logits: Array, targets: Array) -> tuple[Array, Array]:
    """(mean loss, its gradient); targets are one-hot, so that nothing need be gathered or scattered."""
    s = logits - xp.amax(logits, -1)[..., None]
    log_p = s - xp.log(xp.exp(s).sum(-1))[..., None]
    rows = math.prod(logits.shape[:-1])
    return -(targets * log_p).sum() / rows, (xp.exp(log_p) - targets) / rows


def qkv_views(xp: ModuleType, qkv: Array) -> tuple[Array, Array, Array]:
    """q, k and v as [batch, heads, seq, dim], views of one projection's result [batch, seq, 3, heads, dim]."""
    q, k, v = (xp.swapaxes(qkv[:, :, i], 1, 2) for i in range(3))
    return q, k, v


class Attention(Protocol):
    """From qkv [batch, seq, 3, heads, dim] to [batch, seq, heads, dim] and what backward needs, and its reverse."""

    name: str

    def forward(self, qkv: Array) -> tuple[Array, Any]: ...
    def backward(self, dout: Array, kept: Any) -> Array: ...


class Onepass:
    """Causal attention. out, lse and qkv are all that backward needs, and the gradients go where the projection's
    reverse reads them: nothing is copied or transposed."""

    name = "onepass"

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.largest: list[Array] | None = None  # a list: each forward appends the largest score of each head, [heads]

    def forward(self, qkv: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        out = self.xp.empty_like(qkv[:, :, 0])  # [batch, seq, heads, dim]
        _, lse, *most = onepass.attention(
            *qkv_views(self.xp, qkv),
            mask="causal_top_left",
            return_lse=True,
            return_max="head" if self.largest is not None else False,
            out=self.xp.swapaxes(out, 1, 2),
        )
        if self.largest is not None:
            self.largest += most
        return out, (qkv, out, lse)

    def backward(self, dout: Array, kept: tuple[Array, Array, Array]) -> Array:
        qkv, out, lse = kept
        dqkv = self.xp.empty_like(qkv)
        onepass.attention_backward(
            self.xp.swapaxes(dout, 1, 2),
            *qkv_views(self.xp, qkv),
            self.xp.swapaxes(out, 1, 2),
            lse,
            mask="causal_top_left",
            into=dict(zip(("dq", "dk", "dv"), qkv_views(self.xp, dqkv))),
        )
        return dqkv


def initial_weights(
    rng: np.random.Generator, vocabulary: int, seq: int, width: int, layers: int
) -> dict[str, NDArray[np.float32]]:
    """By name, float32; what adds to the residual stream begins smaller the more layers there are."""

    def normal(*shape: int, size: float) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(size)

    # Positions begin as waves, so that "the character before" is one turn away from the first step on.
    angles = np.arange(seq)[:, None] * (2.0 * seq) ** -np.linspace(0, 1, width // 2, endpoint=False)
    waves = np.concatenate((np.sin(angles), np.cos(angles), np.zeros((seq, width % 2))), axis=1)
    one = np.ones(width, np.float32)
    w = {"embed": normal(vocabulary, width, size=0.5), "position": 0.5 * waves.astype(np.float32)}
    for n in range(layers):
        w[f"{n}.norm"], w[f"{n}.mlp_norm"] = one.copy(), one.copy()
        w[f"{n}.qkv"] = normal(width, 3 * width, size=width**-0.5)
        w[f"{n}.out"] = normal(width, width, size=(2 * layers * width) ** -0.5)
        w[f"{n}.up"] = normal(width, 4 * width, size=width**-0.5)
        w[f"{n}.down"] = normal(4 * width, width, size=(8 * layers * width) ** -0.5)
    return w | {"norm": one, "unembed": normal(width, vocabulary, size=0.02)}


class Transformer:
    """weights: by name, as of initial_weights. tokens: one-hot [batch, seq, vocabulary]."""

    def __init__(self, xp: ModuleType, weights: Weights, heads: int, attention: Attention) -> None:
        self.xp, self.w, self.heads, self.attention = xp, weights, heads, attention
        self.layers = sum(name.endswith(".qkv") for name in weights)

    def forward(self, tokens: Array) -> tuple[Array, Any]:
        """(logits, what backward needs)"""
        xp, w, tape = self.xp, self.w, []
        batch, seq, _ = tokens.shape
        x = tokens @ w["embed"] + w["position"][:seq]
        for n in range(self.layers):
            h, of_norm = norm(xp, x, w[f"{n}.norm"])
            qkv = (h @ w[f"{n}.qkv"]).reshape(batch, seq, 3, self.heads, -1)
            o, of_attention = self.attention.forward(qkv)
            o = o.reshape(batch, seq, -1)
            x = x + o @ w[f"{n}.out"]
            g, of_mlp_norm = norm(xp, x, w[f"{n}.mlp_norm"])
            a, of_gelu = gelu(xp, g @ w[f"{n}.up"])
            x = x + a @ w[f"{n}.down"]
            tape.append((h, of_norm, o, of_attention, g, of_mlp_norm, a, of_gelu))
        y, of_norm = norm(xp, x, w["norm"])
        return y @ w["unembed"], (tokens, tape, y, of_norm)

    def backward(self, dlogits: Array, kept: Any) -> Weights:
        """Gradients by the names of the weights; dx is the gradient of the residual stream, from the top down."""
        w = self.w
        d: Weights = {}
        tokens, tape, y, of_norm = kept
        dy, d["unembed"] = linear_back(dlogits, y, w["unembed"])
        dx, d["norm"] = norm_back(dy, of_norm)
        for n in reversed(range(self.layers)):
            h, of_norm, o, of_attention, g, of_mlp_norm, a, of_gelu = tape[n]
            da, d[f"{n}.down"] = linear_back(dx, a, w[f"{n}.down"])
            dg, d[f"{n}.up"] = linear_back(gelu_back(da, of_gelu), g, w[f"{n}.up"])
            through, d[f"{n}.mlp_norm"] = norm_back(dg, of_mlp_norm)
            dx = dx + through
            do, d[f"{n}.out"] = linear_back(dx, o, w[f"{n}.out"])
            dqkv = self.attention.backward(do.reshape(*do.shape[:2], self.heads, -1), of_attention)
            dh, d[f"{n}.qkv"] = linear_back(dqkv.reshape(*do.shape[:2], -1), h, w[f"{n}.qkv"])
            through, d[f"{n}.norm"] = norm_back(dh, of_norm)
            dx = dx + through
        d["position"] = self.xp.zeros_like(w["position"])
        d["position"][: dx.shape[1]] = dx.sum(0)
        d["embed"] = tokens.reshape(-1, tokens.shape[-1]).T @ dx.reshape(-1, dx.shape[-1])
        return d

    def loss(self, tokens: Array, targets: Array) -> tuple[Array, Weights]:
        """(loss, gradients)"""
        logits, kept = self.forward(tokens)
        loss, dlogits = cross_entropy(self.xp, logits, targets)
        return loss, self.backward(dlogits, kept)


def qk_clip(xp: ModuleType, weights: Weights, largest: list[Array], threshold: float) -> int:
    """QK-clip (Kimi K2, arXiv 2507.20534, section 2.1): projections of q and k shrink where scores grow too large.

    largest: of each layer the largest score of each head, [heads]. The same input of a layer then has no larger score
    than threshold. Returns the number of heads that were clipped.
    """
    clipped = 0
    for n, most in enumerate(largest):
        w = weights[f"{n}.qkv"]
        shrink = xp.sqrt(xp.clip(threshold / xp.clip(most, threshold, None), None, 1))
        w.reshape(w.shape[0], 3, len(most), -1)[:, :2] *= shrink[:, None]
        clipped += int((most > threshold).sum())
    return clipped


class Adam:
    """Kingma and Ba 2015, with a rate that rises over the first `warm_up` steps."""

    def __init__(
        self, xp: ModuleType, weights: Weights, rate: float, warm_up: int = 20, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        self.xp, self.w, self.rate, self.warm_up, self.beta1, self.beta2 = xp, weights, rate, warm_up, beta1, beta2
        self.m, self.v = ({name: xp.zeros_like(x) for name, x in weights.items()} for _ in range(2))
        self.steps = 0

    def step(self, gradients: Weights) -> None:
        self.steps += 1
        rate = self.rate * min(1.0, self.steps / self.warm_up) / (1 - self.beta1**self.steps)
        for name, d in gradients.items():
            m, v = self.m[name], self.v[name]
            m *= self.beta1
            m += (1 - self.beta1) * d
            v *= self.beta2
            v += (1 - self.beta2) * d * d
            self.w[name] -= rate * m / (self.xp.sqrt(v / (1 - self.beta2**self.steps)) + 1e-8)
