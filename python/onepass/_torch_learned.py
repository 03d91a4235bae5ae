"""onepass.torch.attention whose score_mod reads mod_buffers that require a gradient."""

from typing import Any

from . import _options, _torch_checks, _torch_op, _values
from ._flex.derivative import by_loads
from ._flex.read import expression
from ._flex.scores import Steps, band, four
from ._flex.torch_gradients import learned, scale_of, tensor_of, tied, with_gradients

_REFUSED = ("cu_seqlens_q", "cu_seqlens_k", "dropout_p", "return_entropy", "fp8", "out", "recomputed", *_torch_op.CACHE)


def tensors(mod_buffers: Any) -> Any:
    """mod_buffers whose arrays of NumPy are tensors: autograd saves nothing else."""
    return {name: tensor_of(x) for name, x in _options.mod_items(mod_buffers)}


def wanted(given: dict[str, Any]) -> dict[str, Any]:
    """The mod_buffers that require a gradient, by name. given: the keywords of attention."""
    buffers = dict(_options.mod_items(given["mod_buffers"]))
    asked = learned(buffers.values())
    return {name: x for name, x in buffers.items() if any(x is y for y in asked)}


def attention(call: Any, given: dict[str, Any], names: dict[str, Any]) -> Any:
    """The results of attention, whose out and lse have a history of these buffers."""
    for used in _REFUSED:
        x = given.get(used)
        if x is not None and (not isinstance(x, (bool, int, float)) or x):
            name = f"mod_buffers[{next(iter(names))!r}]"
            raise RuntimeError(f"attention with {used} does not return the gradient of {name}; pass {name}.detach()")
    buffers = dict(_options.mod_items(given["mod_buffers"]))
    detached = {name: x.detach() if name in names else x for name, x in buffers.items()}
    ties = {name: tied(given[name], names.values()) for name in _torch_op.DIFFERENTIABLE}
    out, lse, *most = call(**{**given, **ties, "mod_buffers": detached, "return_lse": True})
    first = _options.tokens_first(given["layout"])
    q, k, v, out, lse = ((x.swapaxes(1, 2) if first else x) for x in (given["q"], given["k"], given["v"], out, lse))
    score = expression(given["score_mod"], buffers)
    read = [load.value for load, _ in by_loads(score)]
    lost = ((f"mod_buffers[{name!r}]", x) for name, x in names.items() if not any(x is y for y in read))
    _torch_checks.refuse_lost(lost)
    steps = _steps(given, score, buffers, q, k)
    out, lse = with_gradients(out, lse, q, k, v, steps, tuple(buffers.values()), tuple(names.values()))
    out, lse = (x.swapaxes(1, 2) if first else x for x in (out, lse))
    results = (out, *((lse,) if given["return_lse"] else ()), *most)
    return results if len(results) > 1 else out


def _steps(given: dict[str, Any], score: Any, buffers: dict[str, Any], q: Any, k: Any) -> Steps:
    causal, align = _options._MASKS[given["mask"]]
    sides = _values.window_sides(given["window"])
    return Steps(
        scale_of(q, given["scale"]),
        score,
        expression(given["mask_mod"], buffers) if given["mask_mod"] else None,
        given["softcap"] or 0.0,
        band(causal, align, given["align_offset"] or 0, sides, q.shape[2], k.shape[2]),
        given["alibi_slopes"],
        four(given["bias"]),
        four(given["bool_mask"]),
        four(given["block_mask"]),
        (given["mask_tile_q"] or 128, given["mask_tile_k"] or 128),
    )
