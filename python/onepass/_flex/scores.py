"""Scores of a call, some rows at a time, in the operations of torch or jax.numpy: gradients of buffers need them."""

import dataclasses
import math
from typing import Any

from .evaluate import Evaluation
from .symbol import Symbol


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The steps from products of q and k to scores, in the order of docs/reference/conventions.md.

    score, seen: the expressions of score_mod and mask_mod. band: (shift, left, right), of which -1 is unbounded.
    bias, bool_mask and block_mask have four dimensions; tiles: rows and keys of a tile of the block_mask.
    """

    scale: float
    score: Symbol | None = None
    seen: Symbol | None = None
    softcap: float = 0.0
    band: tuple[int, int, int] = (0, -1, -1)
    alibi_slopes: Any = None
    bias: Any = None
    bool_mask: Any = None
    block_mask: Any = None
    tiles: tuple[int, int] = (128, 128)


def band(causal: bool, align: int, offset: int, window: tuple[int, int], rows: int, keys: int) -> tuple[int, int, int]:
    """The band of a call, from the options that the extension takes."""
    left, right = window
    return (keys - rows, 0, offset)[align], left, 0 if causal else right


def four(x: Any) -> Any:
    """A bias or a mask with four dimensions; None as it is."""
    return None if x is None else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def floats(xp: Any, x: Any) -> Any:
    return x.to(xp.float32) if hasattr(x, "to") else x.astype(xp.float32)


def by_head(q: Any, x: Any) -> Any:
    """q @ x^T, where a head of x belongs to several heads of q: ``[batch, heads, rows, keys]``."""
    batch, heads, rows, dim = q.shape
    grouped = q.reshape(batch, x.shape[1], heads // max(1, x.shape[1]), rows, dim) @ x[:, :, None].swapaxes(-1, -2)
    return grouped.reshape(batch, heads, rows, x.shape[2])


def scores(xp: Any, steps: Steps, q: Any, k: Any, first: Any, take: Any, stand_ins: Any = ()) -> tuple[Any, Any]:
    """(scores of rows, -inf where a key is hidden; the evaluation of expressions over them).

    Args:
      q: the rows, ``[batch, heads, rows, dim]``; k: all keys, both in float32.
      first: the place of the first row.
      take: a function that gives these rows of a bias or a bool_mask.
      stand_ins: see ``Evaluation``.
    """

    def places(n: int) -> Any:
        return xp.arange(n, device=q.device) if hasattr(xp, "as_tensor") else xp.arange(n)

    batch, heads, n, _ = q.shape
    rows, keys = first + places(n)[:, None], places(k.shape[2])
    shift, left, right = steps.band
    found = by_head(q, k) * steps.scale
    if steps.softcap:
        found = steps.softcap * xp.tanh(found / steps.softcap)
    if steps.bias is not None:
        found = found + take(steps.bias)
    if steps.alibi_slopes is not None:
        found = found - steps.alibi_slopes[..., None, None] * abs(rows + shift - keys)
    inputs = {"score": found, "q_index": rows, "k_index": keys}
    inputs |= {"batch": places(batch)[:, None, None, None], "head": places(heads)[:, None, None]}
    run = Evaluation(xp, inputs, stand_ins)
    if steps.score is not None:
        found = xp.broadcast_to(run(steps.score), found.shape)
    for shown in _shown(xp, steps, rows, keys, take, run):
        found = xp.where(shown, found, -math.inf)
    return found, run


def _shown(xp: Any, steps: Steps, rows: Any, keys: Any, take: Any, run: Any) -> Any:
    """The elements that each of the masks shows."""
    shift, left, right = steps.band
    if left >= 0:
        yield keys >= rows + shift - left
    if right >= 0:
        yield keys <= rows + shift + right
    if steps.bool_mask is not None:
        yield take(steps.bool_mask)
    seen = None if steps.seen is None else run(steps.seen)
    if steps.block_mask is None:
        yield from () if seen is None else (seen,)
        return
    last = [n - 1 for n in steps.block_mask.shape[2:]]
    at = [xp.clip(x // n, 0, most) for x, n, most in zip((rows, keys), steps.tiles, last)]
    state = steps.block_mask[:, :, at[0], at[1]]
    yield state != 0 if seen is None else (state == 2) | (state != 0) & seen


def weights(xp: Any, found: Any, lse: Any) -> Any:
    """The weights of rows with these scores and LSEs ``[batch, heads, rows]``."""
    top = lse[..., None]
    return xp.where(top == -math.inf, 0.0, xp.exp(found - top))


def upstream(xp: Any, weight: Any, by_weight: Any, dlse: Any) -> Any:
    """The derivative by the scores, divided by the weights; by_weight and dlse: those by the weights and by the LSE."""
    total = 0.0
    if by_weight is not None:
        by_weight = xp.where(weight == 0, 0.0, by_weight)
        # Not the sum of dO * O, whose 16 bits would leave a rest where the sum over a row cancels.
        total = by_weight - (weight * by_weight).sum(-1)[..., None]
    return total if dlse is None else total + dlse[..., None]


def by_elements(xp: Any, loads: Any, weight: Any, slope: Any, run: Any) -> Any:
    """(load, places, derivative by the elements that it reads there); summed where the places do not vary."""
    for load, partial in loads:
        part = xp.where(weight == 0, 0.0, weight * slope * run(partial))  # a hidden key's slope may be infinite
        at = run.indices(load)
        shape = (1, 1, 1, 1)
        for i in at:
            shape = tuple(max(a, b) for a, b in zip(shape, (1,) * (4 - i.ndim) + tuple(i.shape)))
        for d in range(4):
            if shape[d] == 1 and part.shape[d] != 1:
                part = part.sum(d)[(slice(None),) * d + (None,)]
        yield load, tuple(xp.broadcast_to(i, part.shape) for i in at), part
