"""libonepass_torch.so, PyTorch's operators without Python: alone, beside the package, and in a program of C++."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARY = pathlib.Path(os.environ.get("ONEPASS_BUILD", ROOT / "build/release")) / "libtorch/libonepass_torch.so"
TORCH = pytest.importorskip("torch", reason="torch is not installed")
VERSION = tuple(map(int, TORCH.__version__.split(".")[:2]))
if not LIBRARY.exists():
    pytest.skip("libonepass_torch.so is not built: configure with -DONEPASS_TORCH=ON", allow_module_level=True)

NAMES = ("attention", "attention_backward", "quantize", "append_kv")
LOAD = f"import torch; torch.ops.load_library({str(LIBRARY)!r})\n"


def script(*words, quiet=True):
    """The output of Python, whose stderr is empty."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0 and not (quiet and done.stderr), done.stderr
    return done.stdout


def python(code):
    return script("-c", code)


def test_the_binary_is_of_the_stable_abi():
    needs = subprocess.run(["nm", "-DC", LIBRARY], capture_output=True, text=True, check=True).stdout.splitlines()
    theirs = [line for line in needs if re.search(r"\b(at|c10|torch|caffe2)::", line)]
    assert not theirs
    assert any("aoti_torch_get_sizes" in line for line in needs)
    exported = [line for line in needs if re.match(r"[0-9a-f]+ ", line)]
    assert not exported


def test_the_schemas_are_those_of_the_package():
    tags = "op.tags" if VERSION >= (2, 12) else ""  # the stable ABI has them from there on
    code = f"for name in {NAMES}: op = getattr(torch.ops.onepass, name).default; print(op._schema, {tags})"
    alone = python(LOAD + code)
    assert alone == python("import torch, onepass.torch\n" + code)
    assert alone.count("onepass::") == len(NAMES)


@pytest.fixture(scope="module")
def by_the_library(tmp_path_factory):
    """From a device to results() of torch_library_cases, as (strides, tensor)."""
    import torch

    def made(*device):
        file = tmp_path_factory.mktemp("library") / "results.pt"
        script(HERE / "torch_library_cases.py", LIBRARY, file, *device)
        return torch.load(file)

    return made


def test_results_are_those_of_the_package(torch, by_the_library):
    import onepass.torch  # noqa: F401  registers its kernels
    import torch_library_cases

    mine, theirs = torch_library_cases.results(), by_the_library()
    assert mine.keys() == theirs.keys()
    for key, tensors in mine.items():
        for x, (strides, y) in zip(tensors, theirs[key], strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, strides), key
            x, y = (z.view(torch.uint8) if z.dtype == torch.float8_e4m3fn else z for z in (x, y))
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True, msg=lambda m, key=key: f"{key}: {m}")


def test_meta_tensors_have_the_results_shapes_and_strides(by_the_library):
    real, meta = by_the_library(), by_the_library("meta")
    for key, tensors in real.items():
        for (strides, x), (meta_strides, y) in zip(tensors, meta[key], strict=True):
            assert (x.shape, x.dtype, strides) == (y.shape, y.dtype, meta_strides), key


def test_append_kv_refuses_a_cache_before_it_writes_and_takes_one_of_inference_mode():
    code = """
new, lengths = torch.ones(1, 1, 1, 8), torch.zeros(1, dtype=torch.int32)
with torch.inference_mode():
    caches = torch.zeros(2, 1, 1, 4, 8)
torch.ops.onepass.append_kv(new, new, *caches, cache_seqlens=lengths)
leaf = torch.zeros(1, 1, 4, 8, requires_grad=True)
try:
    torch.ops.onepass.append_kv(new, new, torch.zeros(1, 1, 4, 8), leaf, cache_seqlens=lengths)
except RuntimeError:
    print(caches.sum().item(), leaf.sum().item())
"""
    assert script("-c", LOAD + code, quiet=False) == "16.0 0.0\n"  # PyTorch logs what it throws


