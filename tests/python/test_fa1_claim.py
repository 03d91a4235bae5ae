"""bench/studies/fa1_claim.py without a GPU: problems, model, its reading of ncu's output, its table and turns."""

import argparse
import json
import pathlib
import re
import sys
import types

import fake_card
import onepass
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import hbm_bytes, timing  # noqa: E402
from bench.problem import Problem  # noqa: E402
from bench.studies import fa1_claim  # noqa: E402

HEAD = '"ID","Process ID","Process Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def printed(*values, unit="byte"):
    """The output of ncu and of a program with these ranges: names, then a row for each metric, with commas."""
    lines = ["==PROF== Connected to process 7 (/usr/bin/python3)"]
    lines += [json.dumps({"problem": f"p{i}", "contender": "math"}) for i in range(len(values))]
    lines += ["==PROF== Disconnected from process 7", HEAD]
    for i, pair in enumerate(values):
        for metric, value in zip((hbm_bytes.READ, hbm_bytes.WRITTEN), pair):
            lines.append(f'"{i}","7","python3","range","Command line profiler metrics","{metric}","{unit}","{value:,}"')
    return "\n".join(lines)


def test_the_lines_are_the_24_cells():
    lines = fa1_claim.problem_lines(fa1_claim.SIZES)
    problems = [Problem.parse(line) for line in lines]
    assert len(set(lines)) == 24 and all(onepass.explain(line).startswith("fwd ") for line in lines)
    for p in problems:
        assert p.batch * p.rows == 16384 and p.heads * p.dim == 2048 and p.bshd and p.device == "cuda:0"
    assert {p.rows for p in problems} == {512, 1024, 2048, 4096, 8192, 16384}


def test_the_model_counts_as_the_paper():
    full, causal = (Problem.parse(f"fwd b2 h4 s1024 d64 bf16 {mask}") for mask in ("", "causal_bottom_right"))
    tensors, scores, shared = 8 * 4 * 1024 * 64 * 2, 8 * 1024**2, 1 << 17  # M = 65536 elements of bf16
    assert fa1_claim.model(full, "math", shared) == (tensors + 4 * 4 * scores, 2 * 4 * scores)
    assert fa1_claim.model(causal, "math-bf16", shared) == (tensors + 4 * 2 * scores, 2 * 2 * scores)
    assert fa1_claim.model(full, "onepass", shared) == (tensors + 8 * 1024**2 * 64**2 / 65536 * 2, 8 * 1024 * 4)
    assert fa1_claim.model(causal, "onepass", shared)[0] == tensors + 8 * 1024**2 * 64**2 / 65536


def test_the_lines_of_the_backward_begin_with_gpt2():
    lines = fa1_claim.problem_lines(fa1_claim.SIZES, "bwd")
    assert [line.replace("bwd", "fwd") for line in lines[2:]] == fa1_claim.problem_lines(fa1_claim.SIZES)
    medium = [Problem.parse(line) for line in lines[:2]]
    assert all((p.batch, p.heads, p.rows, p.dim) == (64, 16, 1024, 64) for p in medium)
    assert [p.causal for p in medium] == ["", "causal_bottom_right"]


def test_the_model_of_forward_and_backward():
    both, forward = (Problem.parse(f"{op} b2 h4 s1024 d64 bf16") for op in ("bwd", "fwd"))
    tensor, scores, shared = 8 * 1024 * 64 * 2, 8 * 1024**2, 1 << 17
    assert fa1_claim.model(both, "math", shared) == (12 * tensor + 11 * 4 * scores, 3 * 4 * scores)
    again = fa1_claim.model(forward, "onepass", shared)[0] - 4 * tensor
    assert fa1_claim.model(both, "onepass", shared) == (12 * tensor + 2 * again, 8 * 1024 * 4 * 66)


def test_what_ncu_prints_is_read():
    first, second = hbm_bytes.counts(printed((1234567, 89), (5, 6000)))
    assert first == ({"problem": "p0", "contender": "math"}, {"read_bytes": 1234567, "written_bytes": 89})
    assert second[1] == {"read_bytes": 5, "written_bytes": 6000}
    with pytest.raises(ValueError, match="in byte \\(got Mbyte\\)"):
        hbm_bytes.counts(printed((1, 2), unit="Mbyte"))
    with pytest.raises(ValueError, match="0 of 1 ranges: ==ERROR== ERR_NVGPUCTRPERM"):
        hbm_bytes.counts(printed((1, 2)).partition(HEAD)[0] + "==ERROR== ERR_NVGPUCTRPERM")


