"""precision="tf32": what it accepts, and that a CPU computes in fp32 then."""

import numpy as np
import onepass
import pytest
from conftest import inputs


def test_a_cpu_computes_in_fp32(rng):
    q, k, v = inputs(rng)
    out, lse = onepass.attention(q, k, v, return_lse=True)
    assert np.array_equal(onepass.attention(q, k, v, precision="tf32"), out)
    assert np.array_equal(onepass.attention(q, k, v, precision="fp32"), out)
    dout = rng.standard_normal(out.shape, dtype=np.float32)
    for x, y in zip(
        onepass.attention_backward(dout, q, k, v, out, lse, precision="tf32"),
        onepass.attention_backward(dout, q, k, v, out, lse),
    ):
        assert np.array_equal(x, y)
    for x, y in zip(onepass.jvp(q, k, v, q, k, v, precision="tf32"), onepass.jvp(q, k, v, q, k, v)):
        assert np.array_equal(x, y)


def test_another_word_and_another_dtype_are_refused(rng):
    q, k, v = inputs(rng)
    for word in ("high", "TF32", None, 1, True):
        with pytest.raises(ValueError, match=r"precision must be 'fp32' or 'tf32' \(got "):
            onepass.attention(q, k, v, precision=word)
    q16, k16, v16 = (x.astype(np.float16) for x in (q, k, v))
    onepass.attention(q16, k16, v16, precision="fp32")
    with pytest.raises(ValueError, match=r"precision=tf32 requires an fp32 q \(got fp16\)"):
        onepass.attention(q16, k16, v16, precision="tf32")
    with pytest.raises(ValueError, match="attention_fp8 does not support precision=tf32"):
        onepass.attention(q, k, v, precision="tf32", fp8=True)


def test_plans_name_it():
    line = "fwd b1 h2 s100x300 d64 fp32 precision=tf32 cuda"
    for target in ("sm_80", "sm_90"):
        assert "tf32 products" in onepass.explain(line, target=target)
        assert "tf32 products" not in onepass.explain(line.replace(" precision=tf32", ""), target=target)


def test_torch(torch, rng):
    q, k, v = (torch.from_numpy(x) for x in inputs(rng))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = [x.clone().requires_grad_() for x in (q, k, v)]
    out, same = onepass.torch.attention(*leaves, precision="tf32"), onepass.torch.attention(*plain)
    assert torch.equal(out, same)
    for x, y in zip(torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(same.sum(), plain)):
        assert torch.equal(x, y)
    with pytest.raises(ValueError, match=r"precision must be 'fp32' or 'tf32' \(got 'high'\)"):
        onepass.torch.attention(q, k, v, precision="high")
    with pytest.raises(ValueError, match=r"precision=tf32 requires an fp32 q \(got bf16\)"):
        onepass.torch.attention(*(x.bfloat16() for x in (q, k, v)), precision="tf32")
    _, tangent = torch.func.jvp(lambda q: onepass.torch.attention(q, k, v, precision="tf32"), (q,), (q,))
    _, expected = torch.func.jvp(lambda q: onepass.torch.attention(q, k, v), (q,), (q,))
    assert torch.equal(tangent, expected)


def test_the_precision_of_a_call_reaches_its_gradients(torch, monkeypatch, rng):
    """A CPU shows no difference in numbers."""
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in inputs(rng))
    out, asked, backward = onepass.torch.attention(q, k, v, precision="tf32"), [], onepass.attention_backward
    monkeypatch.setattr(onepass._onepass, "torch_backward", lambda *_: None)  # the shorter way
    monkeypatch.setattr(
        onepass,
        "attention_backward",
        lambda *x, **options: (asked.append(options["precision"]), backward(*x, **options)),
    )
    out.sum().backward()
    assert asked == ["tf32"]


def test_jax(jax, rng):
    q, k, v = map(jax.numpy.asarray, inputs(rng))
    call = jax.jit(lambda q, **words: onepass.jax.attention(q, k, v, **words), static_argnames="precision")
    assert np.array_equal(call(q, precision="tf32"), call(q))
    gradient = jax.grad(lambda q: onepass.jax.attention(q, k, v, precision="tf32").sum())(q)
    assert np.array_equal(gradient, jax.grad(lambda q: onepass.jax.attention(q, k, v).sum())(q))
    with pytest.raises(ValueError, match=r"precision must be 'fp32' or 'tf32' \(got 'high'\)"):
        onepass.jax.attention(q, k, v, precision="high")
