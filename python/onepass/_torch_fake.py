"""The operators of _torch_op.py on tensors without values: what torch.compile and torch.export trace with."""

from typing import Any

import torch
from torch import library

from . import _arrays, _quantize, _torch_checks
from ._torch_op import (
    _GRADIENTS,
    APPEND,
    DIFFERENTIABLE,
    INPUTS,
    LOADED,
    OPERATORS,
    Call,
    _check_wanted,
    _gradient,
    _like,
    _packed,
    _readable,
    new_out,
)


def _fake(operator: str) -> Any:
    # The library has a kernel for meta tensors, whose sizes are known.
    over = {"allow_override": True} if LOADED else {}
    return library.register_fake("onepass::" + operator, lib=OPERATORS, **over)


@_fake("attention")
def _fake_forward(*args: Any) -> tuple[Any, ...]:
    c = Call(*args)
    q, packed = _readable(c.q), _packed(c)
    _torch_checks.check_ranks(c)
    out = new_out(q, c.v, packed, c.out_dtype)
    _torch_checks.check_fit(c, (*zip(INPUTS, c), ("out", out)))
    asked = (c.return_lse, c.return_max)
    return out, *(q.new_empty(_arrays.rows_of(q, packed) if x else 0, dtype=torch.float32) for x in asked)


@_fake("attention_backward")
def _fake_backward(dout: Any, dlse: Any, out: Any, lse: Any, wanted: Any, *args: Any) -> Any:
    c = Call(*args)
    _check_wanted(c, wanted)
    _torch_checks.check_ranks(c)
    grads = [_gradient(c, name) if wants else None for name, wants in zip(DIFFERENTIABLE, wanted)]
    others = (("dout", dout), ("dlse", dlse), ("out", out), ("lse", lse), *zip(_GRADIENTS, grads))
    _torch_checks.check_fit(c, zip(INPUTS, c), others)
    return tuple(c.q.new_empty(0) if x is None else x for x in grads)


@_fake("append_kv")
def _fake_append(*given: Any) -> Any:
    call = dict(zip(APPEND, given))
    _torch_checks.check_append(call)
    q = _readable(call.get("q"))
    return call["k_new"].new_empty(0) if q is None else _like(q, tuple(q.shape), q.dtype)


@_fake("quantize")
def _fake_quantize(
    x: Any,
    factors: str = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    threads: int | None = None,
    layout: str = "bhsd",
) -> tuple[Any, ...]:
    tokens_first = layout == "bshd"
    batch, heads, rows, n = _quantize.four(tuple(x.shape), tokens_first)
    heads, rows = (rows, heads) if tokens_first else (heads, rows)
    sizes = _quantize.factor_sizes(factors, (batch, heads, rows, n))
    descale = x.new_empty(sizes, dtype=torch.float32)
    means = descale.new_empty((batch, heads, n) if mean else 0)
    return _like(_readable(x), x.shape, torch.float8_e4m3fn), descale, means
