"""The command-line tool of the package: what a user of the wheel has without a build of the project."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import onepass
import pytest

TOOL = [sys.executable, "-m", "onepass"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def tool(*arguments, **options):
    return subprocess.run([*TOOL, *arguments], capture_output=True, text=True, **options)


def test_version_is_the_packages():
    assert tool("--version").stdout == f"onepass {onepass.__version__}\n"


def test_help_lists_the_commands():
    done = tool("--help")
    assert done.returncode == 0
    for command in ("info", "run", "append", "check", "explain", "ladder", "bench", "prebuild", "tune"):
        assert f"\n  {command} " in done.stdout


def test_explain_says_what_the_package_says():
    line = "h8 s512 d64 fp32"
    assert tool("explain", line).stdout == onepass.explain(line)


def test_info_names_the_implementations():
    found = json.loads(tool("info", "--json").stdout)
    assert found["version"] == onepass.__version__
    assert "reference" in [row["name"] for row in found["implementations"]]


def test_check_computes():
    done = tool("check", "s40 d64 fp32 lse", "--implementation", "reference", "--distribution", "normal")
    assert done.returncode == 0 and " right " in done.stdout


def test_bench_times():
    done = tool("bench", "--problem", "s64 d64", "--threads", "1", "--rounds", "1", "--seconds", "0.01")
    assert done.returncode == 0 and "cpu." in done.stdout


@pytest.mark.parametrize("arguments", [[], ["fly"], ["check", "b0 b1"], ["explain", "s4 causal"]])
def test_errors_are_one_sentence_and_status_2(arguments):
    done = tool(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("onepass: ") and done.stderr.count("\n") == 1


def test_a_closed_pipe_ends_it_silently():
    """Python ignores SIGPIPE; the tool does not, in here either."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*TOOL, "info"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_ctrl_c_ends_it_at_once():
    def hears():  # a job in the background is born deaf to it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    words = ["check", "b4 h8 s4096 d128", "--progress"]
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with subprocess.Popen([*TOOL, *words], **pipes, preexec_fn=hears) as child:
        child.stderr.read(1)  # its progress: it has begun
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == -signal.SIGINT


def test_the_wheel_has_it_as_a_command():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'onepass = "onepass.__main__:main"' in text.split("[project.scripts]")[1]
    from onepass.__main__ import main

    assert callable(main)
