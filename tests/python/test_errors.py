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
    "too many dimensions": (ValueError, r"q must have 1 to 4 dimensions \(got 5\)", {"q": Q[None]}),
    "a vector": (ValueError, r"q must have the shape \[batch, heads, seq, dim\].* \(got \[40\]\)", {"q": Q[0, 0, 0]}),
    "head dim": (ValueError, "the head dim of k must be 40, as in q .got shape", {"k": K[..., :39]}),
    "keys": (ValueError, "the sequence length of v must be 65, as in k", {"v": V[:, :, 1:]}),
    "batch": (ValueError, "the batch of k must be 2, as in q", {"k": K[:1]}),
    "head ratio": (ValueError, r"heads_q \(3\) must be a multiple of heads_kv \(2\)", {"q": Q[:, :3]}),
    "large head dim": (
        ValueError,
        "dim_qk must be 1 to 512, or 576 .got 600",
        {"q": np.zeros((1, 1, 1, 600), F32), "k": np.zeros((1, 1, 1, 600), F32), "v": np.zeros((1, 1, 1, 24), F32)},
    ),
    "stride": (ValueError, "the last dimension of q must have stride 1 .got 2", {"q": Q[..., ::2], "k": K[..., ::2]}),
    "unaligned": (
        TypeError,
        r"q must export .* strides of whole elements \(got this ndarray\)",
        {"q": np.ndarray((2, 4, 37, 40), F32, bytes(2 * 4 * 37 * 162), strides=(4 * 37 * 162, 37 * 162, 162, 4))},
    ),
    "float64": (
        TypeError,
        r"q must be float32, float16, bfloat16 or float8_e4m3fn \(got float64\)",
        {"q": Q.astype(float)},
    ),
    "float64 k": (TypeError, r"k must be .* \(got float64\)", {"k": K.astype(float)}),
    "integers": (TypeError, "q (is|must be) .*int32", {"q": Q.astype(np.int32)}),
    "bits": (TypeError, r"k must be .* \(got uint16\)", {"k": K.astype(np.uint16)}),
    "complex": (TypeError, r"v must be .* \(got complex64\)", {"v": V.astype(np.complex64)}),
    "byte order": (TypeError, r"q must be native .* \(got >f4\)", {"q": Q.astype(">f4")}),
    "mixed dtypes": (TypeError, "v must be fp16, as k .got fp32", {"k": K.astype(np.float16)}),
    "wider keys": (TypeError, "k must be fp16, as q, or fp8_e4m3 .got fp32", {"q": Q.astype(np.float16)}),
    "a list": (
        TypeError,
        r"v must be a NumPy array, a torch tensor or an array with DLPack \(got list\)",
        {"v": [1.0]},
    ),
    "None": (TypeError, r"k must be an array of shape \[batch, heads, seq, dim\] \(got None\)", {"k": None}),
    "mask name": (ValueError, r"mask must be one of None, 'causal_bottom_right', .* \(got 'caus'\)$", {"mask": "caus"}),
    "mask of flash-attn": (
        ValueError,
        r"\(got 'causal'\): causal=True of flash-attn is mask='causal_bottom_right'; is_causal=True of PyTorch is "
        "mask='causal_top_left'$",
        {"mask": "causal"},
    ),
    "mask of PyTorch": (ValueError, "causal_lower_right of PyTorch is mask='causal_b", {"mask": "causal_lower_right"}),
    "offset missing": (
        ValueError,
        r"align_offset must be .* \(got align_offset=None and mask='causal_offset'\)",
        {"mask": "causal_offset"},
    ),
    "offset alone": (ValueError, r"only with these \(got align_offset=3 and mask=None\)", {"align_offset": 3}),
    "offset range": (
        ValueError,
        r"align_offset must be an integer from -2\^60 to 2\^60 \(got ",
        {"mask": "aligned_offset", "align_offset": 2**61},
    ),
    "offset kind": (TypeError, r"align_offset must be .* \(got 1.5\)", {"mask": "causal_offset", "align_offset": 1.5}),
    "mask array": (ValueError, r"\(got an array\).* goes to bool_mask", {"mask": np.ones((37, 65), bool)}),
    "window": (ValueError, r"window must be a pair .* \(got 3\)", {"window": 3}),
    "window of three": (ValueError, r"window must be .* \(got \(1, 2, 3\)\)", {"window": (1, 2, 3)}),
    "window side": (ValueError, r"window's right side must be -1 .* \(got -2\)", {"window": (1, -2)}),
    "window of floats": (TypeError, r"window's left side must be .* \(got 1.5\)", {"window": (1.5, 0)}),
    "mask dtype": (TypeError, "bool_mask must be bool .got fp32", {"bool_mask": np.ones((37, 65), F32)}),
    "mask shape": (
        ValueError,
        r"dimension 3 of bool_mask must be 65 or 1 \(got shape \[1, 1, 37, 64\]\)",
        {"bool_mask": np.ones((37, 64), bool)},
    ),
    "bias dtype": (
        TypeError,
        r"bias must be float32, float16 or bfloat16 \(got float64\)",
        {"bias": np.zeros((37, 65))},
    ),
    "bias shape": (ValueError, "dimension 1 of bias must be 4 or 1", {"bias": np.zeros((3, 37, 65), F32)}),
    "slopes": (ValueError, "the number of heads of alibi_slopes must be 4", {"alibi_slopes": np.ones(3, F32)}),
    "slopes dtype": (TypeError, r"alibi_slopes must be float32 \(got int64\)", {"alibi_slopes": np.ones(4, int)}),
    "large slopes": (
        ValueError,
        r"alibi_slopes\[1, 2\] must be in the range of float32 \(got 1e\+39\)",
        {"alibi_slopes": np.array([[0, 1, 2, 3], [0, np.inf, 1e39, 0]])},
    ),
    "sinks dtype": (TypeError, r"sinks must be .* \(got >f2\)", {"sinks": np.ones(4, ">f2")}),
    "sinks": (ValueError, "the number of heads of sinks must be 4", {"sinks": np.ones(5, F32)}),
    "scale": (ValueError, "scale must be -2.3e38 to 2.3e38 .got inf", {"scale": float("inf")}),
    "a large scale": (
        ValueError,
        "scale must be a number .got an integer beyond the range of float64",
        {"scale": 10**400},
    ),
    "scale text": (TypeError, r"scale must be a number \(got 'x'\)", {"scale": "x"}),
    "softcap": (ValueError, "softcap must be 0 .none. or positive .got -1", {"softcap": -1}),
    "softcap beyond float32": (ValueError, "softcap must be 0 .* 1e-20 to 1e.20 .got -1e-50", {"softcap": -1e-50}),
    "softcap text": (TypeError, r"softcap must be 0 .* or a positive number \(got '30'\)", {"softcap": "30"}),
    "scale bytes": (TypeError, r"scale must be a number \(got b'1'\)", {"scale": b"1"}),
    "window of names": (
        ValueError,
        r"window must be a pair .* \(got {'left': 1, 'right': 2}\)",
        {"window": {"left": 1, "right": 2}},
    ),
    "window of keys": (ValueError, r"window must be a pair .* \(got {3: 'a', 4: 'b'}\)", {"window": {3: "a", 4: "b"}}),
    "window as a set": (ValueError, r"window must be a pair .* \(got {1, 2}\)", {"window": {1, 2}}),
    "dropout": (ValueError, r"dropout_p must be from 0 to 1 \(got 1.5\)", {"dropout_p": 1.5, "seed": 0}),
    "dropout_start": (
        ValueError,
        r"dropout_start must be four integers \(batch, head, row, key\) from 0 to 2\^32 - 1 \(got \(0, 8\)\)",
        {"dropout_start": (0, 8)},
    ),
    "the key of dropout_start": (
        ValueError,
        r"the key of dropout_start must be a multiple of 4 \(got 6\)",
        {"dropout_start": (0, 0, 0, 6)},
    ),
    "a tiny negative dropout": (
        ValueError,
        r"dropout_p must be from 0 to 1 \(got -1e-50\)",
        {"dropout_p": -1e-50, "seed": 0},
    ),
    "dropout of NaN": (ValueError, r"dropout_p must be from 0 to 1 \(got nan\)", {"dropout_p": float("nan")}),
    "dropout without a seed": (ValueError, r"dropout_p is 0.1: seed must be .* \(got None\)", {"dropout_p": 0.1}),
    "seed": (ValueError, r"seed must be an integer from 0 .* \(got -1\)", {"seed": -1}),
    "seed of floats": (TypeError, r"seed must be .* \(got 0.5\)", {"seed": 0.5}),
    "threads": (ValueError, r"threads must be .* \(got 0\)", {"threads": 0}),
    "score_mod": (ValueError, r"score_mod, column 9: 'x'.*\n  score \+ x\n          \^", {"score_mod": "score + x"}),
    "mask_mod": (
        ValueError,
        "mask_mod, column 1: 'score': a mask_mod does not support score",
        {"mask_mod": "score > 0"},
    ),
    "a function": (TypeError, "takes 1 positional argument but 5 were given", {"score_mod": lambda score: score}),
    "mod_buffers": (TypeError, r"mod_buffers must be a dict .* \(got list\)", {"mod_buffers": [1]}),
    "a mod buffer": (
        TypeError,
        r"mod buffer t must be float32, float16, bfloat16, int32 or bool \(got int16\)",
        {"score_mod": "score", "mod_buffers": {"t": np.arange(3, dtype=np.int16)}},
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
        r"cu_seqlens_q must be int32 \(got int16\)",
        {"cu_seqlens_q": np.array([0, 10], np.int16)},
    ),
    "prefix beyond int32": (
        ValueError,
        r"cu_seqlens_q\[1\] must be in the range of int32 \(got 4294967306\)",
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
        (np.broadcast_to(np.zeros((37, 24), F32), (2, 4, 37, 24)), ValueError, "out must be writable"),
        (np.zeros((2, 4, 37, 24), np.int64), TypeError, r"out must be float32, float16 or bfloat16 \(got int64\)"),
        ([0.0], TypeError, "out must be a NumPy array"),
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
        ([], [], ValueError, r"\(got 0 and 0\)"),
        ([Q], [], ValueError, r"outs and lses must have the same length, 1 or more \(got 1 and 0\)"),
        ([Q], [Q[..., 0].astype(float)], TypeError, r"lses\[0\] must be float32 \(got float64\)"),
        ([Q.astype(int)], [Q[..., 0]], TypeError, r"outs\[0\] must be .* \(got int64\)"),
        ([Q, Q[:1]], [Q[..., 0]] * 2, ValueError, r"outs?\[1\]"),
        ([Q], [Q[:, :3, :, 0]], ValueError, "lses?"),
        ([Q, "x"], [Q[..., 0]] * 2, TypeError, r"outs\[1\] must be .* \(got str\)"),
        ([None, Q], [Q[..., 0]] * 2, TypeError, r"^outs\[0\] must be a NumPy array, .* \(got NoneType\)$"),
        ([Q, Q], [Q[..., 0], None], TypeError, r"^lses\[1\] must be a NumPy array, .* \(got NoneType\)$"),
        (None, None, TypeError, r"^outs must be a list of arrays \(got NoneType\)$"),
        ([Q], None, TypeError, r"^lses must be a list of arrays \(got NoneType\)$"),
    ],
)
def test_bad_merge(outs, lses, error, sentence):
    with pytest.raises(error, match=sentence):
        onepass.merge(outs, lses)


