"""Tensors on a real CUDA device. Skipped where there is none; run with: python -m pytest tests/python/test_cuda.py"""

import numpy as np
import onepass
import pytest
from conftest import check, inputs

import reference


@pytest.fixture
def cuda(torch):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch


def on_device(torch, arrays, dtype="bfloat16"):
    return [torch.from_numpy(x).to("cuda", getattr(torch, dtype)) for x in arrays]


def as_numpy(x):
    return x.double().cpu().numpy()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_tensors(cuda, rng, dtype):
    q, k, v = on_device(cuda, inputs(rng, dim=64, dim_v=64), dtype)
    expected, expected_lse = reference.attention(*map(as_numpy, (q, k, v)), mask="causal_bottom_right")
    out, lse = onepass.attention(q, k, v, mask="causal_bottom_right", return_lse=True)
    assert out.device == q.device and out.dtype == q.dtype and lse.dtype == cuda.float32
    check(as_numpy(out), expected, dtype)
    check(as_numpy(lse), expected_lse, scale=20)
    again = onepass.attention(q, k, v, mask="causal_bottom_right", out=cuda.empty_like(out))
    assert cuda.equal(again, out)


def test_other_memory_orders_and_masks(cuda, rng):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in on_device(cuda, inputs(rng, dim=64, dim_v=64)))
    bias = cuda.randn(q.shape[2], k.shape[2], device="cuda")
    seen = cuda.rand(q.shape[0], 1, 1, k.shape[2], device="cuda") < 0.7
    out = onepass.attention(q, k, v, bias=bias, bool_mask=seen)
    assert out.stride() == q.stride()
    expected, _ = reference.attention(*map(as_numpy, (q, k, v)), bias=as_numpy(bias), bool_mask=seen.cpu().numpy())
    check(as_numpy(out), expected, "bfloat16")


def test_score_mod_reads_buffers_on_the_device(cuda, rng):
    q, k, v = on_device(cuda, inputs(rng, heads=2, heads_kv=2, rows=65, keys=65, dim=64, dim_v=64))
    table = cuda.randn(129, device="cuda")
    out = onepass.attention(q, k, v, score_mod="score + t[q_index - k_index + 64]", mod_buffers={"t": table})
    i = cuda.arange(65, device="cuda")
    bias = table[i[:, None] - i[None, :] + 64]
    check(as_numpy(out), reference.attention(*map(as_numpy, (q, k, v)), bias=as_numpy(bias))[0], "bfloat16")


def test_packed_sequences(cuda, rng):
    lengths = [5, 0, 130, 64]
    q, k, v = on_device(cuda, [rng.normal(size=(199, 2, 64)).astype(np.float32) for _ in range(3)])
    cu = cuda.tensor(np.cumsum([0, *lengths]), dtype=cuda.int32, device="cuda")
    out, lse = onepass.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
    assert lse.shape == (2, 199)
    for begin, length in zip(np.cumsum([0, *lengths]), lengths):
        part = [as_numpy(x[begin : begin + length]).transpose(1, 0, 2)[None] for x in (q, k, v)]
        if length:
            check(
                as_numpy(out[begin : begin + length]), reference.attention(*part)[0][0].transpose(1, 0, 2), "bfloat16"
            )


def test_the_callers_stream_orders_the_call(cuda, rng):
    """q arrives late on a side stream and is overwritten right after the call: only in-order work gives the result."""
    q, k, v = on_device(cuda, inputs(rng, heads=8, heads_kv=8, rows=512, keys=512, dim=64, dim_v=64))
    expected = onepass.attention(q, k, v)
    side, late = cuda.cuda.Stream(), cuda.zeros_like(q)
    cuda.cuda.synchronize()
    with cuda.cuda.stream(side):
        cuda.cuda._sleep(20_000_000)
        late.copy_(q)
        out = onepass.attention(late, k, v)
        late.zero_()
        assert not side.query()  # the call came back while the stream was still asleep: it waits for nothing
    side.synchronize()
    assert cuda.equal(out, expected)


