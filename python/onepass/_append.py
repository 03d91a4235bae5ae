"""Writing new keys and values into a cache."""

from typing import Any

from . import _arrays, _devices, _kinds, _onepass, _options, _unknown, _values


def append_kv(
    k_new: Any,
    v_new: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    cache_seqlens: Any = None,
    slot_mapping: Any = None,
    positions: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cos: Any = None,
    sin: Any = None,
    cos_sin_cache: Any = None,
    interleaved: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
    q: Any = None,
    q_out: Any = None,
    layout: str = "bhsd",
    threads: int | None = None,
    **unknown: Any,
) -> Any:
    """Writes new keys and values to the ends of sequences in a cache, or to slots, keys rotated by position (RoPE).

    Token t of sequence b becomes key ``p = cache_seqlens[b] + t``. With slot_mapping, token t goes to its slot, and p
    is ``positions[t]``. With cos and sin, k_new and q are rotated by row p on the way: the pair (x, y) becomes
    ``(x cos - y sin, y cos + x sin)``, in float32, rounded once (Su et al., RoFormer, arXiv:2104.09864). Nothing is
    allocated but a new q. On CUDA it is one kernel on PyTorch's or CuPy's current stream.

    Args:
      k_new, v_new: ``[batch, heads_kv, seq_new, dim]``; with cu_seqlens_q or slot_mapping
        ``[tokens, heads_kv, dim]``. float32, float16 or bfloat16, as q is, and k_cache and v_cache unless they are
        float8_e4m3fn, or float16 or bfloat16 beside float32; strides and kinds of arrays as ``attention`` takes them.
      k_cache, v_cache: written in place, only where new tokens go: ``[batch, heads_kv, capacity, dim]``, or with a
        page_table or slot_mapping pages ``[pages, page_size, heads_kv, dim]``. Error sentences call them k and v.
      cache_seqlens: int32 (int64 is converted) ``[batch]``, the lengths before the call. It is not changed: add the
        number of new tokens for the seqused_k of ``attention``, which counts them.
      slot_mapping: int64 or int32 ``[tokens]``, in place of cache_seqlens, page_table and cu_seqlens_q: token t goes to
        page ``slot_mapping[t] // page_size`` at ``slot_mapping[t] % page_size``. k and v of a token with a negative
        slot are skipped; its q is rotated.
      positions: with slot_mapping, cos and sin: int32 or int64 ``[tokens]``, the row of cos and sin for each token.
      page_table: int32 ``[batch, pages of a sequence]``: key p of sequence b lies in page
        ``page_table[b, p // page_size]`` at ``p % page_size``. Entries that no new token lies in are not read.
      cu_seqlens_q: int32 (int64 is converted) ``[batch + 1]``, prefix sums of the numbers of new tokens.
      cos, sin: ``[positions, rotary_dim / 2]``, of k_new's dtype or float32; other floating dtypes are converted to
        float32.
        Without them nothing is rotated. Elements of a key from rotary_dim on, and all of v_new, are copied.
      cos_sin_cache: in place of cos and sin: ``[positions, rotary_dim]``, cos in the left half of the columns and sin
        in the right, as vLLM has it.
      interleaved: pairs are elements ``(2i, 2i + 1)`` (GPT-J); else ``(i, i + rotary_dim / 2)`` (GPT-NeoX, Llama;
        vLLM's is_neox).
      k_descale, v_descale: float32 factors of a float8_e4m3fn k_cache and v_cache, as ``attention`` takes them: numbers
        are divided by them, and cut off at 448. None is 1. With slot_mapping a factor is that of a head, or of all.
      q: ``[batch, heads_q, seq_new, dim]``, packed as k_new is: queries to rotate like the keys. Needs cos and sin.
      q_out: where to write them; q itself rotates in place. By default a new array like q.
      layout: ``"bhsd"``: dimensions are in the order shown here. ``"bshd"``: k_new, v_new, q, q_out and a cache without
        pages are ``[batch, seq, heads, dim]``.
      threads: how many to use at most; None is all cores.

    Returns:
      The rotated q, or None without q.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``, and nothing has been written then. On the CPU a length, a
      page, a slot or a position out of range is a ValueError, and so are two tokens with one slot. On CUDA, where only
      the device knows, a token that is out of range is left out, and two tokens with one slot may leave parts of both.
    """
    given = locals()
    if unknown:
        _unknown.refuse("append_kv", unknown, _options.keywords(append_kv))
    for name in ("k_new", "v_new", "k_cache", "v_cache"):
        if given[name] is None:
            raise TypeError(f"{name} must be an array (got None)")
    place = _devices.place_of(k_new)
    call = {
        "k_new": _arrays.exported("k_new", k_new, place),
        "v_new": _arrays.exported("v_new", v_new, place),
        "k": _written("k_cache", k_cache, place),
        "v": _written("v_cache", v_cache, place),
        "tokens_first": _options.tokens_first(layout),
        "interleaved": bool(interleaved),
        "threads": _values.threads_of(threads),
        "stream": place.stream,
    }
    for name in ("cache_seqlens", "page_table", "cu_seqlens_q"):
        call[name] = _arrays.exported(name, given[name], place, convert="int32")
    for name in ("slot_mapping", "positions"):
        call[name] = _arrays.exported(name, given[name], place)
    for name in ("cos", "sin", "cos_sin_cache"):
        table = given[name]
        same = table is None or _dtype(table) == _dtype(k_new)
        call[name] = _arrays.exported(name, table, place, convert=None if same else "float32")
    for name in ("k_descale", "v_descale"):
        call[name] = _arrays.exported(name, given[name], place, convert="float32")
    call["q"] = _arrays.exported("q", q, place)
    if q is None:
        call["q_out"] = _arrays.exported("q_out", q_out, place)
    elif q_out is None:
        _arrays.dtype_name("q", q)
        q_out = _arrays.new(q, tuple(q.shape), fill=None if cu_seqlens_q is None else 0.0)
        call["q_out"] = _arrays.target("q_out", q_out, place)
    else:
        call["q_out"] = _written("q_out", q_out, place)
    _onepass.append_kv(call)
    place.finish()
    return None if q is None else _arrays.finished(q_out)


def _dtype(x: Any) -> Any:
    return str(getattr(x, "dtype", "")).rpartition(".")[2]


def _written(name: str, x: Any, place: Any) -> Any:
    _kinds.refuse_immutable(x, name)
    return _arrays.exported(name, x, place, writable=True)
