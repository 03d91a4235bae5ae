"""Bad input: an exception of the right type whose sentence names the tensor and the value, and an untouched output."""

import numpy as np
import onepass
import pytest
from conftest import inputs

F32 = np.float32
Q, K, V = inputs(np.random.default_rng(0))  # [2, 4, 37, 40], [2, 2, 65, 40], [2, 2, 65, 24]
PACKED = [np.zeros((10, 2, 8), F32)] * 3


def i32(*values):
    return np.array(values, np.int32)


CASES = {
    "rank of q": (
        ValueError,
        r"q must have shape \[batch, heads_q, seq_q, dim_qk\] \(got \[4, 37, 40\]\)",
        {"q": Q[0]},
    ),
    "rank of v": (ValueError, r"v must have shape .*got \[2, 65, 24\]", {"v": V[0]}),
    "too many dimensions": (ValueError, "q has 5 dimensions", {"q": Q[None]}),
    "a vector": (ValueError, r"q has shape \[40\]", {"q": Q[0, 0, 0]}),
    "head dim": (ValueError, "the head dim of k must be 40, as in q .got shape", {"k": K[..., :39]}),
    "keys": (ValueError, "the sequence length of v must be 65, as in k", {"v": V[:, :, 1:]}),
    "batch": (ValueError, "the batch of k must be 2, as in q", {"k": K[:1]}),
    "head ratio": (ValueError, r"heads_q \(3\) must be a multiple of heads_kv \(2\)", {"q": Q[:, :3]}),
    "large head dim": (
        ValueError,
        "dim_qk must be 1 to 256, or the pair 576/512 .got 300",
        {"q": np.zeros((1, 1, 1, 300), F32), "k": np.zeros((1, 1, 1, 300), F32), "v": np.zeros((1, 1, 1, 24), F32)},
    ),
    "stride": (ValueError, "the last dimension of q must have stride 1 .got 2", {"q": Q[..., ::2], "k": K[..., ::2]}),
    "unaligned": (
        TypeError,
        "q: this ndarray .* strides of whole elements",
        {"q": np.ndarray((2, 4, 37, 40), F32, bytes(2 * 4 * 37 * 162), strides=(4 * 37 * 162, 37 * 162, 162, 4))},
    ),
    "float64": (
        TypeError,
        "q is float64; float32, float16, bfloat16 and float8_e4m3fn are accepted",
        {"q": Q.astype(float)},
    ),
    "float64 k": (TypeError, "k is float64", {"k": K.astype(float)}),
    "integers": (TypeError, "^q .*int32", {"q": Q.astype(np.int32)}),
    "bits": (TypeError, "k is uint16", {"k": K.astype(np.uint16)}),
    "complex": (TypeError, "v is complex64", {"v": V.astype(np.complex64)}),
    "byte order": (TypeError, "q is >f4", {"q": Q.astype(">f4")}),
    "mixed dtypes": (TypeError, "k must be fp32, as q, or fp8_e4m3 .got fp16", {"k": K.astype(np.float16)}),
    "a list": (TypeError, "v is a list; a NumPy array, a torch tensor or an array with DLPack", {"v": [1.0]}),
    "None": (TypeError, "k is None", {"k": None}),
    "mask name": (ValueError, r"mask must be one of None, 'causal_bottom_right', .* \(got 'caus'\)$", {"mask": "caus"}),
    "mask of flash-attn": (
        ValueError,
        r"\(got 'causal'\): causal=True of flash-attn is mask='causal_bottom_right'; is_causal=True of PyTorch is "
        "mask='causal_top_left'$",
        {"mask": "causal"},
    ),
    "mask of PyTorch": (ValueError, "causal_lower_right of PyTorch is mask='causal_b", {"mask": "causal_lower_right"}),
    "offset missing": (ValueError, "align_offset is None and mask is 'causal_offset'", {"mask": "causal_offset"}),
    "offset alone": (ValueError, "align_offset is 3 and mask is None; .* other masks take none", {"align_offset": 3}),
    "offset range": (
        ValueError,
        "align_offset is .*; an integer from -2\\^60 to 2\\^60 is accepted",
        {"mask": "aligned_offset", "align_offset": 2**61},
    ),
    "offset kind": (TypeError, "align_offset is 1.5", {"mask": "causal_offset", "align_offset": 1.5}),
    "mask array": (ValueError, r"\(got an array\).* goes to bool_mask", {"mask": np.ones((37, 65), bool)}),
    "window": (ValueError, "window is 3; a pair", {"window": 3}),
    "window of three": (ValueError, r"window is \(1, 2, 3\)", {"window": (1, 2, 3)}),
    "window side": (ValueError, "window's right side is -2", {"window": (1, -2)}),
    "window of floats": (TypeError, "window's left side is 1.5", {"window": (1.5, 0)}),
    "mask dtype": (TypeError, "bool_mask must be bool .got fp32", {"bool_mask": np.ones((37, 65), F32)}),
    "mask shape": (
        ValueError,
        r"dimension 3 of bool_mask must be 65 or 1 \(got shape \[1, 1, 37, 64\]\)",
        {"bool_mask": np.ones((37, 64), bool)},
    ),
    "bias dtype": (TypeError, "bias is float64; float32, float16 and bfloat16", {"bias": np.zeros((37, 65))}),
    "bias shape": (ValueError, "dimension 1 of bias must be 4 or 1", {"bias": np.zeros((3, 37, 65), F32)}),
    "slopes": (ValueError, "the number of heads of alibi_slopes must be 4", {"alibi_slopes": np.ones(3, F32)}),
    "slopes dtype": (TypeError, "alibi_slopes is int64; float32 is accepted", {"alibi_slopes": np.ones(4, int)}),
    "large slopes": (
        ValueError,
        r"alibi_slopes\[1, 2\] is 1e\+39; numbers that float32 holds are accepted",
        {"alibi_slopes": np.array([[0, 1, 2, 3], [0, np.inf, 1e39, 0]])},
    ),
    "sinks dtype": (TypeError, "sinks is >f2", {"sinks": np.ones(4, ">f2")}),
    "sinks": (ValueError, "the number of heads of sinks must be 4", {"sinks": np.ones(5, F32)}),
    "scale": (ValueError, "scale must be -2.3e38 to 2.3e38 .got inf", {"scale": float("inf")}),
    "a large scale": (ValueError, "scale is an integer beyond float64's range; a number", {"scale": 10**400}),
    "scale text": (TypeError, "scale is 'x'; a number is accepted", {"scale": "x"}),
    "softcap": (ValueError, "softcap must be 0 .none. or positive .got -1", {"softcap": -1}),
    "dropout": (ValueError, "dropout_p must be 0 to 1 .got 1.5", {"dropout_p": 1.5}),
    "dropout without a seed": (ValueError, r"dropout_p is 0.1: seed must be .* \(got None\)", {"dropout_p": 0.1}),
    "seed": (ValueError, "seed is -1; an integer from 0", {"seed": -1}),
    "seed of floats": (TypeError, "seed is 0.5", {"seed": 0.5}),
    "threads": (ValueError, "threads is 0", {"threads": 0}),
    "score_mod": (ValueError, r"score_mod, column 9: 'x'.*\n  score \+ x\n          \^", {"score_mod": "score + x"}),
    "mask_mod": (
        ValueError,
        "mask_mod, column 1: 'score': a mask_mod does not support score",
        {"mask_mod": "score > 0"},
    ),
    "a function": (TypeError, "score_mod is a function; a C", {"score_mod": lambda score: score}),
    "mod_buffers": (TypeError, "mod_buffers is a list; a dict", {"mod_buffers": [1]}),
    "a mod buffer": (
        TypeError,
        "mod buffer t is int64; float32, float16, bfloat16, int32 and bool are accepted",
        {"score_mod": "score", "mod_buffers": {"t": np.arange(3)}},
    ),
    "its name": (
        ValueError,
        "must not be a reserved word .got 'head'",
        {"score_mod": "score", "mod_buffers": {"head": i32(1)}},
    ),
    "its size": (
        ValueError,
        "dimension 0 of mod buffer t must be 1 to",
        {"score_mod": "score", "mod_buffers": {"t": i32()}},
    ),
    "no reader": (ValueError, "mod_buffers requires a score_mod or a mask_mod", {"mod_buffers": {"t": i32(1)}}),
    "implementation": (ValueError, "implementation must be one of .* .got 'fast'", {"implementation": "fast"}),
    "one prefix sum": (ValueError, "cu_seqlens_k must be given", dict(zip("qkv", PACKED), cu_seqlens_q=i32(0, 10))),
    "prefix start": (ValueError, r"cu_seqlens_q\[0\] must be 0 \(got 1\)", {"cu_seqlens_q": i32(1, 10)}),
    "prefix order": (
        ValueError,
        r"cu_seqlens_q\[2\] must be at least 5, the entry before it \(got 4\)",
        {"cu_seqlens_q": i32(0, 5, 4)},
    ),
    "prefix end": (
        ValueError,
        r"cu_seqlens_q\[1\] must be at most 10, the tokens of q \(got 11\)",
        {"cu_seqlens_q": i32(0, 11)},
    ),
    "prefix dtype": (
        TypeError,
        "cu_seqlens_q is int16; int32 is accepted",
        {"cu_seqlens_q": np.array([0, 10], np.int16)},
    ),
    "prefix beyond int32": (
        ValueError,
        r"cu_seqlens_q\[1\] is 4294967306; numbers that int32 holds are accepted",
        {"cu_seqlens_q": np.array([0, 2**32 + 10])},
    ),
    "prefix length": (
        ValueError,
        "the length of cu_seqlens_k must be 3",
        {"cu_seqlens_q": i32(0, 5, 10), "cu_seqlens_k": i32(0, 10)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    error, sentence, change = CASES[name]
    packed = "cu_seqlens_q" in change
    call = dict(zip("qkv", PACKED if packed else (Q, K, V))) | change
    if packed and name != "one prefix sum":
        call.setdefault("cu_seqlens_k", call["cu_seqlens_q"])
    q, k, v = (call.pop(x) for x in "qkv")
    out = np.full((10, 2, 8) if packed else (*getattr(q, "shape", Q.shape)[:-1], 24), 7, F32)
    for tail in ({}, {"out": out}):
        with pytest.raises(error, match=sentence):
            onepass.attention(q, k, v, **(call | tail))
    assert (out == 7).all()
    if not packed and name != "implementation":  # explain lists them all
        with pytest.raises(error, match=sentence):
            onepass.explain(q, k, v, **call)


@pytest.mark.parametrize(
    "out, error, sentence",
    [
        (np.zeros((2, 4, 37, 23), F32), ValueError, "the head dim of out must be 24"),
        (np.zeros((2, 4, 37, 24), np.float16), TypeError, "out must be fp32, as q .got fp16"),
        (np.zeros((2, 4, 37, 48), F32)[..., ::2], ValueError, "the last dimension of out must have stride 1 .got 2"),
        (np.broadcast_to(np.zeros((37, 24), F32), (2, 4, 37, 24)), ValueError, "out is read-only"),
        (np.zeros((2, 4, 37, 24), np.int64), TypeError, "out is int64; float32, float16 and bfloat16 are accepted"),
        ([0.0], TypeError, "out is a list"),
    ],
)
def test_bad_out(out, error, sentence):
    with pytest.raises(error, match=sentence):
        onepass.attention(Q, K, V, out=out)


def test_out_that_overlaps_itself():
    out = np.lib.stride_tricks.as_strided(np.zeros((4, 37, 24), F32), (2, 4, 37, 24), (0, 37 * 96, 96, 4))
    with pytest.raises(ValueError, match="out has stride 0 in dimension 0"):
        onepass.attention(Q, K, V, out=out)


def test_out_that_shares_memory_with_an_input():
    qkv = np.random.default_rng(3).standard_normal((2, 37, 4, 4, 40)).astype(F32)  # q, k, v and a slot for out
    q, k, v, out = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(4))
    before = qkv.copy()
    shifted = np.lib.stride_tricks.as_strided(qkv[0, 0, 2:, 1:], out.shape, out.strides)
    for taken, name in ((q, "q"), (k, "k"), (v, "v"), (v[::-1], "v"), (shifted, "v")):
        with pytest.raises(ValueError, match=f"out must not share memory with {name}"):
            onepass.attention(q, k, v, out=taken)
    bias = out[:, :, :, :37]
    with pytest.raises(ValueError, match="out must not share memory with bias"):
        onepass.attention(q, k, v, bias=bias, out=out)
    assert (qkv == before).all()
    assert (onepass.attention(q, k, v, out=out) == onepass.attention(*before.transpose(2, 0, 3, 1, 4)[:3])).all()
    assert (qkv[:, :, :3] == before[:, :, :3]).all()


@pytest.mark.parametrize(
    "outs, lses, error, sentence",
    [
        ([], [], ValueError, "there are 0 outs and 0 lses"),
        ([Q], [], ValueError, "there are 1 outs and 0 lses"),
        ([Q], [Q[..., 0].astype(float)], TypeError, r"lses\[0\] is float64; float32 is accepted"),
        ([Q.astype(int)], [Q[..., 0]], TypeError, r"outs\[0\] is int64"),
        ([Q, Q[:1]], [Q[..., 0]] * 2, ValueError, r"outs?\[1\]"),
        ([Q], [Q[:, :3, :, 0]], ValueError, "lses?"),
        ([Q, "x"], [Q[..., 0]] * 2, TypeError, r"outs\[1\] is a str"),
    ],
)
def test_bad_merge(outs, lses, error, sentence):
    with pytest.raises(error, match=sentence):
        onepass.merge(outs, lses)


def test_bad_explain():
    with pytest.raises(ValueError, match="cannot read 'x'"):
        onepass.explain("fwd b1 x")
    with pytest.raises(TypeError, match="a problem line says everything"):
        onepass.explain("fwd b1", Q)
