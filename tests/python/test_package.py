"""What is shipped beside the code: stubs that say the same as the code, documentation of every option, a version."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import onepass
import pytest

PACKAGE = pathlib.Path(onepass.__file__).parent
ROOT = pathlib.Path(__file__).resolve().parents[2]


def stubs(name):
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


@pytest.mark.parametrize("name", ["attention", "merge"])
def test_stubs_have_the_codes_parameters(name):
    signature = inspect.signature(getattr(onepass, name))
    parameters = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
    found = stubs(name)
    assert found
    for stub in found:
        assert [a.arg for a in stub.args.args + stub.args.kwonlyargs] == [x.name for x in parameters]
        for argument, default in zip(stub.args.kwonlyargs, stub.args.kw_defaults):
            if argument.arg != "return_lse":
                assert ast.literal_eval(default) == signature.parameters[argument.arg].default


def test_typed_marker():
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("name", ["attention", "merge", "explain"])
def test_every_parameter_is_documented(name):
    function = getattr(onepass, name)
    for name_of, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        assert re.search(rf"\b{name_of}\b", function.__doc__), f"{name}'s docstring does not mention {name_of}"


def test_version_is_the_projects():
    declared = re.search(r"project\(onepass VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert onepass.__version__ == declared


def test_import_brings_no_framework():
    """Not even NumPy, which takes longer to import than onepass: the first call needs it."""
    code = "import sys; import onepass; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "onepass" in loaded
    assert not {"numpy", "torch", "jax", "jaxlib", "cupy", "transformers", "ml_dtypes"} & set(loaded)
