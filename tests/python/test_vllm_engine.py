"""vLLM's engine with onepass: the tokens of other attention, and log probabilities within a bound.

On the CPU the other one is vLLM's own, on CUDA the eager attention of transformers. `./dev vllm` runs this: it takes
some minutes.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ON_CUDA = torch.cuda.is_available()
JOBS = ["Llama", "Llama:pages16", "Llama:chunks", "Mistral", "Gemma2"]
if ON_CUDA:
    JOBS += ["Llama:graphs", "Llama:graphs-chunks", "Mistral:graphs", "Gemma2:graphs"]
BOUND = 1e-4 if ON_CUDA else 3e-5
BACKENDS = ["CUSTOM", "transformers"] if ON_CUDA else ["CPU_ATTN", "CPU_ATTN"]
INVARIANT = ["Llama:bf16", "Llama:bf16-chunks", "Mistral:bf16", "Gemma2:bf16"]
ENTRY_POINTS = "[vllm.general_plugins]\nonepass = onepass.vllm:register\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A function that returns the results of an engine. What pip would install says where the plugin is."""
    folder = tmp_path_factory.mktemp("vllm")
    info = folder / "onepass-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onepass\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)

    def run(backend, jobs, **environment):
        output, program = folder / "results.json", pathlib.Path(__file__).with_name("vllm_engine.py")
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, program, output, backend, *jobs]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(output.read_text())

    return run


@pytest.fixture(scope="module")
def results(engine):
    """The results of onepass and of the other attention."""
    return [engine(name, JOBS, ONEPASS_VLLM_CPU=ours) for name, ours in zip(BACKENDS, "10")]


def test_each_run_has_its_backend(results):
    theirs = None if ON_CUDA else "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
    assert [x.get("backend") for x in results] == [f"onepass.vllm.{'Custom' if ON_CUDA else 'Cpu'}", theirs]


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
    assert worst <= BOUND


@pytest.mark.skipif(not ON_CUDA, reason="VLLM_BATCH_INVARIANT covers vLLM's own operators on CUDA only")
def test_a_request_has_the_same_bits_alone(engine):
    found = engine("CUSTOM", INVARIANT, VLLM_BATCH_INVARIANT="1")
    for job in INVARIANT:
        assert len({t for tokens in found[job]["tokens"] for t in tokens}) > 4
        assert all(found[job]["alone"][what] == found[job][what] for what in ("tokens", "logprobs")), job
