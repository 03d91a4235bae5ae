"""bench/plot.py reads what onepass bench writes and draws a picture of it."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import plot  # noqa: E402

CAUSAL = " causal_bottom_right"


def row(problem, ours=1e-3, **peers):
    entries = {name: {"median_s": s} if s else {"missing": "refused: no"} for name, s in peers.items()}
    best = min((s for s in peers.values() if s), default=None)
    return {"problem": problem, "median_s": ours, "flops": 5e11, "matmul_flops_per_s": 8e14, "peers": entries} | (
        {"times_best_peer": best / ours} if best else {}
    )


def suite():
    lines = (ROOT / "bench" / "suites" / "h200.txt").read_text().splitlines()
    return [row(f"{line}:0", **{"torch-cudnn": 2e-3, "torch-flash": 3e-3}) for line in lines if line[0] != "#"]


def fa1():
    entry = {"median_s": 1e-3, "read_bytes": 2e8, "written_bytes": 1e8, "extra_bytes": 3e6}
    entry |= {"model_bytes": 3e8, "model_extra_bytes": 2e6}
    refused = {"refused": "out of device memory", "model_bytes": 1e12, "model_extra_bytes": 5e11}
    lines = [f"fwd b{8 // n} h4 s{1024 * n} d64 bf16{m} layout=bshd cuda:0" for n in (4, 1) for m in ("", CAUSAL)]
    return [{"problem": p, "contenders": {"onepass": entry, "math": refused, "math-bf16": entry}} for p in lines]


def test_the_18_cells_are_known():
    found = plot.cells(suite())
    assert sorted(found) == [(d, m) for d in (64, 128, 256) for m in (False, True)]
    assert all([seq for seq, _ in group] == [1024, 4096, 16384] for group in found.values())
    assert plot.cells([*suite(), row("fwd b1 h1 s8 d96 fp32 cuda:0")]) is None


def test_numbers():
    r = row("fwd b4 h16 s4096 d128 bf16 cuda:0", **{"torch-cudnn": 2e-3, "torch-flash": None})
    assert plot.seconds(r) == {"onepass": 1e-3, "torch-cudnn": 2e-3}
    assert plot.tflops(r, "torch-cudnn") == 250
    assert plot.seconds({"problem": "x", "refused": "no"}) == {}
    assert plot.label("fwd h16 d128 bf16 causal_bottom_right varlen=3,4x2 cuda:0") == "h16 d128 bf16 causal varlen"


def test_lines_of_the_fa1_claim():
    found = plot.fa1_line(fa1(), 64, True, "onepass", ("read_bytes", "written_bytes"), 1e9)
    assert found == ((1024, 4096), pytest.approx((0.3, 0.3)))
    assert plot.fa1_line(fa1(), 64, False, "math", ("median_s",), 1) == ((), ())
    assert plot.fa1_line(fa1(), 128, False, "onepass", ("median_s",), 1) == ((), ())


@pytest.mark.parametrize(
    "rows", [suite(), fa1(), [row("fwd b1 s9 d8 bf16 cuda:0", **{"torch-math": 4e-3, "torch-cudnn": 2e-3})]]
)
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_pictures(tmp_path, rows, kind):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "r.json").write_text(json.dumps(rows))
    command = [sys.executable, str(ROOT / "bench" / "plot.py"), str(tmp_path / "r.json"), "--out"]
    pictures = []
    for name in ("a", "b"):
        subprocess.run([*command, str(tmp_path / f"{name}.{kind}")], check=True)
        pictures.append((tmp_path / f"{name}.{kind}").read_bytes())
    assert len(pictures[0]) > 5000 and pictures[0] == pictures[1]
