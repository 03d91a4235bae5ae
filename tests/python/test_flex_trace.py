"""Functions as score_mod and mask_mod of NumPy's users: the texts that they become, and what is refused."""

import numpy as np
import onepass
import pytest
from conftest import inputs, normal
from onepass._flex.trace import texts

ROWS, KEYS, HEADS = 37, 65, 4
SLOPES = 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)
DOCUMENT = np.arange(KEYS) // 20
TABLE = np.random.default_rng(0).standard_normal((HEADS, ROWS + KEYS - 1)).astype(np.float32)


def traced(score_mod=None, mask_mod=None):
    q, k = np.zeros((2, HEADS, ROWS, 8)), np.zeros((2, HEADS, KEYS, 8))
    return texts(dict(score_mod=score_mod, mask_mod=mask_mod, mod_buffers=None, q=q, k=k))


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda s, b, h, q, k: s - SLOPES[h] * abs(q - k), "score - t0[head] * float(abs(q_index - k_index))"),
        (lambda s, b, h, q, k: s + TABLE[h, q - k + 64], "score + t0[head, q_index - k_index + 64]"),
        (lambda s, b, h, q, k: s + TABLE[h][q - k + 64], "score + t0[head, q_index - k_index + 64]"),
        (lambda s, b, h, q, k: 30 * np.tanh(s / 30), "30.0f * tanh(score / 30.0f)"),
        (lambda s, b, h, q, k: s - (s - s), "score - (score - score)"),
        (lambda s, b, h, q, k: -((s + 1) ** 2), "-((score + 1.0f) * (score + 1.0f))"),
        (
            lambda s, b, h, q, k: np.where(q // 8 == k // 8, s, -np.inf),
            "(q_index / 8 == k_index / 8 ? score : (-INFINITY))",
        ),
        (lambda s, b, h, q, k: s * np.float32(0.5), "score * 0.5f"),
        (lambda s, b, h, q, k: q / 2, "float(q_index) / 2.0f"),
        (lambda s, b, h, q, k: s + 1e-60, "score + 0.0f"),
        (lambda s, b, h, q, k: 1e300 * s, "INFINITY * score"),
    ],
)
def test_score_mods(function, text):
    assert traced(score_mod=function)["score_mod"] == text


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda b, h, q, k: q >= k, "q_index >= k_index"),
        (
            lambda b, h, q, k: (q >= k) & (q - k < 9) | ~(k > 3),
            "q_index >= k_index && q_index - k_index < 9 || !(k_index > 3)",
        ),
        (lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k], "t0[q_index] == t0[k_index]"),
        (lambda b, h, q, k: (q - k) % 7 == 0, "((q_index - k_index) % 7 + 7) % 7 == 0"),
        (lambda b, h, q, k: (k + 3) % 7 < q % 2 + b * h, "(k_index + 3) % 7 < q_index % 2 + batch * head"),
        (lambda b, h, q, k: np.logical_and(k & 1, True), "bool(k_index & 1) && true"),
        (lambda b, h, q, k: True, "true"),
        (lambda b, h, q, k: DOCUMENT[-1] > q, "t0[64] > q_index"),
        (lambda b, h, q, k: DOCUMENT[k - 1] > 0, "t0[(k_index - 1 < 0 ? k_index - 1 + 65 : k_index - 1)] > 0"),
    ],
)
def test_mask_mods(function, text):
    """Remainders and negative indices are Python's; where no operand is negative, C++'s are the same."""
    assert traced(mask_mod=function)["mask_mod"] == text


