"""Attention over a sequence that is sharded between the ranks of a process group."""

from typing import Any

import torch

import onepass
from onepass._ranks.call import Options
from onepass._ranks.plan import Kind, by_time, check_scheme, kind_of, plan_of, refuse_uneven

from .call import Call, Side
from .gather import Gather
from .layout import Layout
from .mesh import Mesh, node_layouts
from .ranks import TwoRanks, ranks_of
from .ring import Ring
from .ulysses import Ulysses

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _ContextParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scheme: Any, return_lse: bool, mask: Any, q: Any, k: Any, v: Any, *side: Any) -> Any:
        out, lse, saved = _told(scheme, scheme.forward, Side(side, mask), q, k, v)
        ctx.scheme, ctx.return_lse, ctx.shape = scheme, return_lse, out.shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved, mask, *side)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        *saved, mask, sinks, slopes, bias = ctx.saved_tensors
        side = Side((sinks, slopes, bias), mask, ctx.needs_input_grad[6:])
        # Every rank sends the same tensors, whatever its loss uses.
        dout = saved[0].new_zeros(ctx.shape) if dout is None else dout.to(saved[0].dtype)
        if ctx.return_lse and dlse is None:
            dlse = torch.zeros(ctx.shape[:3], dtype=torch.float32, device=dout.device)
        grads = _told(ctx.scheme, ctx.scheme.backward, side, dout, dlse if ctx.return_lse else None, *saved)
        return None, None, None, *grads, *side.results()


def _told(scheme: Any, function: Any, *given: Any) -> Any:
    """The other ranks wait for this one, so they hear of its failure."""
    try:
        return function(*(x.detach() if isinstance(x, torch.Tensor) else x for x in given))
    except BaseException as error:
        for ranks in scheme.groups:
            ranks.tell(error)
        raise


@torch.compiler.disable
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: Layout,
    group: Any = None,
    scheme: str = "auto",
    causal: bool = False,
    window: Any = (-1, -1),
    documents: Any = None,
    bias: Any = None,
    bool_mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: int | None = None,
    score_mod: str | None = None,
    mask_mod: str | None = None,
    mod_buffers: Any = None,
    deterministic: bool = False,
    reproducible: bool = False,
    head_groups: int = 1,
    return_lse: bool = False,
    threads: int | None = None,
) -> Any:
    """Attention of this rank's queries to the keys of all ranks, with gradients. All ranks make the same call.

    Args:
      q, k, v: ``[batch, heads, layout.count(rank), dim]``: the rows that ``layout.shard`` gives this rank.
      layout: the positions that each rank holds.
      group: the process group; None is the default one. A DeviceMesh of two dimensions, or a pair of groups (between
        nodes, within this node): rank r of the layout is rank r % size of its node.
      scheme: ``"gather"``, ``"ring"``, ``"ulysses"``, or ``"auto"``, the fastest by a model. On a mesh it is
        ``"mesh"``, as "auto" knows: ulysses within a node, gather between nodes.
      causal: position i sees positions up to i.
      window: (left, right) positions around the query's own; -1 is unbounded.
      documents: where packed documents begin, and the length; a query sees its own document.
      bias, bool_mask: ``[batch|1, heads|1, rows|1, length|1]``: this rank's rows, and a column for each position.
      alibi_slopes, sinks: as ``onepass.attention``, the same on all ranks.
      score_mod, mask_mod, mod_buffers: as ``onepass.attention``; ``q_index`` and ``k_index`` count in the document.
      deterministic: the same bits every time with this number of ranks.
      reproducible: the same bits for any number of ranks, with layouts of one kind that have equal ``units``. It
        needs the scheme gather.
      head_groups: of gather: the heads of K and V travel in this many groups.
      dropout_p, seed: weights are dropped as one device drops them, for any layout and number of ranks. None: rank 0
        draws a seed from PyTorch's CPU generator. The scheme ring needs cuts at multiples of 4 in their document.

    Returns:
      out, of q's dtype, and with ``return_lse`` the LSE in float32. Gradients of sinks, slopes and a bias are this
      rank's part of a sum over ranks.

    Raises:
      ValueError, TypeError, RuntimeError: the same sentence on every rank, if one rank's arguments are wrong or
      differ from the others'. A rank that fails later ends the others on the CPU with its sentence.
    """
    given = {name: x for name, x in locals().items() if name not in ("q", "k", "v", "group")}
    ranks = ranks_of(group)
    kind, complaint = None, None
    try:
        kind, call, chosen = _checked(ranks, q, k, v, given)
    except (ValueError, TypeError, RuntimeError) as error:
        complaint = error
    tensors = q, k, v, sinks, alibi_slopes, bias
    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    ranks.agree(device, complaint, {} if complaint else _facts(tensors, bool_mask, kind, call, chosen, given))
    if dropout_p and seed is None:
        drawn = torch.randint(2**62, (1,), device="cpu")  # on every rank, so that their generators stay together
        call.options.words["seed"] = ranks.of_first(drawn, device)
    plan = plan_of(kind)
    work: Any
    if isinstance(ranks, TwoRanks):
        assert kind is not None
        nodes, rows = node_layouts(layout, ranks.within.size, ranks.between.me)
        plan = plan_of(kind._replace(layout=nodes))
        work = Mesh(ranks.within, ranks.between, plan, rows, call, (q.shape[1], k.shape[1]))
    elif chosen == "gather":
        work = Gather(ranks, plan, call, head_groups)
    elif chosen == "ring":
        work = Ring(ranks, plan, call)
    else:
        work = Ulysses(ranks, plan, call, q.shape[1], k.shape[1])
    out, lse = _ContextParallel.apply(work, return_lse, bool_mask, q, k, v, sinks, alibi_slopes, bias)
    return (out, lse) if return_lse else out


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
        "options": (options, given["reproducible"], given["head_groups"], given["return_lse"]),
        "side inputs": [x is not None for x in (*side, mask)],
        "gradients that are wanted": [x is not None and grad and x.requires_grad for x in tensors],
    }


