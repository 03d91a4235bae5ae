"""The handlers that onepass.jax gives to XLA, called as XLA calls them, without JAX: on CPUs, and on CUDA devices where
PyTorch is there to hold the memory."""

import ctypes as c
import math
import pathlib
import re
import subprocess

import numpy as np
import onepass
import pytest
from conftest import normal
from onepass import _devices, _onepass

POINTER, I64 = c.c_void_p, c.c_int64


def struct(*fields):
    return type("Struct", (c.Structure,), {"_fields_": [*fields]})


# xla/ffi/api/c_api.h. The last test compares the C++ side, python/src/xla_ffi.hpp, with that header itself.
HEAD = [("struct_size", c.c_size_t), ("extensions", POINTER)]
Extension = struct(("struct_size", c.c_size_t), ("type", c.c_int), ("next", POINTER), ("metadata", POINTER))
Version = struct(*HEAD, ("major", c.c_int), ("minor", c.c_int))
Metadata = struct(("struct_size", c.c_size_t), ("version", Version), ("traits", c.c_uint32), ("state", I64))
Buffer = struct(*HEAD, ("dtype", c.c_int), ("data", POINTER), ("rank", I64), ("dims", POINTER))
Bytes = struct(("data", c.c_char_p), ("size", c.c_size_t))
Scalar = struct(("dtype", c.c_int), ("value", POINTER))
Buffers = struct(*HEAD, ("size", I64), ("types", POINTER), ("buffers", POINTER))
Attributes = struct(*HEAD, ("size", I64), ("kinds", POINTER), ("names", POINTER), ("values", POINTER))
Api = struct(*HEAD, ("version", Version), ("internal", POINTER), ("functions", POINTER * 18))
Frame = struct(
    *HEAD,
    ("api", POINTER),
    ("context", POINTER),
    ("stage", c.c_int),
    ("arguments", Buffers),
    ("results", Buffers),
    ("attributes", Attributes),
)
Words = c.c_uint64 * 6  # the arguments of any function of the API: head, context, ...
ERROR_CREATE, STREAM_GET, MEMORY_ALLOCATE, MEMORY_FREE, DEVICE_GET = 0, 4, 9, 10, 17
INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12
SCALAR, STRING = 3, 4
TYPES = {"bool": 1, "int32": 4, "float16": 10, "float32": 11, "bfloat16": 16, "float8_e4m3fn": 20}

KINDS = {"switch": False, "integer": 0, "bits": 0, "choice": 0, "number": 0.0, "optional number": math.nan, "text": ""}
KINDS["numbers"] = "0:0:0:0"
OPTIONS = {name: KINDS[kind] for name, kind, *_ in _onepass.attention_options() if kind != "band"}
OPTIONS |= {"causal": False, "align": 0, "align_offset": 0, "left": -1, "right": -1}
OPTIONS |= {"tokens_first": False, "implementation": "", "threads": 0}


