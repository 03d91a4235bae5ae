"""onepass in JAX: attention under jit, grad and vmap, on CPUs and CUDA devices.

XLA calls the library through its foreign function interface, inside of what it compiles: arrays are read and written
where they lie, and on CUDA the work is put on XLA's stream and not waited for. Gradients are the library's own.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from . import (  # noqa: F401
    _devices,
    _jax_call,
    _jax_derivative,
    _jax_entropy,
    _jax_second,
    _keywords,
    _merge,
    _onepass,
    _options,
    _values,
)
from ._flex import jaxpr
from ._flex.trace import texts
from ._jax_append import append_kv
from ._jax_quantize import quantize
from ._jax_ranks import Layout, context_parallel_attention
from ._jax_statistics import key_mass, weights
from ._quantized import NAMES, Quantized, carried

__all__ = ["Layout", "Quantized", "append_kv", "attention", "context_parallel_attention", "dot_product_attention"]
__all__ += ["key_mass", "merge", "quantize", "weights"]

for _target, _platforms in _onepass.jax_handlers().items():
    for _platform, _handler in _platforms.items():
        jax.ffi.register_ffi_target(_target, _handler, platform=_platform)
_devices.find_nvrtc()
jax.tree_util.register_pytree_node(
    Quantized, lambda x: (tuple(x), x.how), lambda how, x: Quantized(*x, hadamard=how[0], seed=how[1])
)


def __dir__():
    return sorted(__all__)


@_keywords.shared("onepass.jax.attention", without=("out", "recomputed"), out_dtype=None, deterministic=False)
def attention(q, k, v, **options):
    """``onepass.attention`` of JAX arrays, traced or not.

    Differentiable by q, k, v, bias, sinks, alibi_slopes and mod_buffers of floats that score_mod reads in reverse mode,
    and by all but alibi_slopes in forward mode (``jax.jvp``, ``jax.linearize``, ``jax.jacfwd``). It is so twice, but
    for forward mode over itself and for mod_buffers. FP8 attention and attention to a cache have no derivative. Packed
    sequences and dropout have none by mod_buffers.
    Under vmap the mapped axis joins the batch where that says the same, and is looped over where it does not: packed
    and paged sequences, dropout, expressions, sinks that are mapped or differentiated.

    Args:
      layout: ``"bhsd"``: q, k, v and the result are ``[batch, heads, seq, dim]``, lse is ``[batch, heads, seq]``;
        ``"bshd"``: ``[batch, seq, heads, dim]`` and ``[batch, seq, heads]``. Neither is copied. Packed and paged ones
        are as ``onepass.attention`` has them.
      q_descale, k_descale, v_descale, v_mean: as ``onepass.attention`` takes them, heads before blocks and columns in
        either layout.
      fp8, accumulation, unified_max: of the forward, static.
      deterministic: the gradients are the same bits every time.
      out_dtype: of the result: None (q's; bfloat16 of a float8_e4m3fn q), float32, or of a float8_e4m3fn q also
        float16 and bfloat16.
      seed: needed where dropout_p > 0: a key of jax.random or an array of one integer, which may be traced, so that a
        new one is not compiled anew, or a Python integer, which is static.
      score_mod, mask_mod: also as functions, which may capture traced arrays.
      The others, and q, k, v: as ``onepass.attention`` takes them. Options other than arrays are static.

    Returns:
      out, or ``(out, lse)``, then what return_max asks for, which has no gradient, and last the entropies, if
      return_entropy asks for them. A call with entropies has gradients, and no forward mode or second derivatives.

    Raises:
      ValueError, TypeError: while tracing, for a shape, a dtype or an option that does not fit; where it runs, XLA
      raises what only the values show, and what no implementation accepts.
    """
    given = _keywords.given(attention, options, q=q, k=k, v=v)
    if Quantized in (type(q), type(k), type(v)):
        given.update(zip(NAMES, carried(*(given[name] for name in (*NAMES, "fp8")))))
    if hasattr(given["block_mask"], "in_call"):  # a BlockMask
        given.update(given["block_mask"].in_call(given))
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given.update(texts(given, jaxpr.call_with))
    names, arrays = _jax_call.operands(given)
    settings = _jax_call.settings(given, names)
    return_lse, return_max, out_dtype = bool(given["return_lse"]), given["return_max"], given["out_dtype"]
    dtype = None if out_dtype is None else jnp.dtype(out_dtype).name
    call = _jax_call.Call(names, settings, return_lse, dtype, _options.asks_for_max(return_max))
    if given["return_entropy"]:
        call = dataclasses.replace(call, return_lse=True, return_entropy=True)
        out, lse, most, entropy = _jax_entropy.attention(call, tuple(arrays))
        lse = lse if return_lse else None
    else:
        (out, lse, most), entropy = _jax_derivative.attention(call, arrays), None
    if most is not None:
        most = jax.lax.stop_gradient(most)
    if return_max == "head":
        most = _options.of_heads(most, {**given, **dict(settings)})
    results = tuple(x for x in (out, lse, most, entropy) if x is not None)
    return results if len(results) > 1 else out


def _lengths(name, x, batch):
    x = jnp.asarray(x)
    if x.dtype != jnp.int32 or x.shape != (batch,):
        raise ValueError(f"{name} must be int32 of shape [{batch}] (got {x.dtype} of shape {list(x.shape)})")
    return x


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
    implementation=None,
    return_residual=False,
):
    """``jax.nn.dot_product_attention``, computed by onepass.

    Args:
      query: ``[batch, seq_q, heads, dim]`` or ``[seq_q, heads, dim]``; key, value: with seq_k and heads_kv, of which
        heads is a multiple.
      bias, mask: broadcastable to ``[batch, heads, seq_q, seq_k]``; True may be attended to.
      query_seq_lengths, key_value_seq_lengths: int32 ``[batch]``; what is behind is not looked at, and 0 in the result.
      local_window_size: ``(left, right)`` or one number for both, counted from the query's own position.
      implementation: None, "xla" and "cudnn" (JAX's names) are the library's choice; others are onepass's.
      return_residual: also return the log-sum-exp, ``[batch, seq_q, heads]``, of query's dtype.

    Returns:
      ``[batch, seq_q, heads, dim]``. A row that sees no key is 0 (JAX: the mean of all values, or NaN).
    """
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    single = query.ndim == 3
    query, key, value = (x[None] if x.ndim == 3 else x for x in (query, key, value))
    if key_value_seq_lengths is not None:
        lengths = _lengths("key_value_seq_lengths", key_value_seq_lengths, key.shape[0])
        seen = jnp.arange(key.shape[1]) < lengths[:, None, None, None]
        mask = seen if mask is None else jnp.logical_and(mask, seen)
    if isinstance(local_window_size, int):
        local_window_size = (local_window_size, local_window_size)
    if local_window_size is not None and min(_values.window_sides(local_window_size)) < 0:
        raise ValueError(f"local_window_size must be an integer from 0, or a pair of them (got {local_window_size!r})")
    if local_window_size is not None and is_causal:
        local_window_size = (local_window_size[0], 0)
    result = attention(
        query,
        key,
        value,
        mask="causal_top_left" if is_causal else "aligned_top_left",
        window=local_window_size,
        bool_mask=mask,
        bias=bias,
        scale=scale,
        layout="bshd",
        implementation=None if implementation in ("xla", "cudnn") else implementation,
        return_lse=return_residual,
    )
    out, lse = result if return_residual else (result, None)
    if query_seq_lengths is not None:
        lengths = _lengths("query_seq_lengths", query_seq_lengths, query.shape[0])
        rows = jnp.arange(query.shape[1]) < lengths[:, None]
        out = jnp.where(rows[..., None, None], out, 0)
        lse = jnp.where(rows[..., None], lse, -math.inf) if return_residual else None
    first = (lambda x: x[0]) if single else (lambda x: x)
    return (first(out), first(lse).astype(query.dtype)) if return_residual else first(out)


def merge(outs, lses):
    """``onepass.merge`` in JAX's own operations: under jit, grad and vmap.

    Args:
      outs: arrays ``[batch, heads, seq, dim]`` or ``[batch, seq, heads, dim]``; packed ``[total, heads, dim]``.
      lses: float32 arrays, one for each, ``[batch, heads, seq]`` or ``[batch, seq, heads]``; packed ``[heads, total]``.

    Returns:
      ``(out, lse)``, float32. What a part holds in a row whose lse is -inf is not read.

    Raises:
      ValueError, TypeError: for shapes that do not belong together, and other dtypes than onepass.merge takes.
    """
    outs, lses = ([jnp.asarray(x) for x in _values.arrays(*given)] for given in (("outs", outs), ("lses", lses)))
    packed = _merge.packed_parts(outs, lses)
    rows = jnp.stack([x.T if packed else x for x in lses]).astype("float32")
    top = jax.lax.stop_gradient(rows.max(0))
    top = jnp.where(jnp.isneginf(top), 0, top)
    weights = jnp.exp(rows - top)
    total = weights.sum(0)
    some = total != 0
    total = jnp.where(some, total, 1)
    read = [jnp.where(jnp.isneginf(s)[..., None], 0, x.astype("float32")) for x, s in zip(outs, rows)]
    lse = jnp.where(some, top + jnp.log(total), -math.inf)
    out = sum(x * w[..., None] for x, w in zip(read, weights)) / total[..., None]
    return out, lse.T if packed else lse
