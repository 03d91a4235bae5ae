"""onepass.torch.attention: a call in the order of its operator, by the fast path or through the dispatcher."""

import sys
from typing import Any

import torch
from torch.compiler import is_compiling

import onepass

from . import _onepass, _options, _torch_autograd, _torch_checks, _torch_entropy, _torch_op, _unknown, _values
from ._flex.trace import texts
from ._quantize import fp8_text
from ._quantized import Quantized, carried


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    align_offset: Any = None,
    window: Any = None,
    bool_mask: Any = None,
    block_mask: Any = None,
    mask_tile_q: Any = None,
    mask_tile_k: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: Any = None,
    softcap: Any = 0.0,
    dropout_p: Any = 0.0,
    seed: Any = None,
    dropout_start: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    tree: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    fp8: Any = False,
    accumulation: Any = "exact",
    unified_max: Any = None,
    recomputed: Any = None,
    batch_invariant: Any = False,
    score_mod: Any = None,
    mask_mod: Any = None,
    mod_buffers: Any = None,
    return_lse: Any = False,
    return_max: Any = False,
    return_entropy: Any = False,
    out: Any = None,
    out_dtype: Any = None,
    deterministic: Any = False,
    layout: Any = "bhsd",
    implementation: Any = None,
    threads: Any = None,
    **unknown: Any,
) -> Any:
    """``onepass.attention`` on tensors, with gradients by q, k, v, bias, alibi_slopes and sinks.

    Works in autograd, torch.compile (fullgraph), torch.export, autocast, torch.func and CUDA graphs. Differentiable
    once. A tensor whose last dimension's stride is not 1 is copied.

    Args:
      q, k, v, ...: as ``onepass.attention`` takes them.
      seed: of the dropout; None draws one from PyTorch's CPU generator, so that torch.manual_seed repeats it. An int64
        tensor of one element on q's device is read when kernels run: a CUDA graph that changes it drops other weights
        in each replay. The backward reads the same tensor, which must not change before.
      return_max: as in ``onepass.attention``; row maxima have no gradient.
      return_entropy: as in ``onepass.attention``. Entropies have a gradient; torch.compile breaks its graph there, and
        torch.func and second derivatives do not take such a call.
      out, recomputed: as in ``onepass.attention``, and like there outside of autograd and torch.compile.
      fp8, unified_max: of the forward; a call with fp8 has no gradients.
      out_dtype: None (q's; bfloat16 of an fp8 q) or torch.float32, for partial results.
      deterministic: the same bits in every backward; also by torch.use_deterministic_algorithms.

    Returns, Raises: as ``onepass.attention``.
    """
    if unknown:
        _unknown.refuse("onepass.torch.attention", unknown, _options.keywords(attention))
    if Quantized in (type(q), type(k), type(v)):
        q, k, v, q_descale, k_descale, v_descale, v_mean = carried(
            q, k, v, q_descale, k_descale, v_descale, v_mean, fp8
        )
    if block_mask is not None and not isinstance(block_mask, torch.Tensor) and hasattr(block_mask, "in_call"):
        block_mask, mask_tile_q, mask_tile_k, mask_mod, mod_buffers = _words_of(block_mask, locals())
    if callable(score_mod) or callable(mask_mod):
        score_mod, mask_mod, mod_buffers = texts(locals()).values()
    if recomputed is not None or (out is not None and dropout_p):
        return _written(q, k, v, locals())
    random_seed = None
    if dropout_p and seed is None:
        random_seed = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    elif seed is None:
        seed = 0
    elif isinstance(seed, torch.Tensor):
        seed, random_seed = 0, _seed_in_memory(q, seed) if dropout_p else None
    left, right = _values.window_sides(window)
    buffers = _options.mod_items(mod_buffers) if mod_buffers else None
    if not (buffers is q_descale is k_descale is v_descale is v_mean is None):
        _torch_checks.refuse_lost(zip(_torch_op.FP8, (q_descale, k_descale, v_descale, v_mean)))
        _torch_checks.refuse_lost((f"mod_buffers[{name!r}]", x) for name, x in buffers or ())
    call = (  # in the order of _torch_op.NAMES
        q,
        k,
        v,
        bias,
        alibi_slopes,
        sinks,
        bool_mask,
        block_mask,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        tree,
        q_descale,
        k_descale,
        v_descale,
        v_mean,
        random_seed,
        [x for _, x in buffers] if buffers else None,
        _torch_op.joined([name for name, _ in buffers]) if buffers else None,
        mask,
        align_offset,
        left,
        right,
        scale,
        softcap,
        dropout_p,
        _torch_op.signed(seed) if seed else 0,
        dropout_start,
        mask_tile_q,
        mask_tile_k,
        max_seqlen_q,
        max_seqlen_k,
        batch_invariant,
        deterministic,
        score_mod,
        mask_mod,
        implementation,
        threads,
        out_dtype,
        None if accumulation == "exact" else accumulation,
        unified_max,
        None if fp8 is False else fp8_text(fp8),
        False if layout == "bhsd" else _options.tokens_first(layout),
        bool(return_lse),
        _options.asks_for_max(return_max),
    )
    if not return_entropy and not is_compiling():
        result = _onepass.torch_forward(call, False, out)
        if result is not None:
            return result
    if out is not None:
        return _written(q, k, v, locals())
    _torch_checks.check_tensors(_torch_op.INPUTS, call, 3)
    call = _torch_op.Call._make(call)
    _torch_checks.refuse_gradients(call, _torch_op.DIFFERENTIABLE)
    out, lse, most, *entropy = (
        _torch_entropy.forward(call, return_max) if return_entropy else _torch_autograd.forward(call)
    )
    if return_max == "head":
        most = _options.of_heads(most, call._asdict())
    results = (out, *((lse,) if return_lse else ()), *((most,) if return_max else ()), *entropy)
    return results if len(results) > 1 else out


def _seed_in_memory(q: Any, seed: Any) -> Any:
    """A seed that kernels read when they run: so does a CUDA graph in each replay, and a compiled function."""
    seed = _values.seed_array(seed)
    if seed.device != q.device:
        raise ValueError(f"seed must be on {q.device}, as q is (got {seed.device})")
    return seed


def _words_of(block_mask: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    """The words of a BlockMask. Inside torch.compile the graph breaks here, because its lists are NumPy arrays."""
    compiles = "torch._dynamo" in sys.modules
    in_call = torch.compiler.disable(block_mask.in_call) if compiles else block_mask.in_call
    return tuple(in_call({name: given[name] for name in _IN_CALL}).values())


_IN_CALL: tuple[str, ...] = ("q", "k", "mask_tile_q", "mask_tile_k", "mask_mod", "mod_buffers", "layout", "page_table")
_IN_CALL += ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _written(q: Any, k: Any, v: Any, given: dict[str, Any]) -> Any:
    """A call with out or recomputed, which has no gradients; given: the keywords of attention by name."""
    words = {name: given[name] for name in _options.keywords(onepass.attention)}
    if words["out"] is None and given["out_dtype"] is not None:
        packed = given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None
        words["out"] = _torch_op.new_out(q, v, packed, given["out_dtype"])
    if words["dropout_p"] and words["seed"] is None:
        words["seed"] = int(torch.randint(2**62, (), device="cpu"))
    return onepass.attention(q, k, v, **{**words, "seed": words["seed"] or 0})
