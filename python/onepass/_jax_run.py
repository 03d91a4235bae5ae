"""A custom call of XLA's: its attributes, its vmap, and the refusal of what does not fit while JAX traces."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _fit, _onepass, _options
from ._fit import _BITS

DATA = ("q", "k", "v")
SCORES = ("bias", "bool_mask", "block_mask")
MOD = "mod:"
_FACTORS = tuple(name for name, _ in _options._FP8_INPUTS)


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


def undifferentiable(f: Any, sentence: str) -> Any:
    """Wrap f so that differentiating it raises NotImplementedError(sentence)."""

    def refuse(primals: Any, tangents: Any) -> tuple[Any, Any]:
        raise NotImplementedError(sentence)

    once = jax.custom_jvp(f)
    once.defjvp(refuse)
    return once


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
class Job:
    """A custom call: what it is given and gives."""

    target: str
    names: tuple[str, ...]
    results: tuple[str, ...]
    shapes: tuple[Any, ...]  # of the results, with their dtypes
    options: tuple[tuple[str, Any], ...]

    @property
    def backward(self) -> bool:
        return "dout" in self.names

    @property
    def forward_mode(self) -> bool:
        return "tq" in self.names

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
def run(job: Any, *values: Any) -> Any:
    """The results of a custom call, a tuple."""
    if not job.backward:
        _check(job, values)
    attributes = _attributes(job.options, job.backward or job.forward_mode)
    shapes = [jax.ShapeDtypeStruct(*shape) for shape in job.shapes]
    call = jax.ffi.ffi_call(job.target, shapes, vmap_method="sequential")

    @jax.custom_batching.custom_vmap
    def called(*values: Any) -> Any:
        results = call(*values, operands=" ".join(job.names), results=" ".join(job.results), **attributes)
        return varying(results, manual_axes(values))

    @called.def_vmap
    def mapped_run(size: int, mapped: Any, *values: Any) -> tuple[Any, ...]:
        once = functools.partial(run, job)
        results = looped(once, mapped, values) if job.loops(mapped) else folded(job, size, mapped, values, run)
        return results, (True,) * len(results)

    # The rules of _jax_derivative have taken the first derivative: a second one comes here.
    return undifferentiable(called, "onepass.jax.attention supports first derivatives only")(*values)


def looped(call: Any, mapped: Any, values: Any) -> Any:
    """call of each of the examples, which lie along the first axis of what is mapped."""

    def once(ones: Any) -> Any:
        ones = iter(ones)
        return call(*(next(ones) if is_mapped else x for x, is_mapped in zip(values, mapped)))

    return jax.lax.map(once, tuple(x for x, is_mapped in zip(values, mapped) if is_mapped))


def folded(job: Any, size: int, mapped: Any, values: Any, call: Any) -> Any:
    """call(job, *values) with the mapped axis, which is the first, in the batch: for q, k and v the same memory."""
    shapes = {name: x.shape[1:] if is_mapped else x.shape for name, x, is_mapped in zip(job.names, values, mapped)}
    batch = shapes["q"][0]
    joined = []
    for name, x, is_mapped in zip(job.names, values, mapped):
        shape = shapes[name]
        repeated = name == "sinks" or (name == "alibi_slopes" and len(shape) == 1)
        if name in (*SCORES, *_FACTORS):
            repeated = shape[0] == 1
        if repeated and not is_mapped and f"d{name}" not in job.results:
            joined.append(x)
            continue
        own = shape if len(shape) > 1 or name in ("seqused_k", *_FACTORS) else (1, *shape)
        x = x.reshape((size if is_mapped else 1, *own))
        joined.append(jnp.broadcast_to(x, (size, batch, *own[1:])).reshape((size * batch, *own[1:])))
    of = dict(zip(job.names, joined))
    new_shapes = []
    for name, (shape, dtype) in zip(job.results, job.shapes):
        source = of.get(name[1:]) if name.startswith("d") else None
        new_shapes.append((source.shape if source is not None else (size * batch, *shape[1:]), dtype))
    results = call(dataclasses.replace(job, shapes=tuple(new_shapes)), *joined)
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
        if name == "dropout_seed":
            shape, dtype = (1,), "int64"  # as the library reads its two words
        array = _without_values(name, shape, dtype)
        if name.startswith(MOD):
            buffers.append((name.removeprefix(MOD), array))
        else:
            arrays[name] = array
    _fit.check(options, arrays, buffers, dict(fp8) if fp8 else None)


def _without_values(name: str, shape: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.name not in _BITS and dtype.num >= 256:  # of other packages than NumPy
        eights = "float16, bfloat16 or float8_e4m3fn" if name in DATA else "float16 or bfloat16"
        raise TypeError(f"{name} must be float32, {eights} (got {dtype.name})")
    return _fit.without_values(shape, dtype.name, looked_at=not name.startswith(MOD))
