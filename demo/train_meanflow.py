"""Trains MeanFlow, which draws in one step, with onepass's forward mode and with PyTorch's own attention.

    pip install torch
    python3 demo/train_meanflow.py

A sample is a ring of 12 points, turned by a random angle. No single point says how far: the points have to agree, which
takes attention. The network u(z, r, t) is the mean velocity between two times of a flow from rings (t = 0) to noise
(t = 1), so one call turns noise into a ring, z - u(z, 0, 1). Its loss needs the derivative of the whole network along
(v, 0, 1), which torch.func.jvp takes (Geng et al. 2025, arXiv:2505.13447, Algorithm 1).
"""

import argparse
import math
from collections.abc import Callable

import onepass.torch
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, HEADS, POINTS, BATCH = 64, 4, 12, 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.times = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, times: Tensor, attend: Attend) -> Tensor:
        scale, shift, scale_mlp, shift_mlp = self.times(times)[:, None].chunk(4, -1)
        y = self.norms[0](x) * (1 + scale) + shift
        q, k, v = self.qkv(y).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x) * (1 + scale_mlp) + shift_mlp)


class Velocity(torch.nn.Module):
    """u(z, r, t) of z [batch, points, 2] and times [batch]."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.points, self.places = torch.nn.Linear(2, WIDTH), torch.nn.Parameter(torch.randn(POINTS, WIDTH) / 2)
        self.times = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, WIDTH))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, 2)
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.linspace(-2, 2, WIDTH // 4))

    def forward(self, z: Tensor, r: Tensor, t: Tensor) -> Tensor:
        angles = torch.stack([t, t - r], -1)[..., None] * self.frequencies
        times = self.times(torch.cat([angles.sin(), angles.cos()], -1).flatten(1))
        x = self.points(z) + self.places
        for layer in self.layers:
            x = layer(x, times, self.attend)
        return self.head(x)


def rings(count: int, draw: torch.Generator) -> Tensor:
    """Points at even angles of a circle of radius sqrt(2), so that a coordinate has a variance of 1."""
    turn = torch.rand(count, 1, generator=draw) * 2 * math.pi
    angle = turn + torch.arange(POINTS) * (2 * math.pi / POINTS)
    return math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], -1)


def distance(points: Tensor) -> float:
    """The root mean square distance of a point from the ring that fits its sample best: 1.35 for noise, 0 for rings."""
    at = torch.complex(points[..., 0], points[..., 1])
    places = torch.polar(torch.ones(POINTS), torch.arange(POINTS) * (2 * math.pi / POINTS))
    best = torch.sgn((at * places.conj()).mean(-1, keepdim=True)) * places * math.sqrt(2)
    return (at - best).abs().square().mean().sqrt().item()


def train(attend: Attend, steps: int, device: str) -> tuple[list[float], float]:
    """The loss of each step and, at the end, distance() of samples drawn in one step."""
    torch.manual_seed(0)
    model, draw = Velocity(attend).to(device), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        ring, noise = rings(BATCH, draw), torch.randn(BATCH, POINTS, 2, generator=draw)
        r, t = torch.sigmoid(torch.randn(2, BATCH, generator=draw) - 0.4).sort(0).values
        r = torch.where(torch.rand(BATCH, generator=draw) < 0.5, t, r)
        ring, noise, r, t = (x.to(device) for x in (ring, noise, r, t))
        v = noise - ring
        z = ring + t[:, None, None] * v
        u, along = torch.func.jvp(model, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)))
        target = v - (t - r)[:, None, None] * along.detach()
        error = (u - target).square().mean((1, 2))
        loss = (error / (error.detach() + 1e-3)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        losses.append(error.mean().item())
    with torch.no_grad():
        noise = torch.randn(1024, POINTS, 2, generator=draw).to(device)
        zero = torch.zeros(1024, device=device)
        return losses, distance((noise - model(noise, zero, zero + 1)).cpu())


def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's attention that has a forward mode."""
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v)


def main(arguments: list[str] | None = None) -> tuple[tuple[list[float], float], tuple[list[float], float]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    (mine, ours), (theirs, other) = (
        train(attend, options.steps, options.device) for attend in (onepass.torch.attention, textbook)
    )
    for step in [*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1]:
        print(f"step {step:4}: error {mine[step]:.4f} with onepass, {theirs[step]:.4f} with PyTorch")
    print(f"samples of one step are {ours:.2f} from a ring with onepass, {other:.2f} with PyTorch; noise is 1.35")
    return (mine, ours), (theirs, other)


if __name__ == "__main__":
    main()
