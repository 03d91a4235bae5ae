"""Signals during a call: their handlers run between tasks, and one that raises ends the call. How much of `out` is
written tells when it ended, whatever the machine's load."""

import subprocess
import sys

import pytest

# A call of seconds; the signal comes when its first rows are written.
CALL = """
import os, signal, sys, threading, time
import numpy as np
import onepass

def call(heads, out=None):
    x = np.ones((1, heads, 1024, 64), np.float32)
    start = time.perf_counter()
    onepass.attention(x, x, x, out=out, threads=threads)
    return time.perf_counter() - start

def interrupt_when_it_writes():
    while np.isnan(out[0, 0]).all():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
threads, handler = eval(sys.argv[1]), sys.argv[2]
call(1)
heads = 8
while call(heads) < 0.1:
    heads *= 2
out = np.full((1, 8 * heads, 1024, 64), np.nan, np.float32)
seen = []
if handler == "quiet":
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(np.isnan(out).mean()))
threading.Thread(target=interrupt_when_it_writes).start()
try:
    call(8 * heads, out)
    print("finished", np.abs(out - 1).max() < 1e-5, max(seen, default=0) > 0.5)
except KeyboardInterrupt:
    print("interrupted", not np.isnan(out).all(), np.isnan(out).mean() > 0.5)
x = np.ones((1, 2, 300, 64), np.float32)
assert np.abs(onepass.attention(x, x, x) - 1).max() < 1e-5  # nothing is left of it
"""

MERGE = """
import os, signal, threading, time
import numpy as np
import onepass

outs, lses = [np.ones((1, 64, 4096, 64), np.float32)] * 50, [np.zeros((1, 64, 4096), np.float32)] * 50
out = np.full(outs[0].shape, np.nan, np.float32)

def interrupt_when_it_writes():
    while np.isnan(out[0, 0]).all():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, lambda number, frame: 1 / 0)
threading.Thread(target=interrupt_when_it_writes).start()
try:
    onepass.merge(outs, lses, out=out, threads=1)
except ZeroDivisionError:
    print("interrupted", not np.isnan(out).all(), np.isnan(out).any())
"""


def run(code, *arguments):
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    return result.stdout.split()


@pytest.mark.parametrize("threads", ["1", "2", "None"])
def test_ctrl_c_ends_a_call(threads):
    assert run(CALL, threads, "default") == ["interrupted", "True", "True"]


def test_a_handler_that_does_not_raise_runs_meanwhile():
    assert run(CALL, "1", "quiet") == ["finished", "True", "True"]


def test_a_handler_that_raises_ends_a_merge():
    assert run(MERGE) == ["interrupted", "True", "True"]
