"""score_mod and mask_mod against the same scores and masks given as arrays."""

import numpy as np
import onepass
import pytest
from conftest import check, inputs, normal

import reference

ROWS, KEYS, HEADS = 37, 65, 4
Q_INDEX, K_INDEX = np.arange(ROWS)[:, None], np.arange(KEYS)[None, :]


def same(q, k, v, given, **arrays):
    """onepass with `given` is the reference with `arrays`."""
    out, lse = onepass.attention(q, k, v, return_lse=True, **given)
    ref_out, ref_lse = reference.attention(q, k, v, **arrays)
    check(out, ref_out)
    check(lse, ref_lse, scale=4 * max(1.0, np.abs(ref_lse[np.isfinite(ref_lse)]).max(initial=0)))


def test_alibi(rng):
    slopes = 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)
    same(
        *inputs(rng),
        {"score_mod": "score - slope[head] * abs(q_index - k_index)", "mod_buffers": {"slope": slopes}},
        alibi_slopes=slopes,
        mask="aligned_top_left",
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_relative_bias(rng, dtype):
    table = normal(rng, (HEADS, ROWS + KEYS - 1), dtype)
    given = {"score_mod": f"score + table(head, q_index - k_index + {KEYS - 1})", "mod_buffers": {"table": table}}
    same(*inputs(rng), given, bias=table[:, Q_INDEX - K_INDEX + KEYS - 1].astype(np.float32))


def test_bfloat16_and_strided_buffers(rng, bfloat16):
    table = normal(rng, (KEYS, 2 * ROWS), bfloat16).T[::-2]
    assert table.shape == (ROWS, KEYS) and min(table.strides) < 0
    given = {"score_mod": "score + t(q_index, k_index)", "mod_buffers": {"t": table}}
    same(*inputs(rng), given, bias=table.astype(np.float32))


def test_documents(rng):
    document, seen = np.sort(rng.integers(0, 4, KEYS)).astype(np.int32), rng.random(KEYS) < 0.2
    given = {
        "mask_mod": "d[q_index] == d[k_index] || seen[k_index]",
        "mod_buffers": {"d": document, "seen": seen},
        "mask": "causal_top_left",
    }
    mask = (document[:ROWS, None] == document[None, :]) | seen
    same(*inputs(rng), given, bool_mask=mask, mask="causal_top_left")


def test_softcap(rng):
    same(*inputs(rng), {"score_mod": "5 * tanh(score / 5)"}, softcap=5.0)


def test_integers_of_64_bits_are_converted(rng):
    document = np.sort(rng.integers(0, 4, KEYS))
    assert document.dtype == np.int64
    given = {"mask_mod": "d[q_index] == d[k_index]", "mod_buffers": {"d": document}}
    same(*inputs(rng), given, bool_mask=document[:ROWS, None] == document[None, :])
    given["mod_buffers"] = {"d": np.full(KEYS, 2**40)}
    with pytest.raises(ValueError, match=r"mod buffer d\[0\].* 1099511627776"):
        onepass.attention(*inputs(rng), **given)


def test_a_number_is_named_without_an_index(rng):
    alpha, first = np.array(0.25, np.float32), np.int64(3)
    same(
        *inputs(rng),
        {"score_mod": "score * alpha - first", "mod_buffers": {"alpha": alpha, "first": first}},
        scale=0.25 / np.sqrt(40),
        bias=np.full((1, 1), -3, np.float32),
    )
    for index in ("alpha[0]", "alpha(0)"):
        given = {"score_mod": f"score * {index}", "mod_buffers": {"alpha": alpha}}
        same(*inputs(rng), given, scale=0.25 / np.sqrt(40))
    with pytest.raises(ValueError, match="'\\(' is expected"):
        onepass.attention(*inputs(rng), score_mod="score + t", mod_buffers={"t": np.ones(3, np.float32)})


def test_brackets_of_several_indices(rng):
    table = normal(rng, (HEADS, ROWS + KEYS - 1), np.float32)
    given = {
        "score_mod": f"score + table[head, q_index - k_index + offset[0] - {KEYS}]",
        "mod_buffers": {"table": table, "offset": np.array([2 * KEYS - 1], np.int32)},
    }
    same(*inputs(rng), given, bias=table[:, Q_INDEX - K_INDEX + KEYS - 1])


@pytest.mark.parametrize(
    "text, hint",
    [
        ("score - abs(q_idx - kv_idx)", "'q_idx': FlexAttention's q_idx is q_index here"),
        ("score - abs(q_index - kv_idx)", "'kv_idx': FlexAttention's kv_idx is k_index here"),
        ("score * h", "'h': FlexAttention's h is head here"),
        ("score + b", "'b': FlexAttention's b is batch here"),
        ("30 * torch.tanh(score / 30)", "'torch': torch.tanh is tanh here"),
        ("torch.where(q_index >= k_index, score, 0)", r"torch.where\(c, a, b\) is written \(c \? a : b\) here"),
        ("not score", "'not': not is written !\\(..\\) here"),
        ("torch.erf(score)", "functions of torch are not available"),
    ],
)
def test_names_of_flex_attention(rng, text, hint):
    for call in (onepass.attention, onepass.explain):
        with pytest.raises(ValueError, match=hint):
            call(*inputs(rng), score_mod=text)
    with pytest.raises(ValueError, match=hint):
        onepass.explain(f"fwd s64 d64 bf16 cuda score_mod={{{text}}}")


def test_buffers_may_have_the_names_of_flex_attention(rng):
    given = {"score_mod": "score * h + b[0]", "mod_buffers": {"h": np.float32(0.5), "b": np.float32([2])}}
    same(*inputs(rng), given, scale=0.5 / np.sqrt(40), bias=np.full((1, 1), 2, np.float32))


@pytest.mark.parametrize(
    "text, got", [("q_index - k_index", "an int"), ("0.5f * k_index", "a float"), ("~(q_index < 3)", "an int")]
)
def test_a_mask_mod_is_a_bool(rng, text, got):
    for call in (
        lambda: onepass.attention(*inputs(rng), mask_mod=text),
        lambda: onepass.explain(f"s64 cuda mask_mod={{{text}}}"),
    ):
        with pytest.raises(ValueError, match=rf"a mask_mod must be a bool.* \(got {got}\)"):
            call()


def test_words_of_python_in_a_mask_mod(rng):
    seen = (Q_INDEX >= K_INDEX) & ~(K_INDEX == 5) | (K_INDEX < 2)
    for text in (
        "q_index >= k_index and k_index != 5 or k_index < 2",
        "(q_index >= k_index) & (k_index != 5) | (k_index < 2)",
        "(q_index >= k_index) && !(k_index == 5) || k_index < 2",
    ):
        same(*inputs(rng), {"mask_mod": text}, bool_mask=seen)


def test_a_row_that_sees_nothing(rng):
    same(*inputs(rng), {"mask_mod": "q_index != 3"}, bool_mask=Q_INDEX != 3)


def test_decoding(rng):
    q, k, v = inputs(rng, rows=1, keys=700)
    same(
        q,
        k,
        v,
        {"mask_mod": "k_index % 3 == head % 3"},
        bool_mask=np.arange(700) % 3 == np.arange(4)[:, None, None] % 3,
    )


def test_explain_shows_the_texts(rng):
    line = onepass.explain(*inputs(rng), score_mod="score * t[0]", mod_buffers={"t": np.ones(3, np.float32)})
    assert line.startswith("fwd b2 h4/2 s37x65 d40/24 fp32 score_mod={score * t[0]} buffer=t:fp32:3\n")
    assert "cpu.amx.bf16: no," in line or "cpu.amx.bf16" not in line


@pytest.mark.parametrize("name", ["score_mod", "mask_mod", "implementation", "mod_buffers"])
@pytest.mark.parametrize(
    "text, said",
    [
        ("score + '\ud800'", r"score \+ '\\ud800'"),
        ("score\0", r"\\x00"),
        ("score + é", r"\\xc3"),
        ("x" * 100_000, "x|at most 16384 characters"),
    ],
)
def test_texts_that_cannot_be_meant(rng, name, text, said):
    q, k, v = inputs(rng)
    out = np.full((2, 4, 37, 24), 7, np.float32)
    given = {name: text} if name != "mod_buffers" else {"score_mod": "score", name: {text: np.ones(3, np.float32)}}
    for call in (onepass.attention, onepass.explain):
        if name == "implementation" and call is onepass.explain:
            continue  # it lists them all
        with pytest.raises(ValueError, match=said) as raised:
            call(q, k, v, **given, **({"out": out} if call is onepass.attention else {}))
        sentence = str(raised.value)
        assert len(sentence) < 2000 and sentence.isascii() and "\0" not in sentence
    assert (out == 7).all()


def test_problem_lines_that_cannot_be_meant():
    for line in ("fwd s4 \ud800", "fwd s4 \0", "fwd s4 é", "fwd s4 " + "x" * 100_000):
        with pytest.raises(ValueError) as raised:
            onepass.explain(line)
        assert len(str(raised.value)) < 2000 and str(raised.value).isascii()
