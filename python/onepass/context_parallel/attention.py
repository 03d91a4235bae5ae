"""Attention over a sequence that is sharded between the ranks of a process group."""

from typing import Any

import torch

from . import compiled
from .call import Side, factors_of, group_of, results
from .layout import Layout
from .prepare import prepared


class _ContextParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scheme: Any, given: Any, mask: Any, factors: Any, q: Any, k: Any, v: Any, *side: Any) -> Any:
        return_lse, return_max = given
        side_of = Side(side, mask, factors=factors, group=group_of(q, k))
        out, lse, most, saved = scheme.told(scheme.forward, side_of, q, k, v)
        if most is not None:
            most = scheme.told(scheme.of_heads, most) if return_max == "head" else most
            ctx.mark_non_differentiable(most)
        ctx.scheme, ctx.return_lse, ctx.shape = scheme, return_lse, out.shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved, mask, *side)
        return out, lse, most

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any, *_: Any) -> Any:
        *saved, mask, sinks, slopes, bias = ctx.saved_tensors
        side = Side((sinks, slopes, bias), mask, ctx.needs_input_grad[7:])
        # Every rank sends the same tensors, whatever its loss uses.
        dout = saved[0].new_zeros(ctx.shape) if dout is None else dout.to(saved[0].dtype)
        if ctx.return_lse and dlse is None:
            dlse = torch.zeros(ctx.shape[:3], dtype=torch.float32, device=dout.device)
        grads = ctx.scheme.told(ctx.scheme.backward, side, dout, dlse if ctx.return_lse else None, *saved)
        return None, None, None, None, *grads, *side.results()


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
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    deterministic: bool = False,
    reproducible: bool = False,
    head_groups: int = 1,
    return_lse: bool = False,
    return_max: Any = False,
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
      q_descale, k_descale, v_descale, v_mean: of q, k and v in float8_e4m3fn, as ``onepass.attention``, but without
        blocks. Such a call has no gradients, and its out is bfloat16.
      deterministic: the same bits every time with this number of ranks.
      reproducible: the same bits for any number of ranks, with layouts of one kind that have equal ``units``. It
        needs the scheme gather.
      head_groups: the heads of K and V travel in this many groups, which needs less memory. More than 1 needs the
        scheme gather.
      dropout_p, seed: weights are dropped as one device drops them, for any layout and number of ranks. None: rank 0
        draws a seed from PyTorch's CPU generator. The scheme ring needs cuts at multiples of 4 in their document.

    Returns:
      out, of q's dtype (bfloat16 in FP8), and with ``return_lse`` the LSE in float32. With ``return_max`` the maxima of
      this rank's rows come last, or with ``"head"`` the largest of each head over all ranks. Gradients of sinks, slopes
      and a bias are this rank's part of a sum over ranks.

    Raises:
      ValueError, TypeError, RuntimeError: the same sentence on every rank, if one rank's arguments are wrong or
      differ from the others'. A rank that fails later ends the others on the CPU with its sentence.
    """
    given = {
        "layout": layout,
        "scheme": scheme,
        "causal": causal,
        "window": window,
        "documents": documents,
        "bias": bias,
        "bool_mask": bool_mask,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "scale": scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "seed": seed,
        "score_mod": score_mod,
        "mask_mod": mask_mod,
        "mod_buffers": mod_buffers,
        "q_descale": q_descale,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "v_mean": v_mean,
        "deterministic": deterministic,
        "reproducible": reproducible,
        "head_groups": head_groups,
        "return_lse": return_lse,
        "return_max": return_max,
        "threads": threads,
    }
    if torch.compiler.is_compiling():
        return compiled.attention(q, k, v, group, given)
    work = prepared(q, k, v, group, given)
    factors = factors_of(given)
    asked = return_lse, return_max
    out, lse, most = _ContextParallel.apply(work, asked, bool_mask, factors, q, k, v, sinks, alibi_slopes, bias)
    return results((out, lse, most), asked)
