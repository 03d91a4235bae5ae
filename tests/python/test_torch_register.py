"""onepass as PyTorch's flash attention implementation: SDPA and varlen_attn without a patch, beside PyTorch's math."""

import pytest
from flash_textbook import near, same_gradients, textbook


@pytest.fixture
def registered(torch):
    import onepass.torch

    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        pytest.skip("this PyTorch has no register_flash_attention_impl")
    torch.manual_seed(0)
    onepass.torch.register()
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # PyTorch prefers it to flash attention on Hopper
    yield torch
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    torch.nn.attention.restore_flash_attention_impl(_raise_warn=False)


@pytest.fixture
def calls(registered, monkeypatch):
    """Problems that onepass computes, by name of the kernel."""
    from onepass import _torch_register

    seen = []
    for name in ("_forward", "_backward"):
        theirs = getattr(_torch_register, name)

        def counted(*args, _name=name, _theirs=theirs, **words):
            seen.append(_name)
            return _theirs(*args, **words)

        monkeypatch.setattr(_torch_register, name, counted)
    return seen


def math(torch, q, k, v, **words):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **words)


CASES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "scale": dict(scale=0.2),
    "mask": dict(mask=True),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sdpa(registered, calls, device, case, dtype):
    torch, words = registered, {name: x for name, x in case.items() if name != "mask"}
    if device == "cuda" and (dtype == "float32" or "mask" in case):
        pytest.skip("PyTorch does not choose flash attention")
    inputs = [torch.randn(2, 24, 4, 32, device=device, dtype=getattr(torch, dtype)).transpose(1, 2) for _ in range(3)]
    inputs = [x.requires_grad_() for x in inputs]
    if "mask" in case:
        words["attn_mask"] = (torch.rand(2, 1, 24, 24, device=device) < 0.7) | torch.eye(24, device=device).bool()
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, **words)
    assert calls == ["_forward"]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = math(torch, *exact, **words)
    near(out, expected.detach(), dtype)
    same_gradients(out, inputs, expected, exact, dtype)
    torch.nn.functional.scaled_dot_product_attention(*inputs, **words).sum().backward()
    assert calls == ["_forward", "_backward"] * 2


def test_results_have_the_strides_of_pytorchs(registered):
    torch, op = registered, registered.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q = torch.randn(2, 24, 4, 32).transpose(1, 2)
    mine = op(q, q, q)
    torch.nn.attention.restore_flash_attention_impl()
    theirs = op(q, q, q)
    for x, y in zip(mine, theirs):
        assert x.stride() == y.stride() and x.dtype == y.dtype
        torch.testing.assert_close(x, y, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 0), (3, 2)])
def test_varlen_attn(registered, calls, device, window):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    torch, dtype = registered, registered.float32 if device == "cpu" else registered.bfloat16
    ends = torch.tensor([0, 7, 7, 30], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(30, 4, 32, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = varlen.varlen_attn(q, k, v, ends, ends, 23, 23, window_size=window)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    words = {"window_size": (window[0], window[1])}
    parts = [textbook(*(x[None, a:b] for x in exact), **words)[0][0] for a, b in ((0, 7), (7, 30))]
    expected, name = torch.cat(parts), str(dtype).rpartition(".")[2]
    near(out, expected.detach(), name)
    same_gradients(out, [q, k, v], expected, exact, name)
    assert calls == ["_forward", "_backward"]


def test_varlen_attn_of_used_keys_and_pages(registered, calls, device):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    torch, dtype = registered, registered.float32 if device == "cpu" else registered.bfloat16
    name = str(dtype).rpartition(".")[2]
    ends = torch.tensor([0, 3, 5], dtype=torch.int32, device=device)
    used = torch.tensor([20, 9], dtype=torch.int32, device=device)
    q = torch.randn(5, 4, 32, device=device, dtype=dtype)
    k, v = (torch.randn(2, 32, 4, 32, device=device, dtype=dtype) for _ in "kv")
    keys = torch.tensor([0, 32, 64], dtype=torch.int32, device=device)
    expected = torch.cat([textbook(q[None, a:b].double(), k[n : n + 1, :u].double(), v[n : n + 1, :u].double())[0][0]
                          for n, (a, b, u) in enumerate(((0, 3, 20), (3, 5, 9)))])  # fmt: skip
    flat = k.flatten(0, 1), v.flatten(0, 1)
    if "seqused_k" not in varlen.varlen_attn.__kwdefaults__:
        pytest.skip("varlen_attn of this PyTorch has no seqused_k")
    near(varlen.varlen_attn(q, *flat, ends, keys, 3, 32, seqused_k=used), expected, name)
    if "block_table" in varlen.varlen_attn.__kwdefaults__:
        table = torch.tensor([[1], [0]], dtype=torch.int32, device=device)
        pages = k.flip(0).contiguous(), v.flip(0).contiguous()
        out = varlen.varlen_attn(q, *pages, ends, None, 3, 32, seqused_k=used, block_table=table)
        near(out, expected, name)
    assert set(calls) == {"_forward"}


def test_others_keep_pytorchs_kernel(registered, calls):
    torch = registered
    for words in (dict(dtype=torch.float64), dict(dim=520)):
        shape = 1, 2, 10, words.get("dim", 16)
        inputs = [torch.randn(shape, dtype=words.get("dtype"), requires_grad=True) for _ in range(3)]
        exact = [x.detach().double().requires_grad_() for x in inputs]
        out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        expected = math(torch, *exact, is_causal=True)
        near(out, expected.detach(), "float32")
        same_gradients(out, inputs, expected, exact, "float32")
    assert not calls


def test_nested_jagged_tensors(registered, calls):
    torch = registered
    if not torch.cuda.is_available():
        pytest.skip("PyTorch chooses flash attention for nested tensors on CUDA only")
    lengths = [5, 17]
    parts = [torch.randn(n, 4, 64, device="cuda", dtype=torch.bfloat16) for n in lengths]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(nested, nested, nested).transpose(1, 2)
    for x, y in zip(parts, out.unbind()):
        near(y, textbook(*(x[None].double() for _ in range(3)))[0][0], "bfloat16")
    assert calls == ["_forward"]


def test_names_and_ends(registered, calls):
    torch, attention = registered, registered.nn.attention
    import onepass.torch

    assert attention.current_flash_attention_impl() == "onepass"
    onepass.torch.register()
    assert attention.current_flash_attention_impl() == "onepass"
    attention.restore_flash_attention_impl()
    q = torch.randn(1, 2, 10, 16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    onepass.torch.register(activate=False)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert not calls and "onepass" in attention.list_flash_attention_impls()
    attention.activate_flash_attention_impl("onepass")
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert calls == ["_forward"]
    with pytest.raises(RuntimeError, match=r"dropout_p must be 0 in a registered flash attention \(got 0.5\)"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5)


def test_an_older_pytorch_is_refused(torch, monkeypatch):
    import onepass.torch

    monkeypatch.delattr(torch.nn.attention, "register_flash_attention_impl", raising=False)
    with pytest.raises(RuntimeError, match="register must run in a PyTorch with register_flash_attention_impl"):
        onepass.torch.register()