def _checked(ranks: Any, q: Any, k: Any, v: Any, given: Any) -> tuple[Kind, Call, str]:
    """The kind of a call, its options and its scheme; an error if this rank cannot make it."""
    layout, scheme = given["layout"], given["scheme"]
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a context_parallel.Layout (got {type(layout).__name__})")
    if layout.ranks != ranks.size:
        raise ValueError(f"layout must be for {ranks.size} ranks, as the group has (got {layout.ranks})")
    if isinstance(ranks, TwoRanks):
        if scheme not in ("mesh", "auto") or given["reproducible"]:
            got = "reproducible=True" if given["reproducible"] else repr(scheme)
            raise ValueError(f"scheme must be 'mesh' or 'auto' with a group of two dimensions (got {got})")
    else:
        check_scheme(scheme)
    _check_tensors(q, k, v, layout.count(ranks.me))
    kind = kind_of(layout, given, q.shape[0])
    chosen = _scheme(ranks, q, k, v, given, kind)
    names = ("scale", "softcap", "dropout_p", "seed", "score_mod", "mask_mod", "mod_buffers", "threads")
    deterministic = bool(
        given["deterministic"] or given["reproducible"] or torch.are_deterministic_algorithms_enabled()
    )
    words = {name: given[name] for name in names}
    call = Call(Options(kind.left, kind.right, words, deterministic, kind.documents))
    _check_side(q, layout, ranks.me, given, chosen)
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
            raise TypeError(f"q, k and v must have one dtype of float32, float16 and bfloat16 (got {name} {x.dtype})")
        if x.device != q.device:
            raise ValueError(f"{name} must be on {q.device}, as q is (got {x.device})")


def _scheme(ranks: Any, q: Any, k: Any, v: Any, given: Any, kind: Kind) -> str:
    """The scheme that is asked for, or the fastest one that serves the call."""
    asked, of_rows = given["scheme"], [n for n in ("bias", "bool_mask") if _has_rows(given[n])]
    if given["reproducible"]:
        if asked not in ("gather", "auto"):
            raise ValueError(f"reproducible=True needs scheme='gather' (got {asked!r})")
        return "gather"
    on_mesh = isinstance(ranks, TwoRanks)
    if of_rows and (asked == "ulysses" or on_mesh):
        raise ValueError(
            f"scheme '{'mesh' if on_mesh else asked}' does not support a {of_rows[0]} with rows; give "
            "[batch|1, heads|1, 1, length]"
        )
    if on_mesh:
        return "mesh"
    if asked == "ring":
        refuse_uneven(kind)
    if asked != "auto":
        return str(asked)
    if ranks.size == 1:
        return "gather"
    shape = (*q.shape[:2], k.shape[1], q.shape[3], v.shape[3], q.element_size())
    return next(name for name in by_time(kind, shape, q.is_cuda) if name != "ulysses" or not of_rows)


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


def _try(q: Any, k: Any, v: Any, call: Call, given: Any) -> None:
    """The call without rows, which raises what the parts would raise."""
    side = {name: given[name] for name in ("sinks", "alibi_slopes") if given[name] is not None}
    for name in ("bias", "bool_mask"):
        if given[name] is not None:
            side[name] = given[name][:, :, :0, :0] if _has_rows(given[name]) else given[name][..., :0]
    o = call.options
    words = {**o.words, "mask": "aligned_offset", "align_offset": 0, "window": (o.left, o.right), **side}
    words["seed"] = 0 if words["seed"] is None else words["seed"]
    with torch.no_grad():
        onepass.attention(q.detach()[:, :, :0], k.detach()[:, :, :0], v.detach()[:, :, :0], **words)
