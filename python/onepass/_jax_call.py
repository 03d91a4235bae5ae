"""The calls of onepass.jax to XLA: operands and attributes of the custom calls, their result shapes, their vmap."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _arrays, _devices, _fit, _kinds, _onepass, _options, attention
from ._fit import _BITS
from ._quantize import fp8_options

_DATA = ("q", "k", "v")
# Inputs beside them, and what each is converted to.
_SIDE = dict(_options._SIDE_INPUTS + _options._CACHE_INPUTS + _options._FP8_INPUTS)
_CACHE = tuple(name for name, _ in _options._CACHE_INPUTS)
_FACTORS = tuple(name for name, _ in _options._FP8_INPUTS)
_SCORES = ("bias", "bool_mask", "block_mask")
_DIFFERENTIABLE = (*_DATA, "bias", "alibi_slopes", "sinks")
_MOD = "mod:"


class Static:
    """A value that is not an array, as a pytree without leaves."""

    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(Static, lambda x: ((), x.value), lambda value, _: Static(value))


def operands(given: dict[str, Any]) -> tuple[Any, ...]:
    """(names, arrays) of the arrays of a call, in the order in which they are passed."""
    found = {}
    for name in _DATA:
        if given[name] is None:
            form = _options.batched(given["layout"] == "bshd")
            raise TypeError(f"{name} must be an array of shape {form} (got None)")
        found[name] = jnp.asarray(given[name])
    for name, convert in _SIDE.items():
        if given.get(name) is None:
            continue
        x = converted(name, given[name], convert) if convert else jnp.asarray(given[name])
        if name in _SCORES:
            x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        found[name] = x
    buffers = {} if given["mod_buffers"] is None else given["mod_buffers"]
    for name, x in _options.mod_items(buffers):
        if isinstance(x, np.ndarray) and _options.is_int64(x):
            x = _kinds.converted(f"mod buffer {name}", x, "int32")
        x = _options.of_one(jnp.asarray(x))
        found[_MOD + name] = x.astype("int32") if _options.is_int64(x) else x
    return tuple(found), varying(found.values(), manual_axes(found.values()))


def manual_axes(arrays: Any) -> Any:
    """The axes of jax.shard_map over which at least one of the arrays varies."""
    return frozenset().union(*(_manual_axes(jax.typeof(x)) for x in arrays))


def _manual_axes(aval: Any) -> Any:
    kind = getattr(aval, "manual_axis_type", None)  # before JAX 0.10: vma
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def varying(arrays: Any, axes: Any) -> Any:
    """The arrays with types that vary over these axes; the transpose adds up what the devices give."""
    missing = [(x, tuple(axes - manual_axes([x]))) for x in arrays]
    return tuple(jax.lax.pcast(x, names, to="varying") if names else x for x, names in missing)


def converted(name: str, x: Any, dtype: Any) -> Any:
    """x as an array of `dtype`, float32 or int32, if its numbers are of a dtype that onepass converts."""
    x = jnp.asarray(x)
    accepted = (dtype, *_kinds.CONVERTED[dtype])
    if x.dtype.name not in accepted:
        raise TypeError(f"{name} must be {', '.join(accepted[:-1])} or {accepted[-1]} (got {x.dtype.name})")
    return x.astype(dtype)


def undifferentiable(f: Any, sentence: str) -> Any:
    """Wrap f so that differentiating it raises NotImplementedError(sentence)."""

    def refuse(primals: Any, tangents: Any) -> tuple[Any, Any]:
        raise NotImplementedError(sentence)

    once = jax.custom_jvp(f)
    once.defjvp(refuse)
    return once


def settings(given: dict[str, Any], names: Sequence[str]) -> Any:
    """The options of a call as a tuple of (name, value): what the extension takes, and what onepass.jax adds."""
    plain = {**_options.keywords(attention), **given, **dict.fromkeys(_SIDE), "mod_buffers": None}
    options = _options.options(_devices.Host(), plain)
    for name in (*_SIDE, "stream", "workspace", "mod_buffers"):
        del options[name]
    options["deterministic"] = bool(given["deterministic"])
    options["fp8"] = None if given["fp8"] is False else tuple(fp8_options(given["fp8"]).items())
    return tuple(options.items())


def bits(seed: int) -> Any:
    """A seed from 0 to 2^64 - 1 as an attribute of the same bits."""
    return np.int64(seed - (seed >> 63 << 64))


def _optional(x: Any) -> Any:
    return np.float64(math.nan if x is None else x)


# kind of an option -> (its attribute of XLA's, the default)
_KINDS: dict[str, Any] = {
    "switch": (np.bool_, False),
    "integer": (np.int64, 0),
    "bits": (bits, 0),
    "number": (np.float64, 0.0),
    "optional number": (_optional, None),
    "text": (str, ""),
    "choice": (np.int64, 0),
    "numbers": (lambda x: ":".join(map(str, x)), (0, 0, 0, 0)),
}
_ROWS = tuple(_onepass.attention_options())


def _attributes(options: dict[str, Any], backward: Any) -> dict[str, Any]:
    """Options as XLA's attributes, all of those that python/src/jax.cpp reads; those of the other pass at defaults."""
    o = dict(options)
    left, right = o["window"]
    fp8 = {f"fp8_{name}": bits(x) if name == "seed" else np.bool_(x) for name, x in o["fp8"] or ()}
    attributes = {}
    for name, kind, of_forward, of_backward in _ROWS:
        if kind != "band":
            attribute, default = _KINDS[kind]
            attributes[name] = attribute(o[name] if (of_backward if backward else of_forward) else default)
    return {
        **attributes,
        **{name: np.bool_(o[name]) for name in ("causal", "tokens_first")},
        **{name: np.int64(o[name]) for name in ("align", "align_offset", "threads")},
        "left": np.int64(left),
        "right": np.int64(right),
        "implementation": o["implementation"],
        **fp8,
    }


