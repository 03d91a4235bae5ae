"""PyTorch and ONNX Runtime on the CPU."""

import importlib

import numpy as np

from bench.peers import rows
from bench.peers.base import Asked, Peer
from bench.peers.torch_cuda import Ways, backward_of
from bench.problem import Refused
from bench.timing import CpuTimer


class CpuPeer(Peer):
    def prepare(self, problem, threads):
        if problem.device != "cpu":
            raise Refused(f"is timed on the CPU only (got {problem.device}); on CUDA there is torch-cudnn, torch-flash")
        run = self.function(problem, threads)
        run()  # warm-up: pages, caches, thread pools
        return Asked(run, CpuTimer(threads))


class CpuWays(Ways):
    """A problem as a user of PyTorch would write it, on the problem's own arrays."""

    ACCEPTED = ("grads",)

    def inputs(self):
        made = [self.torch.from_numpy(x).to(self.dtype) for x in self.p.arrays()]
        if self.p.bshd:
            made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
        self.leaves = [x.requires_grad_() for name, x in zip(("dq", "dk", "dv"), made) if name in self.p.grads()]
        return made

    def masking(self):
        return ("", {"is_causal": True}) if self.p.causal == "causal_top_left" else super().masking()


class Torch(CpuPeer):
    def function(self, problem, threads):
        torch = self.torch
        torch.set_num_threads(threads)
        for peer in (rows.TorchRows, rows.TorchLinear):
            if problem.op in peer.ops:
                return peer(torch).ways(problem)[0][0][1]
        ways = CpuWays(torch, problem, "math")
        run = ways.all()[0][1]
        return backward_of(torch, run, ways.leaves) if problem.backward else torch.inference_mode()(run)


class OnnxRuntime(CpuPeer):
    """com.microsoft MultiHeadAttention (its flash kernel) where heads are not grouped, else ONNX 23's Attention."""

    module = "onnxruntime"

    def __init__(self, onnxruntime):
        self.ort = onnxruntime
        try:
            self.helper = importlib.import_module("onnx.helper")
        except ImportError:
            raise Refused("needs the package onnx to build the model") from None

    def function(self, problem, threads):
        p = problem
        p.refuse_extras()
        if p.backward:
            raise Refused("does not support gradients")
        if p.dtype == "bf16":
            raise Refused("does not support bf16 on the CPU")
        if p.causal and p.rows != p.keys:
            raise Refused("supports causal masks only where q and k have equal lengths")
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
            return out, inputs  # the inputs live as long as the function

        return run

    def session(self, p, threads, multi_head, inputs, out_shape):
        helper = self.helper
        element = 1 if p.dtype == "fp32" else 10  # onnx.TensorProto.FLOAT, FLOAT16
        attributes = {"scale": p.scale} if p.scale else {}
        if multi_head:
            attributes |= {"num_heads": p.heads, "domain": "com.microsoft"}
            attributes |= {"unidirectional": 1} if p.causal else {}
        elif p.causal:
            attributes["is_causal"] = 1
        op = "MultiHeadAttention" if multi_head else "Attention"
        node = helper.make_node(op, ["q", "k", "v"], ["out"], **attributes)
        values = [helper.make_tensor_value_info(name, element, x.shape) for name, x in inputs]
        result = helper.make_tensor_value_info("out", element, out_shape)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "attention", values, [result])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        return self.ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


PEERS = {"torch": Torch, "onnxruntime": OnnxRuntime}
