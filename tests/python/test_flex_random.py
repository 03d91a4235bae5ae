"""Random score_mods and mask_mods: results and gradients against float64, of tensors that they capture too."""

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_mods import HEADS, KEYS, ROWS  # noqa: E402
from test_flex_attention import draw, eager, their_mask  # noqa: E402

INDICES = ("b", "h", "q", "k")


class Source:
    """Python text of functions, drawn at random. Scores stay within some tens: tanh and clamp bound what grows."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def integer(self, depth):
        if depth == 0 or self.random.random() < 0.2:
            return self.pick(*INDICES, *INDICES, str(self.random.randint(-9, 9)))
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        positive = self.random.randint(1, 9)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {self.random.randint(-3, 3)})",
            f"({a} // {self.pick(positive, -positive)})",
            f"({a} % {self.pick(positive, -positive)})",
            f"torch.fmod(q - {a}, {positive})",
            f"(q - {a}).abs()",
            f"torch.minimum(q + {a}, k - {b})",
            f"torch.clamp(k + {a}, {-positive}, {positive})",
            f"torch.where({self.boolean(depth - 1)}, {a}, {b})",
            f"(({a}) & {positive})",
            f"DOCUMENT[({a}) % {KEYS}]",
        )

    def boolean(self, depth):
        a, b = self.integer(max(0, depth - 1)), self.integer(max(0, depth - 1))
        if depth == 0 or self.random.random() < 0.4:
            return f"(q + {a} {self.pick('<', '<=', '>', '>=', '==', '!=')} k + {b})"
        x, y = self.boolean(depth - 1), self.boolean(depth - 1)
        return self.pick(
            f"({x} & {y})", f"({x} | {y})", f"({x} ^ {y})", f"~{x}", f"torch.logical_or({x}, {y})", f"SEEN[({a}) % 7]"
        )

    def number(self, depth):
        if depth == 0 or self.random.random() < 0.15:
            return self.pick(
                "s",
                "s",
                "s",
                "POINT",
                "(POINT - 0.25)",
                "SLOPES[h]",
                "TABLE[h, q - k]",
                "GATE[b, h]",
                f"((h + {self.integer(1)}) / 8)",
            )
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"torch.tanh({a}) * ({b})",
            f"({a}) / (2 + torch.tanh({b}))",
            f"torch.where({self.boolean(depth - 1)}, {a}, {b})",
            f"torch.sigmoid({a})",
            f"torch.exp(-torch.tanh({a}))",
            f"torch.sqrt(1 + torch.tanh({a}) ** 2)",
            f"torch.log(2 + torch.tanh({a}))",
            f"torch.clamp({a}, -3.25, 2.75)",
            f"torch.maximum({a}, {b} - 0.125)",
            f"({a}).abs()",
            f"-({a})",
        )


@pytest.mark.parametrize("seed", range(40))
def test_random_mods(seed):
    source = Source(seed)
    score = source.number(4)
    mask = f"{source.boolean(3)} | (q == k)"  # every row sees a key
    generator = torch.Generator().manual_seed(seed)
    captured = {
        "SLOPES": torch.rand(HEADS, generator=generator),
        "TABLE": torch.randn(HEADS, ROWS + KEYS - 1, generator=generator),
        "GATE": torch.randn(2, HEADS, generator=generator),
        "POINT": torch.tensor(0.75),
    }
    integers = {"DOCUMENT": torch.arange(KEYS) // 9, "SEEN": torch.rand(7, generator=generator) < 0.5}
    results = []
    for dtype in (torch.float64, torch.float32):
        arrays = {name: x.to(dtype).requires_grad_() for name, x in captured.items()}
        names = {"torch": torch, **arrays, **integers}
        score_mod = eval(f"lambda s, b, h, q, k: 1.5 * s + torch.tanh({score})", names)
        mask_mod = eval(f"lambda b, h, q, k: {mask}", names)
        inputs = [x.detach().to(dtype).requires_grad_() for x in draw()]
        if dtype == torch.float64:
            out, lse = eager(*inputs, score_mod, their_mask(mask_mod))
        else:
            block_mask = onepass.torch.create_block_mask(mask_mod, 2, HEADS, ROWS, KEYS, device="cpu")
            out, lse = onepass.torch.flex_attention(*inputs, score_mod, block_mask, return_lse=True)
        weights = torch.linspace(-1, 1, out.shape[-1], dtype=dtype)
        found = torch.autograd.grad((out * weights).sum() + lse.sum(), [*inputs, *arrays.values()], allow_unused=True)
        zero = [torch.zeros_like(x) for x in (*inputs, *arrays.values())]
        results.append([out, lse, *(z if x is None else x for x, z in zip(found, zero))])
    for what, mine, other in zip(("out", "lse", "q", "k", "v", *captured), results[1], results[0]):
        worst, size = (mine - other).abs().max().item(), max(1.0, other.abs().max().item())
        assert worst <= 1e-4 * size, f"{what} is off by {worst:.3g} of {size:.3g}\nscore: {score}\nmask: {mask}"
