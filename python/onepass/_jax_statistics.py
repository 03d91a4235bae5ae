"""onepass.key_mass of JAX arrays, traced or not."""

from typing import Any

import jax
import jax.numpy as jnp

from . import _jax_call, _options
from ._flex import jaxpr
from ._flex.trace import texts
from ._jax_run import DATA, Job, run
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
    given = options_of("onepass.jax.key_mass", options)
    q, k, lse = (jax.lax.stop_gradient(jnp.asarray(x)) for x in (q, k, lse))
    bshd, packed = _options.tokens_first(given["layout"]), _options.is_packed(given)
    if q.ndim != k.ndim or q.ndim != (3 if packed else 4):
        form = "[total, heads, dim]" if packed else _options.batched(bshd)
        raise ValueError(f"q and k must have the shape {form} (got {list(q.shape)} and {list(k.shape)})")
    axis = 2 if bshd and not packed else 1
    heads, kv = q.shape[axis], k.shape[axis]
    if kv == 0 or heads % kv != 0:
        raise ValueError(f"heads_q ({heads}) must be a multiple of heads_kv ({kv})")
    rows = q.shape[1::-1] if packed else q.shape[:-1]
    if lse.shape != rows or lse.dtype != jnp.float32:
        raise ValueError(f"lse must be float32 of the shape {list(rows)} (got {lse.dtype} of {list(lse.shape)})")
    k = jnp.repeat(k, heads // kv, axis) if heads != kv else k
    given |= {"q": q, "k": k, "v": jnp.zeros((*k.shape[:-1], 1), q.dtype), "fp8": False}
    if hasattr(given["block_mask"], "in_call"):
        given.update(given["block_mask"].in_call(given))
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given.update(texts(given, jaxpr.call_with))
    return _mass(given, lse, packed)


def _mass(given: dict[str, Any], lse: Any, packed: bool) -> Any:
    names, arrays = _jax_call.operands(given)
    arrays = tuple(jax.lax.stop_gradient(x) for x in arrays)
    call = _jax_call.Call(names, _jax_call.settings(given, names), False)
    q, _, v = (arrays[names.index(name)] for name in DATA)
    of_rows = (*q.shape[:-1], 1)
    job = Job(
        "onepass_attention_backward",
        (*names, "dout", "out", "lse"),
        ("dv",),
        ((v.shape, jnp.dtype("float32")),),
        call.options,
    )
    (dv,) = run(job, *arrays, jnp.ones(of_rows, q.dtype), jnp.zeros(of_rows, q.dtype), lse)
    mass = dv[..., 0]
    if not packed:
        return mass
    inside = call._inside("cu_seqlens_k", arrays, mass.shape[0])  # tokens behind the last sequence are not computed
    return jnp.where(inside, mass.T, 0)
