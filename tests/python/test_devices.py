"""Calls with arrays on a CUDA device, without a device: see fake_device."""

import sys
import types

import numpy as np
import onepass
import pytest
from fake_device import FakeArray
from fake_frameworks import torch_module
from onepass import _devices

SHAPE = (1, 2, 16, 64)


def fakes(**options):
    return [FakeArray(*SHAPE, **options) for _ in range(4)]


def test_the_problem_is_on_their_device():
    q, k, v, out = fakes()
    assert onepass.explain(q, k, v, out=out).startswith("fwd b1 h2 s16 d64 fp16 cuda:0\n")
    assert all(x.streams == [1] for x in (q, k, v, out))  # ready on the legacy default stream, asked once


def test_memory_that_is_marked_read_only_is_not_written():
    q, k, v, _ = fakes(read_only=True)
    with pytest.raises(ValueError, match="^out must be writable"):
        onepass.explain(q, k, v, out=FakeArray(*SHAPE, read_only=True))
    out = FakeArray(*SHAPE, read_only=False)
    assert onepass.explain(q, k, v, out=out).startswith("fwd b1 h2 s16 d64 fp16 cuda:0\n") and out.streams == [1]


def test_devices_are_not_mixed():
    q, k, v, out = fakes()
    for index, name in enumerate("kv"):
        arrays = [q, k, v]
        arrays[index + 1] = np.zeros(SHAPE, np.float16)
        with pytest.raises(ValueError, match=f"^{name} must be on cuda:0, as q .got cpu"):
            onepass.attention(*arrays, out=out)
    with pytest.raises(ValueError, match="^v must be on cuda:0, as q .got cuda:1"):
        onepass.attention(q, k, FakeArray(*SHAPE, device=1), out=out)
    with pytest.raises(ValueError, match="^out must be on cuda:0, as q .got cpu"):
        onepass.attention(q, k, v, out=np.zeros(SHAPE, np.float16))
    with pytest.raises(ValueError, match="^sinks must be on cuda:0, as q .got cpu"):
        onepass.attention(q, k, v, out=out, sinks=np.zeros(2, np.float32))
    host = np.zeros(SHAPE, np.float16)
    with pytest.raises(ValueError, match="^k must be on cpu, as q .got cuda:0"):
        onepass.attention(host, k, host)


def test_a_merge_is_where_its_parts_are():
    out, *_, target = fakes()
    with pytest.raises(ValueError, match=r"^lses\[0\] must be on cuda:0, as out \(got cpu"):
        onepass.merge([out], [np.zeros(SHAPE[:3], np.float32)], out=target)
    assert out.streams == [1] and target.streams == [1]
    with pytest.raises(ValueError, match=r"^outs\[0\] must be on cuda:0, as out \(got cuda:1"):
        onepass.merge([FakeArray(*SHAPE, device=1)], [np.zeros(SHAPE[:3], np.float32)], out=target)


def test_other_devices_are_named():
    with pytest.raises(ValueError, match=r"must be in CPU or CUDA memory \(got DLPack device type 8\)"):
        onepass.attention(*fakes(kind=8)[:3], out=FakeArray(*SHAPE))


def test_a_result_needs_a_library_that_makes_it():
    with pytest.raises(
        TypeError, match="cannot make a result like a fake_device FakeArray on cuda:0: give out, or use torch"
    ):
        onepass.attention(*fakes()[:3])


def test_without_cuda_the_call_is_refused():
    q, k, v, out = fakes()
    if "\n* cuda" in onepass.explain(q, k, v, out=out):
        pytest.skip("this machine has CUDA; the arrays are not really there")
    with pytest.raises(RuntimeError, match="no implementation accepts .*cuda:0.*cpu.flash"):
        onepass.attention(*fakes()[:3], out=FakeArray(*SHAPE))


class FakeTensor(FakeArray):
    is_cuda, is_cpu, requires_grad = True, False, False

    def is_neg(self):
        return False

    def get_device(self):
        return self.index


@pytest.fixture
def fake_torch(monkeypatch):
    torch = torch_module(FakeTensor)
    torch.uint8, torch.is_grad_enabled = "uint8", lambda: False
    torch.cuda = types.SimpleNamespace(current_stream=lambda i: types.SimpleNamespace(cuda_stream=700 + i))
    asked = []

    def empty(size, dtype, device):
        asked.append((size, dtype, device))
        return types.SimpleNamespace(data_ptr=lambda: 4096)

    torch.empty, torch.asked = empty, asked
    torch.utils.dlpack.to_dlpack = lambda x: x.__dlpack__(stream=-1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_torch_tensors_run_on_torchs_current_stream(fake_torch):
    assert _devices.place_of(FakeTensor(*SHAPE, device=3)).stream == 703
    q, k, v, out = (FakeTensor(*SHAPE) for _ in range(4))
    place = _devices.place_of(q)
    assert place.stream == 700
    memory, address = place.workspace(123)
    assert address == 4096 and fake_torch.asked == [(123, "uint8", "cuda:0")]
    foreign, table = FakeArray(*SHAPE), FakeTensor(16)
    onepass.explain(q, k, foreign, out=out, score_mod="score + t[k_index]", mod_buffers={"t": table})
    assert q.streams == k.streams == out.streams == table.streams == [-1]  # nothing to wait for
    assert foreign.streams == [700]  # waits for its producer


def test_cpu_arrays_run_on_no_stream():
    place = _devices.place_of(np.zeros(SHAPE, np.float32))
    assert place.stream == 0 and place.workspace is None
