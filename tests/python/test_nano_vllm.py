"""nano-vllm-fork's engine with onepass.flash_attn in the place of flash-attn says what eager attention says."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for name in "nanovllm", "transformers", "xxhash", "triton":
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda-graphs"])
def test_its_tokens_are_those_of_eager_attention(device):
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    script = pathlib.Path(__file__).with_name("nano_vllm_engine.py")
    done = subprocess.run([sys.executable, script, device], env=os.environ, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