def test_graph_capture_and_replay(cuda, rng):
    arrays = inputs(rng, dim=64, dim_v=64)
    q, k, v = on_device(cuda, arrays)
    onepass.attention(q, k, v, mask="causal_top_left")  # loads the kernel
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        out = onepass.attention(q, k, v, mask="causal_top_left")
    for _ in range(3):
        q.copy_(cuda.randn_like(q))
        out.fill_(float("nan"))
        graph.replay()
        assert cuda.equal(out, onepass.attention(q, k, v, mask="causal_top_left"))


@pytest.mark.parametrize("exact", [False, True])
def test_a_block_mask_in_a_graph(cuda, exact):
    """Documents change between replays; nothing is copied to the host or waited for."""
    text = "doc[q_index] == doc[k_index] && q_index >= k_index"
    lengths = [[1000, 24, 3000, 72], [5, 2043, 2000, 48]]
    numbers = [np.repeat(np.arange(4, dtype=np.int32), x) for x in lengths]
    documents = cuda.from_numpy(numbers[0]).cuda()
    q, k, v = (cuda.randn(1, 2, 4096, 64, device="cuda", dtype=cuda.bfloat16) for _ in range(3))

    def step():
        mask = onepass.block_mask(text, 4096, 4096, mod_buffers={"doc": documents}, exact=exact)
        return mask, onepass.attention(q, k, v, block_mask=mask)

    step()  # loads the kernels
    cuda.cuda.synchronize()
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        mask, out = step()
    for now in numbers:
        documents.copy_(cuda.from_numpy(now))
        graph.replay()
        cuda.cuda.synchronize()
        expected = onepass.block_mask(text, 4096, 4096, mod_buffers={"doc": now}, exact=exact)
        assert repr(mask) == repr(expected)
        assert (mask.states_like(q).cpu().numpy() == expected.states()).all()
        same = onepass.attention(q, k, v, block_mask=expected)
        assert (as_numpy(out) == as_numpy(same)).all()


@pytest.fixture
def refuses_to_wait(cuda):
    """A function that turns PyTorch's waiting for the device into an error."""
    yield lambda: cuda.cuda.set_sync_debug_mode("error")
    cuda.cuda.set_sync_debug_mode("default")


def test_a_block_mask_waits_for_nothing(cuda, refuses_to_wait):
    documents = np.repeat(np.arange(8, dtype=np.int32), 1024)
    buffers = {"doc": cuda.from_numpy(documents).cuda()}
    text, size = "doc[q_index] == doc[k_index] && q_index >= k_index", (8192, 8192)
    q = cuda.zeros(1, 1, 8192, 64, device="cuda", dtype=cuda.bfloat16)
    for exact in (False, True):
        onepass.block_mask(text, *size, mod_buffers=buffers, exact=exact)  # loads the kernels
        refuses_to_wait()
        made = onepass.block_mask(text, *size, mod_buffers=buffers, exact=exact).states_like(q)
        cuda.cuda.set_sync_debug_mode("default")
        expected = onepass.block_mask(text, *size, mod_buffers={"doc": documents}, exact=exact)
        assert (made.cpu().numpy() == expected.states()).all()


def test_buffers_of_a_block_mask_are_copied_to_its_device(cuda):
    documents = np.repeat(np.arange(4), 100)
    text = "doc[q_index] == doc[k_index]"
    expected = onepass.block_mask(text, 400, 400, mod_buffers={"doc": documents}).states()
    for x in (documents, cuda.from_numpy(documents), cuda.from_numpy(documents).cuda()):
        made = onepass.block_mask(text, 400, 400, mod_buffers={"doc": x}, device="cuda")
        assert not vars(made).keys() & {"mixed"} and (made.states() == expected).all()
        assert repr(made).startswith("BlockMask(batch=1")
        seen = cuda.from_numpy(documents[:, None] == documents)
        for device in ("cuda", "cpu"):
            q, k, v = cuda.randn(3, 1, 2, 400, 64, device=device)
            out = onepass.attention(q, k, v, block_mask=made)
            check(as_numpy(out), as_numpy(onepass.attention(q, k, v, bool_mask=seen.to(device))))


def test_no_keys_of_a_block_mask(cuda):
    assert "mixed=0, full=0" in repr(onepass.block_mask("true", 8, 0, device="cuda"))


