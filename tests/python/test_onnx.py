"""ONNX's Attention by the mapping that docs/coming_from/onnx.md shows: against the operator's formula in float64,
and against the reference that comes with onnx where that is installed."""

import itertools
import pathlib
import re

import numpy as np
import pytest
from conftest import check, normal

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "coming_from" / "onnx.md"


@pytest.fixture(scope="module")
def attention():
    (code,) = (x for x in re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S) if "past_key" in x)
    namespace = {}
    exec(compile(code, "docs/coming_from/onnx.md", "exec"), namespace)
    return namespace["attention"]


@pytest.fixture(scope="module")
def onnx():
    return pytest.importorskip("onnx", reason="onnx is not installed")


def formula(q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen, is_causal, softcap, left, right):
    """Query i stands at p = i + offset, offset the valid keys before the queries: those of past_key, or
    nonpad_kv_seqlen - seq_q, or 0. It sees j <= p if causal, p - left <= j <= p + right, and no padding."""
    past = 0
    if past_key is not None:
        past, k, v = past_key.shape[2], np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    lengths = np.full(len(q), keys) if nonpad_kv_seqlen is None else nonpad_kv_seqlen
    offset = np.full(len(q), past) if nonpad_kv_seqlen is None else nonpad_kv_seqlen - rows
    p = np.arange(rows)[:, None] + offset[:, None, None, None]
    j = np.arange(keys)
    seen = j < lengths[:, None, None, None]
    for wanted, inside in [(is_causal, j <= p), (left >= 0, j >= p - left), (right >= 0, j <= p + right)]:
        seen = seen & inside if wanted else seen
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = softcap * np.tanh(s / softcap) if softcap else s
    if attn_mask is not None and attn_mask.dtype == bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        s = s + attn_mask
    s = np.where(seen, s, -np.inf)
    m = s.max(axis=-1, keepdims=True)
    weights = np.exp(s - np.where(m == -np.inf, 0, m))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


CASES = {
    f"{cache} {rows}x{new} causal={causal} window={left},{right} mask={mask}": (
        cache, rows, new, causal, left, right, mask
    )
    for cache, (rows, new), causal, (left, right), mask in itertools.product(
        ("none", "past", "nonpad"), ((5, 5), (3, 9), (9, 3)), (0, 1),
        ((-1, -1), (2, 1), (4, -1), (-1, 0)), (None, bool, float)
    )
}  # fmt: skip


def tensors(rng, cache, rows, new, mask):
    q = normal(rng, (2, 4, rows, 16), spread=2.0)
    k, v = normal(rng, (2, 2, new, 16)), normal(rng, (2, 2, new, 16))
    past = [normal(rng, (2, 2, 7, 16)) if cache == "past" else None for _ in "kv"]
    lengths = np.array([new, max(new - 4, 0)]) if cache == "nonpad" else None
    shape = (rows, new + (7 if cache == "past" else 0))
    shape = {None: None, bool: (4, *shape), float: (2, 1, *shape)}[mask]
    values = None if mask is None else rng.random(shape) < 0.8 if mask is bool else normal(rng, shape)
    return q, k, v, values, *past, lengths


@pytest.mark.parametrize("name", CASES)
def test_the_mapping(rng, attention, name):
    cache, rows, new, causal, left, right, mask = CASES[name]
    given = tensors(rng, cache, rows, new, mask)
    softcap = 3.0 if rows == new else 0.0
    out = attention(*given, is_causal=causal, softcap=softcap, left_window_size=left, right_window_size=right)
    check(out, formula(*given, causal, softcap, left, right))


@pytest.mark.parametrize("name", CASES)
def test_the_formula_is_the_operators(rng, onnx, name):
    cache, rows, new, causal, left, right, mask = CASES[name]
    version = 23 if left == right == -1 and cache != "nonpad" else 24 if left == right == -1 else 25
    if onnx.defs.onnx_opset_version() < version:
        pytest.skip(f"this onnx has no opset {version}")
    given = tensors(rng, cache, rows, new, mask)
    names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    windows = {} if version < 25 else {"left_window_size": left, "right_window_size": right}
    inputs = [n if x is not None else "" for n, x in zip(names, given)]
    outputs = ["Y", "present_key", "present_value"] if cache == "past" else ["Y"]
    node = onnx.helper.make_node("Attention", inputs, outputs, is_causal=causal, **windows)
    types = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(bool): onnx.TensorProto.BOOL}
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [onnx.helper.make_tensor_value_info(n, types.get(x.dtype, onnx.TensorProto.INT64), x.shape)
         for n, x in zip(names, given) if x is not None],
        [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(model)
    result = reference.run(None, {n: x for n, x in zip(names, given) if x is not None})[0]
    check(result, formula(*given, causal, 0.0, left, right))
