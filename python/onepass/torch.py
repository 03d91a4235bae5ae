"""onepass in PyTorch: differentiable, compilable attention, and PyTorch's own function on top of it.

``onepass.torch.attention`` takes all of onepass's arguments, ``onepass.torch.scaled_dot_product_attention`` is
``torch.nn.functional.scaled_dot_product_attention``, and ``with onepass.torch.sdpa():`` puts it in its place.
"""

import importlib
import sys

import torch
from torch.compiler import is_compiling
from torch.utils import _pytree

import onepass

from . import _onepass, _options, _torch_autograd, _torch_checks, _torch_op, _torch_vmap, _unknown  # noqa: F401  its rules
from ._flex.trace import texts
from ._quantize import fp8_text
from ._quantized import Quantized, carried
from ._torch_append import append_kv
from ._torch_cascade import cascade
from ._torch_place import register, sdpa

__all__ = ["append_kv", "attention", "cascade", "merge", "quantize", "register", "scaled_dot_product_attention", "sdpa"]
__all__ += ["Quantized"]
_FLEX = ["BlockMask", "and_masks", "create_block_mask", "flex_attention", "noop_mask", "or_masks"]
__all__ += _FLEX

_pytree.register_pytree_node(
    Quantized, lambda x: (list(x), x.how), lambda x, how: Quantized(*x, hadamard=how[0], seed=how[1])
)


