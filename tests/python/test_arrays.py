"""Kinds of arrays and layouts: everything is read and written in place."""

import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import onepass
import pytest
from conftest import agrees, check, inputs, normal

import reference


def test_transposed_views(rng):
    """[batch, seq, heads, dim] arrays give the same bits as their contiguous copies, in the caller's memory order."""
    q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in inputs(rng))
    out = onepass.attention(q, k, v)
    np.testing.assert_array_equal(out, onepass.attention(*(np.ascontiguousarray(x) for x in (q, k, v))))
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous
    agrees(onepass.attention, q, k, v)


def test_slices_negative_and_zero_strides(rng):
    qkv = normal(rng, (3, 50, 3, 4, 32), spread=1.5)  # a fused projection: [batch, seq, 3, heads, dim]
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    agrees(onepass.attention, q, k, v)
    agrees(onepass.attention, q[:, ::-1], k[:, ::-1], v[:, ::-1])
    agrees(onepass.attention, q[:, :, 3::5], k[:, :, ::2], v[:, :, ::2])
    one = k[:1, :1]
    agrees(onepass.attention, q, np.broadcast_to(one, k.shape), np.broadcast_to(v[:1, :1], v.shape))


def test_large_inputs_are_not_copied(rng):
    """64 MB of strided inputs: the call may allocate its output (64 KB) and little else."""
    q = normal(rng, (1, 8, 16, 128))
    k, v = (
        normal(rng, (1, 16384, 8, 64))[..., None].repeat(2, -1).reshape(1, 16384, 8, 128).transpose(0, 2, 1, 3)
        for _ in "kv"
    )
    onepass.attention(q, k, v)
    tracemalloc.start()
    onepass.attention(q, k, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * q.nbytes


def test_out_is_the_callers_memory(rng):
    q, k, v = inputs(rng)
    expected = onepass.attention(q, k, v)
    frame = np.full((2, 39, 4, 30), 7.0, np.float32)  # [batch, seq + 2, heads, dim + 6]
    out = frame[:, 1:-1, :, 3:-3].transpose(0, 2, 1, 3)
    assert onepass.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, expected)
    out[...] = 7.0
    assert (frame == 7.0).all(), "something beside the output was written"


def test_read_only_inputs(rng):
    q, k, v = inputs(rng)
    expected = onepass.attention(q, k, v)
    for x in (q, k, v):
        x.setflags(write=False)
    np.testing.assert_array_equal(onepass.attention(q, k, v), expected)


def test_bfloat16_views(rng, bfloat16):
    q, k, v = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in inputs(rng, dtype=bfloat16))
    k.setflags(write=False)
    out = np.empty((2, 4, 37, 24), bfloat16)
    assert onepass.attention(q, k, v, out=out) is out
    check(out, reference.attention(q, k, v)[0], "bfloat16")


