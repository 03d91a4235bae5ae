"""bench/peers: it reads the problem lines it is asked, computes the same as onepass, and answers one line each."""

import ctypes
import json
import pathlib
import subprocess
import sys
import types
import warnings

import fake_card
import numpy as np
import onepass
import pytest
from conftest import check

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import timing  # noqa: E402
from bench.peers import PEERS, cpu, flash_attention_3, flash_attention_4, torch_cuda  # noqa: E402
from bench.peers import flash_attention_3_decode as decode  # noqa: E402
from bench.peers.server import Server  # noqa: E402
from bench.problem import Problem, Refused  # noqa: E402

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
@pytest.mark.parametrize("peer", cpu.PEERS)
def test_peers_compute_the_problem(peer, line):
    server = Server()
    if server.module(peer) is None:
        pytest.skip(f"{peer} is not installed")
    p = Problem.parse(line)
    try:
        result = server.prepared(peer, 2, line).run()
    except Refused as refusal:
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
        *(f"{peer} 1 0.01 {LINES[0]}" for peer in cpu.PEERS),
        *(f"{peer} 1 0.01 {LINES[0]}" for peer in torch_cuda.PEERS),
        *(f"flash-attn-{n} 1 0.01 {LINES[0]}" for n in (3, 4)),
        f"torch 1 0.01 {LINES[0]} cuda",
        "ceiling height cuda:0 1",
        "torch 1",
        "numpy 1 0.1 fwd",
        "torch 1 0 fwd b1 x",
    ]
    result = subprocess.run(
        [sys.executable, str(ROOT / "bench"), "peers"],
        input="\n".join(questions),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, *timed, on_cuda, ceiling, short, unknown, unread = map(json.loads, result.stdout.splitlines())
    for peer, answer in zip(PEERS, timed):
        assert answer["peer"] == peer
        if hello["peers"][peer] is None:
            assert answer["missing"] == "not installed"
        elif peer in torch_cuda.PEERS:
            assert answer["refused"] == "is timed on CUDA only (got cpu)"
        elif peer == "flash-attn-3":
            assert answer["refused"].startswith("this build supports bf16")
        elif peer == "flash-attn-4":
            assert answer["refused"] == "is timed on CUDA only (got cpu)"
        else:
            assert 0 < answer["min_s"] <= answer["median_s"] and answer["runs"] >= 1
            assert answer["version"] == hello["peers"][peer]
    assert unknown["missing"].startswith("unknown peer; known: torch, onnxruntime, ")
    if hello["peers"]["torch"] is not None:
        assert "is timed on the CPU only (got cuda:0)" in on_cuda["refused"]
        assert "must be ceiling matmul|copy <device> <seconds> (got 'ceiling height cuda:0 1')" in ceiling["refused"]
        assert "must be <peer> <threads> <seconds> <problem> (got 'torch 1')" in short["refused"]
        assert unread["refused"] == "x is not timed"


def test_arrays_are_the_same_on_every_call():
    p = Problem.parse(LINES[0])
    for first, again in zip(p.arrays(), p.arrays()):
        np.testing.assert_array_equal(first, again)


# Ways makes the same calls on every device, so the CPU judges them here.
WAYS = [
    ("fwd b2 h4 s33 d64 fp32 layout=bshd", {}),
    ("fwd b1 h4/2 s40 d32/16 fp32 causal_bottom_right scale=0.3", {"mask": "causal_bottom_right", "scale": 0.3}),
    ("fwd b1 h2 s20x50 d32 fp32 causal_bottom_right", {"mask": "causal_bottom_right"}),
    ("fwd b1 h2 s50x20 d32 fp32 causal_top_left", {"mask": "causal_top_left"}),
    ("fwd b1 h2 s20x50 d32 fp32 window=8:0 causal_bottom_right", {"mask": "causal_bottom_right", "window": (8, 0)}),
    ("fwd b1 h2 s20x50 d32 fp32 window=3:5", {"window": (3, 5)}),
    ("fwd b1 h2 s20x50 d32 fp32 window=3:40 aligned_top_left", {"mask": "aligned_top_left", "window": (3, 40)}),
]


@pytest.mark.parametrize(("line", "options"), WAYS)
def test_every_way_of_asking_is_the_same_problem(line, options):
    torch = pytest.importorskip("torch")
    p = Problem.parse(line)
    ways = torch_cuda.Ways(torch, p, "math")
    arrays = p.arrays()
    ways.inputs = lambda: [torch.from_numpy(x) for x in arrays]
    expected = onepass.attention(*arrays, **options)
    made = ways.all()
    assert len(made) == (1 if p.heads == p.heads_kv else 2)
    for note, run in made:
        check(run().numpy(), expected, "float32")
        assert ("window" in note) == ("window" in options) and "expanded" not in made[0][0]


def test_ways_mask_and_bias_span_what_the_problem_says():
    torch = pytest.importorskip("torch")
    line = "fwd b2 h4 s6x8 d16 bf16 bias=fp32:1hqk mask=b11k causal_bottom_right"
    note, options = torch_cuda.Ways(torch, Problem.parse(line), "math").masking()
    assert note == "bias in bf16" and options["attn_mask"].shape == (2, 4, 6, 8)
    hidden = torch.isinf(options["attn_mask"])
    assert hidden[..., torch.ones(6, 8).triu(3).bool()].all() and not hidden.all()
    for extra in ("softcap=3", "alibi", "sinks"):
        with pytest.raises(Refused, match="is not timed"):
            torch_cuda.Ways(torch, Problem.parse(f"fwd h2 s4 {extra}"), "math")


ON_A_CARD = {
    "torch-math": [
        "fwd b1 h4/2 s16 d8 bf16 cuda",
        "bwd b1 h2 s16 d8 fp32 cuda",
        "fwd h2 s9x12 d8 bf16 window=3:0 cuda",
        "bwd_jvp b1 h2 s16 d8 fp32 cuda",
    ],
    "torch-rows": ["softmax s10x20 fp32 cuda", "softmax_bwd s10x20 fp32 log cuda"],
    "torch-copy": ["softmax s10x20 fp32 cuda"],
    "torch-linear": ["linear m2 n8 k8 fp32 column_bias cuda"],
}


@pytest.mark.parametrize(("peer", "line"), [(peer, line) for peer, lines in ON_A_CARD.items() for line in lines])
def test_peers_on_a_card(torch, monkeypatch, peer, line):
    fake_card.install(torch, monkeypatch, timing)
    answer = Server().answer(f"{peer} 1 0 {line}\n")
    runs = {"median_s", "min_s", "runs", "extra_bytes", "peer", "version"}
    assert set(answer) - {"note"} == runs and answer["peer"] == peer and answer["version"] == torch.__version__
    assert answer["median_s"] == (2e-3 / 8 if peer == "torch-linear" else 2e-3)
    assert answer.get("note") == {"w": "window as a boolean mask", "l": "aten._log_softmax_backward_data"}.get(
        "w" if "window" in line else "l" if "_bwd" in line else ""
    )


@pytest.mark.parametrize("line", ["fwd b1 h2 s64 d64", "bwd b1 h2 s64 d64", "bwd b1 h2 s64 d64 causal_bottom_right"])
def test_flash_attention_3_on_a_card(torch, monkeypatch, line):
    asked = []
    library = types.SimpleNamespace(
        fa3_forward=lambda *given: asked.append("forward") or 0,
        fa3_backward=lambda *given: asked.append("backward") or 0,
        fa3_backward_bytes=type("Bytes", (), {"__call__": lambda self, *given: 100})(),
    )
    monkeypatch.setenv("ONEPASS_FA3", "fa3.so")
    monkeypatch.setattr(flash_attention_3.ctypes, "CDLL", lambda path: library)
    fake_card.install(torch, monkeypatch, timing)
    answer = Server().answer(f"flash-attn-3 1 0 {line} bf16 layout=bshd cuda")
    assert answer["median_s"] == 2e-3 and answer["extra_bytes"] == (4 * 2 * 64 + 4 if line[0] == "f" else 100)
    assert set(asked) == ({"forward"} if line[0] == "f" else {"forward", "backward"})


def test_the_ceilings_of_a_card(torch, monkeypatch):
    fake_card.install(torch, monkeypatch, timing)
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: out)
    small = torch.empty
    monkeypatch.setattr(torch, "randn", lambda *sizes, **options: small(0))
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: small(0))
    server = Server()
    assert server.answer("ceiling matmul cuda:0 0") == {"flops_per_s": pytest.approx(2 * 8192**3 / 2e-3)}
    assert server.answer("ceiling copy cuda:0 0") == {"bytes_per_s": pytest.approx(2**31 / 2e-3)}


