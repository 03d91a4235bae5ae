"""Refusals of onepass.torch before it computes: other things than tensors, lost gradients, tensors that do not fit."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

import onepass

from . import _devices, _fit, _kinds, _options, _torch_op
from ._quantize import fp8_of, fp8_options

_SIDE = dict(_options._SIDE_INPUTS + _options._CACHE_INPUTS + _options._FP8_INPUTS)  # name -> dtype or None
_CACHE = tuple(name for name, _ in _options._CACHE_INPUTS)
_MOD_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool)


def check_tensors(names: Sequence[str], given: Iterable[Any], needed: int) -> None:
    """Raise a TypeError that names the argument if it is not a tensor, or if one of the first `needed` is None."""
    for i, (name, x) in enumerate(zip(names, given)):
        if not isinstance(x, torch.Tensor) and (x is not None or i < needed):
            found = "None" if x is None else type(x).__name__
            if hasattr(type(x), "from_kv_blocks"):
                found = "PyTorch's BlockMask, which onepass.torch.flex_attention accepts"
            raise TypeError(f"{name} must be a torch.Tensor (got {found})")
        if x is not None and x.is_nested:
            raise TypeError(
                f"{name} is a nested tensor, which onepass does not support; pass packed sequences "
                "[total, heads, dim] with cu_seqlens_q and cu_seqlens_k to onepass.torch.attention"
            )


def refuse_lost(inputs: Any, function: str = "attention") -> None:
    """Raise a RuntimeError about the first (name, value or None) whose gradient the caller would silently not get."""
    if not torch.is_grad_enabled():
        return
    for name, x in inputs:
        if isinstance(x, torch.Tensor) and x.requires_grad:  # a symbolic number cannot be asked
            raise RuntimeError(
                f"{name}.requires_grad is set, but {function} does not return its gradient; pass {name}.detach()"
            )


def refuse_gradients(c: Any, differentiable: Any) -> None:
    """Raise a RuntimeError where a Call would record a gradient that it does not have."""
    if not torch.is_grad_enabled():
        return
    refuse_lost((name, getattr(c, name)) for name in ("scale", "softcap", "dropout_p", "unified_max"))
    wanted = next((name for name in differentiable if getattr(getattr(c, name), "requires_grad", False)), None)
    if wanted is None:
        return
    if c.fp8 is not None or torch.float8_e4m3fn in (c.q.dtype, c.k.dtype, c.v.dtype):
        what = "FP8 attention"
    elif any(getattr(c, name) is not None for name in _CACHE):
        what = f"attention to a cache ({', '.join(_CACHE)})"
    elif c.k.dtype != c.q.dtype:
        what = f"attention with {c.q.dtype} q and {c.k.dtype} k and v"
    else:
        return
    raise RuntimeError(
        f"{what} does not support gradients, but {wanted}.requires_grad is set; call it under torch.no_grad(), or "
        f"pass {wanted}.detach()"
    )


# ------------------------------------------------------------------------------- shapes and devices without values
def _known(n: Any) -> Any:
    """The size, or what it is in the example that is traced; None if nothing is known about it."""
    if n is None or isinstance(n, int):
        return n
    node = n.node
    return node.hint if node.has_hint() else None


def check_ranks(c: Any) -> None:
    """Raise a ValueError about a q, k or v whose dimensions cannot be named."""
    for name in ("q", "k", "v"):
        if getattr(c, name).dim() < 2:
            sizes = list(getattr(c, name).shape)
            raise ValueError(
                f"{name} must have shape [batch, heads, seq, dim], or [total, heads, dim] with cu_seqlens (got {sizes})"
            )


def _same_device(device: Any, inputs: Any, as_what: Any) -> None:
    for name, x in inputs:
        if isinstance(x, torch.Tensor) and x.device != device:
            raise ValueError(f"{name} must be on {device}, as {as_what} is (got {x.device})")


def _without_values(name: str, x: Any) -> Any:
    """None: a size is not known."""
    sizes = [_known(n) for n in x.shape]
    if None in sizes:
        return None
    dtype = str(x.dtype).rpartition(".")[2]
    converted = _SIDE.get(name)
    if converted and dtype in _kinds.CONVERTED[converted]:
        dtype = converted
    try:
        return _fit.without_values(sizes, dtype, looked_at=name in _SIDE)
    except TypeError:  # NumPy has no such dtype
        raise TypeError(f"{name} must be float32, float16 or bfloat16 (got {dtype})") from None


_BOUNDS = ("mask_tile_q", "mask_tile_k", "max_seqlen_q", "max_seqlen_k")


def check_fit(c: Any, inputs: Any, others: Any = None) -> None:
    """Raise what the call would raise when it runs: devices, and what shapes and dtypes alone show.

    inputs: (name, tensor or None) of the Call. others: (name, tensor or None) of its backward.
    """
    given = [(name, x) for name, x in (*inputs, *(others or ())) if x is not None and name != "random_seed"]
    buffers = list(zip(c.mod_names.split(","), c.mod_buffers)) if c.mod_buffers else []
    _same_device(c.q.device, given, "q")
    _same_device(c.q.device, buffers, "q")
    arrays = {name: _without_values(name, x) for name, x in given}
    mods = [
        (name, _without_values("mod buffer", x) if x.dtype in _MOD_DTYPES and x.dim() else None) for name, x in buffers
    ]
    sides = {name: _known(getattr(c, name)) for name in ("align_offset", *_BOUNDS)}
    window = _known(c.window_left), _known(c.window_right)
    if None in window or any(x is None for x in (*arrays.values(), *(x for _, x in mods))):
        return  # the kernel looks at them
    words = {
        **_options.keywords(onepass.attention),
        **{name: getattr(c, name) for name in (*_torch_op.WORDS, "threads")},
        **sides,
        "window": window,
        "seed": 0,
        "layout": "bshd" if c.tokens_first else "bhsd",
        "deterministic": c.deterministic,
        "accumulation": c.accumulation or "exact",
        "precision": c.precision or "fp32",
    }
    if others is not None:
        words["dout"] = None
    options = _options.options(_devices.Host(), words)
    options["deterministic"] = c.deterministic
    _fit.check(options, arrays, mods, fp8_options(fp8_of(c.fp8)) if c.fp8 else None)


def check_append(call: dict[str, Any]) -> None:
    """check_fit of an append."""
    _same_device(call["k_new"].device, call.items(), "k_new")
    bshd = call.get("layout") == "bshd"
    if call.get("cache_seqlens") is None and call.get("slot_mapping") is None:
        raise ValueError("cache_seqlens or slot_mapping must be given")
    for new, cache in (("k_new", "k_cache"), ("v_new", "v_cache")):
        sizes, room = ([_known(n) for n in call[name].shape] for name in (new, cache))
        slots = call.get("slot_mapping") is not None
        packed, paged = slots or call.get("cu_seqlens_q") is not None, slots or call.get("page_table") is not None
        if len(sizes) != (3 if packed else 4):
            batched = "[batch, seq_new, heads_kv, dim]" if bshd else "[batch, heads_kv, seq_new, dim]"
            form = "[tokens, heads_kv, dim]" if packed else batched
            raise ValueError(f"{new} must have shape {form} (got {sizes})")
        if len(room) != 4:
            batched = "[batch, capacity, heads_kv, dim]" if bshd else "[batch, heads_kv, capacity, dim]"
            form = "[pages, page_size, heads_kv, dim]" if paged else batched
            raise ValueError(f"{cache} must have shape {form} (got {room})")
        heads = sizes[2 if bshd and not packed else 1], room[2 if bshd or paged else 1]
        for what, mine, theirs in (("heads", *heads), ("dim", sizes[-1], room[-1])):
            if None not in (mine, theirs) and mine != theirs:
                raise ValueError(f"{new} must have {what} {theirs}, as {cache} has (got {mine})")
