"""Softmax over rows and linear layers through PyTorch, softmax through Triton."""

import importlib
import itertools

from bench.peers.torch_cuda import CudaTorch
from bench.problem import Refused
from bench.timing import InARow, Timer


def tensors(torch, p):
    """x of a softmax, or y and dy of its backward, [rows, n]."""
    x = torch.randn(p.batch * p.heads * p.rows, p.keys, dtype=p.torch_dtype(torch), device=p.device)
    return (torch.softmax(x, -1), torch.randn_like(x)) if p.op == "softmax_bwd" else (x,)


def checked(p):
    if p.op not in TorchRows.ops:
        raise Refused(f"times softmax and softmax_bwd only (got {p.op})")
    p.refuse_extras(("log",))
    return p


class TorchRows(CudaTorch):
    ops = "softmax", "softmax_bwd"

    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        log = "log" in p.extras
        given = tensors(torch, p)
        if p.op == "softmax_bwd":
            name = "_log_softmax_backward_data" if log else "_softmax_backward_data"
            call = getattr(torch.ops.aten, name)
            y, dy = given
            return [(f"aten.{name}", lambda: call(dy, y, -1, y.dtype))], ()
        call = torch.log_softmax if log else torch.softmax
        return [("", lambda: call(given[0], -1))], ()


def kernel(triton, tl):
    """One program for each row; it holds the row, which is read once."""

    @triton.jit
    def rows(x, y, step, n, block: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, block)
        numbers = tl.load(x + row * step + at, mask=at < n, other=-float("inf")).to(tl.float32)
        weights = tl.exp(numbers - tl.max(numbers, 0))
        result = weights / tl.sum(weights, 0)
        tl.store(y + row * step + at, result.to(y.dtype.element_ty), mask=at < n)

    return rows


class TritonRows(CudaTorch):
    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        if p.op != "softmax" or p.extras:
            raise Refused("the Triton kernel supports a plain softmax only")
        try:
            triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
        except ImportError:
            raise Refused("Triton is not installed") from None
        block = triton.next_power_of_2(p.keys)
        if block > 131072:
            raise Refused(f"the Triton kernel supports rows of at most 131072 elements (got {p.keys})")
        globals()["tl"] = tl  # Triton looks up the kernel's annotations here
        rows, (x,) = kernel(triton, tl), tensors(torch, p)
        y = torch.empty_like(x)

        def way(warps):
            def run():
                rows[(x.shape[0],)](x, y, x.stride(0), p.keys, block=block, num_warps=warps)
                return y

            return run

        best = min((4, 8, 16, 32), key=lambda warps: self.seconds(way(warps), p.device))
        return [(f"{best} warps, the best of 4 to 32", way(best))], ()

    def seconds(self, run, device):
        return min(Timer(self.torch, device).times(run, 0.01))


class TorchCopy(CudaTorch):
    """A copy of the bytes that a softmax reads and writes: the speed of the device's memory at that size."""

    def ways(self, problem):
        torch, p = self.torch, checked(problem)
        given = tensors(torch, p)
        moved = sum(x.numel() * x.element_size() for x in given) + given[0].numel() * given[0].element_size()
        source, target = (torch.empty(moved // 2, dtype=torch.uint8, device=p.device) for _ in range(2))
        return [("", lambda: target.copy_(source))], ()


class TorchLinear(CudaTorch):
    """torch.nn.functional.linear: cuBLAS on CUDA, oneDNN or MKL on the CPU."""

    ops = "flat_gemm", "linear"
    timer = InARow

    def ways(self, problem):
        torch, p = self.torch, problem
        if p.op not in self.ops:
            raise Refused(f"times flat_gemm and linear only (got {p.op})")
        sizes = {word[0]: int(word[1:]) for word in p.extras if word[1:].isdigit()}
        columns = "column_bias" in p.extras
        p.extras = [word for word in p.extras if not word[1:].isdigit()]
        p.refuse_extras(("column_bias",))
        x, w, bias = (
            torch.randn(*shape, dtype=p.torch_dtype(torch), device=p.device)
            for shape in ((sizes["m"], sizes["k"]), (sizes["n"], sizes["k"]), (sizes["n"],))
        )
        copies = 1 if p.device == "cpu" else max(2, min(16, 1 + int(384e6 / max(1, w.numel() * w.element_size()))))
        weights = itertools.cycle([w] + [w.clone() for _ in range(copies - 1)])
        linear = torch.nn.functional.linear
        return [("", lambda: linear(x, next(weights), bias if columns else None))], ()


PEERS = {
    "torch-rows": TorchRows,
    "triton-rows": TritonRows,
    "torch-copy": TorchCopy,
    "torch-linear": TorchLinear,
}
