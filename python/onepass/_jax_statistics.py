"""onepass.key_mass and onepass.weights of JAX arrays, traced or not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _jax_call, _options
from ._flex import jaxpr
from ._flex.trace import texts
from ._jax_run import Job, run
from ._statistics import check_bias, check_mean, with_own_bias
from ._weights_call import options_of


def key_mass(q: Any, k: Any, lse: Any, **options: Any) -> Any:
    """``onepass.key_mass`` of JAX arrays, traced or not, without caches. It has no gradient.

    With grouped heads, the keys are repeated for each head of q.

    Args:
      q, k, lse: as ``onepass.key_mass`` takes them.
      options: keywords of ``onepass.key_mass`` but seqused_k and page_table. Options other than arrays are static.

    Returns:
      float32 ``[batch, heads_q, seq_k]``; with ``layout="bshd"`` ``[batch, seq_k, heads_q]``; packed ``[heads_q,
      total_k]``.

    Raises:
      ValueError, TypeError: as ``onepass.jax.attention``.
    """
    given, q, k, lse = _checked("onepass.jax.key_mass", q, k, lse, options)
    axis = 2 if _by_token(given) else 1
    heads, kv = q.shape[axis], k.shape[axis]
    given = _in_call(given, q, jnp.repeat(k, heads // kv, axis) if heads != kv else k)
    (dv,), call, arrays = _backward(given, "dv", dout=jnp.ones((*q.shape[:-1], 1), q.dtype), lse=lse)
    mass = dv[..., 0]
    if not _options.is_packed(given):
        return mass
    inside = call._inside("cu_seqlens_k", arrays, mass.shape[0])  # tokens behind the last sequence are not computed
    return jnp.where(inside, mass.T, 0)


def weights(q: Any, k: Any, lse: Any, *, mean: str | None = "heads", **options: Any) -> Any:
    """``onepass.weights`` of JAX arrays, traced or not, without caches. It has no gradient.

    Memory beside the result is a bias of its shape.

    Args:
      q, k, lse, mean: as ``onepass.weights`` takes them.
      options: keywords of ``onepass.weights`` but seqused_k and page_table. Options other than arrays are static.
        Packed sequences with traced boundaries need max_seqlen_q and max_seqlen_k.

    Returns:
      float32 ``[batch, seq_q, seq_k]``, or with ``mean=None`` ``[batch, heads_q, seq_q, seq_k]``.

    Raises:
      ValueError, TypeError: as ``onepass.jax.attention``.
    """
    check_mean(mean)
    given, q, k, lse = _checked("onepass.jax.weights", q, k, lse, options)
    heads = q.shape[2 if _by_token(given) else 1]
    batch, rows, keys = _sizes(given, q, k)
    shape = (batch, heads if mean is None else 1, rows, keys)
    if given["bias"] is not None:
        given["bias"] = jnp.asarray(given["bias"])
        check_bias(given["bias"], (batch, heads, rows, keys))
    if rows == 0 or keys == 0:
        return jnp.zeros(shape if mean is None else (batch, rows, keys), "float32")
    given = _in_call(given, q, k)
    given.update(with_own_bias(given, shape, jnp.zeros(keys, q.dtype)))
    dlse = jnp.full(lse.shape, 1 if mean is None else 1 / max(heads, 1), "float32")
    (found,), _, _ = _backward(given, "dbias", dout=jnp.zeros((*q.shape[:-1], 1), q.dtype), lse=lse, dlse=dlse)
    return found if mean is None else found[:, 0]


def _by_token(given: dict[str, Any]) -> bool:
    """True if heads follow the tokens of a sequence in the batch."""
    return _options.tokens_first(given["layout"]) and not _options.is_packed(given)


def _checked(function: str, q: Any, k: Any, lse: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """(all keywords, q, k, lse), where shapes fit."""
    given = options_of(function, options)
    q, k, lse = (jax.lax.stop_gradient(jnp.asarray(x)) for x in (q, k, lse))
    packed = _options.is_packed(given)
    if q.ndim != k.ndim or q.ndim != (3 if packed else 4):
        form = "[total, heads, dim]" if packed else _options.batched(_by_token(given))
        raise ValueError(f"q and k must have the shape {form} (got {list(q.shape)} and {list(k.shape)})")
    axis = 2 if _by_token(given) else 1
    if k.shape[axis] == 0 or q.shape[axis] % k.shape[axis] != 0:
        raise ValueError(f"heads_q ({q.shape[axis]}) must be a multiple of heads_kv ({k.shape[axis]})")
    rows = q.shape[1::-1] if packed else q.shape[:-1]
    if lse.shape != rows or lse.dtype != jnp.float32:
        raise ValueError(f"lse must be float32 of the shape {list(rows)} (got {lse.dtype} of {list(lse.shape)})")
    return given, q, k, lse


def _in_call(given: dict[str, Any], q: Any, k: Any) -> dict[str, Any]:
    """The keywords of a call of q and k on values of one column, with masks and mods as texts."""
    given = {**given, "q": q, "k": k, "v": jnp.zeros((*k.shape[:-1], 1), q.dtype), "fp8": False}
    if hasattr(given["block_mask"], "in_call"):
        given.update(given["block_mask"].in_call(given))
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given.update(texts(given, jaxpr.call_with))
    return given


def _backward(given: dict[str, Any], result: str, **upstream: Any) -> tuple[Any, ...]:
    """(results, the call, its arrays) of a backward with an O of 0."""
    names, arrays = _jax_call.operands(given)
    arrays = tuple(jax.lax.stop_gradient(x) for x in arrays)
    call = _jax_call.Call(names, _jax_call.settings(given, names), False)
    upstream["out"] = jnp.zeros_like(upstream["dout"])
    shape = arrays[names.index(result[1:])].shape
    types = ((shape, jnp.dtype("float32")),)
    job = Job("onepass_attention_backward", (*names, *upstream), (result,), types, call.options)
    return run(job, *arrays, *upstream.values()), call, arrays


def _sizes(given: dict[str, Any], q: Any, k: Any) -> tuple[int, int, int]:
    """(batch, rows, keys) of the map."""
    if not _options.is_packed(given):
        seq = 1 if _by_token(given) else 2
        return q.shape[0], q.shape[seq], k.shape[seq]
    most = {}
    for side in "qk":
        name, lengths, known = f"max_seqlen_{side}", given[f"cu_seqlens_{side}"], given[f"max_seqlen_{side}"]
        if lengths is None:
            raise ValueError(f"cu_seqlens_{side} must be given for packed sequences (got None)")
        if known is None and isinstance(lengths, jax.core.Tracer):
            raise ValueError(f"{name} must be given where cu_seqlens_{side} is traced (got None)")
        most[side] = int(np.diff(lengths).max(initial=0)) if known is None else _options.bound(name, known)
    return len(lengths) - 1, most["q"], most["k"]
