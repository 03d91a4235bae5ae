"""onepass as operators of PyTorch's dispatcher: ``torch.ops.onepass.attention`` and ``attention_backward``.

Whatever works through the dispatcher works with them: torch.compile and torch.export (by _torch_fake.py), autograd
and autocast (_torch_autograd.py), vmap (_torch_vmap.py). Both take every tensor and option of a call in one flat list,
which the tables below define once.
"""

import collections
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import library as operators

import onepass

from . import _arrays, _devices, _kinds, _onepass, _options, _quantize, _values

# Inputs by the names of onepass.attention's arguments; gradients flow to the first six.
DIFFERENTIABLE = ("q", "k", "v", "bias", "alibi_slopes", "sinks")
CACHE, FP8 = (tuple(name for name, _ in rows) for rows in (_options._CACHE_INPUTS, _options._FP8_INPUTS))
_SCHEMAS = _onepass.torch_schemas()  # by operator; libonepass_torch.so has the same


def _arguments_of(operator: str) -> Any:
    """From name to default, in order; and how many of them are tensors or lists of tensors, which come first."""
    # PyTorch has no public reader of schemas. An operator's _schema is as private as this one.
    arguments = torch._C.parse_schema("onepass::" + _SCHEMAS[operator]).arguments
    return {x.name: x.default_value for x in arguments}, sum("Tensor" in str(x.type) for x in arguments)


_defaults, _tensors = _arguments_of("attention")
NAMES = tuple(_defaults)
INPUTS = NAMES[: _tensors - 1]  # all but mod_buffers, which is a list
_namedtuple: Any = collections.namedtuple  # of fields that are not literals
Call = _namedtuple("Call", NAMES, defaults=tuple(_defaults.values())[3:])


def _same_words(function: Any) -> tuple[str, ...]:
    """The options that a Call has as a function of the package takes them."""
    others = {*INPUTS, *_options.CHOICES, "mod_buffers", "seed", "threads", "fp8", "deterministic"}
    return tuple(name for name in NAMES if name in _options.keywords(function) and name not in others)


WORDS, _BACKWARD_WORDS = _same_words(onepass.attention), _same_words(onepass.attention_backward)
_TANGENT_WORDS = tuple(name for name in _same_words(onepass.jvp) if name != "return_lse")
_SECOND_WORDS = _same_words(onepass.backward_jvp)
# Options of the forward that forward mode does not have. `implementation` names another kernel in each.
FORWARD_ONLY = ("implementation", *(name for name in WORDS if name not in _TANGENT_WORDS and name != "return_lse"))
FORWARD_ONLY += ("accumulation", "fp8", "out_dtype")
DEFAULTS = Call(None, None, None)

# True if libonepass_torch.so has registered the operators, which then compute by its kernels.
LOADED = hasattr(torch.ops.onepass, "attention")
OPERATORS = operators.Library("onepass", "FRAGMENT")
for _schema in () if LOADED else _SCHEMAS.values():
    OPERATORS.define(_schema, tags=torch.Tag.pt2_compliant_tag)
attention = torch.ops.onepass.attention.default
attention_backward = torch.ops.onepass.attention_backward.default
append_kv = torch.ops.onepass.append_kv.default
quantize = torch.ops.onepass.quantize.default

if torch.version.cuda:
    _devices.find_nvrtc()


def joined(names: Sequence[str]) -> Any:
    """The names of mod_buffers, as a schema can hold them."""
    names = tuple(names)
    for name in names:
        if "," in name:
            raise ValueError(f"invalid mod_buffers name {name!r}: use letters, digits and underscores")
    return ",".join(names)


def signed(seed: Any) -> int:
    """A seed from 0 to 2^64 - 1 as the int64 of a schema."""
    seed = _values.seed_of(seed)
    return seed - 2**64 if seed >= 2**63 else seed


# ------------------------------------------------------------------------------------------------- the kernels
def _readable(x: Any) -> Any:
    """`x` as onepass reads it: the last dimension's stride is 1. (A gradient of a sum is one number, repeated.)"""
    if x is None or x.dim() == 0 or x.stride(-1) == 1 or x.size(-1) <= 1:
        return x
    return x.contiguous()


def _threads(x: Any, threads: int | None) -> Any:
    """As many as PyTorch's own operators take, where the caller says nothing."""
    return torch.get_num_threads() if threads is None and not x.is_cuda else threads


