"""Files beside the code: stubs that say the same as the code, documentation of every option, a version."""

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


def defined(path):
    """The functions and classes of a file, by name; of overloads the last."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


def fields(options, known):
    """The fields of a TypedDict of a stub, such as AttentionOptions[Any]."""
    shared = known[next(x.id for x in ast.walk(options) if isinstance(x, ast.Name) and x.id in known)]
    found = {node.target.id for node in shared.body if isinstance(node, ast.AnnAssign)}
    for base in shared.bases:
        if any(isinstance(x, ast.Name) and x.id in known for x in ast.walk(base)):
            found |= fields(base, known)
    return found


def keywords(function, known):
    options = function.args.kwarg
    return {x.arg for x in function.args.kwonlyargs} | (fields(options.annotation, known) if options else set())


def of_code(function):
    """The keywords of a function; _keywords.shared adds those of onepass.attention, or of another."""
    found = {x.arg for x in function.args.kwonlyargs}
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "_keywords.shared":
            more = {x.arg: ast.unparse(x.value) for x in decorator.keywords}
            theirs = getattr(onepass, more.pop("of", "attention").rpartition(".")[2]).__kwdefaults__
            found |= theirs.keys() - set(ast.literal_eval(more.pop("without", "()"))) | more.keys()
    return found


FORWARD = "cascade", "key_mass", "weights"  # their options to another function
SHARED = defined(PACKAGE / "_signatures.pyi")


def stubs(name):
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    anything = "Any"  # of what another one lists
    return [x for x in functions if not x.args.kwarg or getattr(x.args.kwarg.annotation, "id", None) != anything]


@pytest.mark.parametrize("name", ["attention", "attention_backward", "append_kv", "merge"])
def test_stubs_have_the_codes_parameters(name):
    signature = inspect.signature(getattr(onepass, name)).parameters
    known = SHARED | defined(PACKAGE / "__init__.pyi")
    found = stubs(name)
    assert found
    for stub in found:
        assert [x.arg for x in stub.args.args] == [x for x, p in signature.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert keywords(stub, known) == {x for x, p in signature.items() if p.kind is p.KEYWORD_ONLY}
        for argument, default in zip(stub.args.kwonlyargs, stub.args.kw_defaults):
            if argument.arg not in ("return_lse", "return_max", "return_entropy"):
                assert ast.literal_eval(default) == signature[argument.arg].default


@pytest.mark.parametrize("module", ["torch", "jax"])
def test_stubs_of_interfaces_have_the_codes_parameters(module):
    """Read, not imported: the frameworks need not be there."""
    stub = defined(PACKAGE / f"{module}.pyi")
    code = {}
    for path in (*PACKAGE.glob(f"_{module}_*.py"), PACKAGE / "_flex" / "block_mask.py", PACKAGE / f"{module}.py"):
        code |= defined(path)
    known = SHARED | stub
    public = " ".join(re.findall(r"(?:__all__ \+?|_FLEX )= \[(.*?)\]", (PACKAGE / f"{module}.py").read_text(), re.S))
    elsewhere = {"Layout", "context_parallel_attention"}  # the stub imports them from a typed package
    for name in set(re.findall(r'"(\w+)"', public)) - elsewhere - {"Quantized", "BlockMask", *FORWARD}:
        assert [x.arg for x in stub[name].args.args] == [x.arg for x in code[name].args.args], name
        assert keywords(stub[name], known) == of_code(code[name]), name


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
    header = (ROOT / "include/onepass/version.h").read_text()
    macros = dict(re.findall(r'#define ONEPASS_VERSION(\w*) "?([0-9.]+)', header))
    assert onepass.__version__ == macros[""] == ".".join(macros[part] for part in ("_MAJOR", "_MINOR", "_PATCH"))
    assert f"version: {onepass.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_import_brings_no_framework():
    """Not even NumPy, which takes longer to import than onepass: the first call needs it."""
    code = "import sys; import onepass; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "onepass" in loaded
    assert not {"numpy", "torch", "jax", "jaxlib", "cupy", "transformers", "ml_dtypes"} & set(loaded)


def test_extras_are_documented():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has tomllib")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("only a clone has pyproject.toml")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = [line for line in (ROOT / "docs/guides/python.md").read_text().splitlines() if line.startswith("| `")]
    assert extras.keys() <= {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