@pytest.mark.parametrize(
    "function, sentence",
    [
        (lambda b, h, q, k: q > k and k > 3, "if, and, or, not"),
        (lambda b, h, q, k: 0 < q < k, "if, and, or, not"),
        (lambda b, h, q, k: np.cumsum(q) > k, "np.cumsum"),
        (lambda b, h, q, k: np.add.reduce(q) > k, "np.add.reduce"),
        (lambda b, h, q, k: q.sum() > k, ".sum"),
        (lambda b, h, q, k: int(q) > k, "known only when the kernel runs"),
        (lambda b, h, q, k: float(q) > k, "float()"),
        (lambda b, h, q, k: DOCUMENT > k, "array of shape [65] as an operand"),
        (lambda b, h, q, k: TABLE[h] > k, "array of shape [101] as an operand"),
        (lambda b, h, q, k: DOCUMENT[q / 2] > k, "a float as an index"),
        (lambda b, h, q, k: TABLE[h, 1:][k] > 0, "slices"),
        (lambda b, h, q, k: q < 2**40, "integers must fit in 32 bits"),
        (lambda b, h, q, k: q < "3", "a str as an operand"),
        (lambda b, h, q, k: [x for x in q], "iteration"),
        (lambda b, h, q, k: (q * 0.5) & 1, "& of a float"),
    ],
)
def test_refusals_name_the_operation(function, sentence):
    with pytest.raises((TypeError, AttributeError), match="do not support") as error:
        traced(mask_mod=function)
    assert sentence in str(error.value)


def test_what_is_not_a_function():
    with pytest.raises(TypeError, match="mask_mod must be a function, or a C.. expression in text"):
        onepass.attention(*inputs(np.random.default_rng(0)), mask_mod=3)
    with pytest.raises(ValueError, match="a mask_mod must be a bool"):
        onepass.attention(*inputs(np.random.default_rng(0)), mask_mod=lambda b, h, q, k: k % 2)


def score_mod(s, b, h, q, k):
    return np.where(k % 3 == 1, s - SLOPES[h] * abs(q - k), np.tanh(s) + TABLE[h, q - k])


def mask_mod(b, h, q, k):
    return (DOCUMENT[q] == DOCUMENT[k]) | (k < b + 1)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_functions_are_their_texts(rng, layout):
    """Also in the backward and in explain; sizes of the call decide which indices may be negative."""
    q, k, v = inputs(rng)
    if layout == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    by_text = {
        "score_mod": "k_index % 3 == 1 ? score - s[head] * abs(q_index - k_index) : "
        "tanh(score) + t[head, q_index < k_index ? q_index - k_index + 101 : q_index - k_index]",
        "mask_mod": "d[q_index] == d[k_index] || k_index < batch + 1",
        "mod_buffers": {"s": SLOPES, "t": TABLE, "d": DOCUMENT},
        "layout": layout,
    }
    by_function = {"score_mod": score_mod, "mask_mod": mask_mod, "layout": layout}
    out, lse = onepass.attention(q, k, v, return_lse=True, **by_text)
    mine, my_lse = onepass.attention(q, k, v, return_lse=True, **by_function)
    np.testing.assert_array_equal(mine, out)
    np.testing.assert_array_equal(my_lse, lse)
    dout = normal(rng, out.shape, np.float32)
    for x, y in zip(
        onepass.attention_backward(dout, q, k, v, out, lse, **by_function),
        onepass.attention_backward(dout, q, k, v, out, lse, **by_text),
    ):
        np.testing.assert_array_equal(x, y)
    assert "cpu.flash" in onepass.explain(q, k, v, **by_function)


def test_buffers_beside_functions(rng):
    """Names of the caller's are left alone."""
    q, k, v = inputs(rng)
    given = {"score_mod": lambda s, b, h, q, k: s * SLOPES[h], "mask_mod": "t0[k_index]"}
    seen = rng.random(k.shape[2]) < 0.5
    mine = onepass.attention(q, k, v, mod_buffers={"t0": seen}, **given)
    text = {"score_mod": "score * s[head]", "mask_mod": "t0[k_index]", "mod_buffers": {"t0": seen, "s": SLOPES}}
    np.testing.assert_array_equal(mine, onepass.attention(q, k, v, **text))


def test_functions_that_call_functions(rng):
    """Arrays in closures, globals, defaults and lists, of functions in functions."""
    tables = [SLOPES, SLOPES * 2]

    def inner(h, scale=SLOPES):
        return tables[1][h] + scale[h]

    def outer(s, b, h, q, k):
        return s * inner(h) + SLOPES[h]

    q, k, v = inputs(rng)
    text = {"score_mod": "score * (3 * s[head]) + s[head]", "mod_buffers": {"s": SLOPES}}
    np.testing.assert_allclose(
        onepass.attention(q, k, v, score_mod=outer), onepass.attention(q, k, v, **text), atol=1e-5
    )
