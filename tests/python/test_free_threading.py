"""Threads that call at once get the bits of a call alone, and a Python without the GIL keeps doing without."""

import random
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import onepass
import pytest


def kinds(rng):
    """Calls that differ in shape, options and operator."""
    q, k, v = (rng.standard_normal((2, heads, n, 32), dtype=np.float32) for heads, n in ((4, 17), (2, 33), (2, 33)))
    packed, cu = rng.standard_normal((17, 4, 32), dtype=np.float32), np.array([0, 5, 17], dtype=np.int32)
    pages, table = k.reshape(22, 3, 2, 32), np.arange(22, dtype=np.int32).reshape(2, 11)
    out, lse = onepass.attention(q, k, v, return_lse=True)
    return [
        lambda: onepass.attention(q, k, v),
        lambda: onepass.attention(q, k, v, mask="causal_bottom_right", softcap=20.0),
        lambda: onepass.attention(q, k, v, score_mod="score * 2 - abs(q_index - k_index)"),
        lambda: onepass.attention(packed, packed, packed, cu_seqlens_q=cu, cu_seqlens_k=cu),
        lambda: onepass.attention(q, pages, pages, page_table=table, seqused_k=np.array([30, 9], dtype=np.int32)),
        lambda: np.concatenate([x.ravel() for x in onepass.attention_backward(q, q, k, v, out, lse)]),
        lambda: onepass.softmax(q[0, 0], return_lse=True)[0],
        lambda: onepass.explain("fwd b1 h2 s64 d32 fp32"),
    ]


def bits(result):
    return result if isinstance(result, str) else np.asarray(result).tobytes()


def test_threads_get_the_bits_of_a_call_alone(rng):
    calls = kinds(rng)
    alone = [bits(call()) for call in calls]
    start, wrong = threading.Barrier(8), []

    def work(seed):
        order = random.Random(seed)
        start.wait()
        for _ in range(40):
            which = order.randrange(len(calls))
            try:
                if bits(calls[which]()) != alone[which]:
                    wrong.append((which, "differs"))
            except Exception as error:
                wrong.append((which, error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has the GIL")
def test_the_gil_stays_off():
    code = """
import sys
import numpy as np
import onepass
x = np.ones((1, 3, 2, 16), dtype=np.float32)
onepass.attention(x, x, x)
print(sys._is_gil_enabled())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
