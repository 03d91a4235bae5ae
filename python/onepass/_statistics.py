"""Statistics of weights: what each key receives, and the mean of the heads' maps, both by a part of the backward.

With P the weights, the backward has dV = P^T dO and dS = P o (dO V^T - D). The mass of a key is dV where dO is 1. The
heads of a group stay apart: dO has a column for each, which is 1 in the rows of that head. The sum of the heads' maps
is the gradient of a bias that all heads share, where dO is 0 and the LSE has the gradient 1.
"""

import re
from typing import Any

from . import _arrays, _options
from ._flex.trace import texts
from ._weights_call import WeightsCall, dense, filled, spread


def key_mass(q: Any, k: Any, lse: Any, *, seqused_k: Any = None, page_table: Any = None, **options: Any) -> Any:
    """The sum of the weights that each key receives, ``mass[b, h, j] = sum_i P[b, h, i, j]``, in O(N) memory.

    P is ``softmax(scale * q k^T + ...)`` of ``attention`` without dropout. The masses of a head sum to its number of
    rows that see a key, less what its sinks take. A cache that evicts keys keeps those of the largest mass (H2O,
    https://arxiv.org/abs/2306.14048, section 3).

    Args:
      q, k: as ``attention`` took them: NumPy or CuPy arrays or torch tensors of float32, float16 or bfloat16.
      lse: what ``attention(..., return_lse=True)`` returned. It may be merged from calls over disjoint keys. Each
        call's masses are then those of its own keys.
      seqused_k, page_table: as ``attention`` took them. The keys that count are gathered into new memory, and the host
        waits for the lengths.
      options: keywords of ``attention_backward`` as ``attention`` took them: mask, align_offset, window, bool_mask,
        block_mask, mask_tile_q, mask_tile_k, bias, alibi_slopes, sinks, scale, softcap, cu_seqlens_q, cu_seqlens_k,
        max_seqlen_q, max_seqlen_k, score_mod, mask_mod, mod_buffers, layout and threads. implementation and
        deterministic are those of the backward. dropout_p must be 0.

    Returns:
      float32 ``[batch, heads_q, seq_k]``; with ``layout="bshd"`` ``[batch, seq_k, heads_q]``; packed ``[heads_q,
      total_k]``. The seq_k of a cache is its capacity, and keys behind seqused_k have a mass of 0.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention_backward``.
    """
    call = WeightsCall("key_mass", q, k, lse, seqused_k, page_table, options)
    call.keep_heads_apart()
    heads, group = call.heads, call.group
    columns = filled(call.q, (heads // group, group * call.columns(group)), 0)
    columns[:, :: call.columns(group) + 1] = 1
    columns = columns.reshape((heads, call.columns(group)))
    if not call.packed:
        columns = columns[None, None] if call.tokens_first else columns[None, :, None]
    (dv,) = call.backward(columns, grads="dv", grad_dtype="float32")
    dv = dv[..., :group]
    if call.packed:
        return call.to_cache(dv.reshape((dv.shape[0], heads)).swapaxes(0, 1))
    if not call.tokens_first:
        dv = dv.swapaxes(2, 3)
    return dv.reshape((*dv.shape[:2], heads) if call.tokens_first else (dv.shape[0], heads, dv.shape[3]))


def weights(
    q: Any,
    k: Any,
    lse: Any,
    *,
    mean: str | None = "heads",
    seqused_k: Any = None,
    page_table: Any = None,
    **options: Any,
) -> Any:
    """The weights of attention, ``P = softmax(scale * q k^T + ...)``, as their mean over the heads or head by head.

    The mean is what ``need_weights=True`` of ``torch.nn.MultiheadAttention`` returns. No memory beside the result holds
    a number for each pair of a row and a key.

    Args:
      q, k, lse, seqused_k, page_table, options: as ``key_mass``.
      mean: ``"heads"``, or None for each head's own weights.

    Returns:
      float32 ``[batch, seq_q, seq_k]``, or ``[batch, heads_q, seq_q, seq_k]`` in either layout. Packed sequences have
      max_seqlen_q rows and max_seqlen_k keys, by default those of the longest. What a mask hides is 0, and so is what
      lies behind a sequence's rows and keys.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention_backward``.
    """
    check_mean(mean)
    call = WeightsCall("weights", q, k, lse, seqused_k, page_table, options)
    given = call.options
    if hasattr(given["block_mask"], "in_call"):
        given.update(given["block_mask"].in_call({**given, "q": call.q, "k": call.k}))
    if callable(given["score_mod"]) or callable(given["mask_mod"]):
        given.update(texts({**given, "q": call.q, "k": call.k}))
    batch, rows, keys = call.sizes()
    shape = (batch, call.heads if mean is None else 1, rows, keys)
    check_bias(given["bias"], (batch, call.heads, rows, keys))
    if rows == 0 or keys == 0:  # of a cache: a bias has at least one
        return _arrays.new(call.q, shape if mean is None else (batch, rows, keys), "float32", ordered=False, fill=0)
    given.update(with_own_bias(given, shape, filled(call.q, (keys,), 0)))
    upstream = filled(call.q, (call.columns(1),), 0)
    dlse = filled(call.lse, tuple(call.lse.shape), 1 if mean is None else 1 / max(call.heads, 1))
    (found,) = call.backward(upstream, grads="dbias", dlse=dlse)
    return found if mean is None else found[:, 0]


def check_mean(mean: Any) -> None:
    if mean not in ("heads", None):
        raise ValueError(f"mean must be 'heads' or None (got {mean!r})")


def check_bias(bias: Any, shape: tuple[int, ...]) -> None:
    """As attention checks it, which gets another bias here."""
    if bias is None:
        return
    _arrays.dtype_name("bias", bias)
    if not 1 <= len(bias.shape) <= 4:
        raise ValueError(f"bias must have 1 to 4 dimensions (got {len(bias.shape)})")
    for i, (n, most) in enumerate(zip(bias.shape, shape[4 - len(bias.shape) :], strict=True)):
        if n not in (1, most):
            raise ValueError(f"dimension {i} of bias must be {most} or 1 (got shape {list(bias.shape)})")


def with_own_bias(given: dict[str, Any], shape: tuple[int, ...], zero: Any) -> dict[str, Any]:
    """bias of the map's shape, and score_mod and mod_buffers so that its gradient is the weight alone.

    A bias that differs from head to head is read by score_mod instead. A score_mod f(score) becomes f(c) + (score - c),
    whose derivative is 1: c is the score rounded down to a multiple of 2^-20, which has the derivative 0.
    """
    bias, text, buffers = given["bias"], given["score_mod"], given["mod_buffers"]
    score = "score"
    if bias is not None:
        four = (1,) * (4 - len(bias.shape)) + tuple(bias.shape)
        if four[1] == 1 or shape[1] > 1:
            zero = dense(spread(bias, (*four[:3], shape[3]))) if four[3] == 1 else bias
        else:
            buffers = {**dict(_options.mod_items(buffers or {})), _BIAS: bias.reshape(four)}
            score = f"(score + {_BIAS}[batch, head, q_index, k_index])"
    if text is not None:
        rounded = f"(floor({score} * 1048576.0f) * 9.5367431640625e-07f)"
        changed = re.sub(r"\bscore\b", rounded, _options.expression("score_mod", text))
        score = f"({changed}) + (abs({score}) < 1e30f ? {score} - {rounded} : 0.0f)"
    return {"bias": spread(zero, shape), "score_mod": None if score == "score" else score, "mod_buffers": buffers}


_BIAS = "onepass_bias"