def test_bad_merge_lse():
    with pytest.raises(TypeError, match=r"^lses must be a list of arrays \(got NoneType\)$"):
        onepass.merge_lse(None)
    with pytest.raises(TypeError, match=r"^lses\[0\] must be a NumPy array, .* \(got NoneType\)$"):
        onepass.merge_lse([None])


def test_arguments_that_are_no_arrays_are_named():
    for call, sentence in (
        (lambda: onepass.softmax_backward(Q, None), r"^dy must be a NumPy array, .* \(got NoneType\)$"),
        (lambda: onepass.unified_max_of(None), r"^lses must be a NumPy array, .* \(got NoneType\)$"),
        (lambda: onepass.cascade(None, []), r"^q must be a NumPy array, .* \(got NoneType\)$"),
        (lambda: onepass.attention_backward(Q, None, Q, Q, Q, Q), r"must be an array.* \(got None\)$"),
        (lambda: onepass.block_mask(None, 4, 4), r"^mask must be text, .* \(got None\)$"),
    ):
        with pytest.raises(TypeError, match=sentence):
            call()


def test_bad_explain():
    with pytest.raises(ValueError, match="cannot read 'x'"):
        onepass.explain("fwd b1 x")
    with pytest.raises(TypeError, match=r"explain\(line\) does not accept other arguments than target"):
        onepass.explain("fwd b1", Q)


