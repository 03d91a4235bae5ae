"""The one timer of peers and studies: seconds of a run, and contenders that take turns."""

import statistics
import time

WARM_UP_S = 0.015


def wall(run, calls=1, wait=None):
    """Seconds of a call by the wall clock; `wait` gets the last result and returns when it is complete."""
    begin = time.perf_counter()
    for _ in range(calls):
        made = run()
    if wait:
        wait(made)
    return (time.perf_counter() - begin) / calls


class Timer:
    """Times runs on one device through PyTorch: on CUDA by events, on the CPU by the wall clock."""

    def __init__(self, torch, device="cuda"):
        self.torch, self.on_cuda, self.flush = torch, str(device) != "cpu", None
        if self.on_cuda:
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            self.flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)

    def spans(self, run, count=1, calls=1, cold=True):
        """Seconds of a call in each of `count` spans of `calls` calls; cold: L2 is overwritten before each span."""
        if not self.on_cuda:
            return [wall(run, calls) for _ in range(count)]
        cuda = self.torch.cuda
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        cuda.synchronize()
        for begin, end in pairs:
            if cold:
                self.flush.zero_()
            begin.record()
            for _ in range(calls):
                run()
            end.record()
        cuda.synchronize()
        return [1e-3 * begin.elapsed_time(end) / calls for begin, end in pairs]

    def host(self, run, calls):
        """Seconds until a call has returned, with nothing in the queue before the first one."""
        if self.on_cuda:
            self.torch.cuda.synchronize()
        return wall(run, calls)

    def times(self, run, seconds):
        """Seconds of each of the cold runs that fill `seconds`, after a warm-up."""
        begin, runs = time.perf_counter(), 0
        while runs == 0 or time.perf_counter() - begin < WARM_UP_S:
            self.spans(run)
            runs += 1
        return self.spans(run, max(3, min(1000, int(seconds * runs / (time.perf_counter() - begin)))))

    def answer(self, run, seconds):
        return summary(self.times(run, seconds))


class InARow(Timer):
    """Calls that follow each other, as `onepass bench` times linear layers."""

    def times(self, run, seconds):
        (each,) = self.spans(run, calls=32, cold=False)
        return self.spans(run, calls=max(8, min(1000, int(seconds / each))), cold=False)


class CpuTimer:
    """One thread by its CPU time, several by the wall clock; wall_median_s is always by the wall clock."""

    def __init__(self, threads):
        self.threads = threads

    def answer(self, run, seconds):
        cpu, walls = [], []
        until = time.perf_counter() + seconds
        while not walls or time.perf_counter() < until:
            begin = time.thread_time()
            walls.append(wall(run))
            cpu.append(time.thread_time() - begin)
        if self.threads > 1:
            time.sleep(0.05)  # thread pools spin for a while after a run, and the next contender needs the cores
        return summary(cpu if self.threads == 1 else walls) | {"wall_median_s": statistics.median(walls)}


def summary(seconds):
    return {"median_s": statistics.median(seconds), "min_s": min(seconds), "runs": len(seconds)}


def medians(times):
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def in_turn(clocks, rounds, pause=0.0):
    """{name: seconds of all rounds} of clocks, functions that return a list of seconds; a pause precedes each turn."""
    times = {name: [] for name in clocks}
    for _ in range(rounds):
        for name, clock in clocks.items():
            time.sleep(pause)
            times[name] += clock()
    return times


def graphed(torch, call):
    """A function that replays the launches of a call as one CUDA graph, without the time of Python and the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_kept=call):  # the launches use memory that the call owns
        graph.replay()

    return replay
