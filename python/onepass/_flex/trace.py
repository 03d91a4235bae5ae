"""From a user's functions to the texts of their expressions and the arrays that the texts read."""

import sys
from collections.abc import Callable
from typing import Any

from . import activations, casts, functions, row  # noqa: F401  what symbols can do
from .arithmetic import number, symbol
from .numpy_variables import wrapped
from .symbol import INFINITY, Symbol
from .text import Buffers, text

_INDICES = ("batch", "head", "q_index", "k_index")


def inputs(sizes: Any, device: Any = None) -> list[Symbol]:
    """batch, head, q_index and k_index of a call of these sizes; None if one is not known."""
    return [
        Symbol(name, "int", (), 0, INFINITY if size is None else size - 1, device=device)
        for name, size in zip(_INDICES, sizes)
    ]


def score(device: Any = None) -> Symbol:
    return Symbol("score", "float", device=device)


def call_with(function: Callable[..., Any], symbols: list[Symbol]) -> Symbol:
    """The result of a function of NumPy's users, or of PyTorch's, for symbols."""
    torch = sys.modules.get("torch")
    if torch is None:
        return symbol(wrapped(function)(*symbols))
    from .torch_mode import Indexing

    with Indexing():
        # Dynamo makes tensors of NumPy's arrays
        return symbol(function(*symbols) if torch.compiler.is_compiling() else wrapped(function)(*symbols))


def sizes_of(given: Any) -> tuple[Any, ...]:
    """(batch, heads, rows, keys) of a call of attention by the names of its arguments; None if one is not known."""
    q, k = given["q"].shape, given["k"].shape
    packed_q, packed_k = given.get("cu_seqlens_q") is not None, given.get("cu_seqlens_k") is not None
    rows, heads = (2, 1) if given.get("layout", "bhsd") == "bhsd" else (1, 2)
    keys = None if given.get("page_table") is not None else k[0] if packed_k else k[rows] if len(k) > 2 else None
    if packed_q or packed_k or len(q) != 4:
        return None, q[1] if len(q) > 1 else None, q[0], keys
    return q[0], q[heads], q[rows], keys


def texts(given: dict[str, Any], call: Any = call_with) -> dict[str, Any]:
    """score_mod, mask_mod and mod_buffers of a call of attention, whose functions become texts; text is kept."""
    buffers = Buffers(given["mod_buffers"])
    score_mod, mask_mod = given["score_mod"], given["mask_mod"]
    sizes, torch = sizes_of(given), sys.modules.get("torch")
    device = given["q"].device if torch is not None and isinstance(given["q"], torch.Tensor) else None
    if callable(score_mod):
        result = call(score_mod, [score(device), *inputs(sizes, device)])
        score_mod = text(number(result), buffers)
    if callable(mask_mod):
        mask_mod = text(call(mask_mod, inputs(sizes, device)), buffers)
    return {"score_mod": score_mod, "mask_mod": mask_mod, "mod_buffers": buffers.given()}


def mask_text(mask_mod: Any, sizes: Any, mod_buffers: Any = None) -> tuple[str, Any]:
    """(text, buffers by name) of a mask_mod alone."""
    buffers = Buffers(mod_buffers)
    found = text(call_with(mask_mod, inputs(sizes)), buffers)
    return found, buffers.given()
