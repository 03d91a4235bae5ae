"""onepass.flash_attn.layers.rotary: the functions that flash-attn's own test_rotary.py imports."""

import pytest


@pytest.fixture
def rotary(torch):
    from onepass.flash_attn.layers import rotary

    return rotary


def tables(torch, rows=7, half=6):
    angle = torch.randn(rows, half)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_textbook(rotary, torch, interleaved):
    x = torch.randn(2, 7, 3, 16)
    cos, sin = tables(torch)
    i, j = (slice(0, 12, 2), slice(1, 12, 2)) if interleaved else (slice(0, 6), slice(6, 12))
    expected = x.clone()
    c, s = cos[:, None], sin[:, None]
    expected[..., i], expected[..., j] = x[..., i] * c - x[..., j] * s, x[..., j] * c + x[..., i] * s
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, cos, sin, interleaved), expected)
    torch.testing.assert_close(rotary.apply_rotary_emb_func(x, cos, sin, interleaved), expected)
    both = (torch.stack([t, t]) for t in (cos, sin))
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, *both, interleaved), expected)
    with pytest.raises(ValueError, match=r"cos must have at most dim / 2 = 5 columns \(got 6\)"):
        rotary.apply_rotary_emb_torch(x[..., :10], cos, sin)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 2, "each"])
def test_parts_of_packed_projections(rotary, torch, interleaved, offsets):
    """In place, of leaves that require a gradient too."""
    cos, sin = tables(torch, rows=16)
    cos_k, sin_k = tables(torch, rows=16)
    offsets = torch.tensor([3, 0]) if offsets == "each" else offsets
    words = dict(interleaved=interleaved, seqlen_offsets=offsets)

    def turned(x, cos, sin):
        return rotary.apply_rotary_emb(x, cos, sin, **words)

    for shape, split, axis in (((2, 7, 3, 4, 16), None, 2), ((2, 7, 8, 16), [4, 2, 2], 2)):
        packed = torch.randn(shape, requires_grad=True)
        before = packed.detach().clone().requires_grad_()
        q, k, v = before.unbind(axis) if split is None else before.split(split, axis)
        parts = [turned(q, cos, sin), turned(k, cos_k, sin_k), v]
        expected = torch.stack(parts, axis) if split is None else torch.cat(parts, axis)
        grouped = {} if split is None else dict(num_heads_q=4)
        out = rotary.apply_rotary_emb_qkv_(packed, cos, sin, cos_k, sin_k, **words, **grouped)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(packed.detach(), expected.detach())
        weight = torch.randn_like(out)
        mine, theirs = (torch.autograd.grad(y, x, weight)[0] for y, x in ((out, packed), (expected, before)))
        torch.testing.assert_close(mine, theirs)
    kv = torch.randn(2, 7, 2, 4, 16, requires_grad=True)
    before = kv.detach().clone().requires_grad_()
    expected = torch.stack([turned(before[:, :, 0], cos, sin), before[:, :, 1]], 2)
    out = rotary.apply_rotary_emb_kv_(kv, cos, sin, **words)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(kv.detach(), expected.detach())
    weight = torch.randn_like(out)
    mine, theirs = (torch.autograd.grad(y, x, weight)[0] for y, x in ((out, kv), (expected, before)))
    torch.testing.assert_close(mine, theirs)


def test_in_place_within_a_graph(rotary, torch):
    """A read of the tensor afterwards, by its old name too, differentiates the rotation."""
    x = torch.randn(2, 7, 3, 16, requires_grad=True)
    cos, sin = tables(torch, half=8)
    hidden = 2 * x
    rotary.apply_rotary_emb(hidden, cos, sin, inplace=True)
    (mine,) = torch.autograd.grad((hidden * torch.arange(16)).sum(), x)
    (theirs,) = torch.autograd.grad((rotary.apply_rotary_emb(2 * x, cos, sin) * torch.arange(16)).sum(), x)
    torch.testing.assert_close(mine, theirs)


def test_refusals(rotary, torch):
    cos, sin = tables(torch)
    for sentence, call in {
        r"qkv must have shape .* \(got \[2, 7, 2, 3, 16\]\)": lambda: rotary.apply_rotary_emb_qkv_(
            torch.randn(2, 7, 2, 3, 16), cos, sin
        ),
        r"num_heads_q \(got \[2, 7, 8, 16\] with num_heads_q=3\)": lambda: rotary.apply_rotary_emb_qkv_(
            torch.randn(2, 7, 8, 16), cos, sin, num_heads_q=3
        ),
        r"kv must have shape \[batch, seq, 2, heads, dim\]": lambda: rotary.apply_rotary_emb_kv_(
            torch.randn(2, 7, 3, 3, 16), cos, sin
        ),
    }.items():
        with pytest.raises(ValueError, match=sentence):
            call()