class Xla:
    """A runtime that calls handlers."""

    def __init__(self, platform="cpu", stream=0, device=0, torch=None):
        self.platform, self.torch, self.allocated, self.freed, self.error = platform, torch, [], [], None
        self.answers = {STREAM_GET: stream, DEVICE_GET: device}
        self.kept = []
        functions = (POINTER * 18)()
        for index in (ERROR_CREATE, *self.answers, MEMORY_ALLOCATE, MEMORY_FREE):
            self.kept.append(c.CFUNCTYPE(POINTER, c.POINTER(Words))(lambda x, index=index: self.call(index, x[0])))
            functions[index] = c.cast(self.kept[-1], POINTER)
        self.api = Api(c.sizeof(Api), None, Version(c.sizeof(Version), None, 0, 3), None, functions)

    def call(self, index, words):
        if index == ERROR_CREATE:
            self.error = (c.string_at(words[2]).decode(), words[3] & 0xFFFFFFFF)
            return 1
        if index == MEMORY_ALLOCATE:
            assert words[4] <= 16, "XLA refuses more"
            whole = self.torch.empty(words[3] + 16, dtype=self.torch.uint8, device="cuda")
            self.allocated.append(whole[16:])  # and gives no more
            words[5] = self.allocated[-1].data_ptr()
        elif index == MEMORY_FREE:
            self.freed.append(words[4])
        else:
            words[3] = self.answers[index]
        return None

    def keep(self, x):
        self.kept.append(x)
        return c.cast(c.pointer(x), POINTER)

    def buffers(self, arrays):
        made = []
        for x in arrays:
            dims = (I64 * len(x.shape))(*x.shape)
            data = x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data
            kind = TYPES[str(x.dtype).rpartition(".")[2]]
            made.append(self.keep(Buffer(c.sizeof(Buffer), None, kind, data, len(dims), self.keep(dims))))
        return Buffers(c.sizeof(Buffers), None, len(made), None, self.keep((POINTER * len(made))(*made)))

    def attributes(self, options):
        kinds, names, values = [], [], []
        for name, value in sorted(options.items()):
            names.append(self.keep(Bytes(name.encode(), len(name))))
            if isinstance(value, str):
                kinds.append(STRING)
                values.append(self.keep(Bytes(value.encode(), len(value))))
            else:
                kinds.append(SCALAR)
                dtype, ctype = {bool: (1, c.c_bool), int: (5, I64), float: (12, c.c_double)}[type(value)]
                values.append(self.keep(Scalar(dtype, self.keep(ctype(value)))))
        lists = ((c.c_int * len(kinds))(*kinds), (POINTER * len(names))(*names), (POINTER * len(values))(*values))
        return Attributes(c.sizeof(Attributes), None, len(kinds), *map(self.keep, lists))

    def run(self, target, operands, results, extensions=None, **options):
        """True if it succeeded; its message is in `error`."""
        pairs = list(operands.items()) if isinstance(operands, dict) else operands  # two may have one name
        options = {**OPTIONS, **options, "operands": " ".join(name for name, _ in pairs), "results": " ".join(results)}
        parts = self.buffers([x for _, x in pairs]), self.buffers(results.values()), self.attributes(options)
        frame = Frame(c.sizeof(Frame), extensions, c.addressof(self.api), None, 3, *parts)
        read = c.pythonapi.PyCapsule_GetPointer
        read.restype, read.argtypes = POINTER, [c.py_object, c.c_char_p]
        handler = c.CFUNCTYPE(POINTER, POINTER)(read(_onepass.jax_handlers()[target][self.platform], None))
        return handler(c.addressof(frame)) is None


def inputs(rng, tokens_first=False):
    shapes = [(2, 4, 33, 64), (2, 2, 65, 64), (2, 2, 65, 64)]
    if tokens_first:
        shapes = [(b, s, h, d) for b, h, s, d in shapes]
    return {name: normal(rng, shape) for name, shape in zip("qkv", shapes, strict=True)}


@pytest.mark.parametrize("tokens_first", [False, True])
def test_forward_and_backward(rng, tokens_first):
    xla, given = Xla(), inputs(rng, tokens_first)
    bias = normal(rng, (1, 4, 1, 65))
    q = given["q"]
    results = {"out": np.full_like(q, np.nan), "lse": np.full(q.shape[:-1], np.nan, np.float32)}
    options = dict(causal=True, align=1, left=20, scale=0.3, softcap=9.0, seed=-5, dropout_p=0.25)
    operands = {**given, "bias": bias}
    assert xla.run("onepass_attention", operands, results, tokens_first=tokens_first, **options)
    dout = normal(rng, q.shape)
    gradients = {f"d{name}": np.full_like(x, np.nan) for name, x in operands.items()}
    upstream = {"dout": dout, **results}
    assert xla.run("onepass_attention_backward", operands | upstream, gradients, tokens_first=tokens_first, **options)

    def heads_first(x):
        return x.swapaxes(1, 2) if tokens_first and x is not bias and x.shape != bias.shape else x

    same = dict(
        bias=bias, mask="causal_top_left", window=(20, -1), scale=0.3, softcap=9.0, seed=2**64 - 5, dropout_p=0.25
    )
    arrays = [heads_first(x) for x in given.values()]
    out, lse = onepass.attention(*arrays, return_lse=True, **same)
    np.testing.assert_array_equal(heads_first(results["out"]), out)
    np.testing.assert_array_equal(heads_first(results["lse"]), lse)
    wanted = onepass.attention_backward(heads_first(dout), *arrays, out, lse, grads=tuple(gradients), **same)
    for mine, other in zip(gradients.values(), wanted, strict=True):
        np.testing.assert_array_equal(heads_first(mine), other)