def test_a_backend_that_refuses_says_why():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.warn("Flash attention kernel not used because: (Triggered internally at x)", stacklevel=1)
        warnings.warn("Flash Attention does not support non-null attn_mask. (Triggered internally at y)", stacklevel=1)
    reason = torch_cuda.reason_of(RuntimeError("No available kernel."), said)
    assert reason == "Flash Attention does not support non-null attn_mask."
    assert torch_cuda.reason_of(RuntimeError("No available kernel."), []) == "No available kernel."

    def fails():
        raise torch.OutOfMemoryError("much text")

    peer = torch_cuda.CudaTorch(torch)
    assert peer.first_that_runs([("first", fails), ("second", lambda: None)])[0] == "second"
    with pytest.raises(Refused, match="out of device memory"):
        peer.first_that_runs([("first", fails)])


def test_flash_attention_3_refuses_what_it_would_compute_otherwise(monkeypatch):
    monkeypatch.setenv("ONEPASS_FA3", "fa3.so")
    peer = flash_attention_3.FlashAttention3(None)
    plain = "b1 h4 s64 d128 bf16 layout=bshd cuda"
    for line in (f"fwd {plain}", f"bwd {plain}", f"bwd {plain} deterministic", f"bwd {plain.replace('h4', 'h4/2')}"):
        peer.refuse(Problem.parse(line))
    for line, why in (
        (f"fwd {plain.replace('h4', 'h4/2')}", "does not support grouped heads"),
        (f"bwd {plain} grads=dq", "together"),
        (f"bwd {plain.replace('d128', 'd256')} deterministic", "dim 64 and 128"),
        (f"bwd {plain} dropout=0.1", "dropout=0.1 is not timed"),
        (f"fwd {plain} deterministic", "deterministic is not timed"),
        (f"bwd {plain.replace('s64', 's64x65')}", "equal lengths"),
    ):
        with pytest.raises(Refused, match=why):
            peer.refuse(Problem.parse(line))
    monkeypatch.delenv("ONEPASS_FA3")
    with pytest.raises(Refused, match="bench/peers/fa3/build.sh"):
        peer.refuse(Problem.parse(f"bwd {plain}"))


