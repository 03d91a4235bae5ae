"""score_mods and mask_mods as attention-gym writes them, for PyTorch's flex_attention and onepass's."""

import inspect

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

NEW_BLOCK_MASKS = pytest.mark.skipif(
    "separate_full_blocks" not in inspect.signature(create_block_mask).parameters,
    reason="this PyTorch has the block masks of 2.11",
)
HEADS, ROWS, KEYS = 4, 64, 64
generator = torch.Generator().manual_seed(1)


def random(*shape):
    return torch.randn(shape, generator=generator)


DOCUMENT = torch.arange(KEYS) // 20
PREFIX = torch.tensor([10, 40])
SLOPES = torch.exp2(-(torch.arange(HEADS) + 1) * 8.0 / HEADS)
TABLE = random(HEADS, ROWS + KEYS - 1)
BIAS = random(HEADS, ROWS, KEYS)
GATE = random(2, HEADS)
OFFSETS = torch.tensor([0, 20, 40, 60, 64])
POINT = torch.tensor(0.25, dtype=torch.float64)
WIDTH = 8  # of a canvas

SCORE_MODS = {
    "none": None,
    "causal": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    "alibi": lambda s, b, h, q, k: s + (k - q) * SLOPES[h],
    "alibi_in_python": lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / HEADS)) * (k - q),
    "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "relative": lambda s, b, h, q, k: s + (q - k),
    "table": lambda s, b, h, q, k: s + TABLE[h, q - k],  # negative: counts from the end
    "bias": lambda s, b, h, q, k: s + BIAS[h, q, k],
    "head_offset": lambda s, b, h, q, k: s + 2 * h,
    "gate": lambda s, b, h, q, k: s * torch.sigmoid(GATE[b, h]),
    "gate_by_parts": lambda s, b, h, q, k: s * torch.sigmoid(GATE[b][h]) + POINT,
    "trig": lambda s, b, h, q, k: s * torch.sin(q * 0.1) + torch.cos(s) * torch.cos(k / 3),
    "squared": lambda s, b, h, q, k: 0.1 * s**2 + torch.sqrt(torch.abs(s) + 1) - torch.log1p(s.abs()),
    "clamped": lambda s, b, h, q, k: torch.clamp(s, -2.0, 1.5) + s.clamp(min=0.25),
    "masked_fill": lambda s, b, h, q, k: s.masked_fill((q - k).abs() > 9, -1.0),
    "silu": lambda s, b, h, q, k: torch.relu(s) + torch.exp(-s * s) - torch.rsqrt(1 + s * s),
    "chunks": lambda s, b, h, q, k: torch.where(q // 16 == k // 16, s, s - 5),
    "signed_division": lambda s, b, h, q, k: s + (q - k) // 5 - (q - k) % 3 + torch.fmod(k - q, 4) * 0.5,
    "of_the_score": lambda s, b, h, q, k: s - torch.floor(s) + torch.remainder(s, 0.75) + torch.trunc(2 * s) / 7,
    "sign": lambda s, b, h, q, k: s * torch.sign(q - k) + (s > 0.5) * 2,
    "bits": lambda s, b, h, q, k: s + ((q & 3) ^ (k | 1)) + (q >> 2) - (h << 1) + (~k),
    "like": lambda s, b, h, q, k: torch.where(q > k, torch.zeros_like(s), s.new_ones(()) + s),
    "divided": lambda s, b, h, q, k: s + q / (k + 1) + torch.div(q, k + 1, rounding_mode="floor"),
    "minimum": lambda s, b, h, q, k: torch.minimum(s, q - k) + torch.maximum(s, s * 2),
    "reciprocal": lambda s, b, h, q, k: 1 / (1 + s * s) + 2.0**-h + (s.abs() + 1) ** 1.5,
    "dtypes": lambda s, b, h, q, k: s.to(torch.float32) + q.float() + (q > k).int() + k.to(dtype=torch.int64),
}


def natten(b, h, q, k):
    return ((q // WIDTH - k // WIDTH).abs() <= 2) & ((q % WIDTH - k % WIDTH).abs() <= 2)


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return q - k <= 9


MASK_MODS = {
    "causal": causal,
    "sliding_window": lambda b, h, q, k: (q >= k) & (q - k <= 9),
    "prefix": lambda b, h, q, k: (k < PREFIX[b]) | (q >= k),
    "documents": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "jagged": lambda b, h, q, k: (k >= OFFSETS[DOCUMENT[q]]) & (k < OFFSETS[DOCUMENT[q] + 1]),
    "dilated": lambda b, h, q, k: (q >= k) & ((q - k) % 4 == 0),
    "natten": natten,
    "by_head": lambda b, h, q, k: (q - k).abs() < 4 * (h + 1),
    "sinks_and_window": lambda b, h, q, k: (k < 4) | ((q >= k) & (q - k < 8)),
    "hidden_rows": lambda b, h, q, k: (q > 20) & (k > 5),
    "logical": lambda b, h, q, k: torch.logical_or(torch.logical_not(k > q), torch.logical_xor(k == 3, k < 2)),
    "everything": lambda b, h, q, k: q.new_ones((), dtype=torch.bool),
}
