"""The largest scores of a model's attention layers, recorded while the model runs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class Recorder:
    """The maxima of one ``with record_max(model)``, by the names of the model's modules."""

    def __init__(self, model: Any) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.found: dict[str, Tensor] = {}

    def take(self, module: Any, most: Tensor) -> None:
        name = self.names[module]
        most = most.detach()
        before = self.found.get(name)
        self.found[name] = most if before is None else torch.maximum(before, most)


def recorded(module: Any, attention: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of a module, which also tells the recorders of the module's model."""
    recorders = [x for x in _recorders if module in x.names]
    if not recorders:
        return attention

    def call(*given: Any, **words: Any) -> Any:
        *found, most = attention(*given, return_max="head", **words)
        for recorder in recorders:
            recorder.take(module, most)
        return found[0] if len(found) == 1 else tuple(found)

    return call


@contextlib.contextmanager
def recording(model: Any) -> Iterator[dict[str, Tensor]]:
    recorder = Recorder(model)
    _recorders.append(recorder)
    try:
        yield recorder.found
    finally:
        _recorders.remove(recorder)


_recorders: list[Recorder] = []
