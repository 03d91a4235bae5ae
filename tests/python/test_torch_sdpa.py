"""onepass.torch.scaled_dot_product_attention beside PyTorch's own."""

import random

import pytest


@pytest.fixture
def sdpa(torch):
    import onepass.torch

    torch.manual_seed(0)
    return onepass.torch.scaled_dot_product_attention


@pytest.mark.parametrize("seed", range(8))
def test_random_problems(torch, device, seed):
    import random_sdpa

    torch.manual_seed(seed)
    draw = random.Random(seed)
    for _ in range(12 if device == "cpu" else 5):  # on a GPU each compiles its kernels
        random_sdpa.check(torch, draw, device)


def test_what_broadcasts(sdpa, torch):
    """Batch and heads of one, without enable_gqa; ranks that differ; two dimensions."""
    theirs = torch.nn.functional.scaled_dot_product_attention
    for shapes in [
        ((2, 4, 5, 8), (1, 4, 6, 8), (2, 4, 6, 8)),
        ((2, 4, 5, 8), (2, 1, 6, 8), (2, 1, 6, 8)),
        ((2, 1, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
        ((2, 4, 5, 8), (2, 4, 6, 8), (2, 1, 6, 8)),
        ((5, 8), (6, 8), (6, 3)),
        ((5, 8), (4, 6, 8), (4, 6, 8)),
        ((5, 8), (3, 2, 4, 6, 8), (4, 6, 8)),
        ((4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
    ]:
        x = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(sdpa(*x), theirs(*x), atol=1e-5, rtol=1e-5)
    q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 4, 6, 16)
    torch.testing.assert_close(sdpa(q, k, v, enable_gqa=True), theirs(q, k, v, enable_gqa=True), atol=1e-5, rtol=1e-5)


def test_sizes_of_zero(sdpa, torch):
    for rows, keys in (0, 5), (5, 0), (0, 0):
        q, k, v = torch.randn(2, 3, rows, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 4)
        out = sdpa(q, k, v)
        assert out.shape == (2, 3, rows, 4) and (out == 0).all()


def test_causal_biases_are_not_expanded(sdpa, torch):
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = (torch.randn(2, 3, n, 16) for n in (5, 9, 9))
    for bias in causal_upper_left(5, 9), causal_lower_right(5, 9):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias._materialize())
        torch.testing.assert_close(sdpa(q, k, v, attn_mask=bias), expected, atol=1e-5, rtol=1e-5)


def test_dropout_follows_manual_seed(sdpa, torch, device):
    q, k, v = (torch.randn(2, 4, 64, 32, device=device, requires_grad=True) for _ in "qkv")

    def run(seed):
        torch.manual_seed(seed)
        out = sdpa(q, k, v, dropout_p=0.4)
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    first, again, other = run(1), run(1), run(2)
    torch.testing.assert_close(first, again, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first[0], other[0], atol=1e-2)
    ones = torch.ones(8, 8, 128, 64, device=device)
    assert abs(sdpa(ones, ones, ones, dropout_p=0.4).mean().item() - 1) < 0.02
    assert (sdpa(q, k, v, dropout_p=1.0) == 0).all()


def test_compiled_dropout_repeats(sdpa, torch):
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 16, 32) for _ in "qkv")
    fast = torch.compile(lambda *x: sdpa(*x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(fast(q, k, v))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_the_block_replaces_and_restores(torch):
    import onepass.torch

    functional = torch.nn.functional
    theirs, calls = functional.scaled_dot_product_attention, []
    with pytest.raises(KeyError), onepass.torch.sdpa():
        with onepass.torch.sdpa():
            assert functional.scaled_dot_product_attention is onepass.torch.scaled_dot_product_attention
        assert functional.scaled_dot_product_attention is onepass.torch.scaled_dot_product_attention
        raise KeyError
    assert functional.scaled_dot_product_attention is theirs and not calls


def test_a_layer_of_pytorch_runs_in_the_block(torch):
    import onepass.torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    x = torch.randn(2, 10, 64)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True
    expected = layer(x, src_key_padding_mask=padding)
    with onepass.torch.sdpa():
        out = layer(x, src_key_padding_mask=padding)
        out.sum().backward()
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_refusals(sdpa, torch):
    from torch.nn.attention.bias import causal_lower_right as lower_right

    q, k, v = (torch.randn(2, 4, 5, 8) for _ in "qkv")
    for error, call in {
        "attn_mask and is_causal=True are mutually exclusive": lambda: sdpa(
            q, k, v, attn_mask=torch.ones(5, 5), is_causal=True
        ),
        "must have at least 2 dimensions": lambda: sdpa(q[0, 0, 0], k, v),
        "the heads of query must be a multiple": lambda: sdpa(q, k[:, :3], v[:, :3], enable_gqa=True),
        "q is float64": lambda: sdpa(q.double(), k.double(), v.double()),
        r"must have the same number of heads, .* \(got \(4, 2, 2\)\)": lambda: sdpa(q, k[:, :2], v[:, :2]),
        r"before heads must broadcast \(got \[1, 2\], \[1, 3\] and \[1, 2\]\)": lambda: sdpa(
            q, k[None, :1].expand(1, 3, -1, -1, -1), v
        ),
        r"key must be a torch.Tensor \(got ndarray\)": lambda: sdpa(q, k.numpy(), v),
        r"query must be a torch.Tensor \(got None\)": lambda: sdpa(None, k, v),
        r"attn_mask must be a torch.Tensor \(got list\)": lambda: sdpa(q, k, v, attn_mask=[True] * 5),
        r"must be a causal mask of \(5, 5\), the lengths .* \(got \(5, 6\)\)": lambda: sdpa(
            q, k, v, attn_mask=lower_right(5, 6)
        ),
    }.items():
        with pytest.raises((ValueError, TypeError, RuntimeError), match=error):
            call()


def test_compiled_for_other_numbers_of_heads(sdpa, torch):
    """A 3-D call whose first dimension has become symbolic."""
    torch._dynamo.reset()
    compiled = torch.compile(sdpa, fullgraph=True, backend="eager")
    for heads, rows in ((3, 5), (4, 5), (6, 7), (1, 5)):
        q, k, v = torch.randn(3, heads, rows, 8)
        torch.testing.assert_close(compiled(q, k, v), sdpa(q, k, v), rtol=0, atol=0)
    q = torch.randn(6, 5, 8)
    torch.testing.assert_close(compiled(q, q[:1], q[:1]), sdpa(q, q[:1], q[:1]), rtol=0, atol=0)
