"""Attention of [batch, seq, heads, dim] by its definition in PyTorch, for the tests of other libraries' functions."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def textbook(
    q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, hidden=None, attention_chunk=0, **words
):
    """(out, lse) of [batch, seq, heads, dim]; hidden: [batch, keys] that no row sees."""
    scale = words.get("softmax_scale") or q.shape[-1] ** -0.5
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    s = softcap * torch.tanh(s / softcap) if softcap > 0 else s
    last = k.shape[1] if hidden is None else (~hidden * torch.arange(1, k.shape[1] + 1, device=q.device)).amax(1)
    last = torch.as_tensor(last, device=q.device).expand(len(q))[:, None, None, None]  # keys of a sequence
    at = torch.arange(q.shape[1], device=q.device)[:, None] + last - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)
    if alibi_slopes is not None:
        s = s - alibi_slopes.reshape(-1, q.shape[2], 1, 1) * (at - j).abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = torch.ones_like(s, dtype=torch.bool)
    seen &= j >= at - left if left >= 0 else True
    seen &= j <= at + right if right >= 0 else True
    if attention_chunk:
        seen &= (j // attention_chunk) == torch.div(at, attention_chunk, rounding_mode="floor")
    if hidden is not None:
        seen &= ~hidden[:, None, None]
    s = s.masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1)
    p = torch.where(seen, (s - lse[..., None]).exp(), 0)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse.masked_fill(lse == -torch.inf, torch.inf)


def near(mine, theirs, dtype, what=""):
    size = TOLERANCE[dtype] * max(1.0, theirs[theirs.isfinite()].abs().max().item())
    torch.testing.assert_close(mine.double(), theirs, atol=size, rtol=0, msg=lambda m: f"{what}: {m}")


def same_gradients(out, inputs, expected, exact, dtype):
    weight = torch.randn_like(expected)
    mine = torch.autograd.grad((out * weight.to(out.dtype)).sum(), inputs)
    for n, (x, y) in enumerate(zip(mine, torch.autograd.grad((expected * weight).sum(), exact))):
        near(x / 3, y / 3, dtype, f"gradient {n}")