def __getattr__(name):  # what is imported when it is first asked for
    if name in _FLEX:  # with PyTorch's flex_attention, which takes longer to import than onepass
        globals().update({x: getattr(importlib.import_module("onepass._torch_flex"), x) for x in _FLEX})
        return globals()[name]
    if name != "context_parallel":
        raise AttributeError(f"module 'onepass.torch' has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module("onepass.context_parallel")


def __dir__():
    return sorted(__all__)


def attention(
    q,
    k,
    v,
    *,
    mask=None,
    align_offset=None,
    window=None,
    bool_mask=None,
    block_mask=None,
    mask_tile_q=None,
    mask_tile_k=None,
    bias=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    softcap=0.0,
    dropout_p=0.0,
    seed=None,
    dropout_start=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    seqused_k=None,
    page_table=None,
    tree=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    v_mean=None,
    fp8=False,
    accumulation="exact",
    unified_max=None,
    recomputed=None,
    batch_invariant=False,
    score_mod=None,
    mask_mod=None,
    mod_buffers=None,
    return_lse=False,
    return_max=False,
    out=None,
    out_dtype=None,
    deterministic=False,
    layout="bhsd",
    implementation=None,
    threads=None,
    **unknown,
):
    """``onepass.attention`` on tensors, with gradients by q, k, v, bias, alibi_slopes and sinks.

    Works in autograd, torch.compile (fullgraph), torch.export, autocast, torch.func and CUDA graphs. Differentiable
    once. A tensor whose last dimension's stride is not 1 is copied.

    Args:
      q, k, v, ...: as ``onepass.attention`` takes them.
      seed: of the dropout; None draws one from PyTorch's CPU generator, so that torch.manual_seed repeats it.
      return_max: as in ``onepass.attention``; row maxima have no gradient.
      out, recomputed: as in ``onepass.attention``, and like there outside of autograd and torch.compile.
      fp8, unified_max: of the forward; a call with fp8 has no gradients.
      out_dtype: None (q's; bfloat16 of an fp8 q) or torch.float32, for partial results.
      deterministic: the same bits in every backward; also by torch.use_deterministic_algorithms.

    Returns, Raises: as ``onepass.attention``.
    """
    if unknown:
        _unknown.refuse("onepass.torch.attention", unknown, attention.__kwdefaults__)
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
    left, right = _options.window_sides(window)
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
        _torch_op.joined(name for name, _ in buffers) if buffers else None,
        mask,
        align_offset,
        left,
        right,
        scale,
        softcap,
        dropout_p,
        _signed(seed) if seed else 0,
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
    if not is_compiling():
        result = _onepass.torch_forward(call, False, out)
        if result is not None:
            return result
    if out is not None:
        return _written(q, k, v, locals())
    _torch_checks.check_tensors(_torch_op.INPUTS, call, 3)
    call = _torch_op.Call._make(call)
    _torch_checks.refuse_gradients(call, _torch_op.DIFFERENTIABLE)
    out, lse, most = _torch_autograd.forward(call)
    if return_max == "head":
        most = _options.of_heads(most, call._asdict())
    results = (out, *((lse,) if return_lse else ()), *((most,) if return_max else ()))
    return results if len(results) > 1 else out


def _words_of(block_mask, given):
    """The words of a BlockMask. Inside torch.compile the graph breaks here, because its lists are NumPy arrays."""
    compiles = "torch._dynamo" in sys.modules
    in_call = torch.compiler.disable(block_mask.in_call) if compiles else block_mask.in_call
    return tuple(in_call({name: given[name] for name in _IN_CALL}).values())


_IN_CALL = ("q", "k", "mask_tile_q", "mask_tile_k", "mask_mod", "mod_buffers", "layout", "page_table")
_IN_CALL += ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _written(q, k, v, given):
    """A call with out or recomputed, which has no gradients; given: the keywords of attention by name."""
    words = {name: given[name] for name in onepass.attention.__kwdefaults__}
    if words["out"] is None and given["out_dtype"] is not None:
        packed = given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None
        words["out"] = _torch_op.new_out(q, v, packed, given["out_dtype"])
    if words["dropout_p"] and words["seed"] is None:
        words["seed"] = int(torch.randint(2**62, (), device="cpu"))
    return onepass.attention(q, k, v, **{**words, "seed": words["seed"] or 0})


def quantize(x, *, factors="head", hadamard=False, seed=0, mean=False, layout="bhsd", threads=None):
    """``onepass.quantize`` as an operator that torch.compile traces. It has no gradients.

    Args, Returns, Raises: as ``onepass.quantize``; the ``Quantized`` that it returns holds tensors.
    """
    _torch_checks.check_tensors(("x",), (x,), 1)
    _torch_checks.refuse_lost((("x", x),), "quantize")
    _options.tokens_first(layout)
    data, descale, taken = _torch_op.quantize(x.detach(), factors, hadamard, _signed(seed), mean, threads, layout)
    return Quantized(data, descale, taken if mean else None, hadamard=hadamard, seed=seed)


def merge(outs, lses):
    """``onepass.merge`` with gradients by outs and lses, also in torch.compile and torch.func.

    Where none of that is at work it is ``onepass.merge``, one kernel on CUDA; else PyTorch's own operations.

    Args, Returns, Raises: as ``onepass.merge``.
    """
    outs, lses = _options.parts("outs", outs), _options.parts("lses", lses)
    tensors = (*outs, *lses)
    records = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)
    if not records and _torch_autograd.undispatched(tensors):
        return onepass.merge(outs, lses)
    packed = _options.packed_parts(outs, lses)
    rows = torch.stack([x.movedim(0, -1) if packed else x for x in lses]).float()
    top = rows.detach().amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (rows - top).exp()
    total = weights.sum(0)
    some = total != 0
    total = total.masked_fill(~some, 1)
    read = [x.float().masked_fill((s == -torch.inf)[..., None], 0) for x, s in zip(outs, rows)]
    lse = (top + total.log()).masked_fill(~some, -torch.inf)
    out = sum(x * w[..., None] for x, w in zip(read, weights)) / total[..., None]
    return out, lse.movedim(0, -1) if packed else lse


