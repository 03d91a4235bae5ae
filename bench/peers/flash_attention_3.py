"""FlashAttention-3's own kernels as a peer: $ONEPASS_FA3 names a library that bench/peers/fa3/build.sh made.

Timed as PyTorch's backends are (cuda_peers.Timer). A causal forward zeroes its tile counter inside the timed span, a
backward of grouped heads its sums, as FlashAttention-3's own mha_fwd and mha_bwd do. The backward is timed alone. One
query against many keys is what its flash_attn_with_kvcache is for: fa3_decode.py.
"""

import ctypes
import math
import os
import statistics

from bench.peers import flash_attention_3_decode as fa3_decode
from bench.peers.torch_cuda import Timer, settle
from bench.problem import Refused

DIMS = 64, 128, 256


class Calls:
    """The library's two functions on one problem's q, k, v [batch, seq, heads, dim], on PyTorch's stream."""

    def __init__(self, torch, problem, q, k, v):
        self.torch, self.tensors = torch, [q, k, v]
        self.kernels = ctypes.CDLL(os.environ["ONEPASS_FA3"])
        self.kernels.fa3_backward_bytes.restype = ctypes.c_int64
        batch, rows, heads, dim = q.shape
        self.sizes = [ctypes.c_int(n) for n in (batch, rows, heads, k.shape[2], dim, bool(problem.causal))]
        self.scale = ctypes.c_float(problem.scale or 1 / math.sqrt(dim))
        self.out = torch.empty_like(q)
        self.lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
        self.counter = torch.zeros(1, dtype=torch.int32, device=q.device)
        self.stream = ctypes.c_void_p(torch.cuda.current_stream(q.device).cuda_stream)

    def call(self, name, tensors, *options):
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        if code := getattr(self.kernels, name)(*pointers, *self.sizes, *options, self.scale, self.stream):
            raise RuntimeError(f"{name} returned {code}")

    def forward(self):
        self.call("fa3_forward", [*self.tensors, self.out, self.lse, self.counter])
        return self.out

    def prepare_backward(self, dout, deterministic=False):
        """A function that computes dq, dk and dv, after a forward; `workspace` is what it needs beside them."""
        self.forward()
        size = self.kernels.fa3_backward_bytes(*self.sizes)
        self.workspace = self.torch.empty(size, dtype=self.torch.uint8, device=dout.device)
        gradients = [self.torch.empty_like(t) for t in self.tensors]
        everything = [*self.tensors, self.out, self.lse, dout, *gradients, self.workspace]

        def backward():
            self.call("fa3_backward", everything, ctypes.c_int(deterministic))
            return gradients

        return backward


class FlashAttention3:
    module = "torch"

    def __init__(self, torch):
        self.torch = torch

    @staticmethod
    def decodes(p):
        return not p.backward and p.rows == 1 < p.keys

    def refuse(self, p):
        fa3_decode.refuse(p) if self.decodes(p) else self.refuse_sequences(p)
        if not os.environ.get("ONEPASS_FA3"):
            raise Refused("$ONEPASS_FA3 does not name the library that bench/peers/fa3/build.sh makes")

    def refuse_sequences(self, p):
        p.refuse_extras(("grads", "deterministic") if p.backward else ())
        if p.dtype != "bf16" or not p.bshd or p.rows != p.keys or p.dim != p.dim_v or p.dim not in DIMS:
            raise Refused("this build has bf16, layout=bshd, equal lengths, and head dims 64, 128 and 256")
        if p.heads != p.heads_kv and not p.backward:
            raise Refused("this build has no forward that packs grouped heads")
        if p.backward and set(p.grads()) != {"dq", "dk", "dv"}:
            raise Refused("it computes the gradients of q, k and v together")
        if "deterministic" in p.extras and (p.dim == 256 or p.heads != p.heads_kv):
            raise Refused("this build is deterministic for equal heads of dim 64 and 128")

    def prepare(self, problem, threads):
        """A function (seconds) -> answer."""
        torch, p = self.torch, problem
        self.refuse(p)
        settle(torch, p)
        run, about = self.decoding(p) if self.decodes(p) else self.sequences(p)
        run()
        torch.cuda.synchronize()
        timer = Timer(torch, p.device)

        def measure(seconds):
            times = timer.times(run, seconds)
            return {"median_s": statistics.median(times), "min_s": min(times), "runs": len(times)} | about

        return measure

    def decoding(self, p):
        """What is timed, and what is said about it."""
        calls = fa3_decode.Calls(self.torch, p)
        calls.check()
        return calls.forward, {"extra_bytes": calls.extra_bytes, "note": calls.note}

    def sequences(self, p):
        """As decoding()."""
        torch = self.torch
        shapes = [(p.batch, p.rows, heads, p.dim) for heads in (p.heads, p.heads_kv, p.heads_kv)]
        calls = Calls(torch, p, *(torch.randn(shape, dtype=torch.bfloat16, device=p.device) for shape in shapes))
        if not p.backward:
            return calls.forward, {"extra_bytes": calls.lse.numel() * 4 + 4}
        run = calls.prepare_backward(torch.randn_like(calls.out), "deterministic" in p.extras)
        return run, {"extra_bytes": calls.workspace.numel()}


PEERS = {"flash-attn-3": FlashAttention3}