def test_pytorchs_lists_are_made_on_the_device(cuda, refuses_to_wait):
    documents = cuda.arange(8, device="cuda", dtype=cuda.int32).repeat_interleave(1024)
    names = ("kv_indices", "kv_num_blocks", "full_kv_indices", "full_kv_num_blocks", "q_indices", "q_num_blocks")

    def mask(b, h, q, k):
        return (documents[q] == documents[k]) & (q >= k)

    def lists():
        made = onepass.torch.create_block_mask(mask, None, None, 8192, 8192, device="cuda")
        return [getattr(made, name) for name in names]

    lists()  # loads the kernels
    refuses_to_wait()
    found = lists()
    cuda.cuda.set_sync_debug_mode("default")
    from torch.nn.attention.flex_attention import create_block_mask

    expected = create_block_mask(mask, None, None, 8192, 8192, device="cuda")
    assert all(cuda.equal(x, getattr(expected, name)) for x, name in zip(found, names, strict=True))


def test_appending_to_pages_in_a_graph(cuda, rng):
    """The CPU's bits, at the ends that the lengths say when the graph is replayed."""
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2, 1, 64), (3, 2, 1, 64), (3, 4, 1, 64))]
    turns = np.arange(48)[:, None] * 10000.0 ** (-np.arange(32) / 32)
    tables = [f(turns).astype(np.float32) for f in (np.cos, np.sin)]
    page_table = rng.permutation(9).astype(np.int32).reshape(3, 3)

    def append(device, used):
        k_new, v_new, q = (cuda.tensor(x, device=device).bfloat16() for x in arrays)
        pages = cuda.zeros(2, 9, 16, 2, 64, dtype=cuda.bfloat16, device=device)
        cos, sin, table = (cuda.tensor(x, device=device) for x in (*tables, page_table))
        options = dict(cache_seqlens=used, page_table=table, cos=cos, sin=sin, q=q)
        return pages, lambda: onepass.append_kv(k_new, v_new, *pages, **options)

    used = cuda.tensor([0, 17, 40], dtype=cuda.int32, device="cuda")
    pages, call = append("cuda", used)
    call()  # loads the kernel
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        rotated = call()
    for _ in range(2):
        used += 1
        pages.zero_()
        graph.replay()
        expected_pages, on_cpu = append("cpu", used.cpu())
        expected = on_cpu()
        assert cuda.equal(pages.cpu(), expected_pages)
        assert cuda.equal(rotated.cpu(), expected)


def test_compiling_inside_a_capture_is_an_error(cuda, rng):
    q, k, v = on_device(cuda, inputs(rng, dim=24, dim_v=56))
    with pytest.raises(RuntimeError, match="before capturing"):
        with cuda.cuda.graph(cuda.cuda.CUDAGraph()):
            onepass.attention(q, k, v)
    cuda.cuda.synchronize()
    check(as_numpy(onepass.attention(q, k, v)), reference.attention(*map(as_numpy, (q, k, v)))[0], "bfloat16")


def test_merge_of_splits_is_the_whole(cuda, rng):
    q, k, v = on_device(cuda, inputs(rng, keys=201, dim=64, dim_v=64))
    wide = [cuda.empty(q.shape, device="cuda") for _ in range(3)]
    parts = [
        onepass.attention(q, k[:, :, a:b], v[:, :, a:b], out=out, return_lse=True)
        for out, a, b in zip(wide, (0, 50, 51), (50, 51, 201))
    ]
    out, lse = onepass.merge(*zip(*parts), out=cuda.empty_like(q))
    assert out.dtype == q.dtype and lse.is_cuda
    expected, expected_lse = reference.attention(*map(as_numpy, (q, k, v)))
    check(as_numpy(out), expected, "bfloat16")
    check(as_numpy(lse), expected_lse, scale=20)
    with pytest.raises(RuntimeError, match=r"at most 256 partial results \(got 257\)"):
        onepass.merge([out] * 257, [lse] * 257)


