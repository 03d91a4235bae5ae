"""Times peers for `onepass bench`, which starts this and asks line by line.

    hello                                   -> {"peers": {"torch": "2.11.0", "onnxruntime": null}}
    <peer> <threads> <seconds> <problem>    -> {"peer", "version", "median_s", "min_s", "runs"}
                                               {"peer", "missing": why} or {"peer", "refused": why}
    ceiling matmul|copy <device> <seconds>  -> {"flops_per_s"} or {"bytes_per_s"}

On the CPU one thread is timed by its CPU time, several by the wall clock; wall_median_s is always the wall's. On CUDA
(cuda_peers.py) events are, and threads mean nothing. What a peer does not compute (the LSE) is not asked of it; what it
cannot compute is refused, never replaced by something else; how it had to be asked stands in `note`.
"""

import gc
import importlib
import json
import os
import statistics
import sys
import time

import numpy as np

from bench.peers import flash_attention_3 as fa3_peer
from bench.peers import flash_attention_4 as fa4_peer
from bench.peers import flash_mla as flashmla_peer
from bench.peers import rows as row_peers
from bench.peers import torch_cuda as cuda_peers
from bench.problem import Problem, Refused


def refuse_cuda(problem):
    if problem.device != "cpu":
        raise Refused(f"it is timed on the CPU; the problem says cuda, which {', '.join(cuda_peers.PEERS)} are for")


class Torch:
    module = "torch"

    def __init__(self, torch):
        self.torch = torch

    def prepare(self, problem, threads):
        """A function without arguments that computes the problem, as a user of PyTorch would write it."""
        torch, p = self.torch, problem
        refuse_cuda(p)
        if p.op in ("softmax", "softmax_bwd"):
            torch.set_num_threads(threads)
            return row_peers.TorchRows(torch).ways(p).all()[0][1]
        if p.op in ("flat_gemm", "linear"):
            torch.set_num_threads(threads)
            return row_peers.TorchLinear(torch).ways(p).all()[0][1]
        p.refuse_extras(("grads",))
        if not set(p.grads()) <= {"dq", "dk", "dv"}:
            raise Refused("gradients but those of q, k and v are not timed")
        torch.set_num_threads(threads)
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[p.dtype]
        q, k, v = (torch.from_numpy(x).to(dtype) for x in p.arrays())
        if p.bshd:
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        options = {"scale": p.scale} if p.scale else {}
        if p.heads != p.heads_kv:
            options["enable_gqa"] = True
        if p.causal == "causal_top_left" or (p.causal and p.rows == p.keys):
            options["is_causal"] = True
        elif p.causal:
            options["attn_mask"] = torch.ones(p.rows, p.keys, dtype=torch.bool).tril(p.keys - p.rows)

        sdpa = torch.nn.functional.scaled_dot_product_attention

        def forward():
            with torch.inference_mode():
                return sdpa(q, k, v, **options)

        if not p.backward:
            return forward
        leaves = [x.requires_grad_() for name, x in (("dq", q), ("dk", k), ("dv", v)) if name in p.grads()]
        out = sdpa(q, k, v, **options)
        dout = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


class OnnxRuntime:
    """com.microsoft MultiHeadAttention (its flash kernel) where heads are not grouped, else ONNX 23's Attention."""

    module = "onnxruntime"

    def __init__(self, onnxruntime):
        self.ort = onnxruntime
        try:
            self.helper = importlib.import_module("onnx.helper")
        except ImportError:
            raise Refused("the package onnx, which builds the model, is not installed") from None

    def prepare(self, problem, threads):
        p = problem
        refuse_cuda(p)
        p.refuse_extras()
        if p.backward:
            raise Refused("it infers: it has no gradients")
        if p.dtype == "bf16":
            raise Refused("it has no bf16 attention on the CPU")
        if p.causal and p.rows != p.keys:
            raise Refused("its causal masks are for square problems")
        element = np.float32 if p.dtype == "fp32" else np.float16
        q, k, v = (x.astype(element) for x in p.arrays())
        multi_head = p.heads == p.heads_kv and p.dtype == "fp32"
        if multi_head:  # [batch, seq, heads * dim]
            q, k, v = (
                np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(p.batch, x.shape[2], -1) for x in (q, k, v)
            )
        out_shape = (p.batch, p.rows, p.heads * p.dim_v) if multi_head else (p.batch, p.heads, p.rows, p.dim_v)
        session = self.session(p, threads, multi_head, [("q", q), ("k", k), ("v", v)], out_shape)
        binding = session.io_binding()
        inputs = {name: self.ort.OrtValue.ortvalue_from_numpy(x) for name, x in (("q", q), ("k", k), ("v", v))}
        out = self.ort.OrtValue.ortvalue_from_numpy(np.empty(out_shape, element))
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("out", out)

        def run():
            session.run_with_iobinding(binding)
            return out, inputs  # the inputs stay alive with the function

        return run

    def session(self, p, threads, multi_head, inputs, out_shape):
        helper = self.helper
        element = 1 if p.dtype == "fp32" else 10  # onnx.TensorProto.FLOAT, FLOAT16
        attributes = {"scale": p.scale} if p.scale else {}
        if multi_head:
            attributes |= {"num_heads": p.heads, "domain": "com.microsoft"} | (
                {"unidirectional": 1} if p.causal else {}
            )
        elif p.causal:
            attributes["is_causal"] = 1
        node = helper.make_node(
            "MultiHeadAttention" if multi_head else "Attention", ["q", "k", "v"], ["out"], **attributes
        )
        values = [helper.make_tensor_value_info(name, element, x.shape) for name, x in inputs]
        result = helper.make_tensor_value_info("out", element, out_shape)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            helper.make_graph([node], "attention", values, [result]), opset_imports=opsets, ir_version=11
        )
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        return self.ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