def test_explain_for_a_gpu_that_is_not_here():
    line = "h16 s4096 d128 bf16 causal_bottom_right"
    hopper, ampere = (onepass.explain(line, target=arch) for arch in ("sm_90", "sm_80"))
    assert hopper.startswith(f"fwd b1 {line} cuda:0\non NVIDIA H100 SXM (sm_90, 132 multiprocessors)")
    assert "\n* cuda.sm90: " in hopper and "\n* cuda.sm80: " in ampere and "\n  cuda.sm90: no, " in ampere
    half = [x.astype(np.float16) for x in (Q, K[..., :40], np.repeat(V, 2, axis=3)[..., :40])]
    explained = onepass.explain(*half, mask="causal_bottom_right", target="sm_90")
    assert explained.startswith("fwd b2 h4/2 s37x65 d40 fp16 causal_bottom_right cuda:0\n")
    assert "\n* cuda." in explained and "cuda" not in onepass.explain(*half).partition("\n")[0]
    whole = [np.zeros((1, 2, 256, 64), np.float16)] * 3
    assert "\n* cuda.quantize+sm90: q: " in onepass.explain(*whole, fp8=True, target="sm_90")
    with pytest.raises(ValueError, match="'sm_70'"):
        onepass.explain(line, target="sm_70")
