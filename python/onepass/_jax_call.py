"""The calls of onepass.jax: their operands, options, results and gradients."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _arrays, _devices, _kinds, _options, attention
from ._jax_run import DATA, MOD, SCORES, Job, manual_axes, run, varying
from ._quantize import fp8_options

# Inputs beside q, k and v, and what each is converted to.
_SIDE = dict(_options._SIDE_INPUTS + _options._CACHE_INPUTS + _options._FP8_INPUTS)
_CACHE = tuple(name for name, _ in _options._CACHE_INPUTS)
_TANGENTS = (*DATA, "bias", "sinks")
_DIFFERENTIABLE = (*_TANGENTS, "alibi_slopes")


def operands(given: dict[str, Any]) -> tuple[Any, ...]:
    """(names, arrays) of the arrays of a call, in the order in which they are passed."""
    found = {}
    if in_memory(given.get("seed")) and given["dropout_p"]:
        given = {**given, "dropout_seed": seed_words(given["seed"])}
    for name in DATA:
        if given[name] is None:
            form = _options.batched(given["layout"] == "bshd")
            raise TypeError(f"{name} must be an array of shape {form} (got None)")
        found[name] = jnp.asarray(given[name])
    for name, convert in _SIDE.items():
        if given.get(name) is None:
            continue
        x = converted(name, given[name], convert) if convert else jnp.asarray(given[name])
        if name in SCORES:
            x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        found[name] = x
    buffers = {} if given["mod_buffers"] is None else given["mod_buffers"]
    for name, x in _options.mod_items(buffers):
        if isinstance(x, np.ndarray) and _options.is_int64(x):
            x = _kinds.converted(f"mod buffer {name}", x, "int32")
        x = _options.of_one(jnp.asarray(x))
        found[MOD + name] = x.astype("int32") if _options.is_int64(x) else x
    return tuple(found), varying(found.values(), manual_axes(found.values()))


def converted(name: str, x: Any, dtype: Any) -> Any:
    """x as an array of `dtype`, float32 or int32, if its numbers are of a dtype that onepass converts."""
    x = jnp.asarray(x)
    accepted = (dtype, *_kinds.CONVERTED[dtype])
    if x.dtype.name not in accepted:
        raise TypeError(f"{name} must be {', '.join(accepted[:-1])} or {accepted[-1]} (got {x.dtype.name})")
    return x.astype(dtype)


def in_memory(seed: Any) -> bool:
    return isinstance(seed, (jax.Array, np.ndarray))


def seed_words(seed: Any) -> Any:
    """A seed in memory as int32 [2], the low word of its 64 bits first, because most programs have no int64.

    A key of jax.random draws the two words.
    """
    typed = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
    if (typed and not seed.shape) or (seed.dtype == jnp.uint32 and seed.shape == (2,)):
        return jax.lax.bitcast_convert_type(jax.random.bits(seed, (2,), "uint32"), jnp.int32)
    if typed or not jnp.issubdtype(seed.dtype, jnp.integer) or seed.shape not in ((), (1,)):
        accepted = "an integer from 0 to 2^64 - 1, a key of jax.random or an array of one integer"
        raise TypeError(f"seed must be {accepted} (got {seed.dtype} of shape {list(seed.shape)})")
    x = seed.reshape(())
    high = x >> 32 if seed.dtype.itemsize == 8 else -(x < 0).astype("int32")
    words = [(word & 0xFFFFFFFF if word.dtype.itemsize == 8 else word).astype("uint32") for word in (x, high)]
    return jax.lax.bitcast_convert_type(jnp.stack(words), jnp.int32)


def settings(given: dict[str, Any], names: Sequence[str]) -> Any:
    """The options of a call as a tuple of (name, value): what the extension takes, and what onepass.jax adds."""
    plain = {**_options.keywords(attention), **given, **dict.fromkeys(_SIDE), "mod_buffers": None}
    if in_memory(plain["seed"]):
        plain["seed"] = 0
    options = _options.options(_devices.Host(), plain)
    for name in (*_SIDE, "stream", "workspace", "mod_buffers"):
        del options[name]
    options["deterministic"] = bool(given["deterministic"])
    options["fp8"] = None if given["fp8"] is False else tuple(fp8_options(given["fp8"]).items())
    return tuple(options.items())


def _refuse(name: str, what: str, hint: str = "") -> None:
    x = f"mod_buffers[{name.removeprefix(MOD)!r}]" if name.startswith(MOD) else name
    raise ValueError(f"{what} does not return the gradient of {x}{hint}; pass jax.lax.stop_gradient({x})")


@dataclasses.dataclass(frozen=True)
class Call:
    """All of a call but its arrays."""

    names: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    return_lse: bool
    out_dtype: str | None = None  # None: q's, bfloat16 of a float8_e4m3fn q
    return_max: bool = False
    return_entropy: bool = False

    @property
    def packed(self) -> bool:
        return "cu_seqlens_q" in self.names or "cu_seqlens_k" in self.names

    def job(self, q: Any, v: Any) -> Job:
        """The custom call of the forward."""
        if q.ndim < 2 or v.ndim < 2:
            form = _options.batched(dict(self.options)["tokens_first"])
            raise ValueError(
                f"q and v must have the shape {form}, or with cu_seqlens [total, heads, dim] (got {list(q.shape)} and "
                f"{list(v.shape)})"
            )
        dtype = jnp.dtype(self.out_dtype or _arrays.result_dtype(q) or q.dtype)
        results = {"out": ((*q.shape[:-1], v.shape[-1]), dtype)}
        asked = {"lse": self.return_lse, "row_max": self.return_max, "entropy": self.return_entropy}
        for name in (name for name, is_asked in asked.items() if is_asked):
            results[name] = (_arrays.rows_of(q, self.packed), jnp.dtype("float32"))
        target = "onepass_attention_fp8" if dict(self.options)["fp8"] else "onepass_attention"
        return Job(target, self.names, tuple(results), tuple(results.values()), self.options)

    def forward(self, values: Any) -> tuple[Any, ...]:
        """(out, lse, row maxima, entropies); all but out are None unless they are asked for."""
        q, v = values[0], values[2]
        job = self.job(q, v)
        found = dict(zip(job.results, run(job, *values)))
        if self.packed:  # tokens behind the last sequence are not computed
            inside = self._inside("cu_seqlens_q", values, q.shape[0])
            empty = {"lse": -math.inf, "row_max": -math.inf, "entropy": 0.0}
            found = {name: jnp.where(inside, x, empty[name]) for name, x in found.items() if name != "out"} | {
                "out": jnp.where(inside[:, None, None], found["out"], 0)
            }
        return found["out"], found.get("lse"), found.get("row_max"), found.get("entropy")

    def refuse_gradients(self, values: Any, wanted: Any) -> None:
        """Raise a ValueError about what is differentiated (its names) and has no gradient."""
        of = dict(zip(self.names, values))
        wanted = [name for name in wanted if jnp.issubdtype(of[name].dtype, jnp.floating)]
        if any(name in self.names for name in _CACHE) and wanted:
            raise ValueError(f"attention to a cache ({', '.join(_CACHE)}) does not support gradients")
        if wanted and (dict(self.options)["fp8"] or any(of[name].dtype == jnp.float8_e4m3fn for name in DATA)):
            raise ValueError("FP8 attention does not support gradients")
        if wanted and of["k"].dtype != of["q"].dtype:
            raise ValueError(f"attention with {of['q'].dtype} q and {of['k'].dtype} k and v does not support gradients")
        for name in wanted:
            if name not in _DIFFERENTIABLE:
                _refuse(name, "attention")

    def refuse_buffers(self, values: Any, wanted: Any, read: Any) -> None:
        """Raise a ValueError about buffers that are differentiated (their names) and have no gradient.

        read: the names of those that score_mod reads.
        """
        of = dict(zip(self.names, values))
        self.refuse_gradients(values, ("q",) if jnp.issubdtype(of["q"].dtype, jnp.floating) else ())
        for name in wanted:
            if self.packed or dict(self.options)["dropout_p"] > 0:
                _refuse(name, f"attention with {'packed sequences' if self.packed else 'dropout_p'}")
            if name not in read:
                _refuse(name, "attention", " that score_mod does not read")

    def along(self, values: Any, tangents: dict[str, Any]) -> tuple[Any, ...]:
        """(tout, tlse) along the tangents, by the names of their operands; those that are left out are 0."""
        for name in tangents:
            if name not in _TANGENTS:
                raise NotImplementedError(f"onepass.jax.attention does not support a tangent of {name} in forward mode")
        of = dict(zip(self.names, values))
        given = {f"t{name}": tangents[name] if name in tangents else jnp.zeros_like(of[name]) for name in DATA}
        given |= {f"t{name}": x for name, x in tangents.items() if name not in DATA}
        forward = dataclasses.replace(self, return_lse=True, return_max=False).job(of["q"], of["v"])
        shapes = dict(zip(forward.results, forward.shapes))
        results = {"out": shapes["out"], "tout": shapes["out"], "lse": shapes["lse"], "tlse": shapes["lse"]}
        names = (*self.names, *given)
        job = Job("onepass_attention_jvp", names, tuple(results), tuple(results.values()), self.options)
        _, tout, _, tlse = run(job, *values, *given.values())
        if self.packed:
            inside = self._inside("cu_seqlens_q", values, of["q"].shape[0])
            tout, tlse = jnp.where(inside[:, None, None], tout, 0), jnp.where(inside, tlse, 0)
        return tout, tlse

    def backward(self, values: Any, upstream: Any, wanted: Any) -> Any:
        """The gradients in the order of names, None of those that are not wanted."""
        wanted = [name for name in wanted if name in _DIFFERENTIABLE]
        gradients = {}
        if wanted:
            job = self.backward_job(values, tuple(upstream), wanted)
            gradients = self._of_inputs(values, wanted, run(job, *values, *upstream.values()))
        return tuple(gradients.get(name) for name in self.names)

    def backward_job(self, values: Any, upstream: tuple[str, ...], wanted: Any) -> Job:
        """The custom call of the backward. values: shapes and dtypes by names."""
        results = self._gradient_types(values, wanted)
        names = tuple(f"d{name}" for name in wanted)
        return Job("onepass_attention_backward", (*self.names, *upstream), names, results, self.options)

    def second(self, values: Any, upstream: Any, tangents: Any, beside: Any, wanted: Any) -> Any:
        """The derivatives of the gradients that are wanted, in their order.

        Args:
          upstream: dout, out, lse and perhaps dlse.
          tangents: by the names of their operands; those that are left out are 0.
          beside: tangents of dout and dlse, tdout and tdlse, where they are not 0.
        """
        for name in tangents:
            if name not in _TANGENTS:
                raise NotImplementedError(f"onepass.jax.attention does not support second derivatives along {name}")
        of = dict(zip(self.names, values))
        tout, tlse = self.along(values, tangents)
        given = {f"t{name}": tangents[name] if name in tangents else jnp.zeros_like(of[name]) for name in DATA}
        given |= {f"t{name}": x for name, x in tangents.items() if name not in DATA}
        given = {**upstream, **given, "tout": tout, "tlse": tlse, **beside}
        results = self._gradient_types(values, wanted)
        names = tuple(f"td{name}" for name in wanted)
        job = Job("onepass_attention_backward_jvp", (*self.names, *given), names, results, self.options)
        return tuple(self._of_inputs(values, wanted, run(job, *values, *given.values())).values())

    def _gradient_types(self, values: Any, wanted: Any) -> Any:
        of = dict(zip(self.names, values))
        return tuple((of[name].shape, of[name].dtype if name in DATA else jnp.dtype("float32")) for name in wanted)

    def _of_inputs(self, values: Any, wanted: Any, found: Any) -> dict[str, Any]:
        """Gradients by names, of the inputs' dtypes, and 0 for packed tokens that belong to no sequence."""
        of, gradients = dict(zip(self.names, values)), dict(zip(wanted, found))
        for name in gradients.keys() & set(DATA) if self.packed else ():
            boundaries = "cu_seqlens_q" if name == "q" else "cu_seqlens_k"
            inside = self._inside(boundaries, values, of[name].shape[0])
            gradients[name] = jnp.where(inside[:, None, None], gradients[name], 0)
        return {name: x.astype(of[name].dtype) for name, x in gradients.items()}

    def _inside(self, boundaries: Any, values: Any, total: Any) -> Any:
        if boundaries not in self.names:
            return jnp.ones(total, bool)
        return jnp.arange(total) < values[self.names.index(boundaries)][-1]
