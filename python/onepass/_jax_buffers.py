"""Derivatives of onepass.jax.attention by the buffers that its score_mod reads, as primitives beside `along`.

Kernels have no such derivative. Scores are computed again in JAX's operations, some rows at a time.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from ._flex.derivative import by_loads
from ._flex.read import expression
from ._flex.scores import Steps, band, by_elements, by_head, floats, four, scores, upstream, weights
from ._jax_derivative import primitive_of
from ._jax_run import MOD, manual_axes, varying
from ._jax_second import BESIDE_BUFFERS, loop, refused

_ELEMENTS = 1 << 22  # of scores at a time


def read_by_score(call: Any, values: Any) -> list[str]:
    """The names of the buffers of floats that score_mod reads."""
    buffers = _buffers(call, values)
    text = dict(call.options)["score_mod"]
    read = [load.value for load, _ in by_loads(expression(text, buffers))] if text else []
    return [MOD + name for name, x in buffers.items() if any(x is y for y in read)]


def _buffers(call: Any, values: Any) -> dict[str, Any]:
    return {name.removeprefix(MOD): x for name, x in zip(call.names, values) if name.startswith(MOD)}


class _Pass:
    """The rows of a call with heads before rows, in strips of equal size; rows that are added at the end see no key."""

    def __init__(self, call: Any, values: Any, lse: Any, wanted: tuple[str, ...]) -> None:
        of, options = dict(zip(call.names, values)), dict(call.options)
        self.first = options["tokens_first"]
        self.q, self.k, self.v = (floats(jnp, self.turned(of[name])) for name in "qkv")
        self.rows, keys = self.q.shape[2], self.k.shape[2]
        each = self.q.shape[0] * self.q.shape[1] * keys  # scores of a row
        self.count = -(-self.rows // max(1, min(_ELEMENTS // each, self.rows))) if each else 0
        self.size = -(-self.rows // max(1, self.count))
        self.lse = self.padded(self.turned(lse), -math.inf)
        self.q = self.padded(self.q)
        buffers = _buffers(call, values)
        scale = 1 / math.sqrt(self.q.shape[-1]) if options["scale"] is None else options["scale"]
        bias, bool_mask = (self.padded(four(of.get(name))) for name in ("bias", "bool_mask"))
        score = expression(options["score_mod"], buffers)
        causal, align, offset, window = (options[name] for name in ("causal", "align", "align_offset", "window"))
        self.steps = Steps(
            scale,
            score,
            expression(options["mask_mod"], buffers) if options["mask_mod"] else None,
            options["softcap"],
            band(causal, align, offset, window, self.rows, keys),
            of.get("alibi_slopes"),
            bias,
            bool_mask,
            four(of.get("block_mask")),
            (options["mask_tile_q"] or 128, options["mask_tile_k"] or 128),
        )
        self.wanted = {name: of[name] for name in wanted}
        self.loads = [(x, y) for x, y in by_loads(score) if any(x.value is z for z in self.wanted.values())]

    def turned(self, x: Any) -> Any:
        return x.swapaxes(1, 2) if self.first else x

    def padded(self, x: Any, fill: float = 0) -> Any:
        """With rows for whole strips; one row for all stays."""
        if x is None or x.shape[2] != self.rows or self.rows == 1:
            return x
        edges = [(0, 0)] * x.ndim
        edges[2] = (0, max(0, self.count * self.size - self.rows))
        return jnp.pad(x, edges, constant_values=fill)

    def strip(self, i: Any) -> Any:
        """(weights of a strip, the evaluation of expressions over it, a function that takes its rows)"""
        first = i * self.size

        def take(x: Any) -> Any:
            return x if x.shape[2] == 1 else jax.lax.dynamic_slice_in_dim(x, first, self.size, 2)

        found, run = scores(jnp, self.steps, take(self.q), self.k, first, take)
        return weights(jnp, found, take(self.lse)), run, take

    def name_of(self, load: Any) -> str:
        return next(name for name, x in self.wanted.items() if x is load.value)


@functools.partial(jax.jit, static_argnames=("call", "wanted"), inline=True)
def _along(*operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    values, (out, lse), tangents = operands[:n], operands[n : n + 2], dict(zip(wanted, operands[n + 2 :]))
    p = _Pass(call, values, lse, wanted)
    if not p.count:
        return [jnp.zeros_like(out), jnp.zeros_like(lse)]

    def strip(i: Any) -> Any:
        weight, run, _ = p.strip(i)
        change = jnp.zeros_like(weight)
        for load, slope in p.loads:
            change += run(slope) * tangents[p.name_of(load)][tuple(run.indices(load))]
        change = jnp.where(weight == 0, 0.0, weight * change)
        tlse = change.sum(-1)
        return by_head(change - weight * tlse[..., None], p.v.swapaxes(-1, -2)), tlse

    def joined(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, 2)
        return p.turned(x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, : p.rows])

    tout, tlse = jax.lax.map(strip, jnp.arange(p.count))
    return [joined(tout).astype(out.dtype), joined(tlse)]


@functools.partial(jax.jit, static_argnames=("call", "wanted"), inline=True)
def _gradients(*operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    values, (lse, dout, dlse) = operands[:n], operands[n:]
    p = _Pass(call, values, lse, wanted)
    if not p.count:
        return [jnp.zeros_like(x) for x in p.wanted.values()]
    dout, dlse = p.padded(floats(jnp, p.turned(dout))), p.padded(p.turned(dlse))

    def strip(i: Any, sums: Any) -> Any:
        weight, run, take = p.strip(i)
        slope = upstream(jnp, weight, by_head(take(dout), p.v), take(dlse))
        found = dict(zip(wanted, sums))
        for load, at, part in by_elements(jnp, p.loads, weight, slope, run):
            found[p.name_of(load)] = found[p.name_of(load)].at[at].add(part if at else part.sum())
        return tuple(found.values())

    sums = tuple(jnp.zeros(x.shape, jnp.float32) for x in p.wanted.values())
    sums = jax.lax.fori_loop(0, p.count, strip, varying(sums, manual_axes(operands)))
    return [x.astype(p.wanted[name].dtype) for name, x in zip(wanted, sums)]


def _along_types(*types: Any, call: Any, wanted: tuple[str, ...]) -> Any:
    return _along.trace(*types, call=call, wanted=wanted).jaxpr.out_avals


def _gradients_types(*types: Any, call: Any, wanted: tuple[str, ...]) -> Any:
    return _gradients.trace(*types, call=call, wanted=wanted).jaxpr.out_avals


# call, wanted: values, out, lse, tangents of the names wanted -> tout, tlse
along = primitive_of("onepass_attention_along_buffers", _along, _along_types)
# call, wanted: values, lse, dout, dlse -> the gradients of the names wanted
gradients = primitive_of("onepass_attention_gradients_of_buffers", _gradients, _gradients_types)
_called = jax.jit(gradients.bind, static_argnames=("call", "wanted"), inline=True)


def _along_transpose(cotangents: Any, *operands: Any, call: Any, wanted: tuple[str, ...]) -> list[Any]:
    n = len(call.names)
    values, rest, tangents = operands[:n], operands[n : n + 2], operands[n + 2 :]
    upstream_ = [jnp.zeros(x.shape, x.dtype) if isinstance(d, ad.Zero) else d for x, d in zip(rest, cotangents)]
    asked = tuple(name for name, t in zip(wanted, tangents) if ad.is_undefined_primal(t))
    found = dict(zip(asked, _called(*values, rest[1], *upstream_, call=call, wanted=asked)))
    return [None] * (n + 2) + [found.get(name) for name in wanted]


def _refused_jvp(primitive: Any) -> Any:
    def rule(primals: Any, tangents: Any, **how: Any) -> tuple[Any, Any]:
        found = primitive.bind(*primals, **how)
        return found, refused(found, tangents, BESIDE_BUFFERS)

    return rule


ad.primitive_transposes[along] = _along_transpose
ad.primitive_jvps[along], ad.primitive_jvps[gradients] = _refused_jvp(along), _refused_jvp(gradients)
batching.primitive_batchers[along], batching.primitive_batchers[gradients] = loop(along), loop(gradients)