CPU_PEERS = {"torch": Torch, "onnxruntime": OnnxRuntime}
PEERS = CPU_PEERS | cuda_peers.PEERS | fa3_peer.PEERS | fa4_peer.PEERS | flashmla_peer.PEERS | row_peers.PEERS


class Server:
    """Keeps what was prepared last for each peer: a benchmark asks for the same problem in several rounds."""

    def __init__(self):
        self.modules, self.ready, self.ceilings = {}, {}, {}

    def module(self, peer):
        name = PEERS[peer].module
        if name not in self.modules:
            try:
                self.modules[name] = importlib.import_module(name)
            except ImportError:
                self.modules[name] = None
        return self.modules[name]

    def version(self, peer):
        module = self.module(peer)
        known = getattr(PEERS[peer], "version", lambda module: module.__version__)
        return module and known(module)

    def prepared(self, peer, threads, line):
        """CPU peers: a function that computes the problem; CUDA peers: one that times it for so many seconds."""
        key, run = self.ready.get(peer, (None, None))
        if key != (threads, line):
            if any(other != (threads, line) for other, _ in self.ready.values()):
                self.ready.clear()
                gc.collect()  # the last problem's arrays go before the next one's come
            run = PEERS[peer](self.module(peer)).prepare(Problem.parse(line), threads)
            if peer in CPU_PEERS:
                run()  # warm-up: pages, caches, thread pools
            self.ready[peer] = (threads, line), run
        return run

    def ceiling(self, words):
        """Of a CUDA device, through PyTorch; kept on the device from the first question on."""
        torch = self.module("torch-math")
        if torch is None:
            return {"missing": "PyTorch is not installed"}
        if len(words) != 4 or words[1] not in ("matmul", "copy"):
            return {"refused": f"cannot read {' '.join(words)!r}: ceiling matmul|copy <device> <seconds> is expected"}
        if words[2] not in self.ceilings:
            self.ceilings[words[2]] = cuda_peers.Ceilings(torch, words[2])
        return self.ceilings[words[2]].answer(words[1], float(words[3]))

    def answer(self, line):
        words = line.split(maxsplit=3)
        try:
            if words == ["hello"]:
                return {"peers": {peer: self.version(peer) for peer in PEERS}}
            if words[:1] == ["ceiling"]:
                return self.ceiling(words)
            return self.timed(words, line)
        except Refused as e:
            return {"peer": words[0], "refused": str(e)}
        except Exception as e:  # a peer's own refusal, in its own words
            return {"peer": words[0] if words else "", "refused": (str(e) or type(e).__name__).splitlines()[0][:200]}

    def timed(self, words, line):
        peer = words[0] if words else ""
        if peer not in PEERS:
            return {"peer": peer, "missing": f"unknown; {' and '.join(PEERS)} are known"}
        if self.module(peer) is None:
            return {"peer": peer, "missing": "not installed"}
        if len(words) < 4:
            raise Refused(f"cannot read {line.strip()!r}: <peer> <threads> <seconds> <problem> is expected")
        threads, seconds = int(words[1]), float(words[2])
        run = self.prepared(peer, threads, words[3])
        answer = measured(run, threads, seconds) if peer in CPU_PEERS else run(seconds)
        return {"peer": peer, "version": self.version(peer), **answer}


def measured(run, threads, seconds):
    cpu, wall = [], []
    until = time.perf_counter() + seconds
    while not wall or time.perf_counter() < until:
        cpu_start, wall_start = time.thread_time(), time.perf_counter()
        run()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.thread_time() - cpu_start)
    if threads > 1:
        time.sleep(0.05)  # thread pools spin for a while after a run; they shall not while somebody else is timed
    times = cpu if threads == 1 else wall
    return {
        "median_s": statistics.median(times),
        "min_s": min(times),
        "wall_median_s": statistics.median(wall),
        "runs": len(times),
    }


def main(argv=None):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers
    server = Server()
    for line in sys.stdin:
        print(json.dumps(server.answer(line)), file=answers, flush=True)
