"""The checks of a call, what its ranks agree on, and the scheme that computes it."""

from typing import Any

import torch

import onepass
from onepass._options import asks_for_max
from onepass._ranks.call import Options
from onepass._ranks.layout import node_layouts
from onepass._ranks.plan import Kind, check_scheme, kind_of, only_of_gather, plan_of, scheme_of

from .call import FACTORS, Call, factors_of
from .gather import Gather
from .layout import Layout
from .mesh import Mesh
from .ranks import TwoRanks, ranks_of
from .ring import Ring
from .ulysses import Ulysses

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def prepared(q: Any, k: Any, v: Any, group: Any, given: Any, agree: bool = True, drawn: Any = None) -> Any:
    """The scheme that computes a call, after all ranks have agreed on it. drawn: a number for a seed, int64 [1]."""
    ranks = ranks_of(group)
    kind, complaint = None, None
    try:
        kind, call, chosen = _checked(ranks, q, k, v, given)
    except (ValueError, TypeError, RuntimeError) as error:
        complaint = error
    tensors = q, k, v, given["sinks"], given["alibi_slopes"], given["bias"]
    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    if agree or complaint:
        facts = {} if complaint else _facts(tensors, given["bool_mask"], kind, call, chosen, given)
        ranks.agree(device, complaint, facts)
    if given["dropout_p"] and given["seed"] is None:
        if drawn is None:
            drawn = torch.randint(2**62, (1,), device="cpu")  # on every rank, so that their generators stay together
        call.options.words["seed"] = ranks.of_first(drawn, device)
    plan = plan_of(kind)
    if isinstance(ranks, TwoRanks):
        assert kind is not None
        nodes, rows = node_layouts(given["layout"], ranks.within.size, ranks.between.me)
        plan = plan_of(kind._replace(layout=nodes))
        return Mesh(ranks.within, ranks.between, plan, rows, call, (q.shape[1], k.shape[1]))
    if chosen == "gather":
        return Gather(ranks, plan, call, given["head_groups"])
    if chosen == "ring":
        return Ring(ranks, plan, call)
    return Ulysses(ranks, plan, call, q.shape[1], k.shape[1])


def _facts(tensors: Any, mask: Any, kind: Any, call: Any, chosen: str, given: Any) -> dict[str, Any]:
    """Facts that must be the same on all ranks, or they would wait for each other."""
    q, k, v, *side = tensors
    grad = torch.is_grad_enabled()
    options = {name: x for name, x in call.options.words.items() if name not in ("threads", "mod_buffers")}
    return {
        "batch, heads and dims of q, k and v": [(*x.shape[:2], x.shape[3]) for x in (q, k, v)],
        "dtypes and devices of q, k and v": [(str(x.dtype)[6:], x.device.type) for x in (q, k, v)],
        "layout": kind.layout,
        "scheme": chosen,
        "mask": (kind.left, kind.right, kind.documents),
        "options": (options, given["reproducible"], given["head_groups"], given["return_lse"], given["return_max"]),
        "side inputs": [x is not None for x in (*side, mask, *(given[name] for name in FACTORS))],
        "gradients that are wanted": [x is not None and grad and x.requires_grad for x in tensors],
    }


def check_layout(layout: Any, ranks: Any) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a context_parallel.Layout (got {type(layout).__name__})")
    if layout.ranks != ranks.size:
        raise ValueError(f"layout must be for {ranks.size} ranks, as the group has (got {layout.ranks})")


def _checked(ranks: Any, q: Any, k: Any, v: Any, given: Any) -> tuple[Kind, Call, str]:
    """The kind of a call, its options and its scheme; an error if this rank cannot make it."""
    layout, scheme = given["layout"], given["scheme"]
    check_layout(layout, ranks)
    if isinstance(ranks, TwoRanks):
        option = only_of_gather(given)
        if scheme not in ("mesh", "auto") or option:
            got = option or repr(scheme)
            raise ValueError(f"scheme must be 'mesh' or 'auto' with a group of two dimensions (got {got})")
    else:
        check_scheme(scheme)
    _check_tensors(q, k, v, layout.count(ranks.me))
    kind = kind_of(layout, given, q.shape[0])
    of_rows = [name for name in ("bias", "bool_mask") if _has_rows(given[name])]
    sizes = *q.shape[:2], k.shape[1], q.shape[3], v.shape[3], q.element_size()
    chosen = scheme_of(given, kind, of_rows, isinstance(ranks, TwoRanks), sizes, q.is_cuda)
    names = ("scale", "softcap", "dropout_p", "seed", "score_mod", "mask_mod", "mod_buffers", "threads")
    deterministic = bool(
        given["deterministic"] or given["reproducible"] or torch.are_deterministic_algorithms_enabled()
    )
    words = {name: given[name] for name in names}
    options = Options(kind.left, kind.right, words, deterministic, kind.documents)
    call = Call(options, return_max=asks_for_max(given["return_max"]))
    _check_side(q, layout, ranks.me, given, chosen)
    _check_factors(q, k, v, given)
    _try(q, k, v, call, given)
    return kind, call, chosen


