"""Softmax over rows and linear layers through PyTorch, softmax through Triton, for bench/peers/server.py."""

import importlib
import itertools

from bench.peers import torch_cuda as cuda_peers
from bench.problem import Refused


def tensors(torch, p):
    """x of a softmax, or y and dy of its backward, [rows, n]."""
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[p.dtype]
    x = torch.randn(p.batch * p.heads * p.rows, p.keys, dtype=dtype, device=p.device)
    return (torch.softmax(x, -1), torch.randn_like(x)) if p.op == "softmax_bwd" else (x,)


def checked(p):
    if p.op not in ("softmax", "softmax_bwd"):
        raise Refused("it times softmax and softmax_bwd")
    p.refuse_extras(("log",))
    return p


class Rows:
    """(note, function) pairs and, as cuda_peers.Ways has them, no leaves: a backward is called by itself."""

    leaves = ()

    def __init__(self, ways):
        self.ways = ways

    def all(self):
        return self.ways


class TorchRows(cuda_peers.CudaTorch):
    enum = "MATH"  # nothing here asks for attention

    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        log = "log" in p.extras
        given = tensors(torch, p)
        if p.op == "softmax_bwd":
            name = "_log_softmax_backward_data" if log else "_softmax_backward_data"
            call = getattr(torch.ops.aten, name)
            y, dy = given
            return Rows([(f"aten.{name}", lambda: call(dy, y, -1, y.dtype))])
        call = torch.log_softmax if log else torch.softmax
        return Rows([("", lambda: call(given[0], -1))])


def kernel(triton, tl):
    """One program a row, which it holds: the row is read once."""

    @triton.jit
    def rows(x, y, step, n, block: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, block)
        numbers = tl.load(x + row * step + at, mask=at < n, other=-float("inf")).to(tl.float32)
        weights = tl.exp(numbers - tl.max(numbers, 0))
        result = weights / tl.sum(weights, 0)
        tl.store(y + row * step + at, result.to(y.dtype.element_ty), mask=at < n)

    return rows


class TritonRows(cuda_peers.CudaTorch):
    enum = "MATH"

    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        if p.op != "softmax" or p.extras:
            raise Refused("the Triton kernel computes a plain softmax")
        try:
            triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
        except ImportError:
            raise Refused("Triton is not installed") from None
        block = triton.next_power_of_2(p.keys)
        if block > 131072:
            raise Refused("the Triton kernel holds rows of up to 131072 numbers")
        globals()["tl"] = tl  # the kernel's annotations are looked up here
        rows, (x,) = kernel(triton, tl), tensors(torch, p)
        y = torch.empty_like(x)

        def way(warps):
            def run():
                rows[(x.shape[0],)](x, y, x.stride(0), p.keys, block=block, num_warps=warps)
                return y

            return run

        best = min((4, 8, 16, 32), key=lambda warps: self.seconds(way(warps), p.device))
        return Rows([(f"{best} warps, the best of 4 to 32", way(best))])

    def seconds(self, run, device):
        return min(cuda_peers.Timer(self.torch, device).times(run, 0.01))


class TorchCopy(cuda_peers.CudaTorch):
    """A copy of as many bytes as a softmax reads and writes: what the device's memory allows at that size."""

    enum = "MATH"

    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        given = tensors(torch, p)
        moved = sum(x.numel() * x.element_size() for x in given) + given[0].numel() * given[0].element_size()
        source, target = (torch.empty(moved // 2, dtype=torch.uint8, device=p.device) for _ in range(2))
        return Rows([("", lambda: target.copy_(source))])


class InARow(cuda_peers.Timer):
    """As `onepass bench` times linear layers: calls that follow each other, each on the next copy of the weights."""

    def times(self, run, seconds):
        cuda, each = self.torch.cuda, self.batch(run, 32)
        count = max(8, min(1000, int(seconds / each)))
        cuda.synchronize()
        return [self.batch(run, count)]

    def batch(self, run, count):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            run()
        end.record()
        self.torch.cuda.synchronize()
        return 1e-3 * begin.elapsed_time(end) / count


class TorchLinear(cuda_peers.CudaTorch):
    """torch.nn.functional.linear: cuBLAS on CUDA, oneDNN or MKL on the CPU."""

    enum = "MATH"
    timer = InARow

    def ways(self, problem):
        torch, p = self.torch, problem
        if p.op not in ("flat_gemm", "linear"):
            raise Refused("it times flat_gemm and linear")
        sizes = {word[0]: int(word[1:]) for word in p.extras if word[1:].isdigit()}
        columns = "column_bias" in p.extras
        p.extras = [word for word in p.extras if not word[1:].isdigit()]
        p.refuse_extras(("column_bias",))
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[p.dtype]
        x, w, bias = (
            torch.randn(*shape, dtype=dtype, device=p.device)
            for shape in ((sizes["m"], sizes["k"]), (sizes["n"], sizes["k"]), (sizes["n"],))
        )
        copies = 1 if p.device == "cpu" else max(2, min(16, 1 + int(384e6 / max(1, w.numel() * w.element_size()))))
        weights = itertools.cycle([w] + [w.clone() for _ in range(copies - 1)])
        linear = torch.nn.functional.linear
        return Rows([("", lambda: linear(x, next(weights), bias if columns else None))])


PEERS = {
    "torch-rows": TorchRows,
    "triton-rows": TritonRows,
    "torch-copy": TorchCopy,
    "torch-linear": TorchLinear,
}