def _arguments(c: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """Call -> `words`, and the other keyword arguments that attention and its backward share, but q, k and v."""
    window = None if c.window_left == -1 and c.window_right == -1 else (c.window_left, c.window_right)
    seed = c.seed
    if c.random_seed is not None and c.random_seed.device == c.q.device:
        seed = c.random_seed  # on the CPU, one that PyTorch's generator has drawn is read in the same way
    elif c.random_seed is not None:
        if c.q.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "dropout_p > 0 requires a seed while a CUDA graph is captured, because every replay drops the same "
                "weights; pass an int64 tensor on the device as seed= to onepass.torch.attention, and change it in the "
                "graph, or capture without dropout"
            )
        seed = int(c.random_seed)
    return {
        **{name: _readable(getattr(c, name)) for name in ("bias", "alibi_slopes", "sinks", "bool_mask", "block_mask")},
        **{name: getattr(c, name) for name in ("cu_seqlens_q", "cu_seqlens_k", *words)},
        "threads": _threads(c.q, c.threads),
        "window": window,
        "layout": "bshd" if c.tokens_first else "bhsd",
        "precision": c.precision or "fp32",
        "seed": seed if isinstance(seed, Tensor) else seed % 2**64,
        "mod_buffers": dict(zip(c.mod_names.split(","), c.mod_buffers)) if c.mod_buffers else None,
    }


def _run_forward(*args: Any) -> tuple[Any, ...]:
    out, *rows = compute(Call(*args))
    return out, *(out.new_empty(0, dtype=torch.float32) if x is None else x for x in rows)


def compute(c: Any) -> Any:
    """(out, lse or None, row maxima or None) of a Call on plain tensors."""
    results = _onepass.torch_forward(c, True, None)
    if results is not None:
        return *results, None
    q, k, v = _readable(c.q), _readable(c.k), _readable(c.v)
    results = onepass.attention(
        q,
        k,
        v,
        **_arguments(c, (*CACHE, *FP8, *WORDS)),
        accumulation=c.accumulation or "exact",
        fp8=False if c.fp8 is None else _quantize.fp8_of(c.fp8),
        out=new_out(q, v, _packed(c), c.out_dtype),
    )
    found = iter(results if c.return_lse or c.return_max else (results,))
    return tuple(next(found) if asked else None for asked in (True, c.return_lse, c.return_max))


def new_results(q: Tensor, v: Tensor, packed: bool, with_lse: Any) -> tuple[Any, ...]:
    """(out, lse or None) for the extension to fill."""
    lse = q.new_empty(_arrays.rows_of(q, packed), dtype=torch.float32) if with_lse else None
    if lse is not None and packed:  # tokens beyond the last sequence are not computed
        lse.fill_(-torch.inf)
    return new_out(q, v, packed), lse


_GRADIENTS = tuple("d" + name for name in DIFFERENTIABLE)  # in the order of the operator's results


def _run_backward(dout: Any, dlse: Any, out: Any, lse: Any, wanted: Any, *args: Any) -> Any:
    grads = compute_backward(dout, dlse, out, lse, wanted, Call(*args))
    return tuple(dout.new_empty(0) if x is None else x for x in grads)


def compute_backward(dout: Any, dlse: Any, out: Any, lse: Any, wanted: Any, c: Any) -> Any:
    """The gradients that are wanted, and None for the others, of a Call on plain tensors."""
    _check_wanted(c, wanted)
    into = tuple(_gradient(c, name) if wants else None for name, wants in zip(DIFFERENTIABLE, wanted))
    dout = _readable(dout)
    if not _onepass.torch_backward(c, dout, dlse, out, lse, into):
        dlse, out, lse, q, k, v = map(_readable, (dlse, out, lse, c.q, c.k, c.v))
        names: list[Any] = [name for name, wants in zip(_GRADIENTS, wanted) if wants]
        onepass.attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            dlse=dlse,
            grads=names,
            into={name: x for name, x in zip(_GRADIENTS, into) if x is not None},
            deterministic=c.deterministic,
            **_arguments(c, _BACKWARD_WORDS),
        )
    return into


def _detached(x: Any) -> Any:
    if isinstance(x, list):
        return [y.detach() for y in x]
    return x.detach() if isinstance(x, Tensor) else x


TANGENTS = ("q", "k", "v", "bias", "sinks")  # inputs that have one


def compute_tangents(*args: Any) -> Any:
    """(tout, tlse, out, lse) of the fields of a Call and of the tangents of TANGENTS, None for 0, on plain tensors."""
    if recorder := _kinds.recorder(torch):
        raise NotImplementedError(
            f"onepass.torch.attention does not support forward mode while {recorder} records it, as "
            "torch.func.linearize does: call torch.func.jvp"
        )
    plain = [_detached(x) for x in args]  # primals may be dual tensors
    c, tangents = Call(*plain[: len(NAMES)]), dict(zip(TANGENTS, plain[len(NAMES) :]))
    named = {f"t{name}": _readable(t) for name, t in tangents.items()}
    jvp: Any = onepass.jvp  # whose overloads do not know dicts of options
    found = jvp(*map(_readable, (c.q, c.k, c.v)), **named, **_arguments(c, _TANGENT_WORDS), return_lse=True)
    return found[1], found[3], found[0], found[2]


