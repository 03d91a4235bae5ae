"""Children of os.fork() and of multiprocessing's fork compute, whatever the parent's threads were doing."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import onepass
import pytest
from conftest import inputs

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    # Python 3.12 warns of what is tested here.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SECONDS = 60


def in_child(right):
    """True if a forked child finds right() true. An alarm ends a child that hangs."""
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(SECONDS)
        status = 1
        try:
            status = 0 if right() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def busy():
    """q, k, v, the result, and threads that compute until the test is over."""
    q, k, v = inputs(np.random.default_rng(7), rows=300, keys=400)
    expected = onepass.attention(q, k, v, threads=1)
    stop, begun = threading.Event(), threading.Barrier(4)

    def compute(threads):
        onepass.attention(q, k, v, threads=threads)
        begun.wait()
        while not stop.is_set():
            onepass.attention(q, k, v, threads=threads)

    callers = [threading.Thread(target=compute, args=(threads,)) for threads in (None, None, 3)]
    for caller in callers:
        caller.start()
    begun.wait()
    yield q, k, v, expected
    stop.set()
    for caller in callers:
        caller.join()


def test_a_child_computes_while_the_parents_threads_are_inside_calls(busy):
    q, k, v, expected = busy
    for _ in range(5):
        for threads in (None, 3, 2):  # made by the parent: the first two
            assert in_child(
                lambda threads=threads: np.array_equal(onepass.attention(q, k, v, threads=threads), expected)
            )


def _attend(x):
    return onepass.attention(*x)


def test_multiprocessing_by_fork(busy):
    q, k, v, expected = busy
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for out in pool.map_async(_attend, [(q, k, v)] * 4).get(SECONDS):
            np.testing.assert_array_equal(out, expected)


def test_a_child_may_be_the_first_to_compute():
    code = """
        import os, sys
        import numpy as np
        import onepass

        x = np.random.default_rng(0).standard_normal((1, 4, 300, 64), dtype=np.float32)
        child = os.fork()
        out = onepass.attention(x, x, x)
        if child == 0:
            os._exit(0 if np.array_equal(out, onepass.attention(x, x, x, threads=1)) else 1)
        sys.exit(os.waitpid(child, 0)[1] != 0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=SECONDS)