def test_forward_mode(rng):
    given, bias = inputs(rng), normal(rng, (1, 4, 1, 65))
    tangents = {f"t{name}": normal(rng, x.shape) for name, x in {**given, "bias": bias}.items()}
    q = given["q"]
    results = {name: np.full_like(q, np.nan) for name in ("out", "tout")}
    results |= {name: np.full(q.shape[:-1], np.nan, np.float32) for name in ("lse", "tlse")}
    assert Xla().run("onepass_attention_jvp", {**given, "bias": bias, **tangents}, results, causal=True, align=1)
    wanted = onepass.jvp(*given.values(), **tangents, bias=bias, mask="causal_top_left", return_lse=True)
    for name, x in zip(("out", "tout", "lse", "tlse"), wanted, strict=True):
        np.testing.assert_array_equal(results[name], x)


def test_second_derivatives(rng):
    given = inputs(rng)
    tangents = {f"t{name}": normal(rng, x.shape) for name, x in given.items()}
    out, tout, lse, tlse = onepass.jvp(*given.values(), **tangents, mask="causal_top_left", return_lse=True)
    dout, dlse = normal(rng, out.shape), normal(rng, lse.shape)
    beside = {"dout": dout, "out": out, "lse": lse, "dlse": dlse, "tout": tout, "tlse": tlse}
    results = {f"td{name}": np.full_like(x, np.nan) for name, x in given.items()}
    operands = {**given, **tangents, **beside}
    assert Xla().run("onepass_attention_backward_jvp", operands, results, causal=True, align=1)
    q, k, v = given.values()
    wanted = onepass.backward_jvp(
        dout, q, k, v, out, lse, *tangents.values(), tout, tlse, dlse=dlse, mask="causal_top_left"
    )
    for found, x in zip(results.values(), wanted, strict=True):
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("aliased", [True, False])
def test_append(rng, aliased):
    """Results are the caches, whether they lie where the operands do that they alias or XLA made others."""
    new, q = normal(rng, (2, 3, 2, 16)), normal(rng, (2, 3, 4, 16))  # [batch, tokens, heads, dim]
    pages = {name: normal(rng, (5, 4, 2, 16)) for name in "kv"}
    angles, table = rng.random((9, 4)).astype(np.float32), np.int32([[3, 0], [1, 4]])
    operands = {"k_new": new, "v_new": new + 1, "cache_seqlens": np.int32([2, 5]), "page_table": table, "q": q}
    operands |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    wanted = {name: x.copy() for name, x in pages.items()}
    rest = {name: x for name, x in operands.items() if name not in ("k_new", "v_new", "q")}
    arrays = (x.swapaxes(1, 2) for x in (new, new + 1))
    turned = onepass.append_kv(*arrays, *wanted.values(), q=q.swapaxes(1, 2), interleaved=True, **rest)
    results = {name: x if aliased else np.full_like(x, np.nan) for name, x in pages.items()}
    results["q_out"] = np.empty_like(q)
    given = [("before", x) for x in pages.values()] + list(operands.items())
    assert Xla().run("onepass_append_kv", given, results, interleaved=True, tokens_first=True)
    np.testing.assert_array_equal(results["q_out"].swapaxes(1, 2), turned)
    for name, x in wanted.items():
        np.testing.assert_array_equal(results[name], x)


def test_append_to_slots(rng):
    new, pages = normal(rng, (3, 2, 16)), {name: normal(rng, (5, 4, 2, 16)) for name in "kv"}
    operands = {"slot_mapping": np.int32([19, -1, 0]), "positions": np.int32([8, 0, 3])}
    operands |= {"cos_sin_cache": normal(rng, (9, 8))}
    wanted = {name: x.copy() for name, x in pages.items()}
    onepass.append_kv(new, new + 1, *wanted.values(), **operands)
    given = [("before", x) for x in pages.values()] + list(({"k_new": new, "v_new": new + 1} | operands).items())
    assert Xla().run("onepass_append_kv", given, pages, interleaved=False, tokens_first=True)
    for name, x in wanted.items():
        np.testing.assert_array_equal(pages[name], x)


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (dict(implementation="none"), INVALID_ARGUMENT, "(got 'none')"),
        (dict(implementation="cuda.sm90"), UNIMPLEMENTED, "cuda.sm90"),
        (dict(dropout_p=2.0), INVALID_ARGUMENT, "dropout"),
    ],
)
def test_errors_are_statuses(rng, options, code, sentence):
    xla, given = Xla(), inputs(rng)
    out = np.full_like(given["q"], 7)
    assert not xla.run("onepass_attention", given, {"out": out}, **options)
    assert xla.error[1] == code
    assert sentence in xla.error[0]
    assert (out == 7).all()


