"""``torch.nn.attention.flex_attention`` of onepass: its functions as texts, its masks, and its results."""

from typing import Any

import torch
from torch.nn.attention import flex_attention as theirs

from ._flex import block_mask as masks
from ._flex import trace
from ._flex.arithmetic import number
from ._flex.block_mask import BlockMask, and_masks, create_block_mask, noop_mask, or_masks  # noqa: F401  of onepass.torch
from ._flex.scores import Steps
from ._flex.text import Buffers, text
from ._flex.torch_gradients import learned, scale_of, tensor_of, tied, with_gradients
from ._flex.torch_gradients import max_scores as _max_scores


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """``torch.nn.attention.flex_attention.flex_attention``, computed by onepass, with gradients on CPUs too.

    score_mod and the block_mask's mask_mod are called once with symbols; what they compute becomes the text of an
    expression (docs/features/flex_attention.md). What a text cannot say is refused.

    Args:
      query: ``[batch, heads_q, seq_q, dim]``, float32, float16 or bfloat16.
      key, value: ``[batch, heads_kv, seq_k, dim]``; heads_kv divides heads_q with enable_gqa, and a batch of 1 is
        shared by all entries with a block_mask.
      score_mod: a function of (score, b, h, q_idx, kv_idx). Captured tensors of floats may require a gradient.
      block_mask: of ``create_block_mask``, onepass's or PyTorch's, or of ``BlockMask.from_kv_blocks``.
      scale: default ``1 / sqrt(dim)``.
      return_lse: also return the log-sum-exp, ``[batch, heads_q, seq_q]``.
      kernel_options: accepted, and without effect: they are of Triton's kernels.
      return_aux: PyTorch's ``AuxRequest``. max_scores costs a second pass, and has no gradient.

    Returns:
      out, ``(out, lse)``, or ``(out, AuxOutput)`` with return_aux. A row that sees no key is 0, with an lse of -inf.

    Raises:
      ValueError, TypeError, RuntimeError: one sentence.
    """
    _check(query, key, value, block_mask, enable_gqa, return_lse, return_aux)
    from . import torch as ours

    if key.shape[0] != query.shape[0]:
        key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    sizes = (*query.shape[:3], key.shape[2])
    buffers = Buffers()
    score = None if score_mod is None else _scores(score_mod, sizes, query.device)
    seen = None if block_mask is None else _expression(block_mask)
    options: dict[str, Any] = {"score_mod": None if score is None else text(score, buffers)}
    lost = learned(buffers.arrays)  # what the mask alone reads has no gradient
    options["mask_mod"] = None if seen is None else text(seen, buffers)
    given = buffers.given()
    if given is not None:
        lose = learned(given.values())
        options["mod_buffers"] = {name: tensor_of(x).detach() for name, x in given.items()} if lose else given
    aux_lse = return_aux is not None and return_aux.lse
    inputs = (tied(x, lost) for x in (query, key, value))
    out, lse = ours.attention(*inputs, scale=scale, return_lse=True, **options)
    if lost:
        steps = Steps(scale_of(query, scale), score, seen)
        out, lse = with_gradients(out, lse, query, key, value, steps, buffers.arrays, lost)
    if return_aux is not None:
        found = _max_scores(query, key, scale, score, seen) if return_aux.max_scores else None
        return out, theirs.AuxOutput(lse=lse if aux_lse else None, max_scores=found)
    return (out, lse) if return_lse else out


def _check(
    query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool, return_lse: bool, return_aux: Any
) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor (got {type(x).__name__})")
        if x.dim() != 4:
            raise ValueError(f"{name} must be [batch, heads, seq, dim] (got {list(x.shape)})")
    heads, heads_kv = query.shape[1], key.shape[1]
    if not enable_gqa and heads != heads_kv:
        raise ValueError(f"key must have the heads of query, {heads}, without enable_gqa=True (got {heads_kv})")
    if heads_kv == 0 or heads % heads_kv:
        raise ValueError(f"the heads of query must be a multiple of those of key, {heads_kv} (got {heads})")
    batch, batch_kv = query.shape[0], key.shape[0]
    if batch != batch_kv and not (batch_kv == 1 and block_mask is not None and block_mask.shape[0] == batch):
        raise ValueError(
            f"key must have the batch of query, {batch}, or 1 with a block_mask of that batch (got {batch_kv})"
        )
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux must not be given together; AuxRequest(lse=True) asks for the LSE")
    if block_mask is None:
        return
    if not isinstance(block_mask, theirs.BlockMask):
        found = type(block_mask).__name__
        if hasattr(block_mask, "in_call"):
            found = "an onepass.BlockMask, which onepass.torch.attention accepts"
        raise TypeError(f"block_mask must be a BlockMask, as create_block_mask makes it (got {found})")
    lengths = (query.shape[2], key.shape[2])
    if block_mask.BLOCK_SIZE[0] < 1 << 30 and tuple(block_mask.shape[-2:]) != lengths:
        raise ValueError(f"block_mask must have the lengths of query and key, {lengths} (got {block_mask.seq_lengths})")
    for name, size, n in (("batch", block_mask.shape[0], batch), ("heads", block_mask.shape[1], heads)):
        if size not in (1, n):
            raise ValueError(f"the {name} of block_mask must be 1 or {n}, as query has (got {size})")


def _scores(score_mod: Any, sizes: Any, device: Any) -> Any:
    if not callable(score_mod):
        raise TypeError(
            f"score_mod must be a function of (score, b, h, q_idx, kv_idx) (got {type(score_mod).__name__})"
        )
    symbols = [trace.score(device), *trace.inputs(sizes, device)]
    return number(trace.call_with(score_mod, symbols))


def _expression(block_mask: Any) -> Any:
    if isinstance(block_mask, masks.BlockMask):
        return block_mask.expression()
    return masks.listed(block_mask)