@dataclasses.dataclass(frozen=True)
class Call:
    """All of a call but its arrays."""

    names: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    return_lse: bool
    out_dtype: str | None = None  # None: q's, bfloat16 of a float8_e4m3fn q
    return_max: bool = False

    @property
    def packed(self) -> bool:
        return "cu_seqlens_q" in self.names or "cu_seqlens_k" in self.names

    def forward(self, values: Any) -> tuple[Any, ...]:
        """(out, lse, row maxima); the last two are None unless they are asked for."""
        q, v = values[0], values[2]
        if q.ndim < 2 or v.ndim < 2:
            form = _options.batched(dict(self.options)["tokens_first"])
            raise ValueError(
                f"q and v must have the shape {form}, or with cu_seqlens [total, heads, dim] (got {list(q.shape)} and "
                f"{list(v.shape)})"
            )
        dtype = jnp.dtype(self.out_dtype or _arrays.result_dtype(q) or q.dtype)
        results = {"out": ((*q.shape[:-1], v.shape[-1]), dtype)}
        asked = {"lse": self.return_lse, "row_max": self.return_max}
        for name in (name for name, is_asked in asked.items() if is_asked):
            results[name] = (q.shape[1::-1] if self.packed else q.shape[:-1], jnp.dtype("float32"))
        target = "onepass_attention_fp8" if dict(self.options)["fp8"] else "onepass_attention"
        job = _Job(target, self.names, tuple(results), tuple(results.values()), self.options)
        found = dict(zip(results, _run(job, *values)))
        if self.packed:  # tokens behind the last sequence are not computed
            inside = self._inside("cu_seqlens_q", values, q.shape[0])
            found = {name: jnp.where(inside, x, -math.inf) for name, x in found.items() if name != "out"} | {
                "out": jnp.where(inside[:, None, None], found["out"], 0)
            }
        return found["out"], found.get("lse"), found.get("row_max")

    def refuse_gradients(self, values: Any, wanted: Any) -> None:
        """Raise a ValueError about what is differentiated (its names) and has no gradient."""
        of = dict(zip(self.names, values))
        wanted = [name for name in wanted if jnp.issubdtype(of[name].dtype, jnp.floating)]
        if any(name in self.names for name in _CACHE) and wanted:
            raise ValueError(f"attention to a cache ({', '.join(_CACHE)}) does not support gradients")
        if wanted and (dict(self.options)["fp8"] or any(of[name].dtype == jnp.float8_e4m3fn for name in _DATA)):
            raise ValueError("FP8 attention does not support gradients")
        for name in wanted:
            if name not in _DIFFERENTIABLE:
                x = f"mod_buffers[{name.removeprefix(_MOD)!r}]" if name.startswith(_MOD) else name
                hint = "; a bias has a gradient" if name.startswith(_MOD) else ""
                raise ValueError(
                    f"attention does not return the gradient of {x}; pass jax.lax.stop_gradient({x}){hint}"
                )

    def backward(self, values: Any, upstream: Any, wanted: Any) -> Any:
        """The gradients in the order of names, None of those that are not wanted."""
        of = dict(zip(self.names, values))
        wanted = [name for name in wanted if name in _DIFFERENTIABLE]
        results = {
            f"d{name}": (of[name].shape, of[name].dtype if name in _DATA else jnp.dtype("float32")) for name in wanted
        }
        gradients = {}
        if results:
            names = (*self.names, *upstream)
            job = _Job("onepass_attention_backward", names, tuple(results), tuple(results.values()), self.options)
            gradients = dict(zip(wanted, _run(job, *values, *upstream.values())))
        if self.packed:
            for name in gradients.keys() & set(_DATA):
                boundaries = "cu_seqlens_q" if name == "q" else "cu_seqlens_k"
                inside = self._inside(boundaries, values, of[name].shape[0])
                gradients[name] = jnp.where(inside[:, None, None], gradients[name], 0)
        return tuple(gradients[name].astype(of[name].dtype) if name in gradients else None for name in self.names)

    def _inside(self, boundaries: Any, values: Any, total: Any) -> Any:
        if boundaries not in self.names:
            return jnp.ones(total, bool)
        return jnp.arange(total) < values[self.names.index(boundaries)][-1]