def _check_tensors(q: Any, k: Any, v: Any, rows: int) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor (got {type(x).__name__})")
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape [batch, heads, rows, dim] (got {list(x.shape)})")
        if x.shape[2] != rows:
            raise ValueError(f"{name} must have {rows} rows, as layout gives this rank (got {x.shape[2]})")
        if x.dtype not in _DTYPES or x.dtype != q.dtype:
            raise TypeError(
                f"q, k and v must have one dtype of float32, float16, bfloat16 and float8_e4m3fn (got {name} {x.dtype})"
            )
        if x.device != q.device:
            raise ValueError(f"{name} must be on {q.device}, as q is (got {x.device})")


def _check_factors(q: Any, k: Any, v: Any, given: Any) -> None:
    """The factors of float8_e4m3fn. Blocks of rows would count from the beginning of each part."""
    factors = factors_of(given)
    for name, x in factors.items():
        if name != "v_mean" and isinstance(x, torch.Tensor) and x.dim() > 2 and x.shape[2] != 1:
            raise ValueError(f"{name} must not have blocks; give [batch|1, heads|1] (got {list(x.shape)})")
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor (got {type(x).__name__})")
    tensors = q, k, v, given["sinks"], given["alibi_slopes"], given["bias"], *factors.values()
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if q.dtype == torch.float8_e4m3fn and wanted:
        raise ValueError("context_parallel.attention does not support gradients of q, k and v in float8_e4m3fn")


def _has_rows(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() == 4 and x.shape[2] != 1


def _check_side(q: Any, layout: Layout, rank: int, given: Any, scheme: str) -> None:
    sizes = (q.shape[0], q.shape[1], layout.count(rank), layout.length)
    for name in ("bias", "bool_mask"):
        x = given[name]
        if x is None:
            continue
        fits = isinstance(x, torch.Tensor) and x.dim() == 4 and all(n in (1, m) for n, m in zip(x.shape, sizes))
        if not fits:
            got = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{name} must have shape {list(sizes)} or 1 in some dimensions (got {got})")
    if (sinks := given["sinks"]) is not None and list(sinks.shape) != [q.shape[1]]:
        raise ValueError(f"sinks must have shape [{q.shape[1]}] (got {list(sinks.shape)})")
    if (slopes := given["alibi_slopes"]) is not None and slopes.shape[-1:] != q.shape[1:2]:
        raise ValueError(f"alibi_slopes must have {q.shape[1]} heads (got {list(slopes.shape)})")


_tried: set[Any] = set()  # calls that were right
_MOST_TRIED = 4096  # then they are forgotten: a new seed is a new call


def _try(q: Any, k: Any, v: Any, call: Call, given: Any) -> None:
    """The call without rows, which raises what the parts would raise. It takes a fifth of a small call's time."""
    names = "sinks", "alibi_slopes", *FACTORS, "bias", "bool_mask"
    side = {name: given[name] for name in names if given[name] is not None}
    o = call.options
    words = {**o.words, "mask": "aligned_offset", "align_offset": 0, "window": (o.left, o.right)}
    words["seed"] = 0 if words["seed"] is None else words["seed"]
    try:
        known = *map(_described, (q, k, v, *side.values())), *side, *map(_described, words.values())
        if known in _tried:
            return
    except (TypeError, RuntimeError):  # arrays of other kinds, buffers
        known = ()
    for name in ("bias", "bool_mask"):
        if name in side:
            side[name] = side[name][:, :, :0, :0] if _has_rows(side[name]) else side[name][..., :0]
    with torch.no_grad():
        onepass.attention(q.detach()[:, :, :0], k.detach()[:, :, :0], v.detach()[:, :, :0], **words, **side)
    if known:
        if len(_tried) >= _MOST_TRIED:
            _tried.clear()
        _tried.add(known)


def _described(x: Any) -> Any:
    """All that checks look at; TypeError or RuntimeError if that cannot be said."""
    if not isinstance(x, torch.Tensor):
        hash(x)
        return x
    return type(x), x.shape, x.stride(), x.dtype, x.device
