"""From the keyword arguments of a call to what the extension takes."""

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

from . import _arrays, _onepass
from ._flex.trace import texts
from ._values import integer, is_array, number, parts, seed_array, seed_of, text, threads_of, window_sides

# mask -> (causal, onepass::Align)
_BOTTOM_RIGHT, _OFFSET = 0, 2
_MASKS: dict[str | None, tuple[bool, int]] = {None: (False, _BOTTOM_RIGHT)}
_MASKS |= {name: (causal, align) for name, causal, align in _onepass.masks()}

SEED = None  # the default, for calls without dropout

# Inputs besides q, k and v, and what they are converted to: the 16-bit and 64-bit forms that frameworks keep them in.
_INPUTS = [
    (name, dtype or None, backward)
    for name, dtype, forward, backward, is_input in _onepass.attention_tensors()
    if is_input and forward and name not in ("q", "k", "v")
]
_SIDE_INPUTS = tuple((name, dtype) for name, dtype, backward in _INPUTS if backward)
# Those of a forward alone: of a cache, and factors of fp8, which only attention() has.
_CACHE_INPUTS = tuple((name, dtype) for name, dtype, backward in _INPUTS if not backward and dtype == "int32")
_FP8_INPUTS = tuple((name, dtype) for name, dtype, backward in _INPUTS if not backward and dtype == "float32")
CHOICES = _onepass.attention_choices()  # the words of options that are one of two, the default first

_LAYOUTS = {"bhsd": False, "bshd": True}


def keywords(function: Any) -> dict[str, Any]:
    """The keyword arguments of a function and their defaults."""
    return getattr(function, "keywords", None) or function.__kwdefaults__ or {}


def tokens_first(layout: str) -> Any:
    """True if batched tensors are [batch, seq, heads, dim], rather than [batch, heads, seq, dim]."""
    try:
        return _LAYOUTS[layout]
    except (KeyError, TypeError):
        raise ValueError(f"layout must be 'bhsd' or 'bshd' (got {layout!r})") from None


def is_packed(options: Mapping[str, Any]) -> bool:
    return options["cu_seqlens_q"] is not None or options["cu_seqlens_k"] is not None


def asks_for_max(return_max: Any) -> bool:
    if return_max is not False and return_max is not True and return_max != "head":
        raise ValueError(f"return_max must be False, True or 'head' (got {return_max!r})")
    return bool(return_max)


def of_heads(row_max: Any, options: Mapping[str, Any]) -> Any:
    """The largest of each head, [heads], -inf without rows; options: of a call, with cu_seqlens and tokens_first."""
    rows = 1 if is_packed(options) else (0, 1) if options["tokens_first"] else (0, 2)
    if 0 in row_max.shape:
        return row_max.sum(rows) - math.inf
    return row_max.amax(rows) if hasattr(row_max, "amax") else row_max.max(rows)


def _probability(name: str, x: Any) -> Any:
    """In float64: rounding to float32 would make a small negative number 0."""
    value = number(name, x, "a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1 (got {value:g})")
    return value


def _softcap(name: str, x: Any) -> float:
    """In float64: rounding to float32 would make a small number 0, which is none."""
    value = number(name, x, "0 (none) or a positive number")
    if 0 < abs(value) < 1e-40:
        raise ValueError(f"{name} must be 0 (none) or 1e-20 to 1e+20 (got {value:g})")
    return value


def _no_seed(dropout_p: float) -> int:
    """0, which nothing reads; an error where dropout would draw the same weights in every call."""
    if dropout_p != 0 and 0 < number("dropout_p", dropout_p) <= 1:
        raise ValueError(
            f"dropout_p is {dropout_p!r}: seed must be an integer from 0 to 2^64 - 1 (got None). The seed alone "
            "decides which weights are dropped. Give each step its own, and attention_backward the same"
        )
    return 0


def _four(name: str, start: Any) -> Any:
    accepted = "four integers (batch, head, row, key) from 0 to 2^32 - 1"
    if isinstance(start, (str, bytes, Mapping, Set)) or len(parts(name, start)) != 4:
        raise ValueError(f"{name} must be {accepted} (got {start!r})")
    return tuple(integer(name, x, 0, 2**32 - 1, accepted) for x in start)


def _window(window: Any) -> Any:
    left, right = window_sides(window)
    limit = 2**62
    return tuple(
        integer(f"window's {side} side", x, -1, limit, "-1 (unbounded) or a larger integer")
        for side, x in (("left", left), ("right", right))
    )


def _choice(name: str, x: Any) -> Any:
    words = CHOICES[name]
    if not isinstance(x, str) or x not in words:
        raise ValueError(f"{name} must be {' or '.join(map(repr, words))} (got {x!r})")
    return words.index(x)


def not_default(name: str, word: Any) -> Any:
    """None in place of the default: what a PyTorch schema has."""
    return None if word == CHOICES[name][0] else word


def bound(name: str, x: Any) -> Any:
    return integer(name, x, 1, 2**62, "None (unknown) or a positive integer")


def _tile(name: str, x: Any) -> Any:
    return integer(name, x, 1, 2**31 - 1, "None (128) or a positive integer")


def _align_offset(mask: str | None, align: Any, offset: Any) -> Any:
    if (align == _OFFSET) != (offset is not None):
        masks = "'causal_offset' or 'aligned_offset'"
        got = f"align_offset={offset!r} and mask={mask!r}"
        raise ValueError(f"align_offset must be given with mask {masks}, and only with these (got {got})")
    limit = 2**60
    return 0 if offset is None else integer("align_offset", offset, -limit, limit, "an integer from -2^60 to 2^60")


