"""onepass on a part: slices of tensors, with a mask that is aligned by the part's offset."""

import functools
from typing import Any, NamedTuple

import torch

import onepass
from onepass._ranks.call import Options

F32 = torch.float32


def rows_of(rows: Any, *tensors: Any) -> list[Any]:
    return [x if x is None or tuple(rows) == (0, x.shape[2]) else x[:, :, slice(*rows)] for x in tensors]


def heads_of(h: slice, *tensors: Any) -> list[Any]:
    return [x if x is None or (h.start, h.stop) == (0, x.shape[1]) else x[:, h] for x in tensors]


@functools.lru_cache(maxsize=4096)
def _ints(values: tuple[int, ...], device: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _cut(x: torch.Tensor, dim: int, s: slice) -> torch.Tensor:
    """A slice of a dimension that may be broadcast."""
    return x if x.shape[dim] == 1 else x[(slice(None),) * dim + (s,)]


FACTORS = "q_descale", "k_descale", "v_descale", "v_mean"  # of float8_e4m3fn


def rows_first(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, rows, dim] as [rows, batch, heads, dim], or back from it by rows_last."""
    return x.permute(2, 0, 1, 3)


def rows_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(1, 2, 0, 3)


def factors_of(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in FACTORS if given[name] is not None}


def group_of(q: Any, k: Any) -> int:
    return int(q.shape[1]) // max(1, int(k.shape[1]))


def out_dtype(q: Any) -> Any:
    return torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype


def results_of(q: Any, v: Any, return_max: bool) -> tuple[Any, Any, Any]:
    """Memory for out, the LSE and, if wanted, row maxima."""
    rows = q.shape[:-1]
    most = q.new_full(rows, -torch.inf, dtype=F32) if return_max else None
    return q.new_empty(*rows, v.shape[-1], dtype=out_dtype(q)), q.new_empty(rows, dtype=F32), most


def results(found: tuple[Any, Any, Any], asked: tuple[Any, Any]) -> Any:
    """out, or a tuple of it and what is asked for: the LSE, the row maxima."""
    tensors = found[0], *(x for x, wanted in zip(found[1:], asked) if wanted)
    return tensors if len(tensors) > 1 else tensors[0]


class Side:
    """Tensors that all heads' scores depend on, and this rank's part of their gradients.

    sinks [heads], slopes [heads] or [batch, heads]; bias and mask [batch|1, heads|1, rows|1, positions|1]; factors
    [batch|1, heads|1, ..] by name.
    """

    def __init__(self, given: Any, mask: Any, wanted: Any = (False,) * 3, factors: Any = None, group: int = 1) -> None:
        (self.sinks, self.slopes, self.bias), self.mask = given, mask
        self.factors, self.group = factors or {}, group  # group: query heads of a K/V head
        self.grads = [torch.zeros(x.shape, dtype=F32, device=x.device) if w else None for x, w in zip(given, wanted)]

    def _factor(self, name: str, x: Any, h: slice) -> Any:
        """The factor of a call's heads."""
        if name != "q_descale" and h.stop is not None:
            h = slice(h.start // self.group, -(-h.stop // self.group))
        return _cut(x, 1, h) if x.dim() > 1 else x

    def _of(self, x: Any, part: Any, h: slice) -> Any:
        """Heads, rows and positions of a call, of a bias, a mask or the gradient of a bias."""
        return _cut(_cut(_cut(x, 1, h), 2, slice(*part.rows)), 3, slice(*part.key_positions))

    def of(self, part: Any, h: slice) -> dict[str, Any]:
        words = {name: self._factor(name, x, h) for name, x in self.factors.items()}
        if self.sinks is not None and part.own:
            words["sinks"] = self.sinks[h]
        if self.slopes is not None:
            words["alibi_slopes"] = self.slopes[..., h]
        if self.bias is not None:
            words["bias"] = self._of(self.bias, part, h)
        if self.mask is not None:
            words["bool_mask"] = self._of(self.mask, part, h)
        return words

    def names(self, part: Any) -> list[str]:
        """The gradients that a call gives."""
        dsinks, dslopes, dbias = self.grads
        named = (("dsinks", dsinks, part.own), ("dalibi_slopes", dslopes, True), ("dbias", dbias, True))
        return [name for name, grad, here in named if grad is not None and here]

    def take(self, part: Any, h: slice, g: dict[str, Any]) -> None:
        dsinks, dslopes, dbias = self.grads
        if "dsinks" in g:
            dsinks[h] += g["dsinks"]  # type: ignore[index]
        if "dalibi_slopes" in g:
            dslopes[..., h] += g["dalibi_slopes"]  # type: ignore[index]
        if "dbias" in g:
            self._of(dbias, part, h).add_(g["dbias"])

    def results(self) -> list[Any]:
        given = (self.sinks, self.slopes, self.bias)
        return [None if g is None else g.to(x.dtype) for g, x in zip(self.grads, given)]


class Call(NamedTuple):
    """The options that all parts share."""

    options: Options
    first_head: int = 0  # the number of the first head that calls count
    return_max: bool = False

    def _words(self, part: Any, side: Side, h: slice, q: Any) -> dict[str, Any]:
        words = self.options.of(part, q.shape[0], self.first_head + h.start, lambda x: _ints(x, q.device))
        return {**words, **side.of(part, h)}

    def forward(self, part: Any, side: Side, h: slice, given: Any, out: Any, most: Any) -> Any:
        """Writes out, and returns the LSE. given: q, k, v. most: row maxima so far, which grow, or None.

        An out of other bits than q's is merged with those of other parts.
        """
        q, k, v, out = _laid(part, *given, out)
        words = self._words(part, side, h, q) | {"partial": out.dtype == F32}
        asked = most is not None
        _, lse, *found = onepass.attention(q, k, v, out=out, return_lse=True, return_max=asked, **words)
        if asked:
            most.copy_(torch.maximum(most, found[0]))
        return lse[None] if part.cu_rows else lse

    def backward(self, part: Any, side: Side, h: slice, given: Any, into: dict[str, Any]) -> dict[str, Any]:
        """fp32 gradients by name, written where `into` says. given: dout, dlse, q, k, v, out, lse."""
        dout, dlse, q, k, v, out, lse = _laid(part, *given)
        names = ["dq", "dk", "dv", *side.names(part)]
        words = self._words(part, side, h, q)
        words |= {"dlse": dlse, "grads": names, "grad_dtype": "float32", "deterministic": self.options.deterministic}
        words["into"] = dict(zip(into, _laid(part, *into.values())))
        g = dict(zip(names, onepass.attention_backward(dout, q, k, v, out, lse, **words)))
        side.take(part, h, g)
        if part.cu_rows:
            g |= {name: g[name].transpose(0, 1)[None] for name in ("dq", "dk", "dv")}
        return g


def _laid(part: Any, *tensors: Any) -> Any:
    """As the call takes them: packed documents have no batch, and rows before heads."""
    if not part.cu_rows:
        return tensors
    return [x if x is None else x[0].transpose(0, 1) if x.dim() == 4 else x[0] for x in tensors]


class Scheme:
    """The common part of schemes. Each has ``forward``, ``backward`` and the ``groups`` that it uses."""

    groups: tuple[Any, ...]

    def saved(self, *tensors: Any) -> Any:
        """The tensors that ``backward`` takes, from this rank's rows of q, k, v, out and lse."""
        return tensors

    def of_heads(self, most: torch.Tensor) -> torch.Tensor:
        """[heads]: the largest of the row maxima of all ranks."""
        found = most.new_full(most.shape[1:2], -torch.inf) if not most.numel() else most.amax((0, 2))
        for ranks in self.groups:
            of_ranks = ranks.all_to_all([[found]] * ranks.size, [[found.shape]] * ranks.size)()
            found = torch.stack([x for (x,) in of_ranks]).amax(0)
        return found

    def told(self, function: Any, *given: Any) -> Any:
        """function(*given). The other ranks wait for this one, so they hear of its failure."""
        try:
            return function(*(x.detach() if isinstance(x, torch.Tensor) else x for x in given))
        except BaseException as error:
            for ranks in self.groups:
                ranks.tell(error)
            raise
