"""onepass.key_mass and onepass.weights of tensors that may require gradients."""

import sys
from typing import Any

import torch

from . import _statistics, _torch_checks
from ._torch_op import _readable, _threads


def key_mass(q: Any, k: Any, lse: Any, **options: Any) -> Any:
    """``onepass.key_mass`` of tensors on CPUs and CUDA devices.

    The masses have no gradient. torch.compile breaks its graph here.

    Args, Returns, Raises: as ``onepass.key_mass``.
    """
    return _found(_statistics.key_mass, q, k, lse, options)


def weights(q: Any, k: Any, lse: Any, **options: Any) -> Any:
    """``onepass.weights`` of tensors on CPUs and CUDA devices.

    The weights have no gradient. torch.compile breaks its graph here.

    Args, Returns, Raises: as ``onepass.weights``.
    """
    return _found(_statistics.weights, q, k, lse, options)


def _found(function: Any, q: Any, k: Any, lse: Any, options: dict[str, Any]) -> Any:
    _torch_checks.check_tensors(("q", "k", "lse"), (q, k, lse), 3)
    options["threads"] = _threads(q, options.get("threads"))
    if "torch._dynamo" in sys.modules:
        function = torch.compiler.disable(function)
    with torch.no_grad():
        return function(_readable(q), _readable(k), _readable(lse), **options)
