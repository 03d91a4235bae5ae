"""python -m bench: its commands and studies without a GPU, and the timer on a machine that has none."""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import types

import fake_card
import onepass
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import run, studies, timing  # noqa: E402
from bench.studies import cascade, fp8_speed, frameworks  # noqa: E402


def bench(*arguments, cwd=ROOT, program=("-m", "bench")):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_commands_are_listed():
    for arguments in ([], ["--help"], ["-h"]):
        done = bench(*arguments)
        assert done.returncode == 0 and not done.stderr
        for command in ("run", "study NAME", "tables", "plot", "peers"):
            assert f"python -m bench {command}" in done.stdout


def test_an_unknown_command_is_answered_by_the_list():
    done = bench("bars")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "unknown command 'bars'; known: run, study, tables, plot, peers\n"


def test_it_runs_from_any_folder(tmp_path):
    done = bench("tables", "--check", cwd=tmp_path, program=[str(ROOT / "bench")])
    assert done.returncode == 0 and done.stdout.endswith(" 0 wrong\n"), done.stdout + done.stderr


@pytest.mark.parametrize("command", ["tables", "plot", "peers"])
def test_each_command_has_help(command):
    done = bench(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: python -m bench {command} [-h]"), done.stderr


def test_the_studies_are_listed():
    done = bench("study")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == studies.NAMES
    assert studies.NAMES == [
        "block_mask_build", "cascade", "context_parallel", "context_parallel_scale", "fa1_claim", "flex_speed",
        "fp8_errors", "fp8_model", "fp8_speed", "frameworks", "gradient_errors", "jax_speed", "jvp_speed",
        "mask_gallery", "precision_errors", "race", "serving_speed", "serving_transformers", "vllm_speed",
    ]  # fmt: skip
    unknown = bench("study", "speed")
    assert unknown.returncode == 2 and not unknown.stdout
    assert unknown.stderr.startswith("unknown study 'speed'; known:\n")
    assert unknown.stderr.splitlines()[1:] == done.stdout.splitlines()[1:]


HIDDEN = "import sys\nfor name in ('torch', 'jax'):\n    sys.modules[name] = None\nfrom bench.__main__ import main\n"


@pytest.mark.parametrize("name", studies.NAMES)
def test_each_study_has_help_without_its_frameworks(name):
    done = bench(program=["-c", HIDDEN + f"main(['study', {name!r}, '--help'])"])
    assert done.returncode == 0 and done.stdout.startswith(f"usage: python -m bench study {name} [-h]"), done.stderr
    assert "--json JSON" in done.stdout and "--table JSON" in done.stdout


@pytest.mark.parametrize(
    "name", [name for name in studies.NAMES if name not in ("context_parallel_scale", "fp8_model", "race")]
)
def test_a_study_names_what_it_misses(name):
    done = bench(program=["-c", HIDDEN + f"main(['study', {name!r}])"])
    needed = "jax" if name == "jax_speed" else "torch"
    assert done.returncode == 1 and done.stderr.startswith(f"the study needs {needed}: "), done.stderr


RESULTS = {
    "cascade": "cascade",
    "fa1_claim": "fa1",
    "flex_speed": "zen3_flex",
    "fp8_errors": "h200_fp8_errors",
    "fp8_model": "minilm_fp8",
    "fp8_speed": "h200_fp8",
    "frameworks": "xeon16_frameworks",
    "block_mask_build": "h200_block_mask_build",
    "gradient_errors": "h200_backward_errors",
    "jax_speed": "h200_jax",
    "mask_gallery": "zen3_gallery",
    "serving_speed": "h200_serving",
    "serving_transformers": "zen3_serving_transformers",
    "vllm_speed": "h200_vllm",
}
WITHOUT_RESULTS = {
    "context_parallel",
    "context_parallel_scale",
    "jvp_speed",
    "precision_errors",
    "race",
}  # they have no file that is their own


def test_every_study_has_results_or_no_page():
    assert set(studies.NAMES) == RESULTS.keys() | WITHOUT_RESULTS


@pytest.mark.parametrize("name", RESULTS)
def test_each_study_prints_the_table_of_its_results(name, capsys):
    assert studies.main([name, "--table", str(ROOT / f"bench/results/{RESULTS[name]}.json")]) == 0
    table = capsys.readouterr().out
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    assert table.count("\n") > 2 and any(table in page.read_text() for page in pages)


def test_a_study_without_a_gpu_is_refused(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cascade", "fa1_claim", "fp8_errors", "fp8_speed", "gradient_errors"):
        with pytest.raises(SystemExit, match="PyTorch sees no CUDA device here"):
            studies.main([name])


def test_results_are_written_after_each_row(tmp_path, capsys):
    file, counts = tmp_path / "r.json", []

    def rows(json_module, options):
        for n in range(2):
            yield {"n": n}
            counts.append(len(json.loads(file.read_text())["rows"]))

    study = types.SimpleNamespace(
        NEEDS=["json"], CUDA=False, rows=rows, said=str, document=lambda rows, _, options: {"rows": rows},
        table=lambda document: f"{len(document['rows'])} rows",
    )  # fmt: skip
    studies.run(study, argparse.Namespace(json=file))
    assert counts == [1, 2] and json.loads(file.read_text()) == {"rows": [{"n": 0}, {"n": 1}]}
    assert capsys.readouterr().out == "{'n': 0}\n{'n': 1}\n2 rows\n"


def test_run_adds_the_peers(monkeypatch):
    monkeypatch.setenv("ONEPASS_TOOL", "/a/onepass")
    tool, command, option, peers, *rest = run.command([])
    assert (tool, command, option) == ("/a/onepass", "bench", "--peers-command")
    assert peers == f"{sys.executable} {ROOT / 'bench'} peers"
    assert rest[0] == "--suite" and pathlib.Path(rest[1]).is_file() and rest[2:] == ["--peers", "torch", "onnxruntime"]
    assert run.command(["--launch"])[-1] == "--launch"
    for given in (["--peers-command", "mine"], ["--peers-command=mine"]):
        assert run.command(given) == ["/a/onepass", "bench", *given]


def test_run_starts_the_tool(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    tool.chmod(0o755)
    monkeypatch.setenv("ONEPASS_TOOL", str(tool))
    done = bench("run", "--problem", "s4 d8")
    assert done.returncode == 3
    assert done.stdout.startswith("bench --peers-command ") and done.stdout.endswith(" --problem s4 d8\n")
    monkeypatch.setenv("ONEPASS_TOOL", str(tmp_path / "nowhere"))
    done = bench("run")
    assert done.returncode == 2 and done.stderr == f"cannot start {tmp_path / 'nowhere'}: No such file or directory\n"


def test_contenders_take_turns():
    order = []

    def clock(name):
        order.append(name)
        return [len(order), 10.0]

    times = timing.in_turn({name: lambda name=name: clock(name) for name in "ab"}, rounds=2)
    assert order == list("abab") and times == {"a": [1, 10, 3, 10], "b": [2, 10, 4, 10]}
    assert timing.medians(times) == {"a": 6.5, "b": 7}
    assert timing.summary([3.0, 1.0, 2.0]) == {"median_s": 2, "min_s": 1, "runs": 3}


def test_the_wall_clock():
    runs = []
    timer = timing.Timer(None, "cpu")
    assert len(timer.spans(lambda: runs.append(0), count=3, calls=2)) == 3 and len(runs) == 6
    assert timing.wall(lambda: runs.append(0), 2, runs.append) >= 0 and runs[-1] is None
    answer = timing.CpuTimer(1).answer(lambda: None, 0)
    assert set(answer) == {"median_s", "min_s", "runs", "wall_median_s"} and answer["runs"] == 1


@pytest.fixture
def card(torch, monkeypatch):
    return fake_card.install(torch, monkeypatch, timing)


def test_a_span_on_a_device(card):
    runs, timer = [], timing.Timer(card)
    assert timer.spans(lambda: runs.append(0), count=3, calls=2) == [1e-3] * 3 and len(runs) == 6
    assert card.cuda.records == 6
    assert timer.times(lambda: runs.append(0), 0) == [2e-3] * 3
    assert timing.InARow(card).times(lambda: None, 1) == [2e-3 / 1000]


def test_the_cascade_is_the_attention_of_whole_sequences(card):
    cell = cascade.Cell(card, onepass, 3, 128).measured(timing.Timer(card))
    assert list(cell["milliseconds"].values()) == [2.0] * 5 and "copies" in cell["milliseconds"]
    assert cell["worst"] < 0.02 < cell["largest"]
    assert cascade.table([cell]).splitlines()[-1] == "| 128 | 3 | 2000 | 2000 | 2000 | 2000 | 2000 | 1.0x |"


def test_fp8_beside_bf16(card, monkeypatch):
    monkeypatch.delenv("ONEPASS_FA3", raising=False)
    options = argparse.Namespace(rounds=1, pause=0)
    row = fp8_speed.measured(card, onepass, timing.Timer(card), options, 1, 256, 2, 64, True)
    assert set(row["median_s"]) == {"bf16", "exact", "fast", "from bf16: exact", "from bf16: fast"}
    assert set(row["refused"]) == {"flash-attn-3", "cudnn"} and row["errors"] == {}
    document = fp8_speed.document([row | {"length": 1024}], card, onepass, options)
    assert "d64 causal, 1k" in fp8_speed.table(document) and "cudnn: " in fp8_speed.said(row)


def test_frameworks_on_the_cpu(torch, tmp_path, capsys):
    file = tmp_path / "r.json"
    arguments = ["--device", "cpu", "--rounds", "1", "--pause", "0", "--seconds", "0", "--only", "host time: call"]
    studies.main(["frameworks", *arguments, "--json", str(file)])
    results = json.loads(file.read_text())
    assert results["torch"] == torch.__version__ and len(results["seconds"]) == 3
    for seconds in results["seconds"].values():
        assert list(seconds) == ["onepass", "torch"] and all(s > 0 for s in seconds.values())
    assert "host time: call: onepass " in capsys.readouterr().out


def test_a_framework_that_refuses(torch, capsys):
    def refuses():
        raise RuntimeError("not here\nmore")

    contexts = {"onepass": contextlib.nullcontext, "other": refuses}
    options = argparse.Namespace(rounds=2, pause=0, seconds=0)
    found = frameworks.compare(torch, contexts, lambda: None, lambda run, calls: 0.5, False, options)
    assert found == {"onepass": 0.5, "other": None} and "other refuses: not here\n" in capsys.readouterr().out
    assert frameworks.said(("block: x", found)) == "block: x: onepass 500.0 ms"
    assert frameworks.table({"seconds": {"block: x": {"onepass": 0.5, "torch": None}}}).endswith("| x | 500 | - |")