def test_flash_attention_3_refuses_what_it_would_decode_otherwise(monkeypatch):
    monkeypatch.setenv("ONEPASS_FA3", "fa3.so")
    peer = flash_attention_3.FlashAttention3(None)
    plain = "fwd b2 h8/2 s1x64 d128 bf16 cuda"
    for more in ("", " layout=bshd", " kv=paged:16", " causal_bottom_right"):
        peer.refuse(Problem.parse(plain + more))
    for line, why in (
        (plain + " causal_top_left", "sees every key"),
        (plain.replace("d128", "d256"), "head dims 64 and 128"),
        (plain.replace("bf16", "fp16"), "decodes bf16 only"),
        (plain.replace("s1x64", "s2x64"), "equal lengths"),
        (plain.replace("h8/2", "h129/1"), "at most 128 heads"),
        (plain + " seqused", "seqused is not timed"),
        (plain + " kv=ring:16", "kv=ring is not timed"),
        (plain + " kv=paged:48", "multiple of the page size 48 \\(got 64\\)"),
    ):
        with pytest.raises(Refused, match=why):
            peer.refuse(Problem.parse(line))


class DecodingLibrary:
    """The library's functions, computed from nothing but the addresses and strides they are given."""

    def __init__(self, torch, wrong):
        self.torch, self.wrong = torch, wrong
        self.fa3_decode_splits = lambda asked: 3

    def at(self, address, numbers, element):
        bytes_ = (ctypes.c_char * (numbers * self.torch.empty(0, dtype=element).element_size())).from_address(address)
        return self.torch.frombuffer(bytes_, dtype=element)

    def fa3_decode(self, asked, stream):
        torch, d = self.torch, asked._obj
        queries = d.batch, d.heads, d.dim
        q, out = (self.at(where, d.batch * d.heads * d.dim, torch.bfloat16).view(queries) for where in (d.q, d.out))
        keys = d.batch * d.keys
        k, v = (self.at(where, keys * d.heads_kv * d.dim, torch.bfloat16) for where in (d.k, d.v))
        places = torch.arange(keys).view(d.batch, d.keys)
        page = d.page or d.keys
        if d.table:
            table = self.at(d.table, keys // page, torch.int32).view(d.batch, -1).long()
            places = table.repeat_interleave(page, 1) * page + torch.arange(d.keys) % page
        for b in range(d.batch):
            rows = places[b] // page * d.batch_stride + places[b] % page * d.key_stride
            for h in range(d.heads):
                head = h // (d.heads // d.heads_kv) * d.head_stride
                seen = (rows + head)[:, None] + torch.arange(d.dim)
                weights = (k[seen].double() @ q[b, h].double() * d.scale).softmax(0)
                out[b, h] = (weights @ v[seen].double() * self.wrong).bfloat16()
        return 0


@pytest.mark.parametrize("more", ["", " layout=bshd", " kv=paged:8", " kv=paged:8 scale=0.3"])
def test_flash_attention_3_is_compared_before_its_decoding_is_timed(monkeypatch, more):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("ONEPASS_FA3", "fa3.so")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
    p = Problem.parse("fwd b3 h4/2 s1x40 d64 bf16" + more)
    for wrong in (1, 1.02, float("nan")):
        monkeypatch.setattr(decode.ctypes, "CDLL", lambda path, wrong=wrong: DecodingLibrary(torch, wrong))
        calls = decode.Calls(torch, p)
        assert calls.note == "3 splits" and calls.extra_bytes == 4 * 3 * 4 * (1 + 3 * 65)
        if wrong == 1:
            calls.check()
        else:
            with pytest.raises(RuntimeError, match="off by .* in sequence 0"):
                calls.check()


def test_flash_attention_4_is_asked_for_the_problem():
    torch = pytest.importorskip("torch")
    asked = {}

    def attention(q, k, v, **options):
        asked.clear()
        asked.update(options, shape=tuple(q.shape))
        return q + 0, None

    cute = types.SimpleNamespace(flash_attn_func=attention, flash_attn_varlen_func=attention)

    def ask(line):
        ways = flash_attention_4.Fa4Ways(torch, Problem.parse(line), cute)
        ((_, run),) = ways.all()
        run()
        return len(ways.leaves)

    assert ask("bwd b2 h4 s8 d64 bf16 causal_bottom_right deterministic scale=0.5 layout=bshd") == 3
    assert asked["shape"] == (2, 8, 4, 64) and asked["causal"] and asked["deterministic"]
    assert asked["softmax_scale"] == 0.5 and asked["softcap"] == 0
    assert ask("fwd h4 s8x9 d64 bf16 window=3:-1 softcap=20") == 0
    assert asked["window_size"] == (3, None) and not asked["causal"] and asked["softcap"] == 20
    assert ask("bwd h4/2 d64 bf16 varlen=3,5/4,2 causal_bottom_right grads=dk") == 1
    assert asked["shape"] == (8, 4, 64) and asked["cu_seqlens_k"].tolist() == [0, 4, 6] and asked["max_seqlen_q"] == 5
    for line, why in (
        ("fwd h4 s8 fp32", "does not support fp32"),
        ("fwd h4 s8x9 bf16 causal_top_left", "supports bottom-right alignment only"),
        ("fwd h4 s8 bf16 bias=bf16:11qk", "not timed"),
        ("fwd h4 s8 bf16 dropout=0.1", "not timed"),
    ):
        with pytest.raises(Refused, match=why):
            ask(line)


def test_flash_attention_4_is_asked_for_every_cell_of_the_forward():
    torch = pytest.importorskip("torch")
    lines = (ROOT / "bench/suites/h200.txt").read_text().splitlines()
    cells = [Problem.parse(line) for line in lines if line and line[0] != "#"]
    assert len(cells) == 18
    for p in cells:
        options = flash_attention_4.Fa4Ways(torch, p, None).options
        assert options == {"causal": bool(p.causal), "deterministic": False, "softcap": 0.0}, p


def test_lengths_of_packed_problems():
    assert Problem.parse("fwd h2 varlen=3,7,4x2").lengths() == ([3, 7, 4, 4], [3, 7, 4, 4])
    assert Problem.parse("fwd h2 varlen=3,7/5,0").lengths() == ([3, 7], [5, 0])
    assert Problem.parse("fwd h2 s4").lengths() is None
