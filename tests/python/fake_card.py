"""A CUDA device for the studies of bench on a machine without one: PyTorch computes on the CPU, events count 2 ms."""

import contextlib
import types


class Card:
    """Stands in the place of torch.cuda."""

    L2_cache_size, shared_memory_per_multiprocessor, multi_processor_count, name = 64, 233472, 1, "card"

    def __init__(self):
        self.ranges, self.running, self.records = 0, False, 0
        self.profiler = types.SimpleNamespace(start=self.start, stop=self.stop)
        self.Event = lambda enable_timing: types.SimpleNamespace(record=self.record, elapsed_time=lambda end: 2.0)
        self.Stream = lambda: types.SimpleNamespace(wait_stream=lambda other: None)
        self.CUDAGraph = lambda: types.SimpleNamespace(replay=lambda: None)

    def start(self):
        self.running = True

    def stop(self):
        assert self.running
        self.ranges, self.running = self.ranges + 1, False

    def record(self):
        self.records += 1

    def get_device_properties(self, device):
        return self

    def get_device_name(self):
        return self.name

    def stream(self, stream):
        return contextlib.nullcontext()

    graph = stream

    def current_stream(self, device=None):
        return types.SimpleNamespace(cuda_stream=0)

    def is_available(self):
        return True

    def nothing(self, *_):
        return 0

    set_device = nothing
    empty_cache = synchronize = reset_peak_memory_stats = memory_allocated = max_memory_allocated = nothing


def install(torch, monkeypatch, timing):
    """Makes torch.cuda a Card; torch ignores the devices of new tensors, and the timer does not warm up or wait."""

    def on_the_cpu(make):
        return lambda *sizes, device=None, **options: make(*sizes, **options)

    for name in ("randn", "rand", "empty", "randperm", "arange", "randint", "ones", "zeros"):
        monkeypatch.setattr(torch, name, on_the_cpu(getattr(torch, name)))
    monkeypatch.setattr(torch, "cuda", Card())
    monkeypatch.setattr(timing, "WARM_UP_S", 0)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    return torch
