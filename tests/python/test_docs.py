"""The examples that need an optional package and are left out by the test of docs: run where it is installed."""

import importlib.util
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python no-test( cuda)?\n(.*?)^```$", re.M | re.S)
BLOCKS = [
    pytest.param(match[2], bool(match[1]), id=f"{path.name}:{text[: match.start()].count(chr(10)) + 1}")
    for path in sorted(DOCS.glob("*/*.md"))
    for text in [path.read_text()]
    for match in BLOCK.finditer(text)
]


@pytest.mark.parametrize(("code", "on_cuda"), BLOCKS)
def test_example(code, on_cuda):
    for package in re.findall(r"^import (\w+)", code, re.M):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if on_cuda and not importlib.import_module("torch").cuda.is_available():
        pytest.skip("there is no CUDA device")
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_there_are_examples():
    pages = {block.id.partition(":")[0] for block in BLOCKS}
    assert pages >= {"flash_attn.md", "jax.md", "pytorch.md", "transformers.md", "xformers.md"}
