"""onepass.torch.scaled_dot_product_attention beside PyTorch's own."""

import random

import pytest


@pytest.fixture
def sdpa(torch):
    import onepass.torch

    torch.manual_seed(0)
    return onepass.torch.scaled_dot_product_attention


TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def problem(torch, draw, device):
    """(tensors, options) of a random call."""
    dtype = getattr(torch, draw.choice(["float32", "float32", "float16", "bfloat16"]))
    lead = draw.choice([(), (1,), (2,), (3, 2), (2, 1, 2)])
    group, heads_kv = draw.choice([(1, 1), (1, 3), (2, 2), (4, 1)])
    rows, keys = draw.choice([1, 2, 7, 33, 70]), draw.choice([1, 5, 33, 64, 90])
    dim, dim_v = draw.choice([(8, 8), (16, 24), (64, 64), (80, 33)])

    def tensor(*shape, at=None):
        x = torch.randn(shape, device=device, dtype=at or dtype)
        if draw.random() < 0.3 and len(shape) >= 3:
            x = x.transpose(-3, -2).contiguous().transpose(-3, -2)
        if draw.random() < 0.1:
            x = x.mT.contiguous().mT  # the last dimension is not the fastest
        return x.requires_grad_()

    tensors = {
        "query": tensor(*lead, group * heads_kv, rows, dim),
        "key": tensor(*lead, heads_kv, keys, dim),
        "value": tensor(*lead, heads_kv, keys, dim_v),
    }
    options = {"enable_gqa": group > 1, "scale": draw.choice([None, None, 0.3])}
    kind = draw.choice(["none", "causal", "bool", "float"])
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        full = [*lead, group * heads_kv, rows, keys]
        shape = [n if draw.random() < 0.6 else 1 for n in full]
        shape = shape[draw.randrange(len(shape) - 1) :] if draw.random() < 0.4 else shape
        if kind == "bool":
            options["attn_mask"] = torch.rand(shape, device=device) < 0.6
        else:
            tensors["attn_mask"] = tensor(*shape, at=draw.choice([dtype, torch.float32]))
            if draw.random() < 0.3:  # rows of nothing but -inf among them
                hidden = torch.rand(shape, device=device) < 0.5
                tensors["attn_mask"] = tensors["attn_mask"].detach().masked_fill(hidden, -torch.inf).requires_grad_()
    return tensors, options


@pytest.mark.parametrize("seed", range(8))
def test_random_problems(sdpa, torch, device, seed):
    """Results and gradients, beside PyTorch's in float64."""
    theirs = torch.nn.functional.scaled_dot_product_attention
    draw = random.Random(seed)
    for _ in range(12 if device == "cpu" else 5):  # on a GPU each compiles its kernels
        tensors, options = problem(torch, draw, device)
        exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
        out, expected = sdpa(**tensors, **options), theirs(**exact, **options)
        keys = tensors["key"].shape[-2]
        shown = {name: (list(x.shape), x.dtype, x.stride()) for name, x in tensors.items()}, options
        near = TOLERANCE[str(out.dtype).rpartition(".")[2]]
        assert out.dtype == tensors["query"].dtype and out.shape == expected.shape, shown
        torch.testing.assert_close(out.double(), expected, atol=near, rtol=near, msg=lambda m, s=shown: f"{s}: {m}")
        weight = torch.randn_like(expected)
        grads = torch.autograd.grad((out * weight.to(out.dtype)).sum(), list(tensors.values()))
        wanted = torch.autograd.grad((expected * weight).sum(), list(exact.values()))
        for name, mine, other in zip(tensors, grads, wanted):
            assert mine.dtype == tensors[name].dtype
            other = other.nan_to_num()  # of -inf in a mask
            summed = expected.shape[:-1].numel() * keys / mine.numel() if name == "attn_mask" else 1
            size = 3 * near * max(1, other.abs().max().item(), summed**0.5 / 4)  # of a sum's rounded terms
            torch.testing.assert_close(
                mine.double(), other, atol=size, rtol=size, msg=lambda m, s=shown, n=name: f"d{n} of {s}: {m}"
            )


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
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in "qkv")
    for error, call in {
        "one of them is accepted": lambda: sdpa(q, k, v, attn_mask=torch.ones(5, 5), is_causal=True),
        "2 or more are accepted": lambda: sdpa(q[0, 0, 0], k, v),
        "enable_gqa needs a multiple": lambda: sdpa(q, k[:, :3], v[:, :3], enable_gqa=True),
        "q is float64": lambda: sdpa(q.double(), k.double(), v.double()),
    }.items():
        with pytest.raises((ValueError, TypeError, RuntimeError), match=error):
            call()
    with pytest.raises(RuntimeError):  # broadcasting's own sentence
        sdpa(q, k[:, :2], v[:, :2])
