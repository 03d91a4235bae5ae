"""bench/peers.py: it reads the problem lines it is asked, computes the same as onepass, and answers one line each."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onepass
import pytest
from conftest import check

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402

LINES = [
    "fwd b2 h4 s33 d64 fp32",
    "fwd b1 h4 s64 d32 fp32 causal_bottom_right layout=bshd",
    "fwd b1 h4 s64 d32 fp32 causal_top_left lse",
    "fwd b1 h8/2 s1x130 d64 fp32 causal_bottom_right",
    "fwd b1 h8/2 s40 d64 fp32 causal_bottom_right",
    "fwd b1 h4/2 s7x20 d16/24 fp32 scale=0.3",
    "fwd b1 h4 s7x20 d16 fp32 causal_bottom_right",
    "fwd b1 h4/2 s64 d32 fp16 causal_bottom_right",
    "fwd b1 h4 s20 d32 bf16",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("peer", peers.PEERS)
def test_peers_compute_the_problem(peer, line):
    server = peers.Server()
    if server.module(peer) is None:
        pytest.skip(f"{peer} is not installed")
    p = peers.Problem.parse(line)
    try:
        result = server.prepared(peer, 2, line)()
    except peers.Refused as refusal:
        assert peer == "onnxruntime" and ("bf16" in line or "s7x20" in line), refusal
        return
    result = result[0].numpy() if peer == "onnxruntime" else result.double().numpy()
    if result.ndim == 3:
        result = result.reshape(p.batch, p.rows, p.heads, p.dim_v).transpose(0, 2, 1, 3)
    expected = onepass.attention(*p.arrays(), mask=p.causal or None, scale=p.scale or None)
    check(result, expected, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[p.dtype])


@pytest.mark.parametrize("line", LINES)
def test_the_library_reads_the_same_lines(line):
    assert onepass.explain(line).startswith("fwd ")


def test_answers():
    questions = [
        "hello",
        *(f"{peer} 1 0.01 {LINES[0]}" for peer in peers.PEERS),
        "torch 1",
        "numpy 1 0.1 fwd",
        "torch 1 0 fwd b1 x",
    ]
    result = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "peers.py")],
        input="\n".join(questions),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, *timed, short, unknown, unread = map(json.loads, result.stdout.splitlines())
    for peer, answer in zip(peers.PEERS, timed):
        assert answer["peer"] == peer
        if hello["peers"][peer] is None:
            assert answer["missing"] == "not installed"
        else:
            assert 0 < answer["min_s"] <= answer["median_s"] and answer["runs"] >= 1
            assert answer["version"] == hello["peers"][peer]
    assert "unknown" in unknown["missing"]
    if hello["peers"]["torch"] is not None:
        assert "<peer> <threads> <seconds> <problem> is expected" in short["refused"]
        assert unread["refused"] == "x is not timed"


def test_arrays_are_the_same_on_every_call():
    p = peers.Problem.parse(LINES[0])
    for first, again in zip(p.arrays(), p.arrays()):
        np.testing.assert_array_equal(first, again)
