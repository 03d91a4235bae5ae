"""Forward mode from Python: beside slopes of the float64 formula of reference.py."""

import numpy as np
import onepass
import pytest

import reference

RNG = np.random.default_rng(31)
CASES = [
    {},
    {"mask": "causal_bottom_right", "softcap": 2.0, "window": (5, 0)},
    {"bias": (4, 7, 11), "sinks": (4,), "dropout_p": 0.3, "seed": 2**63 + 5},
    {"bias": (7, 11), "alibi_slopes": (2, 4), "score_mod": "2.0 * tanh(score / 2.0) + table(head, k_index)"},
]


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_is_the_slope_of_the_reference(case):
    options = {n: normal(*x) if isinstance(x, tuple) and n != "window" else x for n, x in case.items()}
    if "score_mod" in options:
        options["mod_buffers"] = {"table": normal(4, 11)}
    x = {"q": normal(2, 4, 7, 8), "k": normal(2, 2, 11, 8), "v": normal(2, 2, 11, 5)}
    side = {n: options.pop(n) for n in ("bias", "sinks") if n in options}
    t = {n: normal(*a.shape) for n, a in (x | side).items()}
    tangents = {"t" + n: t[n] for n in side}
    out, tout, lse, tlse = onepass.jvp(
        *x.values(), t["q"], t["k"], t["v"], **side, **tangents, **options, return_lse=True
    )
    assert tout.dtype == np.float32 and tout.shape == out.shape and tlse.shape == lse.shape

    def at(step):
        moved = {n: a.astype(np.float64) + step * t[n] for n, a in (x | side).items()}
        q, k, v = (moved.pop(n) for n in "qkv")
        return reference.attention(q, k, v, **moved, **options)

    expected, expected_lse = at(0)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)
    for made, up, down in zip((tout, tlse), at(1e-5), at(-1e-5), strict=True):
        np.testing.assert_allclose(made, (up - down) / 2e-5, rtol=1e-4, atol=1e-4)


def test_none_is_a_tangent_of_0():
    q, k, v, tv = normal(1, 2, 5, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 3), normal(1, 2, 9, 3)
    out, tout = onepass.jvp(q, k, v, None, None, tv)
    np.testing.assert_allclose(tout, onepass.attention(q, k, tv), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out, onepass.attention(q, k, v), rtol=1e-5, atol=1e-6)
    assert (onepass.jvp(q, k, v, None, None, None)[1] == 0).all()


def test_packed_and_bshd():
    q, k, v = (normal(9, 2, 8) for _ in range(3))
    t = [normal(9, 2, 8) for _ in range(3)]
    cu = np.array([0, 4, 8], np.int32)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "mask": "causal_bottom_right"}
    out, tout, lse, tlse = onepass.jvp(q, k, v, *t, **packed, return_lse=True)
    assert (tout[8] == 0).all() and (tlse[:, 8] == 0).all() and (lse[:, 8] == -np.inf).all()
    for lo, hi in ((0, 4), (4, 8)):
        one, t_one = onepass.jvp(*(x[None, lo:hi] for x in (q, k, v, *t)), layout="bshd", mask="causal_bottom_right")
        np.testing.assert_allclose(out[lo:hi], one[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tout[lo:hi], t_one[0], rtol=1e-5, atol=1e-5)


def test_wrong_calls_are_refused_in_a_sentence():
    q = normal(1, 2, 5, 8)
    with pytest.raises(ValueError, match="head dim of tq must be 8"):
        onepass.jvp(q, q, q, q[..., :4], q, q)
    with pytest.raises(TypeError, match="tk must be fp32, as q"):
        onepass.jvp(q, q, q, q, q.astype(np.float16), q)
    with pytest.raises(ValueError, match="tbias requires bias"):
        onepass.jvp(q, q, q, q, q, q, tbias=normal(5, 5))
    with pytest.raises(TypeError, match="page_table"):
        onepass.jvp(q, q, q, q, q, q, page_table=np.zeros((1, 1), np.int32))
