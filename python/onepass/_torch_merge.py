"""onepass.torch.merge."""

from typing import Any

import torch

import onepass

from . import _merge, _torch_autograd, _torch_checks, _values


def merge(outs: Any, lses: Any) -> tuple[Any, Any]:
    """``onepass.merge`` with gradients by outs and lses, also in torch.compile and torch.func.

    Without gradients, compilation and functional transforms it is ``onepass.merge``, one kernel on CUDA. With any of
    them it consists of PyTorch's own operations.

    Args, Returns, Raises: as ``onepass.merge``.
    """
    outs, lses = _values.arrays("outs", outs), _values.arrays("lses", lses)
    tensors = (*outs, *lses)
    for name, parts in (("outs", outs), ("lses", lses)):
        _torch_checks.check_tensors([f"{name}[{i}]" for i in range(len(parts))], parts, len(parts))
    records = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)
    if not records and _torch_autograd.undispatched(tensors):
        return onepass.merge(outs, lses)
    packed = _merge.packed_parts(outs, lses)
    rows = torch.stack([x.movedim(0, -1) if packed else x for x in lses]).float()
    top = rows.detach().amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (rows - top).exp()
    total = weights.sum(0)
    some = total != 0
    total = total.masked_fill(~some, 1)
    read = [x.float().masked_fill((s == -torch.inf)[..., None], 0) for x, s in zip(outs, rows)]
    lse = (top + total.log()).masked_fill(~some, -torch.inf)
    out = sum(x * w[..., None] for x, w in zip(read, weights)) / total[..., None]
    return out, lse.movedim(0, -1) if packed else lse