def expression(name: str, x: Any) -> Any:
    if x is None or isinstance(x, str):
        return text(name, x or "")
    accepted = "a function, or a C++ expression in text such as 'q_index >= k_index'"
    raise TypeError(f"{name} must be {accepted} (got {type(x).__name__})")


def _switch(name: str, x: Any) -> bool:
    return bool(x)


# By what the table calls an option's type: the default of its keyword, what the extension takes then, and how another
# value is read.
_KINDS: dict[str, tuple[Any, Any, Callable[[str, Any], Any]]] = {
    "switch": (False, False, _switch),
    "integer": (None, 0, bound),
    "number": (0.0, 0.0, number),
    "optional number": (None, None, number),
    "text": (None, "", expression),
    "choice": ("", 0, _choice),  # the default is its first word
    "numbers": (None, (0, 0, 0, 0), _four),
}
_READ = {"softcap": _softcap, "dropout_p": _probability, "mask_tile_q": _tile, "mask_tile_k": _tile}


def _rows(whole: bool) -> list[tuple[Any, ...]]:
    """Options that _KINDS reads; whole: also those that a forward alone has."""
    rows = []
    for name, kind, forward, backward in _onepass.attention_options():
        if kind in _KINDS and forward and (backward or whole):
            default, at_default, read = _KINDS[kind]
            default = CHOICES[name][0] if kind == "choice" else default
            rows.append((name, default, at_default, _READ.get(name, read)))
    return rows


_FORWARD_ROWS, _ROWS = _rows(True), _rows(False)


def mod_items(mod_buffers: Any) -> list[Any]:
    """(name, array) of each."""
    if not isinstance(mod_buffers, Mapping):
        raise TypeError(f"mod_buffers must be a dict of arrays by name (got {type(mod_buffers).__name__})")
    return [(text("a mod buffer's name", str(name)), array) for name, array in mod_buffers.items()]


def _mod_buffers(mod_buffers: Any, place: Any) -> list[Any]:
    return [
        (
            name,
            _arrays.exported(f"mod buffer {name}", of_one(array), place, convert="int32" if is_int64(array) else None),
        )
        for name, array in mod_items(mod_buffers)
    ]


def is_int64(array: Any) -> bool:
    return str(getattr(array, "dtype", "")).rpartition(".")[2] == "int64"


def of_one(array: Any) -> Any:
    """A number as an array of one element, which expressions name without an index."""
    return array.reshape(1) if getattr(array, "shape", None) == () else array


def _mask_sentence(mask: str | None) -> str:
    got, hint = repr(mask)[:200], ""
    if hasattr(mask, "shape"):
        got, hint = "an array", ": an array of bools goes to bool_mask, an additive one to bias"
    elif isinstance(mask, str) and (theirs := _onepass.foreign_word(text("mask", mask))):
        hint = f": {theirs}"
    return f"mask must be one of {', '.join(map(repr, _MASKS))} (got {got}){hint}"


def options(place: Any, given: dict[str, Any]) -> Any:
    """The extension's arguments, from the keyword arguments of attention by name."""
    if hasattr(given["block_mask"], "in_call"):  # a BlockMask
        given = {**given, **given["block_mask"].in_call(given)}
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given = {**given, **texts(given)}
    mask, window, mod_buffers = given["mask"], given["window"], given["mod_buffers"]
    try:
        causal, align = _MASKS[mask]
    except (KeyError, TypeError):
        raise ValueError(_mask_sentence(mask)) from None
    dropout_p, seed = given["dropout_p"], given["seed"]
    layout, implementation = given["layout"], given["implementation"]
    if is_array(seed):
        in_memory, seed = seed_array(seed), 0
        given = {**given, "dropout_seed": in_memory if dropout_p != 0 else None}
    # Most calls have most options at their default: a function for each would be a fifth of a small call.
    options = {
        "tokens_first": False if layout == "bhsd" else tokens_first(layout),
        "causal": causal,
        "align": align,
        "align_offset": _align_offset(mask, align, given["align_offset"]),
        "window": (-1, -1) if window is None else _window(window),
        "seed": _no_seed(dropout_p) if seed is SEED else seed_of(seed),
        "mod_buffers": [] if mod_buffers is None else _mod_buffers(mod_buffers, place),
        "implementation": "" if implementation is None else text("implementation", str(implementation)),
        "threads": threads_of(given["threads"]),
        "stream": place.stream,
        "workspace": place.workspace,
    }
    forward = "dout" not in given and "tq" not in given
    for name, default, at_default, read in _FORWARD_ROWS if forward else _ROWS:
        x = given[name]
        is_default = x is default or (x.__class__ is float and x == at_default)
        options[name] = at_default if is_default else read(name, x)
    for name, convert in _SIDE_INPUTS + (_CACHE_INPUTS + _FP8_INPUTS) * forward:
        x = given.get(name)
        options[name] = None if x is None else _arrays.exported(name, x, place, convert=convert)
    return options


def batched(tokens_first: bool) -> str:
    """The form of a batched tensor, in a sentence."""
    return "[batch, seq, heads, dim]" if tokens_first else "[batch, heads, seq, dim]"


def inputs(place: Any, q: Any, k: Any, v: Any, tokens_first: bool = False) -> Any:
    views = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is None:
            raise TypeError(f"{name} must be an array of shape {batched(tokens_first)} (got None)")
        views.append(_arrays.exported(name, x, place))
        if len(x.shape) < 2:
            raise ValueError(
                f"{name} must have the shape {batched(tokens_first)}, or with cu_seqlens [total, heads, dim] "
                f"(got {list(x.shape)})"
            )
    return views