def test_errors_are_sentences():
    code = """
q, k, v = torch.randn(3, 1, 2, 5, 8)
attention, backward = torch.ops.onepass.attention, torch.ops.onepass.attention_backward
out, lse, _ = attention(q, k, v)
for call in (
    lambda: attention(q, k[:, :1], v),
    lambda: attention(q[0, 0, 0], k, v),
    lambda: attention(q.double(), k, v),
    lambda: attention(q, k, v, mask="causal"),
    lambda: attention(q, k, v, align_offset=1),
    lambda: attention(q, k, v, threads=0),
    lambda: attention(q, k, v, max_seqlen_q=0),
    lambda: attention(q, k, v, dropout_p=-1e-300),
    lambda: attention(q, k, v, softcap=1e-300),
    lambda: attention(q, k, v, accumulation="slow"),
    lambda: attention(q, k, v, dropout_p=0.5, dropout_start=[0, 0, 0]),
    lambda: attention(q, k, v, fp8="by_block=yes"),
    lambda: attention(q, k, v, fp8="by_block=0,seed=18446744073709551616"),
    lambda: attention(q, k, v, implementation="cpu.fast"),
    lambda: attention(q, k, v, score_mod="score +"),
    lambda: attention(q, k, v, seqused_k=torch.tensor([2**40])),
    lambda: attention(q, k, v, sinks=torch.full((2,), 1e300, dtype=torch.float64)),
    lambda: attention(q, k, v, dropout_p=0.5, random_seed=torch.tensor(1.0)),
    lambda: backward(out, None, out, lse, [True], q, k, v),
    lambda: backward(out, None, out, lse, [True] * 4 + [False] * 2, q, k, v),
    lambda: backward(out, None, out, lse, [True] * 3 + [False] * 3, q, k, v, seqused_k=torch.tensor([3])),
    lambda: torch.ops.onepass.append_kv(q, k, q.clone(), q.clone()),
    lambda: torch.ops.onepass.append_kv(q, k, q.clone(), q.clone(), layout="sbhd"),
    lambda: torch.ops.onepass.quantize(q, factors="row"),
    lambda: torch.ops.onepass.quantize(q[0, 0, 0]),
):
    try:
        call()
        print("no error")
    except RuntimeError as e:
        print(str(e).splitlines()[0])  # under a wrong expression its text is repeated
"""
    expected = """
the number of heads of v must be 1, as in k
q must have the shape [batch, heads, seq, dim], or with cu_seqlens
q must be float32, float16, bfloat16 or float8_e4m3fn (got float64)
mask must be one of None, 'causal_bottom_right'
align_offset must be given with mask 'causal_offset' or 'aligned_offset', and only with these
threads must be None (all cores) or an integer from 1 to 4096 (got 0)
max_seqlen_q must be None or a positive integer (got 0)
dropout_p must be from 0 to 1 (got -1e-300)
softcap must be 0 or a number that float32 holds (got 1e-300)
accumulation must be 'exact' or 'fast' (got 'slow')
dropout_start must be four integers
fp8 must be words such as
fp8 must be words such as by_block=0,hadamard=1,center=0,seed=0 (got 'seed=18446744073709551616')
implementation
score_mod
seqused_k must be in the range of int32 (element 0 is 1099511627776)
sinks must be in the range of float32
random_seed must be int64 of one element (got float32 of 1 elements)
wanted must have 6 elements (got 1)
wanted asks for dbias, but bias is None
attention_backward does not support seqused_k
cache_seqlens or slot_mapping must be given
layout must be 'bhsd' or 'bshd' (got 'sbhd')
factors must be 'block', 'head' or 'tensor' (got 'row')
x must have 2 to 4 dimensions (got 1)
"""
    for line, start in zip(python(LOAD + code).splitlines(), expected.split("\n")[1:-1], strict=True):
        assert start in line


def test_nothing_is_kept_of_a_call():
    code = """
import resource
op = torch.ops.onepass.attention
def calls(n):
    for _ in range(n):
        q, k, v = torch.randn(3, 1, 4, 64, 64).transpose(-1, -2)  # copied
        extra = dict(mask="causal_top_left", mod_buffers=[torch.zeros(10**5)], mod_names="x", dropout_start=[0] * 4)
        op(q, k, v, score_mod="score + x[0]", sinks=torch.zeros(4).half(), **extra)
        try:
            op(q, k, v, threads=0, **extra)
        except RuntimeError:
            pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = calls(20)
print(calls(400) - before)
"""
    assert int(python(LOAD + code)) < 40_000  # KB; each of 400 calls would keep 0.6 MB


@pytest.mark.parametrize("order", ["first", "last"])
def test_beside_the_package(order):
    told = order == "last" and VERSION < (2, 13)  # PyTorch then prints that the operators are there already
    assert script(HERE / "torch_library_beside.py", LIBRARY, order, quiet=not told) == ""


def build(source, program):
    """The compiler's process."""
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    folder = pathlib.Path(TORCH.__file__).parent
    command = [compiler, "-std=c++20", "-isystem", folder / "include", source, "-o", program]
    command += f"-L{folder}/lib -Wl,-rpath,{folder}/lib -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10".split()
    return subprocess.Popen(command)


def test_a_program_catches_errors(tmp_path):
    assert build(HERE / "torch_library_error.cpp", tmp_path / "program").wait() == 0
    done = subprocess.run([tmp_path / "program", LIBRARY], capture_output=True, text=True)
    right, sentence = done.stdout.splitlines()
    assert right == "1" and sentence.startswith("the head dim of k must be 8, as in q") and done.returncode == 0


def test_a_program_without_python_runs_an_exported_block(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    building = build(ROOT / "examples/torch_package.cpp", tmp_path / "program")
    subprocess.run([sys.executable, HERE / "torch_library_export.py", tmp_path], check=True)
    assert building.wait() == 0

    def run(library, data):
        words = [tmp_path / "program", library, tmp_path / "block.pt2", tmp_path / data]
        return subprocess.run(words, capture_output=True, text=True)

    right = run(LIBRARY, "right.pt")
    assert right.returncode == 0 and "the outputs differ by" in right.stdout, right.stderr
    assert "libpython" not in subprocess.run(["ldd", tmp_path / "program"], capture_output=True, text=True).stdout
    assert run(LIBRARY, "wrong.pt").returncode == 1
    without = run("libm.so.6", "right.pt")
    assert without.returncode == 1 and "onepass::attention" in without.stderr
