"""onepass's arguments from flash-attn's, and what the two write differently."""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

import onepass
from onepass import _onepass
from onepass._attention import call_of
from onepass._options import keywords
from onepass._torch_op import _readable
from onepass._values import integer, window_sides


def words_of(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    sinks: Tensor | None = None,
) -> dict[str, Any]:
    """onepass's arguments from flash-attn's."""
    if isinstance(window_size, torch.Tensor):
        window_size = window_size.tolist()
    left, right = window_sides(window_size)
    return {
        "mask": "causal_bottom_right" if causal else None,
        "window": (left, 0 if causal and right > 0 else right),  # causal is the right side there
        "scale": softmax_scale,
        "softcap": max(softcap, 0.0),  # there <= 0 is none
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "dropout_p": dropout_p,
        "deterministic": deterministic,
    }


def chunked(size: int, last: Tensor, pad: Any = None) -> dict[str, Any]:
    """Only keys of a row's own chunk are visible; last: each sequence's keys without its rows; pad: hidden keys at its
    start, of which no chunk counts any."""
    size = integer("attention_chunk", size, 1, 2**31 - 1, "0 (none) or a positive integer")
    row, key, buffers = "(q_index + last[batch])", "k_index", {"last": last}
    if pad is not None:
        row, key = "(q_index + last[batch] - pad[batch])", "(k_index - pad[batch])"
        buffers["pad"] = pad
    return {"mask_mod": f"{row} >= 0 && {row} / {size} == {key} / {size}", "mod_buffers": buffers}


def seeded(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Tensor | None,
    rng_state: Any = None,
) -> tuple[Any, ...]:
    """(the words that forward and backward share, the seed as a tensor)."""
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, False)
    del words["deterministic"]
    if dropout_p and rng_state is None:
        rng_state = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    words["seed"] = int(rng_state) if dropout_p else 0
    return words, rng_state


def of_qkv(qkv: Tensor, heads_q: int | None) -> Any:
    """q, k and v, views of a packed projection."""
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        return qkv.unbind(2)
    if qkv.dim() != 4 or heads_q is None or qkv.shape[2] < heads_q or (qkv.shape[2] - heads_q) % 2:
        raise ValueError(
            "qkv must have shape [batch, seq, 3, heads, dim], or [batch, seq, num_heads_q + 2 * heads_k, dim] with "
            f"num_heads_q (got {list(qkv.shape)}{'' if heads_q is None else f' with num_heads_q={heads_q}'})"
        )
    return qkv.split([heads_q, *2 * [(qkv.shape[2] - heads_q) // 2]], 2)


def bound(length: Any) -> Any:
    return int(length) or None if isinstance(length, torch.Tensor) else length or None


def their_lse(lse: Any) -> Any:
    """Theirs is +inf in rows that see no key."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def our_lse(lse: Any) -> Any:
    return lse.masked_fill(lse == torch.inf, -torch.inf)


def checked(q: Tensor, k: Tensor, v: Tensor, words: Any) -> None:
    """Raises what attention would raise, and computes nothing. The tracer of a compiled call has looked by itself.

    A call like one that was accepted is not checked again: that would take a third of a decoding step's host time. A
    call with pages is always checked, because the check reads the page table, and so is one with buffers.
    """
    if is_compiling() or type(q) is not torch.Tensor:
        return
    like: Any = None
    if words.get("page_table") is None and words.get("mod_buffers") is None:
        like = (*words, *map(_kind, (q, k, v)), *map(_kind, words.values()))
    if like in _accepted:
        return
    given = {**keywords(onepass.attention), **words}
    q, k, v = map(_readable, (q, k, v))
    _onepass.check(call_of(q, k, v, given)[-1])
    if len(_accepted) >= 1000:
        _accepted.clear()
    if like is not None:
        _accepted[like] = True


_accepted: dict[Any, bool] = {}


def _kind(x: Any) -> Any:
    """All that a check looks at."""
    return (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else x