def test_a_program_is_run_under_ncu(tmp_path, capfd):
    shown = tmp_path / "ncu.py"  # prints what it was asked beside what ncu would have counted
    shown.write_text(f"import sys\nprint({printed((3, 4))!r})\nassert sys.argv[-2:] == ['program.py', '--go']")
    found = hbm_bytes.counted(f"{sys.executable} {shown}", ["program.py", "--go"])
    assert found == [({"problem": "p0", "contender": "math"}, {"read_bytes": 3, "written_bytes": 4})]
    for absent in ("", "no-such-ncu --x"):
        assert hbm_bytes.counted(absent, ["program.py"]) == [] and "are left out" in capfd.readouterr().err
    shown.write_text("import sys\nprint('==ERROR== no permission')\nprint('more', file=sys.stderr)")
    assert hbm_bytes.counted(f"{sys.executable} {shown}", ["program.py"]) == []
    assert re.search("left out: .*no permission\nmore", capfd.readouterr().err)


def test_the_table():
    entry = {"median_s": 2e-3, "read_bytes": 4e8, "written_bytes": 1e8, "model_bytes": 6e8, "extra_bytes": 1.5e6}
    slow = entry | {"median_s": 5e-2, "extra_bytes": 12345.6e6}
    refused = {"refused": "out of device memory", "model_bytes": 1e12}
    row = {"problem": fa1_claim.problem_lines([512])[1]}
    row["contenders"] = {"onepass": entry, "math": slow, "math-bf16": refused}
    assert fa1_claim.table([row]).splitlines()[2] == (
        "| 64, causal | 512 | 2.00 | 25.0x | out of device memory | 0.500 (0.600) | 0.500 (0.600) | - (1000) "
        "| 1.50 | 12.3 | - |"
    )


def test_the_docs_show_the_results():
    results = json.loads((ROOT / "bench" / "results" / "fa1.json").read_text())
    assert [row["problem"] for row in results] == fa1_claim.problem_lines(fa1_claim.SIZES)
    assert fa1_claim.table(results) in (ROOT / "docs" / "derivation.md").read_text()
    for row in results:
        for name, entry in row["contenders"].items():
            expected = fa1_claim.model(Problem.parse(row["problem"]), name, row["shared_bytes"])
            assert (entry["model_bytes"], entry["model_extra_bytes"]) == pytest.approx(expected)


CELL = "b2 h2 s70 d64 bf16 causal_bottom_right layout=bshd cuda:0"


@pytest.fixture
def card(torch, monkeypatch):
    monkeypatch.setattr(fa1_claim, "problem_lines", lambda _, op="fwd": [f"{op} {CELL}"])
    return fake_card.install(torch, monkeypatch, timing)


@pytest.mark.parametrize("op", ["fwd", "bwd"])
def test_rows(card, op):
    options = argparse.Namespace(ncu="", sizes=[70], rounds=2, pause=0, seconds=0, op=op, count_once=False)
    (row,) = fa1_claim.rows(card, onepass, options)
    assert (
        row["problem"] == f"{op} {CELL}"
        and row["device"] == "card"
        and list(row["contenders"]) == ["onepass", "math", "math-bf16"]
    )
    for entry in row["contenders"].values():
        assert entry["median_s"] == entry["min_s"] == 2e-3 and entry["runs"] == 6 and entry["model_bytes"] > 0
    assert json.loads(json.dumps(row)) == row
    assert "| 64, causal | 70 | 2.00 | 1.0x | 1.0x | - (" in fa1_claim.table([row])


def test_a_wrong_result_is_not_measured(card):
    wrong = types.SimpleNamespace(attention=lambda q, k, v, **_: (v * 1.02, None))
    options = argparse.Namespace(rounds=1, pause=0, seconds=0)
    why = "onepass differs by .* from PyTorch's math backend; limit 0.0{}"
    with pytest.raises(SystemExit, match=why.format(1)):
        fa1_claim.measure(card, wrong, fa1_claim.problem_lines(())[0], options)

    def half(*args, **options):
        dq, dk, dv = onepass.attention_backward(*args, **options)
        return dq, 0.5 * dk, dv

    wrong = types.SimpleNamespace(attention=onepass.attention, attention_backward=half)
    with pytest.raises(SystemExit, match=why.format(2)):
        fa1_claim.measure(card, wrong, fa1_claim.problem_lines((), "bwd")[0], options)


def test_what_memory_does_not_hold_is_left_out(card, monkeypatch, capsys):
    sdpa, lines = card.nn.functional.scaled_dot_product_attention, fa1_claim.problem_lines(())

    def in_bf16_only(*args, **options):
        if not card.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
            raise card.OutOfMemoryError("much text")
        return sdpa(*args, **options)

    monkeypatch.setattr(card.nn.functional, "scaled_dot_product_attention", in_bf16_only)
    fa1_claim.count_once(card, onepass, lines)
    entries = fa1_claim.measure(card, onepass, lines[0], argparse.Namespace(rounds=1, pause=0, seconds=0))
    assert entries["math"] == {"refused": "out of device memory"} and "median_s" in entries["math-bf16"]
    names = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [name["contender"] for name in names] == ["onepass", "math-bf16"] and card.cuda.ranges == 2