def test_merge_in_a_graph_skips_what_saw_nothing(cuda):
    a, b = cuda.randn(2, 3, 4, 5, 40, device="cuda")
    la, lb = cuda.randn(2, 3, 4, 5, device="cuda")
    a[:, 0], la[:, 0] = float("nan"), float("-inf")
    onepass.merge([a, b], [la, lb])  # loads the kernel
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        out, lse = onepass.merge([a, b], [la, lb])
    for _ in range(2):
        b.normal_()
        out.fill_(float("nan"))
        graph.replay()
        share = cuda.sigmoid(lb - la)[..., None]
        expected = cuda.where(share == 1, b, share * b + (1 - share) * a)
        assert cuda.allclose(out, expected, atol=1e-5) and cuda.allclose(lse, cuda.logaddexp(la, lb), atol=1e-5)


def test_devices_are_not_mixed(cuda, rng):
    q, k, v = on_device(cuda, inputs(rng, dim=64, dim_v=64))
    with pytest.raises(ValueError, match=r"^k must be on cuda:0, as q \(got cpu\)"):
        onepass.attention(q, k.cpu(), v)


def test_cupy_arrays(cuda, rng):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    arrays = [x.astype(np.float16) for x in inputs(rng, dim=64, dim_v=64)]
    with cupy.cuda.Stream(non_blocking=True):
        q, k, v = map(cupy.asarray, arrays)
        out, lse = onepass.attention(q, k, v, return_lse=True)
        assert isinstance(out, cupy.ndarray) and out.dtype == np.float16
        expected = reference.attention(*arrays)
        check(cupy.asnumpy(out), expected[0], "float16")
        check(cupy.asnumpy(lse), expected[1], scale=20)
    mixed = onepass.attention(cuda.from_dlpack(q), k, v)  # torch's q decides what the result is
    assert isinstance(mixed, cuda.Tensor) and cuda.equal(mixed, cuda.from_dlpack(out))


def test_jax_arrays(cuda, rng, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("jax sees no GPU")
    arrays = [x.astype(np.float16) for x in inputs(rng, heads=8, heads_kv=8, rows=1000, keys=1000, dim=64, dim_v=64)]
    expected, expected_lse = reference.attention(*arrays, mask="causal_top_left")
    for factor in (2.0, 1.0):  # q is still being computed when it is handed over
        q, k, v = (jax.numpy.asarray(x) for x in arrays)
        q = (q * factor) / factor
        out, lse = onepass.attention(q, k, v, mask="causal_top_left", return_lse=True)
        assert isinstance(out, jax.Array) and out.device == q.device
        check(np.asarray(out), expected, "float16")
        check(np.asarray(lse), expected_lse, scale=20)


def test_products_of_tf32(cuda, rng):
    """The error of fp16 inputs, where fp32 has none; the LSE is that of rounded q and k."""
    q, k, v = on_device(cuda, inputs(rng, rows=200, keys=200, dim=64, dim_v=64), "float32")
    expected, lse = reference.attention(*map(as_numpy, (q, k, v)))
    found = {name: onepass.attention(q, k, v, precision=name, return_lse=True) for name in ("fp32", "tf32")}
    errors = {name: np.abs(as_numpy(out) - expected).max() for name, (out, _) in found.items()}
    assert errors["fp32"] < 1e-5 < errors["tf32"] < 5e-3
    rounded = [(x.view(cuda.int32) + 0x1000 & ~0x1FFF).view(cuda.float32) for x in (q, k)]
    _, of_rounded = reference.attention(*map(as_numpy, (*rounded, v)))
    assert np.abs(as_numpy(found["tf32"][1]) - of_rounded).max() < 1e-5 < np.abs(lse - of_rounded).max()
    dout, (out, lse) = cuda.randn_like(q), found["fp32"]
    gradients = {name: onepass.attention_backward(dout, q, k, v, out, lse, precision=name) for name in found}
    for x, y in zip(gradients["fp32"], gradients["tf32"]):
        assert 1e-5 < (x - y).abs().max().item() < 1e-2 * x.abs().max().item()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    onepass.torch.attention(*leaves, precision="tf32").backward(dout)
    own = onepass.attention_backward(dout, q, k, v, *found["tf32"], precision="tf32")
    for x, expected, fp32 in zip(leaves, own, gradients["fp32"]):
        cuda.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-6)
        assert (x.grad - fp32).abs().max() > 1e-5
