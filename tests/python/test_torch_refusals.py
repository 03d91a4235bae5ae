"""Refusals of onepass.torch at the call: lost gradients, devices and shapes that do not fit, nested tensors."""

import pytest
from conftest import qkv


def test_numbers_that_require_a_gradient(attention, torch):
    """A learned temperature would stay as it is, silently."""
    import onepass
    import onepass.torch

    q, k, v = qkv(torch)
    for name in ("scale", "softcap"):
        number = torch.tensor(0.5, requires_grad=True)
        sentence = f"{name}.requires_grad is set, but attention does not return its gradient"
        for tensors in ((q, k, v), [x.clone().requires_grad_() for x in (q, k, v)]):
            with pytest.raises(RuntimeError, match=sentence):
                attention(*tensors, **{name: number})
        with pytest.raises(RuntimeError, match=f"{name}.requires_grad is set"):
            onepass.attention(q, k, v, **{name: number})
        with torch.no_grad():
            torch.testing.assert_close(attention(q, k, v, **{name: number}), attention(q, k, v, **{name: 0.5}))
        torch.testing.assert_close(attention(q, k, v, **{name: number.detach()}), attention(q, k, v, **{name: 0.5}))
    with pytest.raises(RuntimeError, match="scale.requires_grad is set"):
        onepass.torch.scaled_dot_product_attention(k, k, k, scale=torch.tensor(0.5, requires_grad=True))


@pytest.mark.parametrize("name", ["k_new", "v_new", "q", "cos"])
def test_append_kv_loses_no_gradient(torch, name):
    import onepass.torch

    given = dict(k_new=torch.randn(2, 2, 3, 16), v_new=torch.randn(2, 2, 3, 16), q=torch.randn(2, 4, 3, 16))
    caches = [torch.zeros(2, 2, 8, 16) for _ in "kv"]
    tables = dict(cos=torch.ones(8, 8), sin=torch.zeros(8, 8), cache_seqlens=torch.zeros(2, dtype=torch.int32))
    given |= tables
    given[name].requires_grad_()
    k_new, v_new = given.pop("k_new"), given.pop("v_new")
    with pytest.raises(RuntimeError, match=f"{name}.requires_grad is set, but append_kv does not return its gradient"):
        onepass.torch.append_kv(k_new, v_new, *caches, **given)
    assert not any(x.any() for x in caches)
    with torch.no_grad():
        onepass.torch.append_kv(k_new, v_new, *caches, **given)
    assert torch.equal(caches[0][:, :, :3], k_new)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_negative_bit(attention, torch, dtype):
    """A view whose memory holds the negatives of its values."""
    import onepass.torch

    q, k, v = (x.to(getattr(torch, dtype)) for x in qkv(torch))
    v = v[..., :16]
    expected = attention(-q, k, v)
    assert torch.equal(attention(torch._neg_view(q), k, v), expected)
    assert torch.equal(attention(-q, k, torch._neg_view(-v)), expected)
    sdpa = onepass.torch.scaled_dot_product_attention
    assert torch.equal(sdpa(torch._neg_view(q), k, v, enable_gqa=True), sdpa(-q, k, v, enable_gqa=True))
    q.requires_grad_()
    dout = torch.randn_like(expected)
    (mine,) = torch.autograd.grad(attention(q, k, v), q, torch._neg_view(dout))
    (theirs,) = torch.autograd.grad(attention(q, k, v), q, -dout)
    assert torch.equal(mine, theirs)


def test_one_tensor_without_memory(attention, torch):
    """A result of uninitialised memory would look like a result."""
    q, k, v = qkv(torch)
    for name in "qkv":
        given = dict(q=q, k=k, v=v)
        given[name] = given[name].to("meta")
        other, place = ("k", "meta") if name == "q" else (name, "cpu")
        with pytest.raises(ValueError, match=f"{other} must be on {place}, as q is"):
            attention(**given)
    with pytest.raises(ValueError, match="bias must be on cpu, as q is .got meta"):
        attention(q, k, v, bias=torch.zeros(19, 23, device="meta"))


