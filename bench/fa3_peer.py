"""FlashAttention-3's own kernels as a peer of `onepass bench`: a library of bench/fa3/build.sh, named by $ONEPASS_FA3.

Timed as PyTorch's backends are (cuda_peers.Timer). A causal call zeroes its tile counter inside the timed span, as
FlashAttention-3's own mha_fwd does.
"""

import ctypes
import math
import os
import statistics

from cuda_peers import Timer, settle
from problem_line import Refused

DIMS = 64, 128, 256


class FlashAttention3:
    module = "torch"

    def __init__(self, torch):
        self.torch = torch

    def prepare(self, problem, threads):
        """A function (seconds) -> answer."""
        torch, p = self.torch, problem
        if p.backward:
            raise Refused("its backward is not built here")
        p.refuse_extras()
        square = p.rows == p.keys and p.heads == p.heads_kv and p.dim == p.dim_v
        if p.dtype != "bf16" or not p.bshd or not square or p.dim not in DIMS:
            raise Refused("this build has bf16, layout=bshd, equal heads and lengths, and head dims 64, 128 and 256")
        if not os.environ.get("ONEPASS_FA3"):
            raise Refused("$ONEPASS_FA3 does not name the library that bench/fa3/build.sh makes")
        settle(torch, p)
        shape = p.batch, p.rows, p.heads, p.dim
        q, k, v, out = (torch.randn(shape, dtype=torch.bfloat16, device=p.device) for _ in range(4))
        lse = torch.empty(p.batch, p.heads, p.rows, dtype=torch.float32, device=p.device)
        counter = torch.zeros(1, dtype=torch.int32, device=p.device)
        call = ctypes.CDLL(os.environ["ONEPASS_FA3"]).fa3_forward
        tensors = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, out, lse, counter)]
        sizes = [ctypes.c_int(n) for n in (*shape, bool(p.causal))]
        scale = ctypes.c_float(p.scale or 1 / math.sqrt(p.dim))
        stream = ctypes.c_void_p(torch.cuda.current_stream(p.device).cuda_stream)

        def run(kept=(q, k, v, out, lse, counter)):
            if code := call(*tensors, *sizes, scale, stream):
                raise RuntimeError(f"fa3_forward returned {code}")

        run()
        torch.cuda.synchronize()
        timer = Timer(torch, p.device)

        def measure(seconds):
            times = timer.times(run, seconds)
            extra = lse.numel() * 4 + 4
            return {"median_s": statistics.median(times), "min_s": min(times), "runs": len(times), "extra_bytes": extra}

        return measure


PEERS = {"flash-attn-3": FlashAttention3}
