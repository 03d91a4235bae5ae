"""Second derivatives from Python: beside slopes of the gradients, which are computed in float64 by reference.py."""

import numpy as np
import onepass
import pytest

import reference

RNG = np.random.default_rng(37)
CASES = [
    {},
    {"mask": "causal_bottom_right", "softcap": 2.0, "window": (5, 0)},
    {"bias": (4, 7, 11), "sinks": (4,), "dropout_p": 0.3, "seed": 2**63 + 5},
    {"alibi_slopes": (2, 4), "mask_mod": "k_index % 3 != 1"},
    {"bias": (4, 7, 11), "softcap": 4.0, "score_mod": "2.0 * tanh(score / 2.0) + 0.1 * score * score"},
]


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


# The sum over all results of td w is the derivative of the loss along the tangents and along w.
@pytest.mark.parametrize("case", CASES)
def test_is_the_mixed_slope_of_the_reference(case):
    options = {n: normal(*x) if isinstance(x, tuple) and n != "window" else x for n, x in case.items()}
    x = {"q": normal(2, 4, 7, 8), "k": normal(2, 2, 11, 8), "v": normal(2, 2, 11, 5)}
    side = {n: options.pop(n) for n in ("bias", "sinks") if n in options}
    t, w = ({n: normal(*a.shape) for n, a in (x | side).items()} for _ in range(2))
    tangents = {"t" + n: t[n] for n in side}
    dout, tdout, dlse = normal(2, 4, 7, 5), normal(2, 4, 7, 5), normal(2, 4, 7)
    of = (*x.values(), t["q"], t["k"], t["v"])
    out, tout, lse, tlse = onepass.jvp(*of, **side, **tangents, **options, return_lse=True)
    grads = ["dq", "dk", "dv", *("d" + n for n in side)]
    second = onepass.backward_jvp(
        dout, *x.values(), out, lse, *of[3:], tout, tlse, tdout=tdout, dlse=dlse, grads=grads,
        **side, **tangents, **options,
    )  # fmt: skip
    assert [a.shape for a in second] == [a.shape for a in (x | side).values()]

    def loss(along_t, along_w):
        moved = {n: a.astype(np.float64) + along_t * t[n] + along_w * w[n] for n, a in (x | side).items()}
        q, k, v = (moved.pop(n) for n in "qkv")
        o, row = reference.attention(q, k, v, **moved, **options)
        return (o * (dout + along_t * tdout)).sum() + (row * dlse).sum()

    h = 1e-3

    def four(f):
        return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)

    expected = four(lambda i: four(lambda j: loss(i, j)))
    products = [a.astype(np.float64) * w[n] for a, n in zip(second, x | side, strict=True)]
    np.testing.assert_allclose(
        sum(a.sum() for a in products), expected, rtol=0, atol=2e-6 * sum(np.abs(a).sum() for a in products)
    )


def test_the_derivative_along_dout_is_the_gradient():
    q, k, v, dout = normal(1, 2, 5, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 3), normal(1, 2, 5, 3)
    out, tout, lse, tlse = onepass.jvp(q, k, v, None, None, None, return_lse=True)
    second = onepass.backward_jvp(dout, q, k, v, out, lse, None, None, None, tout, tlse, tdout=dout)
    for made, expected in zip(second, onepass.attention_backward(dout, q, k, v, out, lse), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_packed():
    q, k, v, dout = (normal(9, 2, 8) for _ in range(4))
    t = [normal(9, 2, 8) for _ in range(3)]
    cu = np.array([0, 4, 8], np.int32)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "mask": "causal_bottom_right"}
    out, tout, lse, tlse = onepass.jvp(q, k, v, *t, **packed, return_lse=True)
    second = onepass.backward_jvp(dout, q, k, v, out, lse, *t, tout, tlse, **packed)
    for lo, hi in ((0, 4), (4, 8)):
        one = [x[None, lo:hi] for x in (q, k, v, *t)]
        how = {"layout": "bshd", "mask": "causal_bottom_right"}
        o, to, row, trow = onepass.jvp(*one, **how, return_lse=True)
        alone = onepass.backward_jvp(dout[None, lo:hi], *one[:3], o, row, *one[3:], to, trow, **how)
        for a, b in zip(second, alone, strict=True):
            np.testing.assert_allclose(a[lo:hi], b[0], rtol=1e-4, atol=1e-5)
    assert all((x[8] == 0).all() for x in second)


def test_wrong_calls_are_refused_in_a_sentence():
    q = normal(1, 2, 5, 8)
    out, tout, lse, tlse = onepass.jvp(q, q, q, q, q, q, return_lse=True)
    good = (q, q, q, q, out, lse, q, q, q, tout, tlse)
    with pytest.raises(TypeError, match="tlse must be an array"):
        onepass.backward_jvp(*good[:-1], None)
    with pytest.raises(ValueError, match="head dim of tdout must be 8"):
        onepass.backward_jvp(*good, tdout=q[..., :4])
    with pytest.raises(ValueError, match="tdbias requires bias|dbias but bias is None"):
        onepass.backward_jvp(*good, grads=["dbias"])
    with pytest.raises(TypeError, match="page_table"):
        onepass.backward_jvp(*good, page_table=np.zeros((1, 1), np.int32))