WRONG = {
    "of k must be 16": lambda q, k, v: dict(k=k[..., :15]),
    "of v must be 23": lambda q, k, v: dict(v=v[:, :, 1:]),
    "batch of k must be 2": lambda q, k, v: dict(k=k[:1]),
    "heads_q": lambda q, k, v: dict(q=q[:, :3]),
    "bool_mask": lambda q, k, v: dict(bool_mask=k.new_ones(19, 22, dtype=bool)),
    "alibi_slopes": lambda q, k, v: dict(alibi_slopes=k.new_ones(3)),
    r"^v must be .*16": lambda q, k, v: dict(k=k.half()),
    r"q must be .* \(got float64\)": lambda q, k, v: dict(q=q.double()),
    r"bias must be .* \(got int64\)": lambda q, k, v: dict(bias=k.new_ones(19, 23, dtype=int)),
    "^v .*shape": lambda q, k, v: dict(v=v[0, 0, 0]),
    "seqused_k": lambda q, k, v: dict(seqused_k=k.new_ones(3, dtype=int)),
    "window": lambda q, k, v: dict(window=(-2, 0)),
    "softcap": lambda q, k, v: dict(softcap=-1.0),
    "score_mod": lambda q, k, v: dict(score_mod="score +"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_fake_results_need_what_real_ones_need(attention, torch, sentence):
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensors = qkv(torch)
    with FakeTensorMode() as mode:
        fakes = list(map(mode.from_tensor, tensors))
        assert attention(*fakes).shape == (2, 4, 19, 24)
    for given in (tensors, [x.to("meta") for x in tensors]):
        words = dict(zip("qkv", given)) | WRONG[sentence](*given)
        with pytest.raises((ValueError, TypeError), match=sentence):
            attention(**words)
    with mode, pytest.raises((ValueError, TypeError), match=sentence):
        attention(**(dict(zip("qkv", fakes)) | WRONG[sentence](*fakes)))


def test_fake_results_of_everything_else(attention, torch):
    q, k, v = (x.to("meta") for x in qkv(torch))
    packed = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), torch.zeros(2, 3, dtype=torch.int64, device="meta")))
    tokens = torch.zeros(10, 4, 16, device="meta")
    assert attention(tokens, tokens[:, :2], tokens[:, :2, :8], **packed).shape == (10, 4, 8)
    table = torch.zeros(2, 5, dtype=torch.int32, device="meta")
    pages = (x.transpose(1, 2) for x in (k, v))
    assert attention(q, *pages, page_table=table, seqused_k=table[:, 0]).shape == (2, 4, 19, 24)
    half = [x.bfloat16() for x in (q, k, v)]
    assert attention(*half, fp8={"center": True}).dtype == torch.bfloat16
    sinks = torch.zeros(4, dtype=torch.float64, device="meta")
    buffers = {"t": torch.zeros(4, device="meta")}
    assert attention(*half, sinks=sinks, score_mod="score + t[head]", mod_buffers=buffers).shape == (2, 4, 19, 24)
    half[0].requires_grad_()
    out, lse = attention(*half, return_lse=True, dropout_p=0.5)
    assert torch.autograd.grad(out.sum() + lse.sum(), half[0])[0].shape == half[0].shape


def test_a_fake_append_needs_what_a_real_one_needs(torch):
    import onepass.torch

    new, cache = torch.zeros(2, 2, 3, 16, device="meta"), torch.zeros(2, 2, 8, 16, device="meta")
    used = torch.zeros(2, dtype=torch.int32, device="meta")
    assert onepass.torch.append_kv(new, new, cache, cache.clone(), cache_seqlens=used) is None
    for sentence, words in {
        "k_new must have heads 2, as k_cache has .got 1": dict(k_new=new[:, :1]),
        "v_new must have dim 16, as v_cache has .got 8": dict(v_new=new[..., :8]),
        r"k_new must have shape \[batch, heads_kv, seq_new, dim\]": dict(k_new=new[0]),
        "cache_seqlens or slot_mapping must be given": dict(cache_seqlens=None),
        r"k_new must have shape \[tokens, heads_kv, dim\]": dict(cache_seqlens=None, slot_mapping=used.long()),
        "v_cache must be on meta, as k_new is": dict(v_cache=torch.zeros(2, 2, 8, 16)),
    }.items():
        with pytest.raises(ValueError, match=sentence):
            onepass.torch.append_kv(
                **(dict(k_new=new, v_new=new, k_cache=cache, v_cache=cache, cache_seqlens=used) | words)
            )


def test_a_backward_needs_six_answers(torch):
    """A short list was read beyond its end."""
    import onepass.torch  # noqa: F401

    backward = torch.ops.onepass.attention_backward
    q, k, v = qkv(torch)
    out, lse, _ = torch.ops.onepass.attention(q, k, v)
    for place in ("cpu", "meta"):
        tensors = [x.to(place) for x in (q, k, v)]
        given = torch.ones_like(out, device=place), None, out.to(place), lse.to(place)
        for wanted in ([], [True], [True] * 3, [True] * 7):
            with pytest.raises(ValueError, match=rf"wanted must have 6 elements \(got {len(wanted)}\)"):
                backward(*given, wanted, *tensors)
        with pytest.raises(ValueError, match="wanted asks for dbias, but bias is None"):
            backward(*given, [True] * 4 + [False] * 2, *tensors)
        assert backward(*given, [True] * 3 + [False] * 3, *tensors)[1].shape == k.shape
    with pytest.raises(ValueError, match="dout"):
        backward(given[0][:1], *given[1:], [True] * 3 + [False] * 3, *tensors)


def test_nested_tensors(attention, torch):
    import onepass
    import onepass.torch

    for layout in (torch.jagged, torch.strided):
        x = torch.nested.nested_tensor([torch.randn(n, 4, 16) for n in (3, 5)], layout=layout).transpose(1, 2)
        with pytest.raises(TypeError, match="q is a nested tensor, which onepass does not support; pass packed seq"):
            attention(x, x, x)
        with pytest.raises(TypeError, match="query is a nested tensor"):
            onepass.torch.scaled_dot_product_attention(x, x, x)
        with pytest.raises(TypeError, match="^q "):
            onepass.attention(x, x, x)
