"""The call as an operator, which torch.compile sees as one node. A number stands for all that is not a tensor."""

from typing import Any

import torch
from torch import Tensor

from onepass._values import seed_of

from .call import F32, FACTORS, Side, factors_of, group_of, results, results_of
from .prepare import prepared

_WORDS = (
    "layout",
    "scheme",
    "causal",
    "window",
    "documents",
    "scale",
    "softcap",
    "dropout_p",
    "score_mod",
    "mask_mod",
    "deterministic",
    "reproducible",
    "head_groups",
    "return_lse",
    "return_max",
    "threads",
)
_kept: list[tuple[Any, ...]] = []  # by number


@torch.compiler.assume_constant_result
def _number_of(*values: Any) -> int:
    """The number of these values. Equal ones have one number, which is a constant of the compiled function."""
    values = tuple(tuple(x) if isinstance(x, list) else x for x in values)
    if values not in _kept:
        _kept.append(values)
    return _kept.index(values)


def attention(q: Tensor, k: Tensor, v: Tensor, group: Any, given: dict[str, Any]) -> Any:
    mods, factors = given["mod_buffers"] or {}, factors_of(given)
    buffers = [*mods.values(), *factors.values()]
    number = _number_of(group, (*mods, None, *factors), *(given[word] for word in _WORDS))
    seed, drawn = given["seed"], None
    if given["dropout_p"] and seed is None:
        drawn = torch.randint(2**62, (1,), device="cpu")
    if seed is not None and not 0 <= seed < 2**64:
        seed_of(seed)  # raises; a right seed would become a constant here, and be compiled each time
    seed = 0 if seed is None else seed - 2**64 if seed >= 2**63 else seed  # int64
    side = given["sinks"], given["alibi_slopes"], given["bias"], given["bool_mask"]
    out, lse, most = _forward(q, k, v, *side, buffers, number, seed, drawn)
    return results((out, lse, most.detach()), (given["return_lse"], given["return_max"]))


def _word(number: int, word: str) -> Any:
    return _kept[number][2 + _WORDS.index(word)]


def _scheme(inputs: tuple[Any, ...], agree: bool) -> Any:
    q, k, v, sinks, slopes, bias, mask, buffers, number, seed, drawn = inputs
    group, names, *values = _kept[number]
    given = dict(zip(_WORDS, values)) | {"sinks": sinks, "alibi_slopes": slopes, "bias": bias, "bool_mask": mask}
    mods = names.index(None)
    given |= dict.fromkeys(FACTORS) | dict(zip(names[mods + 1 :], buffers[mods:]))
    given |= {
        "mod_buffers": dict(zip(names, buffers[:mods])) or None,
        "seed": None if drawn is not None else seed % 2**64,
    }
    return prepared(q, k, v, group, given, agree, drawn), factors_of(given)


# The inputs of both operators, in the order in which _scheme() unpacks them.
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? slopes, Tensor? bias, Tensor? mask, Tensor[] buffers, "
    "SymInt number, SymInt seed, Tensor? drawn"
)


@torch.library.custom_op(
    "onepass::context_parallel", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor out, Tensor lse, Tensor most)"
)
def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """most has no elements unless it is asked for."""
    scheme, factors = _scheme(inputs, True)
    q, k, v, sinks, slopes, bias, mask, *_ = inputs
    side = Side((sinks, slopes, bias), mask, factors=factors, group=group_of(q, k))
    out, lse, most, _ = scheme.told(scheme.forward, side, q, k, v)
    if _word(inputs[8], "return_max") == "head":
        most = scheme.told(scheme.of_heads, most)
    return out, lse, q.new_empty(0, dtype=F32) if most is None else most


@_forward.register_fake
def _(q: Any, k: Any, v: Any, *others: Any) -> Any:
    asked = _word(others[5], "return_max")
    shape = q.shape[1:2] if asked == "head" else q.shape[:-1] if asked else (0,)
    return *results_of(q, v, False)[:2], q.new_empty(shape, dtype=F32)


@torch.library.custom_op(
    "onepass::context_parallel_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {_INPUTS}) -> Tensor[]",
)
def _backward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, wanted: Any, *inputs: Any) -> list[Tensor]:
    scheme, _ = _scheme(inputs, False)
    q, k, v, sinks, slopes, bias, mask, *_others = inputs
    side = Side((sinks, slopes, bias), mask, wanted)

    def gradients(*given: Any) -> Any:
        return scheme.backward(side, dout, dlse, *scheme.saved(*given))

    grads = scheme.told(gradients, q, k, v, out, lse)
    return [x.contiguous() for x in (*grads, *side.results()) if x is not None]


@_backward.register_fake
def _(dout: Any, dlse: Any, out: Any, lse: Any, wanted: Any, q: Any, k: Any, v: Any, *others: Any) -> Any:
    side = [x for x, w in zip(others[:3], wanted) if w]
    return [x.new_empty(x.shape) for x in (q, k, v, *side)]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, buffers, number, seed, drawn = inputs
    ctx.number, ctx.seed, ctx.return_lse = number, seed, _word(number, "return_lse")
    ctx.buffers = len(buffers)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, drawn, *output[:2], *buffers)


def _gradients(ctx: Any, dout: Any, dlse: Any, _most: Any) -> Any:
    *tensors, drawn, out, lse = ctx.saved_tensors[: len(ctx.saved_tensors) - ctx.buffers]
    buffers = list(ctx.saved_tensors[len(ctx.saved_tensors) - ctx.buffers :])
    # Every rank sends the same tensors, whatever its loss uses.
    dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype)
    if not ctx.return_lse:
        dlse = None
    elif dlse is None:
        dlse = torch.zeros_like(lse)
    wanted = list(ctx.needs_input_grad[3:6])
    dq, dk, dv, *side = _backward(dout, dlse, out, lse, wanted, *tensors, buffers, ctx.number, ctx.seed, drawn)
    rest = iter(side)
    return dq, dk, dv, *(next(rest) if w else None for w in wanted), None, [None] * ctx.buffers, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)