def _signed(seed):
    """A seed from 0 to 2^64 - 1 as the int64 of a schema."""
    seed = _options.seed_of(seed)
    return seed - 2**64 if seed >= 2**63 else seed


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """``torch.nn.functional.scaled_dot_product_attention``, computed by onepass: its arguments, shapes and meaning.

    Args:
      query: ``[..., heads_q, seq_q, dim]``, of any rank from 2 on; float32, float16 or bfloat16.
      key: ``[..., heads_kv, seq_k, dim]``; leading dimensions broadcast.
      value: ``[..., heads_kv, seq_k, dim_v]``.
      attn_mask: bool (True may attend) or floating, added to the scores, with a gradient; broadcastable to
        ``[..., heads_q, seq_q, seq_k]``. ``torch.nn.attention.bias.CausalBias`` is not expanded.
      dropout_p: drawn by PyTorch's CPU generator: the same torch.manual_seed gives the same result. The dropped
        weights are not those that PyTorch's own kernels drop.
      is_causal: query i sees keys 0..i.
      scale: default ``1 / sqrt(dim)``.
      enable_gqa: heads_q may be a multiple of heads_kv.

    Returns:
      ``[..., heads_q, seq_q, dim_v]``. A row that sees no key gives 0.

    Raises:
      ValueError, TypeError, RuntimeError: one sentence; also for float64, and head dims beyond onepass's.
    """
    if not (is_compiling() or query is None or key is None or value is None):
        out = _onepass.torch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    _torch_checks.check_tensors(("query", "key", "value", "attn_mask"), (query, key, value, attn_mask), 3)
    mask = "causal_top_left" if is_causal else None
    if attn_mask is not None:
        if is_causal:
            raise RuntimeError("attn_mask and is_causal=True are mutually exclusive")
        variant = getattr(attn_mask, "variant", None)  # torch.nn.attention.bias.CausalBias
        if variant is not None:
            sizes, rows_keys = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (query.shape[-2], key.shape[-2])
            if sizes != rows_keys:
                raise ValueError(
                    f"attn_mask must be a causal mask of {rows_keys}, the lengths of query and key (got {sizes})"
                )
            mask = "causal_top_left" if variant.name == "UPPER_LEFT" else "causal_bottom_right"
            attn_mask = None
    q, k, v, lead = _four(query, key, value, enable_gqa)
    if attn_mask is not None and len(lead) != 1:
        attn_mask = _four_mask(attn_mask, lead)
    is_bool = attn_mask is not None and attn_mask.dtype == torch.bool
    out = attention(
        q,
        k,
        v,
        mask=mask,
        bool_mask=attn_mask if is_bool else None,
        bias=None if is_bool else attn_mask,
        dropout_p=dropout_p,
        scale=scale,
    )
    if len(lead) == 1:
        return out
    rank = max(query.dim(), key.dim(), value.dim())
    return out.reshape(*lead, *out.shape[1 if rank > 2 else 2 :])


def _four(query, key, value, enable_gqa):
    """q, k and v as [batch, heads, seq, dim], and the dimensions before heads."""
    rank = max(query.dim(), key.dim(), value.dim())
    if query.dim() == key.dim() == value.dim() == 4 and key.shape[:2] == value.shape[:2]:  # heads are not expanded
        (batch, heads), (batch_kv, heads_kv) = query.shape[:2], key.shape[:2]
        groups = enable_gqa and heads_kv > 0 and heads % heads_kv == 0
        if batch == batch_kv and (heads == heads_kv or groups):
            return query, key, value, query.shape[:1]
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(
            f"query, key and value must have at least 2 dimensions (got {query.dim()}, {key.dim()} and {value.dim()})"
        )
    q, k, v = (x.reshape((1,) * (max(rank, 3) - x.dim()) + tuple(x.shape)) for x in (query, key, value))
    lead = [x.shape[:-3] for x in (q, k, v)]
    try:
        lead = torch.broadcast_shapes(*lead)
    except RuntimeError:
        of_q, of_k, of_v = (list(x) for x in lead)
        raise ValueError(
            f"the dimensions of query, key and value before heads must broadcast (got {of_q}, {of_k} and {of_v})"
        ) from None
    heads = (q.shape[-3], k.shape[-3], v.shape[-3])
    if enable_gqa:
        if heads[1] == 0 or heads[2] == 0 or heads[0] % heads[1] or heads[0] % heads[2]:
            raise ValueError(f"the heads of query must be a multiple of those of key and value (got {heads})")
        if heads[1] != heads[2]:
            k, v = (x.repeat_interleave(heads[0] // x.shape[-3], -3) for x in (k, v))
    else:
        common = next((n for n in heads if n != 1), 1)  # max() would compare symbolic sizes
        if any(n not in (1, common) for n in heads):
            raise ValueError(
                f"query, key and value must have the same number of heads, or 1, without enable_gqa=True (got {heads})"
            )
        q = q.expand(*q.shape[:-3], common, *q.shape[-2:])
        if not heads[1] == heads[2] == 1:
            k, v = (x.expand(*x.shape[:-3], common, *x.shape[-2:]) for x in (k, v))
    q, k, v = (x.expand(*lead, *x.shape[-3:]) for x in (q, k, v))
    if len(lead) != 1:
        q, k, v = (x.unsqueeze(0) if not lead else x.flatten(0, len(lead) - 1) for x in (q, k, v))
    return q, k, v, lead


def _four_mask(mask, lead):
    """A mask over [*lead, heads, seq_q, seq_k] as one over [batch, heads, seq_q, seq_k]."""
    if mask.dim() <= 3:
        return mask
    return mask.expand(*lead, *mask.shape[-3:]).flatten(0, len(lead) - 1) if lead else mask
