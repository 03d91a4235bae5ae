"""Errors of dq, dk and dv, onepass's beside peers', on the 18 cells of suites/h200_backward.txt, on a GPU.

All contenders get the same q, k, v and dO, standard normal numbers in bf16, and make their own O and LSE. float64 from
the same numbers gives the reference for two heads: the first one, and the last one of the last batch entry. Printed are
||g - ref|| / ||ref|| and max|g - ref| / max|ref| in thousandths; the table has the first. FlashAttention-4 and -3 take
part where bench/peers finds them.
"""

import importlib
import os
import pathlib

from bench.peers.flash_attention_3 import Calls
from bench.peers.torch_cuda import TorchCudnn
from bench.problem import Problem
from bench.tables.cells import CELL
from bench.tables.gpu import GRADIENTS, errors_table

NEEDS = "torch", "onepass"
SUITE = pathlib.Path(__file__).parents[1] / "suites" / "h200_backward.txt"
CHUNK = 1024  # rows of scores at once


def cells():
    """The suite's 18 cells."""
    return [line for line in SUITE.read_text().splitlines() if CELL.fullmatch(line)]


def reference(torch, problem, q, k, v, dout):
    """dq, dk and dv in float64 of one head's [seq, dim]."""
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    scale = problem.scale or problem.dim**-0.5
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    keys = torch.arange(problem.keys, device=q.device)
    for first in range(0, problem.rows, CHUNK):
        rows = slice(first, min(first + CHUNK, problem.rows))
        scores = scale * q[rows] @ k.T
        if problem.causal:
            scores.masked_fill_(keys > torch.arange(rows.start, rows.stop, device=q.device)[:, None], -torch.inf)
        weights = scores.softmax(1)
        delta = ((weights @ v) * dout[rows]).sum(1, keepdim=True)
        dv += weights.T @ dout[rows]
        dscores = weights.mul_(dout[rows] @ v.T - delta)
        dq[rows] = scale * dscores @ k
        dk += scale * dscores.T @ q[rows]
    return dq, dk, dv


def of_onepass(onepass):
    def gradients(problem, q, k, v, dout):
        q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
        mask = problem.causal or None
        out, lse = onepass.attention(q, k, v, mask=mask, return_lse=True)
        return [x.transpose(1, 2) for x in onepass.attention_backward(dout, q, k, v, out, lse, mask=mask)]

    return gradients


def of_autograd(torch, attention):
    def gradients(problem, q, k, v, dout):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attention(problem, *leaves), leaves, dout)

    return gradients


def of_cudnn(torch):
    def attention(problem, q, k, v):
        with TorchCudnn(torch).alone(backward=True):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(problem.causal))
            return out.transpose(1, 2)

    return of_autograd(torch, attention)


def contenders(torch, onepass):
    """{peer: function of a problem, q, k, v and dO, [batch, seq, heads, dim], that returns dq, dk, dv}."""
    found = {"onepass": of_onepass(onepass), "torch-cudnn": of_cudnn(torch)}
    try:
        cute = importlib.import_module("flash_attn.cute")
        attention = lambda p, q, k, v: cute.flash_attn_func(q, k, v, causal=bool(p.causal))[0]  # noqa: E731
        found["flash-attn-4"] = of_autograd(torch, attention)
    except ImportError:
        print("flash-attn-4 is not installed")
    if os.environ.get("ONEPASS_FA3"):
        found["flash-attn-3"] = lambda p, q, k, v, dout: Calls(torch, p, q, k, v).prepare_backward(dout)()
    return found


def errors(torch, given, expected):
    """{"rms": ||g - ref|| / ||ref||, "max": max|g - ref| / max|ref|}; the two lists hold a tensor for each head."""
    given, expected = torch.stack(given).double(), torch.stack(expected)
    apart = given - expected
    worst = apart.abs().max() / expected.abs().max()
    return {"rms": (apart.norm() / expected.norm()).item(), "max": worst.item()}


def measured(torch, line, functions):
    """A row of the JSON."""
    problem = Problem.parse(line)
    torch.manual_seed(0)
    shape = problem.batch, problem.rows, problem.heads, problem.dim
    tensors = [torch.randn(shape, dtype=torch.bfloat16, device=problem.device) for _ in range(4)]
    heads = [(0, slice(None), 0), (-1, slice(None), -1)]
    expected = list(zip(*(reference(torch, problem, *(x[head] for x in tensors)) for head in heads)))
    row = {"problem": line, "contenders": {}}
    for name, gradients in functions.items():
        made = gradients(problem, *tensors)
        entry = {
            which: errors(torch, [x[head] for head in heads], list(ref))
            for which, x, ref in zip(GRADIENTS, made, expected)
        }
        row["contenders"][name] = entry
    return row


def said(row):
    """The problem, and a line for each contender."""
    lines = [row["problem"]]
    for name, entry in row["contenders"].items():
        numbers = (f"{which} {1e3 * e['rms']:.2f} {1e3 * e['max']:.2f}" for which, e in entry.items())
        lines.append(f"  {name:<14}" + "   ".join(numbers))
    return "\n".join(lines)


def rows(torch, onepass, options):
    functions = contenders(torch, onepass)
    for line in cells():
        yield measured(torch, line, functions)


table = errors_table