def compute_second(
    wanted: Any, dout: Any, dlse: Any, out: Any, lse: Any, tout: Any, tlse: Any, tdout: Any, tdlse: Any, *args: Any
) -> Any:
    """The derivatives of the gradients that are wanted, and empty tensors for the others, on plain tensors.

    args: the fields of a Call and the tangents of TANGENTS, None for 0.
    """
    plain = [_detached(x) for x in args]
    c, tangents = Call(*plain[: len(NAMES)]), dict(zip(TANGENTS, plain[len(NAMES) :]))
    named = {f"t{name}": _readable(t) for name, t in tangents.items() if name not in "qkv"}
    beside = {"dlse": dlse, "tdout": tdout, "tdlse": tdlse}
    named |= {name: _readable(_detached(x)) for name, x in beside.items()}
    names: list[Any] = [name for name, wants in zip(_GRADIENTS, wanted) if wants]
    results = (_readable(_detached(x)) for x in (out, lse))
    backward_jvp: Any = onepass.backward_jvp  # whose overloads do not know dicts of options
    found = iter(
        backward_jvp(
            _readable(_detached(dout)),
            *map(_readable, (c.q, c.k, c.v)),
            *results,
            *(_readable(tangents[name]) for name in "qkv"),
            *(_readable(_detached(x)) for x in (tout, tlse)),
            grads=names,
            **named,
            **_arguments(c, _SECOND_WORDS),
        )
    )
    return tuple(next(found) if wants else c.q.new_empty(0) for wants in wanted)


def _check_wanted(c: Any, wanted: Any) -> None:
    if len(wanted) != len(DIFFERENTIABLE):
        raise ValueError(f"wanted must have {len(DIFFERENTIABLE)} elements (got {len(wanted)})")
    for name, wants in zip(DIFFERENTIABLE, wanted):
        if wants and getattr(c, name) is None:
            raise ValueError(f"wanted asks for d{name}, but {name} is None")


def _gradient(c: Any, name: str) -> Any:
    """Where a gradient is written: as its tensor lies in memory; of side inputs in float32."""
    x = getattr(c, name)
    if name not in "qkv":
        return torch.empty(x.shape, dtype=torch.float32, device=x.device)
    new = torch.empty_like(_readable(x))
    return new.zero_() if _packed(c) else new


APPEND = tuple(_arguments_of("append_kv")[0])


def _run_append(*given: Any) -> Any:
    call = dict(zip(APPEND, given))  # without those at the end that are left out
    for name in ("k_new", "v_new", "q"):
        call[name] = _readable(call.get(name))
    call["threads"] = _threads(call["k_new"], call.get("threads"))
    q = onepass.append_kv(**call)
    for name in ("k_cache", "v_cache"):  # autograd may have saved what they were for a backward
        torch.autograd.graph.increment_version(call[name])
    return call["k_new"].new_empty(0) if q is None else q


def _run_quantize(
    x: Any,
    factors: str = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    threads: int | None = None,
    layout: str = "bhsd",
) -> tuple[Any, ...]:
    threads = _threads(x, threads)
    options: dict[str, Any] = {
        "factors": factors,
        "hadamard": hadamard,
        "mean": mean,
        "layout": layout,
        "threads": threads,
    }
    found = onepass.quantize(_readable(x), seed=seed % 2**64, **options)
    return found.data, found.descale, found.mean if mean else found.descale.new_empty(0)


for _device in () if LOADED else ("CPU", "CUDA"):
    OPERATORS.impl("attention", _run_forward, _device)
    OPERATORS.impl("attention_backward", _run_backward, _device)
    OPERATORS.impl("append_kv", _run_append, _device)
    OPERATORS.impl("quantize", _run_quantize, _device)


# ----------------------------------------------------------------------------------------------- the results
def _packed(c: Any) -> bool:
    return c.cu_seqlens_q is not None or c.cu_seqlens_k is not None


def _like(x: Any, shape: Any, dtype: Any) -> Any:
    """A tensor in the memory order of `x`, as onepass makes its results."""
    return onepass._arrays.new(x, tuple(shape), str(dtype).rpartition(".")[2])


def new_out(q: Tensor, v: Tensor, packed: bool, dtype: Any = None) -> Any:
    dtype = dtype or getattr(torch, _arrays.result_dtype(q) or "", q.dtype)  # of an fp8 q: bfloat16
    same = q.shape[-1] == v.shape[-1] and dtype == q.dtype
    out = torch.empty_like(q) if same else _like(q, (*q.shape[:-1], v.shape[-1]), dtype)
    return out.zero_() if packed else out
