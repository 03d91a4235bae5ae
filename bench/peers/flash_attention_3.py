"""FlashAttention-3's own kernels as a peer: $ONEPASS_FA3 names a library that bench/peers/fa3/build.sh made.

As in FlashAttention-3's own mha_fwd and mha_bwd, the timed span includes zeroing the tile counter of a causal forward
and the sums of a backward of grouped heads. The backward is timed alone. One query against many keys is decoding, for
which it has flash_attn_with_kvcache: flash_attention_3_decode.py.
"""

import ctypes
import math
import os

from bench.peers import flash_attention_3_decode as decode
from bench.peers.base import Asked, Peer
from bench.peers.torch_cuda import settle
from bench.problem import Refused
from bench.timing import Timer

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
        """Runs the forward and returns a function that computes dq, dk and dv; its scratch memory is `workspace`."""
        self.forward()
        size = self.kernels.fa3_backward_bytes(*self.sizes)
        self.workspace = self.torch.empty(size, dtype=self.torch.uint8, device=dout.device)
        gradients = [self.torch.empty_like(t) for t in self.tensors]
        everything = [*self.tensors, self.out, self.lse, dout, *gradients, self.workspace]

        def backward():
            self.call("fa3_backward", everything, ctypes.c_int(deterministic))
            return gradients

        return backward


class FlashAttention3(Peer):
    @staticmethod
    def decodes(p):
        return not p.backward and p.rows == 1 < p.keys

    def refuse(self, p):
        decode.refuse(p) if self.decodes(p) else self.refuse_sequences(p)
        if not os.environ.get("ONEPASS_FA3"):
            raise Refused("$ONEPASS_FA3 must name the library that bench/peers/fa3/build.sh makes")

    def refuse_sequences(self, p):
        p.refuse_extras(("grads", "deterministic") if p.backward else ())
        if p.dtype != "bf16" or not p.bshd or p.rows != p.keys or p.dim != p.dim_v or p.dim not in DIMS:
            raise Refused("this build supports bf16, layout=bshd, equal lengths, and head dims 64, 128 and 256 only")
        if p.heads != p.heads_kv and not p.backward:
            raise Refused("this build does not support grouped heads in the forward")
        if p.backward and set(p.grads()) != {"dq", "dk", "dv"}:
            raise Refused("computes the gradients of q, k and v together")
        if "deterministic" in p.extras and (p.dim == 256 or p.heads != p.heads_kv):
            raise Refused("this build supports deterministic only for equal heads of dim 64 and 128")

    def prepare(self, problem, threads):
        self.refuse(problem)
        settle(self.torch, problem)
        run, about = self.decoding(problem) if self.decodes(problem) else self.sequences(problem)
        run()
        self.torch.cuda.synchronize()
        return Asked(run, Timer(self.torch, problem.device), about)

    def decoding(self, p):
        """The timed function, and the rest of the answer."""
        calls = decode.Calls(self.torch, p)
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
