"""onepass.attention, whose keywords the other functions of attention share (_keywords.py)."""

import math
from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _options, _unknown
from . import _numpy as np
from ._quantize import fp8_options
from ._quantized import NAMES, Quantized, carried


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    align_offset: Any = None,
    window: Any = None,
    bool_mask: Any = None,
    block_mask: Any = None,
    mask_tile_q: Any = None,
    mask_tile_k: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: Any = None,
    softcap: Any = 0.0,
    dropout_p: Any = 0.0,
    seed: Any = _options.SEED,
    dropout_start: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    tree: Any = None,
    batch_invariant: Any = False,
    partial: Any = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    fp8: Any = False,
    accumulation: Any = "exact",
    precision: Any = "fp32",
    unified_max: Any = None,
    recomputed: Any = None,
    score_mod: Any = None,
    mask_mod: Any = None,
    mod_buffers: Any = None,
    return_lse: Any = False,
    return_max: Any = False,
    return_entropy: Any = False,
    out: Any = None,
    layout: Any = "bhsd",
    implementation: Any = None,
    threads: Any = None,
    **unknown: Any,
) -> Any:
    """Exact attention, ``softmax(scale * q k^T + ...) v``, without ever storing the score matrix.

    Arrays are NumPy arrays (float32, float16, bfloat16 and float8_e4m3fn of ml_dtypes), PyTorch tensors, CuPy arrays,
    or anything that exports DLPack. They are read in place: any strides are accepted as long as the last dimension's
    is 1. ``layout="bshd"`` says that they are ``[batch, seq, heads, dim]``. The GIL is released meanwhile.
    All arrays are on one device. On CUDA the call is put on PyTorch's or CuPy's current stream and returns at once.

    Args:
      q: ``[batch, heads_q, seq_q, dim_qk]``; with ``cu_seqlens_*``: ``[total_q, heads_q, dim_qk]``.
      k: ``[batch, heads_kv, seq_k, dim_qk]``, or ``[total_k, heads_kv, dim_qk]``; heads_q is a multiple of heads_kv.
      v: ``[batch, heads_kv, seq_k, dim_v]``, or ``[total_k, heads_kv, dim_v]``. Each of q, k and v may be a
        ``Quantized``, as ``quantize`` returns it.
      mask: None; ``"causal_bottom_right"``: the last query sees the last key (flash-attn); ``"causal_top_left"``: query
        i sees keys 0..i (PyTorch ``is_causal``); ``"causal_offset"``: query i sees keys 0..i + align_offset;
        ``"aligned_top_left"``, ``"aligned_offset"``: hide nothing, but window and ALiBi count from that diagonal.
      align_offset: the key that query 0 is aligned with, for the masks that say so: the number of keys of a cache that
        the queries follow (ONNX ``is_causal`` with ``past_key``); negative, or beyond the last key, is fine.
      window: ``(left, right)``, the number of keys visible on either side of the diagonal; -1 is unbounded.
      bool_mask: bool, broadcastable to ``[batch, heads_q, seq_q, seq_k]``; True means *may attend*.
      block_mask: a ``BlockMask``, whose mask_mod counts unless one is given, or int32 (int64 is converted),
        broadcastable to ``[batch, heads_q, tiles of queries, tiles of keys]``: 0 is an empty tile, in which nothing is
        visible, 2 a full one, in which mask_mod is not evaluated, and 1 a mixed one. The other masks hold in every
        tile.
      mask_tile_q, mask_tile_k: queries and keys of a tile of an array; None is 128.
      bias: float32, float16 or bfloat16, broadcastable like bool_mask; added to the scaled scores.
      alibi_slopes: float32 ``[heads_q]`` or ``[batch, heads_q]``; scores lose ``slope * |distance|``.
      sinks: float32 ``[heads_q]``; a logit per head that joins the softmax's denominator only. float16, bfloat16 and
        float64 sinks and slopes are converted.
      scale: factor of the scores; default ``1 / sqrt(dim_qk)``.
      softcap: if > 0, scores become ``softcap * tanh(score / softcap)`` before bias and mask.
      dropout_p: probability, in [0, 1], with which a weight is dropped; the others grow by ``1 / (1 - dropout_p)``.
      seed: of the dropout, an integer from 0 to 2^64 - 1, or an int64 array of one element where q is, which kernels
        read when they run; needed where dropout_p > 0. The same seed drops the same
        weights on every machine and thread count, and in every call: give each step its own. (onepass.torch.attention
        draws one where none is given.)
      dropout_start: ``(batch, head, row, key)``: the places of the call's first ones in the draws; key is a multiple of
        4. Calls on parts of a sequence then drop what one call on all of it drops.
      cu_seqlens_q, cu_seqlens_k: int32 (int64 is converted) ``[batch + 1]``, prefix sums of the sequence lengths of
        packed q and k, v.
      max_seqlen_q, max_seqlen_k: upper bounds of those lengths, if they are known. Kernels are chosen by them, and
        calls with the same bounds share a plan. A longer sequence is refused on the CPU and must not occur on CUDA,
        where only the device knows the lengths.
        max_seqlen_k also bounds the sequences of a page_table.
      seqused_k: int32 (int64 is converted) ``[batch]``: how many keys of each sequence of a cache k, v count; bottom
        right is at the last of them. Read on the device: a captured graph replays with new lengths.
      page_table: int32 ``[batch, pages of a sequence]``: k and v are then ``[pages, page_size, heads_kv, dim]``, and
        key j of sequence b lies in page ``page_table[b, j // page_size]``. Any page_size and order; pages may be
        shared.
        With either of the two, q may be packed by ``cu_seqlens_q``, without ``cu_seqlens_k``.
      tree: int32 (int64 is converted) ``[batch, n]``, n from 1 to 64: the last n tokens of each sequence are drafts,
        and ``tree[b, i]`` is the index of draft i's parent among them, -1 if it has none. A draft sees the keys before
        all drafts, its ancestors and itself. Needs mask ``"causal_bottom_right"``.
      batch_invariant: a sequence's results do not depend, bit for bit, on what else is in the batch.
      partial: True: out is a part of a result that ``merge`` completes. A float32 out of 16-bit inputs then divides by
        the sum of the weights before they are rounded, as an out of 16 bits does; else by the sum of the rounded ones.
        Long calls are faster with it on Hopper.
      q_descale, k_descale, v_descale: float32 factors of float8_e4m3fn q, k, v, ``[batch|1, heads|1, blocks|1]`` with
        blocks of 128 rows of a sequence; dimensions at the end may be left out. None is 1. q may be of 16 bits, or
        float32, beside k and v of float8_e4m3fn: an FP8 cache. A float32 q also takes k and v of float16 or bfloat16.
      v_mean: float32 ``[batch|1, heads_kv|1, dim_v|1]``: what ``quantize`` took out of a float8_e4m3fn v, given back.
      fp8: quantize q, k and v of 16 or 32 bits to float8_e4m3fn first, and attend to those: True, or a dict of
        ``by_block`` (False: factors of k and v for every 128 rows, not for each head, which packed ones always have),
        ``hadamard`` (True: rotate q and k, with random signs by ``seed``, 0) and ``center`` (False: leave v's means in
        it). docs/features/fp8.md.
      accumulation: ``"exact"``, or ``"fast"``: products of float8_e4m3fn q, k and v may then lose up to 18 % of V's
        mean over 16k keys on a GPU (docs/features/fp8.md).
      precision: ``"fp32"``, or ``"tf32"``: products of float32 q, k and v may then round their operands to TF32's 11
        significant bits, which is faster on a GPU (docs/features/precision.md).
      unified_max: for few rows, a number that replaces the rows' maxima in the weights ``e^(score - unified_max)``, so
        that splits of the keys are merged by addition (FlashDecoding++, section 3); ``unified_max_of`` finds one. A row
        whose largest score is farther than 40 from it is computed again with its own maximum. Results do not change.
      recomputed: an int32 array of lse's shape that is set to 1 for such a row, else to 0.
      score_mod: a C++ expression in text that gives a new score from ``score`` (scaled, capped and biased), ``batch``,
        ``head``, ``q_index``, ``k_index`` and the mod_buffers: ``"score - 0.1f * abs(q_index - k_index)"``. Or a
        function of these five, which is called once with symbols (docs/features/flex_attention.md).
      mask_mod: a bool expression without ``score``, or a function, true where the query may attend to the key. It joins
        the other masks.
      mod_buffers: a dict of up to 8 arrays (float32, float16, bfloat16, int32, bool; 1 to 4 dimensions) that the
        expressions read by name, as ``table[i]`` or ``table[i, j]``. int64 is converted; an array without dimensions is
        named alone.
      return_lse: also return the log of the softmax's denominator (natural logarithm, float32).
      return_max: also return each row's largest score, float32 in lse's shape and -inf in a row that sees no key; or
        ``"head"``: the largest of each head, ``[heads_q]``, which QK-clip takes (docs/features/statistics.md).
      return_entropy: also return the entropy of each row's weights, float32 in lse's shape, in nats. A sink counts as a
        key; a row that sees no key has 0.
      out: where to write the result, ``[batch, heads_q, seq_q, dim_v]`` (or packed), of q's dtype or float32, of a
        float8_e4m3fn q bfloat16, float16 or float32; it may not share memory with an input. By default a new array of
        q's kind and dtype (bfloat16 for float8_e4m3fn), in q's memory order.
      layout: ``"bhsd"``: dimensions are in the order shown here. ``"bshd"`` (flash-attn, JAX): q, k, v and out are
        ``[batch, seq, heads, dim]``; lse, row maxima, entropies and recomputed are ``[batch, seq, heads]``.
        Nothing is copied. Packed tensors, pages, bias, bool_mask, scales and means are the same in either layout.
      implementation: the name of the implementation to use; by default the first that supports the call (``explain``).
      threads: how many to use at most; None is all cores. Results do not depend on it, bit for bit.

    Returns:
      out, or ``(out, lse)`` with lse ``[batch, heads_q, seq_q]`` (packed: ``[heads_q, total_q]``). A row that sees no
      key gives 0 and an lse of -inf. The row maxima, if requested, come next, and entropies last.

    Raises:
      ValueError: a shape, stride or value that does not fit; TypeError: a dtype or kind of array that is not accepted;
      RuntimeError: no implementation accepts the problem, or memory ran out. The sentence says what would be accepted,
      and out has not been touched.
    """
    given = locals()
    if unknown:
        _unknown.refuse("attention", unknown, _options.keywords(attention))
    place, (out, lse, most, entropy), call = call_of(q, k, v, given)
    if fp8 is False:
        _onepass.attention(call)
    else:
        _onepass.attention_fp8(call, fp8_options(fp8))
    place.finish()
    out, lse, most, entropy = (None if x is None else _arrays.finished(x) for x in (out, lse, most, entropy))
    if return_max == "head":
        most = _options.of_heads(most, call)
    results = [x for x in (out, lse, most, entropy) if x is not None]
    return tuple(results) if len(results) > 1 else out


