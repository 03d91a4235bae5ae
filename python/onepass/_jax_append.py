"""Writing new keys and values into a cache of JAX arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _append, _jax_call, _jax_run, _keywords, _options, _values

_CACHES = ("float32", "float16", "bfloat16", "float8_e4m3fn")


@_keywords.shared("onepass.jax.append_kv", without=("q_out",), of=_append.append_kv)
def append_kv(k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, **options: Any) -> Any:
    """``onepass.append_kv`` of JAX arrays, traced or not: gives the caches with the new keys and values in them.

    Arrays of JAX are never written to. Where the caches are donated to jit (``donate_argnums``), or carried through a
    loop, the new ones lie where they lay and nothing else of them is copied. It has no gradients.

    Args:
      layout: ``"bhsd"``: k_new, v_new, q and caches without pages are ``[batch, heads, seq, dim]``; ``"bshd"``:
        ``[batch, seq, heads, dim]``. Packed and paged ones are as ``onepass.append_kv`` has them.
      slot_mapping, positions: int32, or int64 that is converted to it.
      k_descale, v_descale: factors of a float8_e4m3fn cache, ``[batch|1, heads_kv|1, blocks of 128 keys|1]`` in either
        layout; dimensions at the end may be left out.
      The others: as ``onepass.append_kv`` takes them.

    Returns:
      ``(k_cache, v_cache)``; with q ``(k_cache, v_cache, the rotated q)``.

    Raises:
      ValueError, TypeError: for an option that does not fit, while tracing; where it runs, XLA raises the sentences of
      ``onepass.append_kv``. On CUDA, where only the device knows, a token that is out of range is left out.
    """
    needed = {"k_new": k_new, "v_new": v_new, "k_cache": k_cache, "v_cache": v_cache}
    given = _keywords.given(append_kv, options, **needed)
    tokens_first = _options.tokens_first(given["layout"])
    threads = _values.threads_of(given["threads"])
    for name, x in needed.items():
        if x is None:
            raise TypeError(f"{name} must be an array (got None)")
    if given["cache_seqlens"] is None and given["slot_mapping"] is None:
        raise TypeError("cache_seqlens or slot_mapping must be an array (got None)")
    caches = [jnp.asarray(x) for x in (k_cache, v_cache)]
    for name, x in zip(("k_cache", "v_cache"), caches):
        if x.dtype.name not in _CACHES:
            raise TypeError(f"{name} must be {', '.join(_CACHES[:-1])} or {_CACHES[-1]} (got {x.dtype.name})")
    arrays = {"k_new": jnp.asarray(k_new), "v_new": jnp.asarray(v_new)}
    dtypes = dict.fromkeys(("cache_seqlens", "page_table", "cu_seqlens_q", "slot_mapping", "positions"), "int32")
    for name, dtype in (dtypes | dict.fromkeys(("k_descale", "v_descale"), "float32")).items():
        if given[name] is not None:
            arrays[name] = _jax_call.converted(name, given[name], dtype)
    for name in ("cos", "sin", "cos_sin_cache"):
        if given[name] is not None:
            x = jnp.asarray(given[name])
            arrays[name] = x if x.dtype == arrays["k_new"].dtype else _jax_call.converted(name, x, "float32")
    if given["q"] is not None:
        arrays["q"] = jnp.asarray(given["q"])
    results = {"k": caches[0], "v": caches[1]} | ({"q_out": arrays["q"]} if "q" in arrays else {})
    call = jax.ffi.ffi_call(
        "onepass_append_kv",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results.values()],
        input_output_aliases={0: 0, 1: 1},
        vmap_method="sequential",
    )
    attributes = {
        "operands": " ".join(("before", "before", *arrays)),
        "results": " ".join(results),
        "tokens_first": np.bool_(tokens_first),
        "interleaved": np.bool_(given["interleaved"]),
        "threads": np.int64(threads),
    }
    none = "onepass.jax.append_kv does not support gradients; pass its arrays through jax.lax.stop_gradient"
    made = _jax_run.undifferentiable(lambda *x: call(*x, **attributes), none)(*caches, *arrays.values())
    if "q" in arrays and "cu_seqlens_q" in arrays:  # tokens behind the last sequence are not computed
        inside = jnp.arange(arrays["q"].shape[0]) < arrays["cu_seqlens_q"][-1]
        made[2] = jnp.where(inside[:, None, None], made[2], 0)
    return tuple(made)
