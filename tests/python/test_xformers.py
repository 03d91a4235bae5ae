"""onepass.xformers beside PyTorch's math with the mask written out."""

import pytest
from flash_textbook import near, same_gradients


@pytest.fixture
def ops(torch):
    import onepass.xformers

    torch.manual_seed(0)
    return onepass.xformers


def math(torch, q, k, v, bias=None, scale=None):
    """[batch, seq, heads, dim]; bias is added, -inf hides."""
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    s = s if bias is None else s + bias
    p = (s - s.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.einsum("bhij,bjhd->bihd", p, v)


def hidden(torch, rows, keys, right, left=None, bottom=False, device="cpu"):
    """0 or -inf of a band."""
    at = torch.arange(rows, device=device)[:, None] + (keys - rows if bottom else 0)
    j = torch.arange(keys, device=device)
    seen = torch.ones(rows, keys, dtype=torch.bool, device=device)
    seen &= j <= at + right if right is not None else True
    seen &= j >= at - left if left is not None else True
    return torch.zeros(rows, keys, dtype=torch.float64, device=device).masked_fill(~seen, -torch.inf)


DENSE = {
    "none": (lambda o: None, {}),
    "causal": (lambda o: o.LowerTriangularMask(), dict(right=0)),
    "bottom_right": (lambda o: o.LowerTriangularFromBottomRightMask(), dict(right=0, bottom=True)),
    "local": (
        lambda o: o.LowerTriangularFromBottomRightMask().make_local_attention(5),
        dict(right=0, left=4, bottom=True),
    ),
    "window": (lambda o: o.LocalAttentionFromBottomRightMask(3, 2), dict(right=2, left=3, bottom=True)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
def test_dense(ops, torch, device, case, dtype):
    q, k, v = (
        torch.randn(2, n, 4, 16, device=device, dtype=getattr(torch, dtype), requires_grad=True) for n in (19, 23, 23)
    )
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    words = {x: y for x, y in case[1].items() if x != "right"}
    band = hidden(torch, 19, 23, case[1].get("right"), device=device, **words)
    expected = math(torch, *exact, band, 0.3)
    out = ops.memory_efficient_attention(q, k, v, case[0](ops), scale=0.3)
    near(out, expected.detach(), dtype)
    same_gradients(out, [q, k, v], expected, exact, dtype)
    assert torch.equal(ops.memory_efficient_attention_forward(q, k, v, case[0](ops), scale=0.3), out)
    two, lse = ops.memory_efficient_attention_forward_requires_grad(q, k, v, case[0](ops), scale=0.3)
    assert torch.equal(two, out) and lse.shape == (2, 4, 19)
    dout = torch.randn_like(out)
    mine = ops.memory_efficient_attention_backward(dout, two, lse, q, k, v, case[0](ops), scale=0.3)
    expected = math(torch, *exact, band, 0.3)
    for x, y in zip(mine, torch.autograd.grad(expected, exact, dout.double())):
        near(x / 3, y / 3, dtype)


def test_a_tensor_as_bias_and_its_gradient(ops, torch, device):
    q, k, v = (torch.randn(2, 12, 4, 16, device=device, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 4, 12, 12, device=device, requires_grad=True)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    for mine, band in ((bias, 0), (ops.LowerTriangularMask().add_bias(bias), hidden(torch, 12, 12, 0, device=device))):
        expected = math(torch, *exact[:3], exact[3] + band)
        out = ops.memory_efficient_attention(q, k, v, mine)
        near(out, expected.detach(), "float32")
        same_gradients(out, [q, k, v, bias], expected, exact, "float32")
    one = [x[:, :, 0] for x in (q, k, v)]
    near(
        ops.memory_efficient_attention(*one, bias[:, 0]),
        math(torch, *(x[:, :, :1] for x in exact[:3]), exact[3][:, :1])[:, :, 0].detach(),
        "float32",
    )


def test_grouped_heads_are_not_expanded(ops, torch, device):
    q = torch.randn(2, 12, 2, 3, 16, device=device, requires_grad=True)
    k, v = (torch.randn(2, 12, 2, 1, 16, device=device, requires_grad=True) for _ in "kv")
    wide = [x.expand(2, 12, 2, 3, 16) for x in (k, v)]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    flat = [x.expand(2, 12, 2, 3, 16).flatten(2, 3) for x in exact]
    expected = math(torch, *flat).unflatten(2, (2, 3))
    out = ops.memory_efficient_attention(q, *wide)
    near(out, expected.detach(), "float32")
    same_gradients(out, [q, k, v], expected, exact, "float32")
    from onepass._xformers_call import call_of

    assert call_of(q, *wide, None).qkv[1].shape == (2, 12, 2, 16)
    _, lse = ops.memory_efficient_attention_forward_requires_grad(q, *wide)
    assert lse.shape == (2, 2, 3, 12)


PACKED = {
    "plain": ("BlockDiagonalMask", {}),
    "causal": ("make_causal", dict(right=0)),
    "bottom_right": ("make_causal_from_bottomright", dict(right=0, bottom=True)),
    "local": ("make_local_attention", dict(right=0, left=3)),
    "local_bottom_right": ("make_local_attention_from_bottomright", dict(right=0, left=3, bottom=True)),
}


@pytest.mark.parametrize("case", PACKED.values(), ids=PACKED)
def test_packed(ops, torch, device, case):
    rows, keys = [5, 1, 9], [7, 4, 9]
    mask = ops.BlockDiagonalMask.from_seqlens(rows, keys, device=device)
    if case[0] != "BlockDiagonalMask":
        mask = getattr(mask, case[0])(*([4] if "left" in case[1] else []))
    q = torch.randn(1, 15, 4, 16, device=device, requires_grad=True)
    k, v = (torch.randn(1, 20, 4, 16, device=device, requires_grad=True) for _ in "kv")
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    words = {x: y for x, y in case[1].items() if x != "right"} | {"device": device}

    def textbook():
        parts = zip(*(x.split(n, 1) for x, n in zip(exact, (rows, keys, keys))))
        bands = [hidden(torch, a, b, case[1].get("right"), **words) for a, b in zip(rows, keys)]
        return torch.cat([math(torch, *part, band) for part, band in zip(parts, bands)], 1)

    expected = textbook()
    out = ops.memory_efficient_attention(q, k, v, mask)
    near(out, expected.detach(), "float32")
    same_gradients(out, [q, k, v], expected, exact, "float32")
    assert [x.shape[1] for x in mask.split_queries(out)] == rows and [x.shape[1] for x in mask.split_kv(k)] == keys
    two, lse = ops.memory_efficient_attention_forward_requires_grad(q, k, v, mask)
    assert lse.shape == (1, 4, 15)
    mine = ops.memory_efficient_attention_backward(torch.ones_like(out), two, lse, q, k, v, mask)
    for x, y in zip(mine, torch.autograd.grad(textbook().sum(), exact)):
        near(x / 3, y / 3, "float32")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["padded", "paged", "gappy"])
def test_caches(ops, torch, device, kind, causal):
    rows, used, room = [2, 1, 3], [5, 8, 4], 8
    name = "BlockDiagonalCausalWithOffsetPaddedKeysMask" if causal else "BlockDiagonalPaddedKeysMask"
    mask = getattr(ops, name).from_seqlens(rows, room, used, device=device)
    q = torch.randn(1, 6, 4, 16, device=device)
    k, v = (torch.randn(1, 3 * room, 4, 16, device=device) for _ in "kv")
    expected = torch.cat(
        [
            math(
                torch,
                x.double(),
                *(c[:, b * room : b * room + used[b]].double() for c in (k, v)),
                hidden(torch, rows[b], used[b], 0 if causal else None, bottom=True, device=device),
            )
            for b, x in enumerate(q.split(rows, 1))
        ],
        1,
    )
    if kind == "paged":  # xFormers' own class, by its name
        order = torch.randperm(6, device=device)
        k, v = (x.unflatten(1, (6, 4))[:, order].flatten(1, 2) for x in (k, v))
        table = order.argsort().to(torch.int32).reshape(3, 2)
        name = "PagedBlockDiagonal" + ("CausalWithOffset" if causal else "") + "PaddedKeysMask"
        members = dict(q_seqinfo=mask.q_seqinfo, k_seqinfo=mask.k_seqinfo, block_tables=table, page_size=4)
        mask = type(name, (), members)()
    if kind == "gappy":
        k, v = (torch.cat([torch.full_like(x[:, :2], torch.nan), x], 1) for x in (k, v))
        k, v = (x.index_fill(1, torch.tensor([7], device=device), torch.nan) for x in (k, v))
        starts = [2, 10, 18, 26]
        info = dict(seqstart_py=starts, seqstart=torch.tensor(starts, dtype=torch.int32, device=device))
        info |= dict(max_seqlen=8, seqlen=torch.tensor(used, dtype=torch.int32, device=device))
        name = "BlockDiagonal" + ("CausalWithOffset" if causal else "") + "GappyKeysMask"
        mask = type(name, (), dict(q_seqinfo=mask.q_seqinfo, k_seqinfo=type("Gappy", (), info)()))()
    near(ops.memory_efficient_attention(q, k, v, mask), expected, "float32")


def test_lists_of_tensors(ops, torch):
    tensors = [torch.randn(2, 3, 4, 16), torch.randn(1, 5, 4, 16)]
    mask, x = ops.BlockDiagonalMask.from_tensor_list(tensors)
    for mine, y in zip(mask.split(ops.memory_efficient_attention(x, x, x, mask)), tensors):
        near(mine, math(torch, *(y.double() for _ in range(3))), "float32")


def test_dropout(ops, torch):
    q = torch.randn(2, 12, 4, 16)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(ops.memory_efficient_attention(q, q, q, p=0.5))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    with pytest.raises(NotImplementedError, match=r"p must be 0 outside of autograd \(got 0.5\)"):
        ops.memory_efficient_attention_forward_requires_grad(q, q, q, p=0.5)


def test_refusals(ops, torch):
    q = torch.randn(2, 12, 4, 16)
    unknown = type("PagedBlockDiagonalGappyKeysMask", (ops.BlockDiagonalMask,), {})
    with pytest.raises(
        NotImplementedError, match="attn_bias does not support PagedBlockDiagonalGappyKeysMask; it supp"
    ):
        ops.memory_efficient_attention(q, q, q, unknown.from_seqlens([24]))
    with pytest.raises(ValueError, match=r"query, key and value must have shape .* \(got 4, 3 and 4 dimensions\)"):
        ops.memory_efficient_attention(q, q[:, :, 0], q)
    with pytest.raises(ValueError, match=r"x must have shape \[1, 24, ...\] \(got \[2, 12, 4, 16\]\)"):
        ops.BlockDiagonalMask.from_seqlens([24]).split(q)