def test_anything_with_dlpack(rng):
    class Box:
        def __init__(self, array):
            self.array, self.shape, self.dtype = array, array.shape, array.dtype

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    q, k, v = inputs(rng)
    out, lse = onepass.attention(Box(q), Box(k), Box(v), return_lse=True)
    expected, expected_lse = onepass.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch(rng, torch, dtype):
    q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in inputs(rng))
    out, lse = onepass.attention(q, k, v, mask="causal_top_left", return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == torch.float32 and out.is_contiguous()
    ref = reference.attention(*(x.double().numpy() for x in (q, k, v)), mask="causal_top_left")
    check(out.double().numpy(), ref[0], dtype)
    check(lse.numpy(), ref[1], scale=20)
    bshd = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    strided = onepass.attention(*bshd, mask="causal_top_left")
    assert torch.equal(strided, out) and strided.transpose(1, 2).is_contiguous()
    into = torch.empty_like(out)
    assert onepass.attention(q, k, v, mask="causal_top_left", out=into) is into and torch.equal(into, out)
    merged, _ = onepass.merge([out.float()], [lse])
    assert isinstance(merged, torch.Tensor) and torch.equal(merged, out.float())


def test_torch_keeps_gradients_from_being_lost(rng, torch):
    q, k, v = (torch.from_numpy(x) for x in inputs(rng))
    q.requires_grad_()
    with pytest.raises(RuntimeError, match=r"q requires a gradient.*q\.detach\(\)"):
        onepass.attention(q, k, v)
    with torch.no_grad():
        out = onepass.attention(q, k, v)
    assert torch.equal(out, onepass.attention(q.detach(), k, v))


def test_torch_with_numpy(rng, torch):
    q, k, v = inputs(rng)
    out = onepass.attention(torch.from_numpy(q), k, v)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), onepass.attention(q, k, v))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax(rng, jax, dtype):
    arrays = [jax.numpy.asarray(x, dtype=dtype) for x in inputs(rng)]
    out, lse = onepass.attention(*arrays, mask="causal_bottom_right", return_lse=True)
    assert isinstance(out, jax.Array) and out.dtype == dtype
    check(
        np.asarray(out).astype(np.float64),
        reference.attention(*map(np.asarray, arrays), mask="causal_bottom_right")[0],
        dtype,
    )
    merged, _ = onepass.merge([out.astype("float32")], [lse])
    assert isinstance(merged, jax.Array)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sinks_and_slopes_are_converted(rng, request, kind, dtype):
    q, k, v = inputs(rng)
    sinks, slopes = (normal(rng, (4,)).astype(np.float16).astype(np.float32) // 0.25 * 0.25 for _ in range(2))
    expected = onepass.attention(q, k, v, sinks=sinks, alibi_slopes=slopes)
    if kind == "numpy":
        bfloat16 = request.getfixturevalue("bfloat16") if dtype == "bfloat16" else None
        small = [x.astype(bfloat16 or dtype) for x in (sinks, slopes)]
    else:
        library = request.getfixturevalue(kind)
        asarray = library.asarray if kind == "torch" else library.numpy.asarray
        small = [
            asarray(x, dtype=getattr(library if kind == "torch" else library.numpy, dtype)) for x in (sinks, slopes)
        ]
    result = onepass.attention(q, k, v, sinks=small[0], alibi_slopes=small[1])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_prefix_sums_are_converted(rng, request, kind):
    q = k = v = normal(rng, (300, 2, 16))
    cu = np.array([0, 7, 7, 300])
    asarray = {"numpy": lambda: np.asarray, "torch": lambda: request.getfixturevalue("torch").from_numpy,
               "jax": lambda: request.getfixturevalue("jax").numpy.asarray}[kind]()  # fmt: skip
    expected = onepass.attention(q, k, v, cu_seqlens_q=np.int32(cu), cu_seqlens_k=np.int32(cu))
    result = onepass.attention(q, k, v, cu_seqlens_q=asarray(cu), cu_seqlens_k=asarray(cu)[::1])
    np.testing.assert_array_equal(result, expected)
    if kind != "jax":  # which has no int64 unless asked
        with pytest.raises(ValueError, match=r"^cu_seqlens_k\[2\] must be in the range of int32 \(got -4294967290\)"):
            wrong = asarray(np.array([0, 7, 6 - 2**32, 300]))
            onepass.attention(q, k, v, cu_seqlens_q=asarray(cu), cu_seqlens_k=wrong)


def test_the_gil_is_released(rng):
    """Another Python thread makes progress while a call is computing."""
    q, k, v = inputs(rng, batch=1, heads=8, heads_kv=8, rows=2048, keys=2048, dim=64, dim_v=64)
    ticks, done = [0], threading.Event()

    def tick():
        while not done.is_set():
            ticks[0] += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        before = ticks[0]
        onepass.attention(q, k, v, threads=1)
        during = ticks[0] - before
    finally:
        done.set()
        ticker.join()
    assert during > 1000


def test_many_python_threads(rng):
    q, k, v = inputs(rng, rows=130, keys=300)
    expected = onepass.attention(q, k, v)
    results = [None] * 8

    def work(i):
        results[i] = [onepass.attention(q, k, v, threads=1 + i % 3) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for result in results:
        for out in result:
            np.testing.assert_array_equal(out, expected)


FORK = """
import os, numpy as np, onepass
x = np.random.default_rng(0).standard_normal((2, 4, 300, 32), dtype=np.float32)
expected = onepass.attention(x, x, x)   # threads are running before the fork
child = os.fork()
if child == 0:
    os._exit(0 if all(np.array_equal(onepass.attention(x, x, x, threads=n), expected) for n in (1, 2, None)) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes_too():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


@pytest.mark.parametrize("rows, keys", [(300, 300), (1, 5000)])
def test_the_number_of_threads_does_not_matter(rng, rows, keys):
    q, k, v = inputs(rng, rows=rows, keys=keys)
    one = onepass.attention(q, k, v, threads=1, return_lse=True)
    for threads in (2, 3, 7, None):
        for a, b in zip(onepass.attention(q, k, v, threads=threads, return_lse=True), one):
            np.testing.assert_array_equal(a, b)


def test_torch_tensors_that_are_no_plain_memory(torch):
    x = torch.randn(1, 1, 2, 8)
    for wrong in (x.to_sparse(), x.to("meta")):
        with pytest.raises(TypeError, match="^k must export DLPack or a buffer of numbers"):
            onepass.attention(x, wrong, x)