def call_of(q: Any, k: Any, v: Any, given: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """(place, results, what the extension takes: arrays by the names of their roles, and options)."""
    if Quantized in (type(q), type(k), type(v)):
        given.update(zip(NAMES, carried(q, k, v, *(given[name] for name in (*NAMES[3:], "fp8")))))
        q, k, v = given["q"], given["k"], given["v"]
    place = _devices.place_of(q)
    call = _options.options(place, given)
    call["q"], call["k"], call["v"] = _options.inputs(place, q, k, v, call["tokens_first"])
    results = _results(q, v, given, call)
    for name, x in zip(("out", "lse", "row_max", "entropy", "recomputed"), (*results, given["recomputed"])):
        call[name] = None if x is None else _arrays.target(name, x, place)
    return place, results, call


def _results(q: Any, v: Any, given: dict[str, Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """(out, lse or None, row maxima or None, entropies or None). New packed ones begin as empty rows: tokens beyond the
    last sequence are not computed."""
    out, packed = given["out"], _options.is_packed(options)
    if out is None:
        out = _arrays.new(q, (*q.shape[:-1], v.shape[-1]), _arrays.result_dtype(q), fill=0.0 if packed else None)
    elif type(out) is not np.ndarray:
        _kinds.refuse_immutable(out)
    shape = _arrays.rows_of(q, packed)
    asked = given["return_lse"], _options.asks_for_max(given["return_max"]), given["return_entropy"]
    fills = (-math.inf, -math.inf, 0.0) if packed else (None, None, None)
    return out, *(
        _arrays.new(q, shape, "float32", ordered=False, fill=fill) if x else None for x, fill in zip(asked, fills)
    )
