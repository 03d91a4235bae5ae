"""The rule of PyTorch's own tests of FlexAttention: errors against float64, beside those of its eager function.

Source of the rule: `_check_equal` in test/inductor/test_flex_attention.py of PyTorch 2.15 (BSD-3-Clause). The mean
error of a result may differ from that of the eager function by 10 times the latter in float32, and by 1.1 times in
16 bits.
"""

import onepass.torch
import torch
from test_flex_attention import eager
from torch.nn.attention import flex_attention as theirs

FACTORS = {torch.float32: 10.0, torch.bfloat16: 1.1, torch.float16: 1.1}
DTYPES = [torch.float32, torch.bfloat16]

BATCH, HEADS, LENGTH, DIM = 2, 4, 272, 16  # two tiles of 128 and a part of one


def causal_mask(b, h, q, kv):
    return q >= kv


def causal(score, b, h, q, kv):
    return torch.where(q >= kv, score, float("-inf"))


def distance(score, b, h, q, kv):
    return score + (q - kv)


SCORE_MODS = {
    "identity": lambda score, b, h, q, kv: score,
    "times_two": lambda score, b, h, q, kv: score * 2,
    "squared": lambda score, b, h, q, kv: score * score,
    "causal": causal,
    "inverse_causal": lambda score, b, h, q, kv: torch.where(q <= kv, score, float("-inf")),
    "rel_bias": distance,
    "rel_causal": lambda score, b, h, q, kv: torch.where(q >= kv, score + (q - kv), float("-inf")),
    "alibi": lambda score, b, h, q, kv: score + (kv - q) * torch.exp2(-((h + 1) * 8.0 / HEADS)),
}


def draw(dtype=torch.float32, batch=BATCH, heads=HEADS, rows=LENGTH, keys=None, dim=DIM, **sizes):
    """q, k and v. sizes: batch_kv, heads_kv and dim_v, where they differ."""
    generator = torch.Generator().manual_seed(0)
    batch_kv, heads_kv = sizes.get("batch_kv", batch), sizes.get("heads_kv", heads)
    keys = rows if keys is None else keys
    shapes = (batch, heads, rows, dim), (batch_kv, heads_kv, keys, dim), (batch_kv, heads_kv, keys)
    shapes = *shapes[:2], (*shapes[2], sizes.get("dim_v", dim))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def near(name, mine, reference, exact, dtype):
    """The mean error of `mine` keeps to the rule of a call in that dtype."""
    mine, reference = mine.detach().double(), reference.detach().double()
    exact = exact.detach()
    finite = torch.isfinite(exact)
    assert torch.equal(mine[~finite], exact[~finite]), f"{name}: infinities differ"
    assert torch.isfinite(mine[finite]).all(), f"{name} is not finite"
    error, allowed = ((x - exact)[finite].abs().mean() for x in (mine, reference))
    assert error <= (1 + FACTORS[dtype]) * allowed + 1e-7, (
        f"{name} is off by {error:.3g}, the reference by {allowed:.3g}"
    )


def masks(mask_mod, batch, heads, rows, keys, **options):
    """(onepass's, PyTorch's) block mask; None of a mask_mod that is None."""
    if mask_mod is None:
        return None, None
    return [x.create_block_mask(mask_mod, batch, heads, rows, keys, "cpu", **options) for x in (onepass.torch, theirs)]


def follows(
    score_mod=None,
    mask_mod=None,
    inputs=None,
    dtype=torch.float32,
    block_mask=None,
    mask=(None, None),
    gradients=True,
    **sizes,
):
    """Results and gradients of onepass keep to the rule.

    mask: B and H of the block mask. block_mask: onepass's and PyTorch's in place of a mask_mod. inputs: q, k and v in
    place of drawn ones.
    """
    block = {"BLOCK_SIZE": sizes.pop("block")} if "block" in sizes else {}
    q, k, v = draw(dtype, **sizes) if inputs is None else inputs
    ours, others = block_mask or masks(mask_mod, *mask, q.shape[2], k.shape[2], **block)
    found = {}
    for name, kind in (("exact", torch.float64), ("reference", q.dtype), ("mine", q.dtype)):
        arguments = [x.detach().to(kind).requires_grad_() for x in (q, k, v)]
        if name == "mine":
            grouped = q.shape[1] != k.shape[1]
            out, lse = onepass.torch.flex_attention(*arguments, score_mod, ours, enable_gqa=grouped, return_lse=True)
        else:
            out, lse = eager(*arguments, score_mod, others)
        slopes = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
        rise = torch.linspace(0.5, 1.5, out.shape[2], dtype=out.dtype)[:, None]
        seen = torch.isfinite(lse)
        loss = (out * slopes * rise).sum() + 0.5 * lse[seen].sum()
        found[name] = [out, lse, *(torch.autograd.grad(loss, arguments) if gradients else ())]
    for name, *three in zip(("out", "lse", "dq", "dk", "dv"), found["mine"], found["reference"], found["exact"]):
        near(name, *three, q.dtype)
    return found["mine"][0]
