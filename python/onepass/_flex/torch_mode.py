"""PyTorch's tensors that are indexed by symbols."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .captured import Captured
from .symbol import Symbol


class Indexing(TorchFunctionMode):
    """Inside the block, `tensor[symbol]` reads an element when the kernel runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and _has_symbol(args[1]):
            return Captured(args[0])[args[1]]
        return func(*args, **(kwargs or {}))


def _has_symbol(index: Any) -> bool:
    if isinstance(index, (tuple, list)):
        return any(isinstance(x, Symbol) for x in index)
    return isinstance(index, Symbol)
