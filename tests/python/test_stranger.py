"""bench/stranger.py with tiny cells on the CPU: its table, its numbers, and its words about what it could not run."""

import importlib.util
import json
import pathlib
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
PATH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "stranger.py"


@pytest.fixture
def stranger(monkeypatch):
    spec = importlib.util.spec_from_file_location("stranger", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "stranger", module)
    spec.loader.exec_module(module)
    return module


def run(stranger, monkeypatch, path, *arguments):
    monkeypatch.setattr(sys, "argv", ["stranger.py", "--quick", "--device", "cpu", "--json", str(path), *arguments])
    stranger.main()
    return json.loads(path.read_text())


def test_all_groups_run_on_a_cpu(stranger, monkeypatch, tmp_path, capsys):
    made = run(stranger, monkeypatch, tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert {x["cell"]["group"] for x in made["results"]} == {"forward", "backward", "decoding", "mixed"}
    for x in made["results"]:
        assert x["seconds"]["onepass"] > 0
        assert ("sdpa flash" in x["seconds"]) == (x["cell"]["group"] != "mixed"), x["not_run"]
    assert made["missing"]["sdpa cuDNN"] == "needs a GPU" and "- FlashInfer: " in printed
    assert "- sdpa flash, 1 cells (float32 d32 b2 h8/2 s12x48 causal): no packed rows over pages" in printed
    assert printed.count("| forward | ") == 2 and "GFLOP/s" in printed and "GB/s" in printed


def test_a_wrong_contender_is_named_and_not_timed(stranger, monkeypatch, tmp_path):
    theirs = stranger.CONTENDERS["sdpa flash"]
    wrong = lambda cell, t: lambda: theirs[1](cell, t)() * 1.1  # noqa: E731
    monkeypatch.setitem(stranger.CONTENDERS, "sdpa flash", (None, wrong))
    for x in run(stranger, monkeypatch, tmp_path / "out.json")["results"]:
        assert "sdpa flash" not in x["seconds"]
        assert x["cell"]["group"] == "mixed" or "result differs by" in x["not_run"]["sdpa flash"]


def test_all_cells_of_a_gpu(stranger):
    groups = [cell.group for cell in stranger.cells(True, False)]
    assert [groups.count(x) for x in ("forward", "backward", "decoding", "mixed")] == [18, 18, 3, 1]
    assert {cell.batch * cell.rows for cell in stranger.cells(True, False) if cell.group == "forward"} == {16384}
