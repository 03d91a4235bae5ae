"""Gradients from Python: against differences of the float64 NumPy reference, in one random direction at a time."""

import numpy as np
import onepass
import pytest

import reference

RNG = np.random.default_rng(3)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def options_of(given):
    return {name: x for name, x in given.items() if x is not None}


def slope(of, at, direction):
    """Of `of` at the array `at` along `direction`, in float64."""
    step = 1e-5
    return (of(at + step * direction) - of(at - step * direction)) / (2 * step)


CASES = {
    "plain": {},
    "causal": {"mask": "causal_bottom_right"},
    "window": {"mask": "causal_top_left", "window": (3, -1)},
    "bias": {"bias": normal(1, 4, 1, 11)},
    "bool_mask": {"bool_mask": RNG.random((2, 1, 7, 11)) < 0.6},
    "slopes": {"alibi_slopes": np.abs(normal(4)), "mask": "causal_bottom_right"},
    "slopes of batches": {"alibi_slopes": np.abs(normal(2, 4))},
    "sinks": {"sinks": normal(4)},
    "softcap": {"softcap": 1.5, "scale": 0.7},
    "dropout": {"dropout_p": 0.3, "seed": 11},
    "together": {
        "bias": normal(7, 11),
        "sinks": normal(4),
        "alibi_slopes": np.abs(normal(4)),
        "softcap": 2.0,
        "mask": "causal_bottom_right",
        "dropout_p": 0.2,
        "seed": 5,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_slopes(case):
    options = CASES[case]
    side = [name for name in ("bias", "sinks", "alibi_slopes") if name in options]
    grads = ("dq", "dk", "dv", *("d" + name for name in side))
    q, k, v = normal(2, 4, 7, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 5)
    dout, dlse = normal(2, 4, 7, 5), normal(2, 4, 7)
    out, lse = onepass.attention(q, k, v, return_lse=True, **options)
    dlse[~np.isfinite(lse)] = 0
    given = onepass.attention_backward(dout, q, k, v, out, lse, dlse=dlse, grads=grads, **options)
    inputs = {"q": q, "k": k, "v": v, **{name: options[name] for name in side}}
    assert len(given) == len(grads)

    def loss(**changed):
        call = {**inputs, **changed}
        o, log = reference.attention(call.pop("q"), call.pop("k"), call.pop("v"), **{**options, **call})
        return (o * dout).sum() + (np.where(np.isfinite(log), log, 0) * dlse).sum()

    for (name, x), grad in zip(inputs.items(), given):
        assert grad.shape == x.shape and grad.dtype == np.float32
        for _ in range(3):
            direction = RNG.standard_normal(x.shape)
            expected = slope(lambda at, name=name: loss(**{name: at}), x.astype(np.float64), direction)
            assert np.vdot(grad.astype(np.float64), direction) == pytest.approx(expected, rel=1e-4, abs=1e-3), name


def test_packed_gradients_are_those_of_each_sequence():
    cu_q, cu_k = np.array([0, 3, 3, 9], np.int32), np.array([0, 5, 7, 11], np.int32)
    q, k, v, dout = normal(9, 4, 8), normal(11, 2, 8), normal(11, 2, 8), normal(9, 4, 8)
    lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    out, lse = onepass.attention(q, k, v, mask="causal_bottom_right", return_lse=True, **lengths)
    dq, dk, dv = onepass.attention_backward(dout, q, k, v, out, lse, mask="causal_bottom_right", **lengths)
    for i in range(3):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        alone = [x.transpose(1, 0, 2)[None] for x in (dout[rows], q[rows], k[keys], v[keys], out[rows])]
        ones = onepass.attention_backward(*alone, lse[None, :, rows], mask="causal_bottom_right")
        for whole, one in zip((dq[rows], dk[keys], dv[keys]), ones):
            np.testing.assert_allclose(whole, one[0].transpose(1, 0, 2), atol=2e-6)
    assert not dk[5:7].any() and not dv[5:7].any()  # keys of a sequence without queries


def test_a_split_forward_has_the_whole_ones_gradients():
    q, k, v, dout = normal(1, 2, 6, 8), normal(1, 2, 20, 8), normal(1, 2, 20, 8), normal(1, 2, 6, 8)
    halves = [slice(0, 9), slice(9, 20)]
    parts = [onepass.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in halves]
    out, lse = onepass.merge([o for o, _ in parts], [log for _, log in parts])
    whole = onepass.attention_backward(dout, q, k, v, *onepass.attention(q, k, v, return_lse=True))
    dq = np.zeros_like(q)
    for s in halves:
        part, dk, dv = onepass.attention_backward(dout, q, k[:, :, s], v[:, :, s], out, lse)
        dq += part
        np.testing.assert_allclose(dk, whole[1][:, :, s], atol=2e-6)
        np.testing.assert_allclose(dv, whole[2][:, :, s], atol=2e-6)
    np.testing.assert_allclose(dq, whole[0], atol=2e-6)


def test_score_mod_is_differentiated():
    q, k, v, dout = normal(1, 2, 5, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8), normal(1, 2, 5, 8)
    capped = {"softcap": 3.0}
    modded = {"score_mod": "3 * tanh(score / 3)"}
    expected, given = (
        onepass.attention_backward(dout, q, k, v, *onepass.attention(q, k, v, return_lse=True, **options), **options)
        for options in (capped, modded)
    )
    for x, y in zip(expected, given):
        np.testing.assert_allclose(x, y, atol=1e-5)


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

    assert "dout is None" in sentence(TypeError, None, q, k, v, out, lse)
    assert "lse is None" in sentence(TypeError, dout, q, k, v, out, None)
    assert "dout has shape [1, 2, 3, 8]" in sentence(ValueError, dout[:, :, :3], q, k, v, out, lse)
    assert "dout is fp16; fp32, as out, is expected" in sentence(TypeError, dout.astype(np.float16), q, k, v, out, lse)
    assert "grads asks for dbias but bias is None" in sentence(ValueError, dout, q, k, v, out, lse, grads="dbias")
    assert "'do'" in sentence(ValueError, dout, q, k, v, out, lse, grads=("dq", "do"))
    assert "grad_dtype is 'float16'" in sentence(ValueError, dout, q, k, v, out, lse, grad_dtype="float16")
    assert "no gradient is asked for" in sentence(ValueError, dout, q, k, v, out, lse, grads=())
    assert "into has 'dk'" in sentence(ValueError, dout, q, k, v, out, lse, grads="dq", into={"dk": k.copy()})
    assert "dq shares memory with q" in sentence(ValueError, dout, q, k, v, out, lse, into={"dq": q})


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