@dataclasses.dataclass(frozen=True)
class _Job:
    """A custom call: what it is given and gives."""

    target: str
    names: tuple[str, ...]
    results: tuple[str, ...]
    shapes: tuple[Any, ...]  # of the results, with their dtypes
    options: tuple[tuple[str, Any], ...]

    @property
    def backward(self) -> bool:
        return "dout" in self.names

    def loops(self, mapped: Any) -> Any:
        """True if vmap has to loop, because the mapped axis in the batch would mean something else."""
        o = dict(self.options)
        return (
            any(name in self.names for name in ("cu_seqlens_q", "cu_seqlens_k", "page_table"))
            or o["dropout_p"] > 0
            or o["score_mod"]
            or o["mask_mod"]
            or "dsinks" in self.results
            or ("sinks" in self.names and mapped[self.names.index("sinks")])
        )


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _run(job: Any, *values: Any) -> Any:
    """The results of a custom call, a tuple."""
    if not job.backward:
        _check(job, values)
    attributes = _attributes(job.options, job.backward)
    shapes = [jax.ShapeDtypeStruct(*shape) for shape in job.shapes]
    call = jax.ffi.ffi_call(job.target, shapes, vmap_method="sequential")

    @jax.custom_batching.custom_vmap
    def run(*values: Any) -> Any:
        results = call(*values, operands=" ".join(job.names), results=" ".join(job.results), **attributes)
        return varying(results, manual_axes(values))

    @run.def_vmap
    def mapped_run(size: int, mapped: Any, *values: Any) -> tuple[Any, ...]:
        results = _looped(job, mapped, values) if job.loops(mapped) else _folded(job, size, mapped, values)
        return results, (True,) * len(results)

    # custom_vjp has taken the first derivative: a second one, or one in forward mode, comes here.
    once = "onepass.jax.attention supports first derivatives in reverse mode only"
    return undifferentiable(run, once)(*values)


def _looped(job: Any, mapped: Any, values: Any) -> Any:
    def once(ones: Any) -> Any:
        ones = iter(ones)
        return _run(job, *(next(ones) if is_mapped else x for x, is_mapped in zip(values, mapped)))

    return jax.lax.map(once, tuple(x for x, is_mapped in zip(values, mapped) if is_mapped))


def _folded(job: Any, size: int, mapped: Any, values: Any) -> Any:
    """The mapped axis, which is the first, in the batch: for mapped q, k and v that is the same memory."""
    shapes = {name: x.shape[1:] if is_mapped else x.shape for name, x, is_mapped in zip(job.names, values, mapped)}
    batch = shapes["q"][0]
    folded = []
    for name, x, is_mapped in zip(job.names, values, mapped):
        shape = shapes[name]
        repeated = name == "sinks" or (name == "alibi_slopes" and len(shape) == 1)
        if name in (*_SCORES, *_FACTORS):
            repeated = shape[0] == 1
        if repeated and not is_mapped and f"d{name}" not in job.results:
            folded.append(x)
            continue
        own = shape if len(shape) > 1 or name in ("seqused_k", *_FACTORS) else (1, *shape)
        x = x.reshape((size if is_mapped else 1, *own))
        folded.append(jnp.broadcast_to(x, (size, batch, *own[1:])).reshape((size * batch, *own[1:])))
    of = dict(zip(job.names, folded))
    new_shapes = []
    for name, (shape, dtype) in zip(job.results, job.shapes):
        source = of.get(name[1:]) if name.startswith("d") else None
        new_shapes.append((source.shape if source is not None else (size * batch, *shape[1:]), dtype))
    results = _run(dataclasses.replace(job, shapes=tuple(new_shapes)), *folded)
    return tuple(_unfolded(x, size, batch, shape) for x, (shape, _) in zip(results, job.shapes))


def _unfolded(x: Any, size: int, batch: int, shape: Any) -> Any:
    x = x.reshape((size, batch, *x.shape[1:]))
    if x.shape == (size, *shape):
        return x
    return x.sum(axis=1).reshape((size, *shape))  # the gradient of what the batch shared


def _check(job: Any, values: Any) -> None:
    """Raises what does not fit, in the library's sentences, from shapes and dtypes alone."""
    options = dict(job.options)
    fp8 = options.pop("fp8")
    del options["deterministic"]
    arrays, buffers = {}, []
    shapes = [(name, x.shape, x.dtype) for name, x in zip(job.names, values)]
    shapes += [(name, *shape) for name, shape in zip(job.results, job.shapes)]
    for name, shape, dtype in shapes:
        array = _without_values(name, shape, dtype)
        if name.startswith(_MOD):
            buffers.append((name.removeprefix(_MOD), array))
        else:
            arrays[name] = array
    _fit.check(options, arrays, buffers, dict(fp8) if fp8 else None)


def _without_values(name: str, shape: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.name not in _BITS and dtype.num >= 256:  # of other packages than NumPy
        eights = "float16, bfloat16 or float8_e4m3fn" if name in _DATA else "float16 or bfloat16"
        raise TypeError(f"{name} must be float32, {eights} (got {dtype.name})")
    return _fit.without_values(shape, dtype.name, looked_at=not name.startswith(_MOD))
