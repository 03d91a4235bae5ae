"""FlashAttention-4 as a peer of `onepass bench`: the wheel flash-attn-4, whose kernels CuTe DSL compiles at first use.

Timed as PyTorch's backends are (torch_cuda.py), its backward through autograd as a user would call it. Where the wheels
cannot be installed, unpack flash-attn-4, quack-kernels, apache-tvm-ffi, torch-c-dlpack-ext and nvidia-cutlass-dsl with
its libs-base, -core and -cu13 into one folder. Put that folder and its nvidia_cutlass_dsl/dsl_packages on PYTHONPATH.
On Hopper, CUTE_DSL_ARCH=sm_90a names the target if the DSL does not detect it.
"""

import contextlib
import importlib
import importlib.metadata

from bench.peers.torch_cuda import CudaTorch, Ways
from bench.problem import Refused


class Fa4Ways(Ways):
    """Its one call, with [batch, seq, heads, dim] views or packed tensors."""

    ACCEPTED = ("grads", "deterministic", "window", "softcap", "varlen")

    def __init__(self, torch, problem, cute):
        super().__init__(torch, problem, "flash-attn-4")
        self.cute = cute
        if problem.dtype == "fp32":
            raise Refused("does not support fp32")
        if problem.causal == "causal_top_left" and not self.square:
            raise Refused("supports bottom-right alignment only")
        left, right = problem.window()
        self.options = {"causal": bool(problem.causal), "deterministic": "deterministic" in problem.extras}
        self.options |= {"softcap": float(problem.extra("softcap") or 0)}
        if problem.extra("window") is not None:  # causal is then the band's right edge
            self.options |= {"causal": False, "window_size": tuple(None if n < 0 else n for n in (left, right))}
        if problem.scale:
            self.options["softmax_scale"] = problem.scale

    def dense(self):
        q, k, v = (x.transpose(1, 2) for x in self.inputs())
        return [("", lambda: self.cute.flash_attn_func(q, k, v, **self.options)[0])]

    def packed(self):
        q, k, v, (cu_q, cu_k), (most_q, most_k) = self.packed_inputs()
        lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": most_q, "max_seqlen_k": most_k}
        return [("", lambda: self.cute.flash_attn_varlen_func(q, k, v, **lengths, **self.options)[0])]

    def all(self):
        return self.dense() if self.p.lengths() is None else self.packed()


class FlashAttention4(CudaTorch):
    module = "flash_attn.cute"

    def __init__(self, cute):
        super().__init__(importlib.import_module("torch"))
        self.cute = cute

    @staticmethod
    def version(_):
        return importlib.metadata.version("flash-attn-4")

    @contextlib.contextmanager
    def alone(self, backward=False):
        with self.torch.enable_grad() if backward else self.torch.no_grad():
            yield

    def ways(self, problem):
        ways = Fa4Ways(self.torch, problem, self.cute)
        return ways.all(), ways.leaves


PEERS = {"flash-attn-4": FlashAttention4}
