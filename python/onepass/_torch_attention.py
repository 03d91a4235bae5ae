"""onepass.torch.attention: a call in the order of its operator, by the fast path or through the dispatcher."""

import sys
from typing import Any

import torch
from torch.compiler import is_compiling

import onepass

from . import (
    _keywords,
    _onepass,
    _options,
    _torch_autograd,
    _torch_checks,
    _torch_entropy,
    _torch_learned,
    _torch_op,
    _values,
)
from ._flex.trace import texts
from ._quantize import fp8_text
from ._quantized import NAMES, Quantized, carried


@_keywords.shared("onepass.torch.attention", out_dtype=None, deterministic=False)
def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """``onepass.attention`` on tensors, with gradients by q, k, v, bias, alibi_slopes, sinks and mod_buffers.

    Works in autograd, torch.compile (fullgraph), torch.export, autocast, torch.func and CUDA graphs. Its gradients
    are differentiable, too. A tensor whose last dimension's stride is not 1 is copied.

    Args:
      q, k, v, ...: as ``onepass.attention`` takes them.
      seed: of the dropout; None draws one from PyTorch's CPU generator, so that torch.manual_seed repeats it. An int64
        tensor of one element on q's device is read when kernels run: a CUDA graph that changes it drops other weights
        in each replay. The backward reads the same tensor, which must not change before.
      return_max: as in ``onepass.attention``; row maxima have no gradient.
      return_entropy: as in ``onepass.attention``. Entropies have a gradient; torch.compile breaks its graph there, and
        torch.func and second derivatives do not take such a call.
      out, recomputed: as in ``onepass.attention``, and like there outside of autograd and torch.compile.
      mod_buffers: as in ``onepass.attention``. Those of floats that score_mod reads may require a gradient, which takes
        a second pass in PyTorch's operations. Such a call has no second derivatives by these buffers, and does not
        support packed sequences, dropout and return_entropy.
      fp8, unified_max: of the forward; a call with fp8 has no gradients.
      out_dtype: None (q's; bfloat16 of an fp8 q) or torch.float32, for partial results.
      deterministic: the same bits in every backward; also by torch.use_deterministic_algorithms.

    Returns, Raises: as ``onepass.attention``.
    """
    if not is_compiling():
        if options.get("mod_buffers"):
            options["mod_buffers"] = _torch_learned.tensors(options["mod_buffers"])
        result = _onepass.torch_attention(q, k, v, options)  # ordinary calls
        if result is not None:
            return result
    given = _keywords.given(attention, options, q=q, k=k, v=v)
    if Quantized in (type(q), type(k), type(v)):
        given.update(zip(NAMES, carried(*(given[name] for name in (*NAMES, "fp8")))))
    block_mask = given["block_mask"]
    if block_mask is not None and not isinstance(block_mask, torch.Tensor) and hasattr(block_mask, "in_call"):
        given.update(_words_of(block_mask, given))
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given.update(texts(given))
        if given["mod_buffers"] and not is_compiling():
            given["mod_buffers"] = _torch_learned.tensors(given["mod_buffers"])
    if given["mod_buffers"] and given["score_mod"] and (names := _torch_learned.wanted(given)):
        return _torch_learned.attention(attention, given, names)
    out, return_max = given["out"], given["return_max"]
    if given["recomputed"] is not None or (out is not None and given["dropout_p"]):
        return _written(given)
    call = _call_of(given)
    if not given["return_entropy"] and not is_compiling():
        result = _onepass.torch_forward(call, False, out)
        if result is not None:
            return result
    if out is not None:
        return _written(given)
    _torch_checks.check_tensors(_torch_op.INPUTS, call, 3)
    _torch_checks.refuse_gradients(call, _torch_op.DIFFERENTIABLE)
    out, lse, most, *entropy = (
        _torch_entropy.forward(call, return_max) if given["return_entropy"] else _torch_autograd.forward(call)
    )
    if return_max == "head":
        most = _options.of_heads(most, call._asdict())
    results = (out, *((lse,) if given["return_lse"] else ()), *((most,) if return_max else ()), *entropy)
    return results if len(results) > 1 else out


def _call_of(given: dict[str, Any]) -> Any:
    """The operator's Call, from the keywords of attention by name."""
    q, seed, dropout_p, random_seed = given["q"], given["seed"], given["dropout_p"], None
    if dropout_p and seed is None:
        random_seed = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    elif isinstance(seed, torch.Tensor):
        seed, random_seed = 0, _seed_in_memory(q, seed) if dropout_p else None
    left, right = _values.window_sides(given["window"])
    buffers = _options.mod_items(given["mod_buffers"]) if given["mod_buffers"] else None
    scales = [(name, given[name]) for name in _torch_op.FP8 if given[name] is not None]
    _torch_checks.refuse_lost(scales)
    _torch_checks.refuse_lost((f"mod_buffers[{name!r}]", x) for name, x in buffers or ())
    words = {name: given[name] for name in _torch_op.NAMES if name in given}
    words |= {
        "random_seed": random_seed,
        "mod_buffers": [x for _, x in buffers] if buffers else None,
        "mod_names": _torch_op.joined([name for name, _ in buffers]) if buffers else None,
        "window_left": left,
        "window_right": right,
        "seed": _torch_op.signed(seed) if seed else 0,
        **{name: _options.not_default(name, given[name]) for name in _options.CHOICES},
        "fp8": None if given["fp8"] is False else fp8_text(given["fp8"]),
        "tokens_first": False if given["layout"] == "bhsd" else _options.tokens_first(given["layout"]),
        "return_lse": bool(given["return_lse"]),
        "return_max": _options.asks_for_max(given["return_max"]),
    }
    return _torch_op.Call(**words)


def _seed_in_memory(q: Any, seed: Any) -> Any:
    """A seed that kernels read when they run: so does a CUDA graph in each replay, and a compiled function."""
    seed = _values.seed_array(seed)
    if seed.device != q.device:
        raise ValueError(f"seed must be on {q.device}, as q is (got {seed.device})")
    return seed


def _words_of(block_mask: Any, given: dict[str, Any]) -> Any:
    """The words of a BlockMask. Inside torch.compile the graph breaks here, because its lists are NumPy arrays."""
    compiles = "torch._dynamo" in sys.modules
    in_call = torch.compiler.disable(block_mask.in_call) if compiles else block_mask.in_call
    return in_call({name: given[name] for name in _IN_CALL})


_IN_CALL: tuple[str, ...] = ("q", "k", "mask_tile_q", "mask_tile_k", "mask_mod", "mod_buffers", "layout", "page_table")
_IN_CALL += ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _written(given: dict[str, Any]) -> Any:
    """A call with out or recomputed, which has no gradients; given: the keywords of attention by name."""
    words = {name: given[name] for name in ("q", "k", "v", *_options.keywords(onepass.attention))}
    if words["out"] is None and given["out_dtype"] is not None:
        packed = given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None
        words["out"] = _torch_op.new_out(words["q"], words["v"], packed, given["out_dtype"])
    if words["dropout_p"] and words["seed"] is None:
        words["seed"] = int(torch.randint(2**62, (), device="cpu"))
    return onepass.attention(**{**words, "seed": words["seed"] or 0})
