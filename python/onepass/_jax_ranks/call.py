"""onepass on a part: slices of arrays, with a mask that is aligned by the part's offset."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from onepass import _arrays, _jax_call, _jax_run, _options
from onepass._ranks.call import Options

F32 = jnp.float32
SIDE = "sinks", "alibi_slopes", "bias"  # with gradients
FACTORS = tuple(name for name, _ in _options._FP8_INPUTS)  # of float8_e4m3fn


def rows_of(rows: Any, *arrays: Any) -> list[Any]:
    return [None if x is None else x[:, :, slice(*rows)] for x in arrays]


def scores_of(x: Any, part: Any, h: Any) -> tuple[Any, ...]:
    """The index of a part's heads, rows and positions in a bias or a mask [batch|1, heads|1, rows|1, positions|1]."""
    places = slice(None), h, slice(*part.rows), slice(*part.key_positions)
    return tuple(slice(None) if n == 1 else place for n, place in zip(x.shape, places))


def out_dtype(q: Any) -> Any:
    return jnp.dtype(_arrays.result_dtype(q) or q.dtype)


@dataclasses.dataclass(frozen=True)
class Call:
    """The options that all parts share, as they can be hashed. group: query heads of a K/V head."""

    left: int
    right: int
    words: tuple[tuple[str, Any], ...]
    deterministic: bool
    documents: tuple[int, ...]
    group: int
    return_max: bool = False

    def _operands(self, part: Any, side: Any, h: Any, q: Any, k: Any, v: Any, **words: Any) -> Any:
        """(names, arrays, options) of the custom call."""
        buffers = {name.removeprefix("mod:"): x for name, x in side.items() if name.startswith("mod:")}
        options = Options(self.left, self.right, dict(self.words), self.deterministic, self.documents)
        options.words["mod_buffers"] = buffers or None
        given = options.of(part, q.shape[0], h.start, lambda x: jnp.array(x, jnp.int32))
        if "sinks" in side and part.own:
            given["sinks"] = side["sinks"][h]
        if "alibi_slopes" in side:
            given["alibi_slopes"] = side["alibi_slopes"][..., h]
        for name in ("bias", "bool_mask"):
            if name in side:
                given[name] = side[name][scores_of(side[name], part, h)]
        if "dropout_seed" in side:
            given["dropout_seed"] = side["dropout_seed"]
        given |= {name: self._factor(name, side[name], h) for name in FACTORS if name in side}
        q, k, v = _laid(part, q, k, v)
        given |= {"q": q, "k": k, "v": v, "layout": "bhsd", "deterministic": self.deterministic, "fp8": False} | words
        names, arrays = _jax_call.operands(given)
        return names, arrays, _jax_call.settings(given, names)

    def _factor(self, name: str, x: Any, h: slice) -> Any:
        """The factor of a call's heads, from [batch|1, heads|1, ..] or fewer dimensions."""
        if name != "q_descale":
            h = slice(h.start // self.group, -(-h.stop // self.group))
        return x if x.ndim < 2 or x.shape[1] == 1 else x[:, h]

    def forward(self, part: Any, side: Any, h: Any, given: Any, dtype: Any) -> Any:
        """(out, lse, row maxima) of a part; the last is None unless it is asked for. given: q, k, v."""
        names, arrays, options = self._operands(part, side, h, *given, partial=dtype == F32)
        call = _jax_call.Call(names, options, True, jnp.dtype(dtype).name, self.return_max)
        out, lse, most, _ = call.forward(arrays)
        if not part.cu_rows:
            return out, lse, most
        return out.swapaxes(0, 1)[None], lse[None], None if most is None else most[None]

    def backward(self, part: Any, side: Any, h: Any, given: Any) -> dict[str, Any]:
        """fp32 gradients by name. given: dout, dlse, q, k, v, out, lse."""
        dout, dlse, q, k, v, out, lse = given
        names, arrays, options = self._operands(part, side, h, q, k, v)
        of = dict(zip(names, arrays))
        upstream = dict(zip(("dout", "out", "lse", "dlse"), _laid(part, dout, out, lse, dlse)))
        upstream = {name: x for name, x in upstream.items() if x is not None}
        wanted = {f"d{name}": (of[name].shape, F32) for name in ("q", "k", "v", *SIDE) if name in of}
        names, values = (*names, *upstream), (*arrays, *upstream.values())
        job = _jax_run.Job("onepass_attention_backward", names, tuple(wanted), tuple(wanted.values()), options)
        found = dict(zip(wanted, _jax_run.run(job, *values)))
        if part.cu_rows:
            found |= {name: found[name].swapaxes(0, 1)[None] for name in ("dq", "dk", "dv")}
        return found


def _laid(part: Any, *arrays: Any) -> Any:
    """As the call takes them: packed documents have no batch, and rows before heads."""
    if not part.cu_rows:
        return arrays
    return [x if x is None else x[0].swapaxes(0, 1) if x.ndim == 4 else x[0] for x in arrays]


class Sums:
    """Gradients that calls add up, in fp32 and in their order."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def zeros(self, name: str, shape: Any) -> None:
        self.by_name[name] = jnp.zeros(shape, F32)

    def add(self, name: str, x: Any, at: Any) -> None:
        """at: an index of all dimensions."""
        self.by_name[name] = self.by_name[name].at[at].add(x)

    def side(self, g: dict[str, Any], part: Any, h: Any) -> None:
        for name in (f"d{name}" for name in SIDE if f"d{name}" in g):
            at = scores_of(self.by_name[name], part, h) if name == "dbias" else (..., h)
            self.add(name, g[name], at)
