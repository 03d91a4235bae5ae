"""Gradients from Python: beside the float64 formula of reference.py, which is itself a slope of its forward."""

import numpy as np
import onepass
import pytest
import random_gradients

import reference

RNG = np.random.default_rng(3)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("score_mod", [None, "2.0 * tanh(score / 2.0) + table(head, k_index)"])
def test_the_reference_is_a_slope(score_mod):
    side = {"bias": normal(7, 11), "sinks": normal(4), "alibi_slopes": np.abs(normal(2, 4))}
    options = {"softcap": 2.0, "mask": "causal_bottom_right", "window": (5, 2), "dropout_p": 0.3, "seed": 2**63 + 5}
    options |= {"bool_mask": RNG.random((2, 1, 7, 11)) < 0.7}
    if score_mod:
        options |= {"score_mod": score_mod, "mod_buffers": {"table": normal(4, 11)}, "mask_mod": "k_index != 3"}
    inputs = {"q": normal(2, 4, 7, 8), "k": normal(2, 2, 11, 8), "v": normal(2, 2, 11, 5)} | side
    dout, dlse = normal(2, 4, 7, 5), normal(2, 4, 7)

    def of(names, given):
        return [given[name] for name in names], {n: x for n, x in (options | given).items() if n not in names}

    def loss(given):
        arrays, rest = of("qkv", given)
        out, lse = reference.attention(*arrays, **rest)
        return (out * dout).sum() + (np.where(np.isfinite(lse), lse, 0) * dlse).sum()

    exact = {name: x.astype(np.float64) for name, x in inputs.items()}
    arrays, rest = of("qkv", exact)
    made = reference.gradients(dout, *arrays, *reference.attention(*arrays, **rest), dlse=dlse, **rest)
    for name, x in exact.items():
        direction = RNG.standard_normal(x.shape)
        step = 1e-5 * direction
        expected = (loss(exact | {name: x + step}) - loss(exact | {name: x - step})) / 2e-5
        assert np.vdot(made["d" + name][0], direction) == pytest.approx(expected, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("seed", range(12))
def test_random_problems(seed):
    for number in range(25 * seed, 25 * seed + 25):
        said, case = random_gradients.drawn(number)
        assert not said, f"--seed {number}: {case}"


def test_results_go_where_they_are_asked_for():
    q, k, v, dout = (normal(1, 5, 2, 8, dtype=np.float16).transpose(0, 2, 1, 3) for _ in range(4))
    out, lse = onepass.attention(q, k, v, return_lse=True)
    dk = np.full((1, 2, 5, 8), np.nan, np.float32)
    first, second = onepass.attention_backward(
        dout, q, k, v, out, lse, grads=("dk", "dq"), grad_dtype="float32", into={"dk": dk}
    )
    assert first is dk and np.isfinite(dk).all()
    assert second.dtype == np.float32 and second.strides[1] < second.strides[2]  # as q lies
    (dv,) = onepass.attention_backward(dout, q, k, v, out, lse, grads="dv")
    assert dv.dtype == np.float16


def test_calls_that_are_wrong_say_so():
    q, k, v, dout = (normal(1, 2, 4, 8) for _ in range(4))
    out, lse = onepass.attention(q, k, v, return_lse=True)

    def sentence(error, *args, **options):
        with pytest.raises(error) as caught:
            onepass.attention_backward(*args, **options)
        return str(caught.value)

    assert "dout must be an array (got None)" in sentence(TypeError, None, q, k, v, out, lse)
    assert "lse must be an array (got None)" in sentence(TypeError, dout, q, k, v, out, None)
    assert "(got shape [1, 2, 3, 8])" in sentence(ValueError, dout[:, :, :3], q, k, v, out, lse)
    assert "dout must be fp32, as out (got fp16)" in sentence(TypeError, dout.astype(np.float16), q, k, v, out, lse)
    assert "grads asks for dbias but bias is None" in sentence(ValueError, dout, q, k, v, out, lse, grads="dbias")
    assert "'do'" in sentence(ValueError, dout, q, k, v, out, lse, grads=("dq", "do"))
    assert "grad_dtype must be None (q's dtype) or 'float32' (got 'float16')" in sentence(
        ValueError, dout, q, k, v, out, lse, grad_dtype="float16"
    )
    assert "dalibi_slopes must be given" in sentence(ValueError, dout, q, k, v, out, lse, grads=())
    assert "each once (got 3)" in sentence(TypeError, dout, q, k, v, out, lse, grads=3)
    assert "each once (got set)" in sentence(TypeError, dout, q, k, v, out, lse, grads={"dq", "dk"})
    assert "each once (got ('dq', 'dq'))" in sentence(ValueError, dout, q, k, v, out, lse, grads=["dq", "dq"])
    assert "into must be a dict of arrays by the names in grads (got list)" in sentence(
        TypeError, dout, q, k, v, out, lse, into=[k.copy()]
    )
    assert "into must have only names in grads (got 'dk')" in sentence(
        ValueError, dout, q, k, v, out, lse, grads="dq", into={"dk": k.copy()}
    )
    assert "dq must not share memory with q" in sentence(ValueError, dout, q, k, v, out, lse, into={"dq": q})


def test_torch_gradients_agree_with_autograd():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, 3, 9, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    dout = torch.randn(2, 3, 9, 16)
    torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).backward(dout.double())
    plain = [x.detach().float() for x in (q, k, v)]
    side = bias.detach().float()
    out, lse = onepass.attention(*plain, bias=side, return_lse=True)
    given = onepass.attention_backward(dout, *plain, out, lse, bias=side, grads=("dq", "dk", "dv", "dbias"))
    for x, grad in zip((q, k, v, bias), given):
        assert isinstance(grad, torch.Tensor)
        torch.testing.assert_close(grad.double(), x.grad, atol=1e-5, rtol=1e-4)
