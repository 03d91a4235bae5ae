"""Decoding from a sharded cache: each rank holds some keys of each sequence, and one merge joins the results."""

from typing import Any

import torch

import onepass

from .call import F32
from .ranks import Ranks

_EVERYTHING = 2**30  # more keys than a sequence has
_NAMES = ("page_table", "k_descale", "v_descale", "scale", "softcap", "threads")


def heads_of(heads: int, ranks: int, rank: int) -> slice:
    """The query heads whose results a rank gets."""
    return slice(heads * rank // ranks, heads * (rank + 1) // ranks)


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seqused_k: torch.Tensor,
    group: Any = None,
    newest: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    threads: int | None = None,
) -> torch.Tensor:
    """Attention of new tokens to a cache whose keys are spread over the ranks. All ranks make the same call.

    Args:
      q: ``[batch, heads, rows, dim]``, whole and the same on all ranks; rows are new tokens, which are in the cache.
      k, v, page_table: this rank's part of the cache, as ``onepass.attention`` takes a cache. Any keys of a sequence
        may be here, in the order of their positions.
      seqused_k: int32 ``[batch]``: the number of keys of each sequence that are here.
      group: the process group; None is the default one.
      newest: int32 ``[batch]``: the rank that holds the keys of each sequence's new tokens; needed if rows > 1.
      k_descale, v_descale: of an FP8 cache. sinks, scale, softcap, threads: as ``onepass.attention``.

    Returns:
      ``[batch, this rank's heads, rows, dim_v]``: heads ``heads * rank // ranks`` and on.

    Raises:
      ValueError, TypeError, RuntimeError: the same sentence on every rank, if one rank's arguments are wrong or
      differ from the others'.
    """
    given, ranks, complaint = locals(), Ranks(group), None
    q, k, v = (x.detach() if isinstance(x, torch.Tensor) else x for x in (q, k, v))
    words = {name: given[name] for name in _NAMES}
    if sinks is not None and ranks.me == 0:
        words["sinks"] = sinks.detach()  # joins once
    try:
        words |= _mask(q, newest, seqused_k, ranks)
        onepass.attention(q[:, :, :0], k, v, seqused_k=seqused_k, **words)
    except (ValueError, TypeError, RuntimeError) as error:
        complaint = error
    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    ranks.agree(device, complaint, {} if complaint else _facts(q, k, v, given))
    try:
        return _joined(ranks, q, v.shape[-1], words, (k, v, seqused_k))
    except BaseException as error:
        ranks.tell(error)
        raise


def _facts(q: Any, k: Any, v: Any, given: Any) -> dict[str, Any]:
    heads_kv = k.shape[1] if given["page_table"] is None else k.shape[2]
    return {
        "shape and dtype of q": (*q.shape, q.dtype, q.device.type),
        "heads, dims and dtypes of the cache": (heads_kv, k.shape[-1], v.shape[-1], k.dtype, v.dtype),
        "options": [given[name] is not None for name in ("newest", "sinks", "page_table")]
        + [given["scale"], given["softcap"]],
    }


def _mask(q: Any, newest: Any, seqused_k: Any, ranks: Ranks) -> dict[str, Any]:
    """The new tokens of a sequence see each other as in a causal mask, and all other keys."""
    if q.dim() != 4:
        raise ValueError(f"q must have shape [batch, heads, rows, dim] (got {list(q.shape)})")
    rows = q.shape[2]
    if rows < 2:
        return {}
    if newest is None or list(newest.shape) != [q.shape[0]]:
        got = None if newest is None else list(newest.shape)
        raise ValueError(f"newest must have shape [{q.shape[0]}] where q has {rows} rows (got {got})")
    last = torch.where(newest == ranks.me, seqused_k - rows, _EVERYTHING).to(torch.int32)
    return {"mask_mod": "k_index - q_index <= onepass_last[batch]", "mod_buffers": {"onepass_last": last}}


def _joined(ranks: Ranks, q: Any, dim_v: int, words: Any, cache: Any) -> torch.Tensor:
    k, v, seqused_k = cache
    batch, heads, rows, _ = q.shape
    state = q.new_empty(batch, heads, rows, dim_v + 1, dtype=F32)  # O, and the LSE behind it
    _, lse = onepass.attention(q, k, v, seqused_k=seqused_k, out=state[..., :dim_v], return_lse=True, **words)
    state[..., dim_v] = lse
    of = [heads_of(heads, ranks.size, r) for r in range(ranks.size)]
    mine = (batch, of[ranks.me].stop - of[ranks.me].start, rows, dim_v + 1)
    found = ranks.all_to_all([[state[:, h]] for h in of], [[mine]] * ranks.size)()
    states = [x for (x,) in found]
    out = q.new_empty(*mine[:3], dim_v)
    onepass.merge([x[..., :dim_v] for x in states], [x[..., dim_v].contiguous() for x in states], out=out)
    return out