def test_its_version_is_xlas():
    xla, metadata = Xla(), Metadata(c.sizeof(Metadata), Version(c.sizeof(Version), None, -1, -1), 9, 7)
    extension = Extension(c.sizeof(Extension), 1, None, c.addressof(metadata))
    assert xla.run("onepass_attention", {}, {}, extensions=c.addressof(extension))
    assert (metadata.version.major, metadata.version.minor, metadata.traits, metadata.state) == (0, 3, 0, 7)


FP8_OPTIONS = dict(fp8_by_block=True, fp8_hadamard=True, fp8_center=True, fp8_seed=-7)


def test_quantize_and_attend(rng):
    """To float8_e4m3fn and attention on it, in two steps and in one, tokens before heads."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    xla, given = Xla(), inputs(rng, True)
    wanted = {name: x.swapaxes(1, 2) for name, x in given.items()}
    out, lse = onepass.attention(
        *wanted.values(), fp8=dict(by_block=True, center=True, seed=2**64 - 7), return_lse=True
    )
    eights = {}
    for name, x in given.items():
        seed = 0 if name == "v" else -7
        y, *rest = onepass.quantize(
            wanted[name], factors="block", mean=name == "v", hadamard=seed != 0, seed=seed % 2**64
        )
        results = {"y": np.zeros(x.shape, y.dtype), "descale": np.zeros_like(rest[0])}
        results |= {"mean": np.zeros_like(rest[1])} if name == "v" else {}
        assert xla.run("onepass_quantize", {"x": x}, results, tokens_first=True, hadamard=seed != 0, seed=seed)
        np.testing.assert_array_equal(results["y"].swapaxes(1, 2), y)
        for mine, other in zip(list(results.values())[1:], rest, strict=True):
            np.testing.assert_array_equal(mine, other)
        eights |= {name: results["y"], f"{name}_descale": results["descale"]}
    eights["v_mean"] = results["mean"]
    for operands, target, options in (
        (eights, "onepass_attention", {}),
        (given, "onepass_attention_fp8", FP8_OPTIONS),
    ):
        made = {"out": np.zeros_like(given["q"]), "lse": np.zeros(given["q"].shape[:-1], np.float32)}
        assert xla.run(target, operands, made, tokens_first=True, **options), xla.error
        np.testing.assert_array_equal(made["out"].swapaxes(1, 2), out)
        np.testing.assert_array_equal(made["lse"].swapaxes(1, 2), lse)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_cuda(rng, torch, dtype):
    """On a stream that waits, so that a handler that waited would hang: what it enqueues comes after."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    _devices.find_nvrtc()
    kind = getattr(torch, dtype)
    given = {name: torch.from_numpy(x).cuda().to(kind) for name, x in inputs(rng).items()}
    q = given["q"]
    out, lse = onepass.attention(*given.values(), mask="causal_bottom_right", return_lse=True)
    dout = torch.randn(q.shape, device="cuda").to(kind)
    wanted = onepass.attention_backward(dout, *given.values(), out, lse, mask="causal_bottom_right", deterministic=True)
    stream = torch.cuda.Stream()
    xla = Xla("CUDA", stream.cuda_stream, torch.cuda.current_device(), torch)
    results = {"out": torch.zeros_like(out), "lse": torch.zeros_like(lse)}
    gradients = {f"d{name}": torch.zeros_like(x) for name, x in given.items()}
    late = {name: torch.zeros_like(x) for name, x in given.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        for name, x in late.items():
            x.copy_(given[name])
    options = dict(causal=True, deterministic=True)
    assert xla.run("onepass_attention", late, results, causal=True), xla.error
    assert xla.run("onepass_attention_backward", {**late, "dout": dout, **results}, gradients, **options), xla.error
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(results["out"], out)
    assert torch.equal(results["lse"], lse)
    for mine, other in zip(gradients.values(), wanted, strict=True):
        assert torch.equal(mine, other)
    assert sorted(xla.freed) == sorted(x.data_ptr() for x in xla.allocated)


ABI = """
#include "xla/ffi/api/c_api.h"
#include "xla_ffi.hpp"
#if XLA_FFI_API_MINOR >= 4  // of JAX 0.11: other names
#define XLA_FFI_Extension_Base XLA_FFI_InternalExtension
#define XLA_FFI_Error_GetMessage_Args XLA_FFI_Error_GetDetails_Args
#define XLA_FFI_Error_GetMessage XLA_FFI_Error_GetDetails
static_assert(sizeof(XLA_FFI_Error_GetDetails_Args) == sizeof(onepass::xla::ErrorGetMessage));
#endif
namespace ours = onepass::xla;
#define SAME(mine, field, theirs, other) \\
  static_assert(offsetof(ours::mine, field) == offsetof(XLA_FFI_##theirs, other)); \\
  static_assert(sizeof(ours::mine::field) == sizeof(XLA_FFI_##theirs::other))
"""
FIELDS = """
Extension struct_size Extension_Base struct_size; Extension type Extension_Base type; Extension next Extension_Base next
Version head.struct_size Api_Version struct_size; Version major Api_Version major_version
Version minor Api_Version minor_version; MetadataExtension metadata Metadata_Extension metadata
Metadata version Metadata api_version; Metadata traits Metadata traits; Metadata state Metadata state_type_id
Buffer dtype Buffer dtype; Buffer data Buffer data; Buffer rank Buffer rank; Buffer dims Buffer dims
Bytes data ByteSpan ptr; Bytes size ByteSpan len; Scalar dtype Scalar dtype; Scalar value Scalar value
Buffers size Args size; Buffers types Args types; Buffers buffers Args args; Buffers buffers Rets rets
Attributes size Attrs size; Attributes kinds Attrs types; Attributes names Attrs names; Attributes values Attrs attrs
CallFrame head.extension_start CallFrame extension_start; CallFrame api CallFrame api; CallFrame context CallFrame ctx
CallFrame stage CallFrame stage; CallFrame arguments CallFrame args; CallFrame results CallFrame rets
CallFrame attributes CallFrame attrs; ErrorCreate message Error_Create_Args message
ErrorCreate code Error_Create_Args errc
ErrorGetMessage error Error_GetMessage_Args error; ErrorGetMessage message Error_GetMessage_Args message
ErrorDestroy error Error_Destroy_Args error; StreamGet context Stream_Get_Args ctx
StreamGet stream Stream_Get_Args stream
MemoryAllocate context DeviceMemory_Allocate_Args ctx; MemoryAllocate size DeviceMemory_Allocate_Args size
MemoryAllocate alignment DeviceMemory_Allocate_Args alignment; MemoryAllocate data DeviceMemory_Allocate_Args data
MemoryFree context DeviceMemory_Free_Args ctx; MemoryFree size DeviceMemory_Free_Args size
MemoryFree data DeviceMemory_Free_Args data; DeviceGet context DeviceOrdinal_Get_Args ctx
DeviceGet ordinal DeviceOrdinal_Get_Args device_ordinal; Api version Api api_version
Api error_create Api XLA_FFI_Error_Create; Api error_get_message Api XLA_FFI_Error_GetMessage
Api error_destroy Api XLA_FFI_Error_Destroy; Api stream_get Api XLA_FFI_Stream_Get
Api memory_allocate Api XLA_FFI_DeviceMemory_Allocate; Api memory_free Api XLA_FFI_DeviceMemory_Free
Api device_get Api XLA_FFI_DeviceOrdinal_Get
"""
VALUES = """
Type::pred DataType_PRED; Type::s32 DataType_S32; Type::s64 DataType_S64; Type::u64 DataType_U64; Type::f16 DataType_F16
Type::f32 DataType_F32; Type::f64 DataType_F64; Type::bf16 DataType_BF16; Type::f8e4m3fn DataType_F8E4M3FN
kMetadata Extension_Metadata
AttributeKind::array AttrType_ARRAY; AttributeKind::dictionary AttrType_DICTIONARY
AttributeKind::scalar AttrType_SCALAR; AttributeKind::string AttrType_STRING
Status::invalid_argument Error_Code_INVALID_ARGUMENT; Status::resource_exhausted Error_Code_RESOURCE_EXHAUSTED
Status::unimplemented Error_Code_UNIMPLEMENTED; Status::internal Error_Code_INTERNAL
"""


def test_layouts_are_xlas(jax, tmp_path):
    """Every struct that crosses the boundary, against the header in jaxlib."""

    def rows(text):
        return [row.split() for row in re.split(r"[;\n]", text) if row.strip()]

    lines = [f"SAME({', '.join(row)});" for row in rows(FIELDS)]
    lines += [f"static_assert(int(ours::{mine}) == int(XLA_FFI_{other}));" for mine, other in rows(VALUES)]
    (tmp_path / "abi.cpp").write_text(ABI + "\n".join(lines).replace("sizeof(ours::Version::head", "sizeof(ours::Head"))
    sources = pathlib.Path(__file__).resolve().parents[2] / "python/src"
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{sources}", f"-isystem{jax.ffi.include_dir()}", "abi.cpp"]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no g++")
    assert done.returncode == 0, done.stderr
