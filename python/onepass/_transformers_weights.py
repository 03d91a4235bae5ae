"""The weights of a layer for ``output_attentions``."""

from typing import Any, Literal

import torch
from torch import Tensor

import onepass.torch

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # older versions tell their layers
    _active_collector = None


def asked(told: dict[str, Any]) -> bool:
    """True if a call of a model returns attentions. Not all models tell their layers: transformers collects them."""
    collected = None if _active_collector is None else _active_collector.get()
    return bool(told.get("output_attentions")) or any("attentions" in name for name in collected or ())


def weights(query: Tensor, key: Tensor, lse: Tensor, mean: Literal["heads"] | None, words: dict[str, Any]) -> Tensor:
    """``onepass.torch.weights`` in the dtype of the query, as eager attention has it; words: of the call."""
    tensors = {name: x for name, x in words.items() if isinstance(x, Tensor)}
    words = words | {name: x.detach() for name, x in tensors.items()}
    found = onepass.torch.weights(query, key, lse, mean=mean, **words).to(query.dtype)
    return _Constant.apply(found, query, key, *tensors.values())


class _Constant(torch.autograd.Function):
    """Weights that a loss must not be differentiated by, since the gradient would be lost silently."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, *given: Tensor) -> Tensor:
        """given: all tensors that the weights depend on, since any of them may be the only one that is trained."""
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("onepass does not support gradients of output_attentions; use eager attention")
