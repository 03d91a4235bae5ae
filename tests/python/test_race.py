"""python -m bench study race with two programs that stand for the tool: what it calls slower, and what not."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Times grow by 2 % with each process, as on a GPU that becomes warm: only rounds in both orders cancel that.
TOOL = """#!{python}
import json, pathlib, sys
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
count = pathlib.Path({count!r})
drift = 1.02 ** len(count.read_text()) if count.exists() else 1.0
count.open("a").write("x")
rows = []
for line in pathlib.Path(arguments["--suite"]).read_text().splitlines():
    if line == {refuses!r}:
        rows.append({{"problem": line, "refused": "does not support this"}})
    else:
        rows.append({{"problem": line, "implementation": "cuda.x", "median_s": drift * {factors!r}.get(line, 1.0)}})
pathlib.Path(arguments["--json"]).write_text(json.dumps(rows))
"""


def tool(folder, name, factors, refuses=""):
    path = folder / name
    path.write_text(TOOL.format(python=sys.executable, count=str(folder / "count"), factors=factors, refuses=refuses))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def race(tmp_path, new, refuses="", arguments=()):
    suite = tmp_path / "suite.txt"
    suite.write_text("# a comment\nfwd a\nfwd b\n\nfwd c\n")
    old = tool(tmp_path, "old", {})
    words = [sys.executable, str(ROOT / "bench"), "study", "race", old, tool(tmp_path, "new", new, refuses),
             "--suite", str(suite), "--json", str(tmp_path / "race.json"), *arguments]  # fmt: skip
    done = subprocess.run(words, env=os.environ, capture_output=True, text=True)
    return done, json.loads((tmp_path / "race.json").read_text())


def test_equal_builds_pass_on_a_machine_that_drifts(tmp_path):
    done, rows = race(tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert [row["problem"] for row in rows] == ["fwd a", "fwd b", "fwd c"]
    assert all(row["ratio"] == pytest.approx(1, abs=1e-3) for row in rows)
    assert done.stdout.endswith("3 cells, old time over new: mean 1.000, least 1.000\nno cell is slower\n")


def test_a_slower_cell_is_named_and_fails(tmp_path):
    done, rows = race(tmp_path, {"fwd b": 1.03, "fwd c": 1.005}, arguments=["--group", "2"])
    assert done.returncode == 1
    assert [row["passed"] for row in rows] == [True, False, True]
    assert rows[1]["ratio"] == pytest.approx(1 / 1.03, abs=1e-3)
    assert "SLOWER fwd b" in done.stdout.splitlines()[-1]


def test_a_refused_cell_is_told_and_does_not_fail(tmp_path):
    done, rows = race(tmp_path, {}, refuses="fwd c")
    assert done.returncode == 0
    assert rows[2] == {"problem": "fwd c", "threads": None, "refused": "does not support this"}
    assert "fwd c: does not support this" in done.stdout


def test_the_same_tool_twice_is_refused(tmp_path):
    path = tool(tmp_path, "old", {})
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench"), "study", "race", path, path], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr == "race needs two tools, OLD and NEW, that differ\n"
