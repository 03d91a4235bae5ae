"""vLLM's engine on the CPU with onepass and with its own attention: the same tokens, log probabilities within 3e-5.

`./dev vllm` runs this: it takes some minutes.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
JOBS = ["Llama", "Llama:pages16", "Llama:chunks", "Mistral", "Gemma2"]
ENTRY_POINTS = "[vllm.general_plugins]\nonepass = onepass.vllm:register\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of onepass and of vLLM. What pip would install says where the plugin is."""
    folder = tmp_path_factory.mktemp("vllm")
    info = folder / "onepass-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onepass\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    found = []
    for on_cpu in "1", "0":
        output = folder / f"{on_cpu}.json"
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, pathlib.Path(__file__).with_name("vllm_engine.py"), output, *JOBS]
        environment = os.environ | {"ONEPASS_VLLM_CPU": on_cpu, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        found.append(json.loads(output.read_text()))
    return found


def test_each_run_has_its_backend(results):
    assert [x["backend"] for x in results] == [
        "onepass.vllm.Cpu",
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
    ]


@pytest.mark.parametrize("job", JOBS)
def test_the_engine_says_the_same(results, job):
    ours, theirs = (x[job] for x in results)
    assert ours["tokens"] == theirs["tokens"]
    worst = 0.0
    for one, other in zip(ours["logprobs"], theirs["logprobs"]):
        for mine, yours in zip(one, other):
            both = mine.keys() & yours.keys()
            assert len(both) >= 4  # the fifth likeliest may be another one
            worst = max([worst, *(abs(mine[t] - yours[t]) for t in both)])
    distinct = len({t for tokens in ours["tokens"] for t in tokens})
    print(f"{job}: {distinct} different tokens, log probabilities within {worst:.1e},", end=" ")
    print(f"{ours['seconds']:.2f} CPU seconds with onepass, {theirs['seconds']:.2f} without")
    assert worst <= 3e-5
