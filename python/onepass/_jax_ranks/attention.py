"""The function: its arguments, and what a call is."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from onepass import _options, _unknown
from onepass._flex import jaxpr
from onepass._flex.trace import texts
from onepass._jax_call import in_memory, seed_words
from onepass._ranks.plan import check_scheme, kind_of, needs_gather, only_of_gather, scheme_of

from .call import FACTORS, SIDE, Call
from .layout import Layout
from .sharded import Sharded, attention, has_rows

_DTYPES = "float32", "float16", "bfloat16", "float8_e4m3fn"


def context_parallel_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mesh: Any,
    axis: Any,
    layout: Layout,
    batch_axis: str | None = None,
    scheme: str = "auto",
    causal: bool = False,
    window: Any = (-1, -1),
    documents: Any = None,
    bias: Any = None,
    bool_mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: Any = None,
    score_mod: Any = None,
    mask_mod: Any = None,
    mod_buffers: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    deterministic: bool = False,
    reproducible: bool = False,
    head_groups: int = 1,
    return_lse: bool = False,
    return_max: Any = False,
    threads: int | None = None,
    **unknown: Any,
) -> Any:
    """Attention to a sequence that is sharded along an axis of a mesh, under jit and grad.

    Args:
      q, k, v: ``[batch, heads, layout.ranks * layout.rows, dim]``, as ``layout.shard`` gives them. Rows of padding are
        not read.
      mesh, axis: the mesh, and the name of its axis that has the ranks. A pair of names (nodes, ranks within a node):
        rank r of the layout is rank r % size of its node.
      layout: an ``onepass.jax.Layout``: the positions that each rank holds.
      batch_axis: None, or the name of an axis of the mesh along which the batch is sharded.
      scheme: ``"gather"``, ``"ring"``, ``"ulysses"``, or ``"auto"``, the fastest by a model. With a pair of axes
        it is ``"mesh"``, as "auto" knows: ulysses within a node, gather between nodes.
      causal: position i sees positions up to i.
      window: (left, right) positions around the query's own; -1 is unbounded.
      documents: where packed documents begin, and the length; a query sees its own document.
      bias, bool_mask: ``[batch|1, heads|1, rows|1, length|1]``: rows as q has them, and a column for each position.
        ulysses needs rows = 1.
      alibi_slopes, sinks, mod_buffers: as ``onepass.jax.attention``, whole on all devices.
      dropout_p, seed: weights are dropped as one device drops them. A seed may be in an array or a key, as in
        ``onepass.jax.attention``. The scheme ring needs cuts at multiples of 4.
      score_mod, mask_mod: as ``onepass.jax.attention``; ``q_index`` and ``k_index`` count in the document.
      q_descale, k_descale, v_descale, v_mean: of q, k and v in float8_e4m3fn, as ``onepass.jax.attention``, but without
        blocks. Such a call has no gradients, and its out is bfloat16.
      reproducible: the same bits for any number of ranks, with layouts of one kind that have equal ``units``: of out,
        lse and the gradients of q, k and v. It needs the scheme gather.
      head_groups: the heads of K and V travel in this many groups, which needs less memory. More than 1 needs the
        scheme gather.
      scale, softcap, deterministic, return_lse, threads: as ``onepass.jax.attention``.

    Returns:
      out, sharded as q is, or ``(out, lse)``. Padding is 0, with an LSE of -inf. With ``return_max`` the rows' maxima
      come last, sharded as q is, or with ``"head"`` the largest of each head over all ranks. They have no gradient.

    Raises:
      ValueError, TypeError: while tracing, for a shape, a dtype or an option that does not fit.
    """
    given = dict(locals())
    if unknown:
        _unknown.refuse(
            "onepass.jax.context_parallel_attention", unknown, _options.keywords(context_parallel_attention)
        )
    if callable(score_mod) or callable(mask_mod):
        given.update(texts(given, jaxpr.call_with))
    arrays = {name: jnp.asarray(given[name]) for name in ("q", "k", "v")}
    _check(given, arrays)
    kind = kind_of(layout, given, arrays["q"].shape[0] // _size(mesh, batch_axis))
    arrays |= {
        name: jnp.asarray(given[name]).astype("float32") for name in (*SIDE, *FACTORS) if given[name] is not None
    }
    if given["bool_mask"] is not None:
        arrays["bool_mask"] = jnp.asarray(given["bool_mask"])
    for name, x in _options.mod_items(given["mod_buffers"] or {}):
        x = _options.of_one(jnp.asarray(x))
        arrays[f"mod:{name}"] = x.astype("int32") if _options.is_int64(x) else x
    if in_memory(seed) and dropout_p:
        arrays["dropout_seed"] = seed_words(seed)
        given["seed"] = 0
    words = {
        name: given[name] for name in ("scale", "softcap", "dropout_p", "seed", "score_mod", "mask_mod", "threads")
    }
    asked, group = _options.asks_for_max(return_max), arrays["q"].shape[1] // max(1, arrays["k"].shape[1])
    same_bits = bool(deterministic or reproducible)
    call = Call(kind.left, kind.right, tuple(words.items()), same_bits, kind.documents, group, asked)
    _check_scores(given, arrays)
    _check_factors(arrays)
    of_rows = [name for name in ("bias", "bool_mask") if name in arrays and has_rows(arrays[name])]
    q, k, v = (arrays[name] for name in "qkv")
    sizes = *q.shape[:2], k.shape[1], q.shape[3], v.shape[3], q.dtype.itemsize
    on_cuda = mesh.devices.flat[0].platform != "cpu"
    names = _names(axis)
    chosen = scheme_of(given, kind, of_rows, len(names) > 1, sizes, on_cuda)
    groups = int(head_groups) if chosen == "gather" else 1
    sharded = Sharded(
        mesh,
        names if len(names) > 1 else names[0],
        batch_axis,
        kind,
        call,
        chosen,
        groups,
        bool(return_lse),
        return_max,
        tuple(arrays),
    )
    out, lse, *most = attention(sharded, tuple(arrays.values()))
    results = (out, *((lse,) if return_lse else ()), *map(jax.lax.stop_gradient, most))
    return results if len(results) > 1 else out


def _names(axis: Any) -> tuple[Any, ...]:
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def _size(mesh: Any, axis: Any) -> int:
    return 1 if axis is None else math.prod(int(mesh.shape[name]) for name in _names(axis))


def _check(given: dict[str, Any], arrays: dict[str, Any]) -> None:
    mesh, layout, names = given["mesh"], given["layout"], _names(given["axis"])
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be an onepass.jax.Layout (got {type(layout).__name__})")
    if len({*names}) != len(names) or len(names) not in (1, 2) or any(name not in mesh.shape for name in names):
        of_mesh = f"one of the mesh's axes {list(mesh.shape)}"
        raise ValueError(f"axis must be {of_mesh}, or a pair of them (got {given['axis']!r})")
    if given["batch_axis"] not in (None, *mesh.shape):
        raise ValueError(f"batch_axis must be one of the mesh's axes {list(mesh.shape)} (got {given['batch_axis']!r})")
    if layout.ranks != _size(mesh, names):
        axes = "axis has" if len(names) == 1 else "axes have"
        raise ValueError(f"layout must be for {_size(mesh, names)} ranks, as the mesh's {axes} (got {layout.ranks})")
    if len(names) == 1:
        check_scheme(given["scheme"])
        needs_gather(given)
    elif (option := only_of_gather(given)) or given["scheme"] not in ("mesh", "auto"):
        got = option or repr(given["scheme"])
        raise ValueError(f"scheme must be 'mesh' or 'auto' with a pair of axes (got {got})")
    rows = layout.ranks * layout.rows
    for name, x in arrays.items():
        if x.ndim != 4:
            raise ValueError(f"{name} must have shape [batch, heads, rows, dim] (got {list(x.shape)})")
        if x.shape[2] != rows:
            raise ValueError(
                f"{name} must have {rows} rows, {layout.rows} for each rank, as layout.shard gives (got {x.shape[2]})"
            )
        if x.dtype.name not in _DTYPES or x.dtype != arrays["q"].dtype:
            kinds = f"{', '.join(_DTYPES[:-1])} and {_DTYPES[-1]}"
            raise TypeError(f"q, k and v must have one dtype of {kinds} (got {name} {x.dtype.name})")
    if given["batch_axis"] is not None and given["dropout_p"]:
        raise ValueError("batch_axis does not support dropout, whose draws count the entries of the whole batch")
    if given["batch_axis"] is not None and getattr(given["alibi_slopes"], "ndim", 1) > 1:
        raise ValueError("batch_axis does not support alibi_slopes with a batch")


def _check_scores(given: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The shapes and dtypes of a bias and a mask."""
    layout, (batch, heads, rows, _) = given["layout"], arrays["q"].shape
    sizes = batch, heads, rows, layout.length
    for name in (name for name in ("bias", "bool_mask") if name in arrays):
        shape = arrays[name].shape
        if len(shape) != 4 or any(n not in (1, size) for n, size in zip(shape, sizes)):
            raise ValueError(f"{name} must have shape {list(sizes)} or 1 in some dimensions (got {list(shape)})")
    if arrays.get("bool_mask", jnp.zeros(0, bool)).dtype != bool:
        raise TypeError(f"bool_mask must be bool (got {arrays['bool_mask'].dtype})")


def _check_factors(arrays: dict[str, Any]) -> None:
    """Blocks of rows would count from the beginning of each part."""
    for name in (name for name in FACTORS if name in arrays and name != "v_mean"):
        shape = arrays[name].shape
        if len(shape) > 2 and shape[2] != 1:
            raise ValueError(f"{name} must not have blocks; give [batch|1, heads|1] (got {list(shape)})")
