"""Attention in float64 NumPy: the whole score matrix, every option, in the order of docs/conventions.md."""

import numpy as np

NEG_INF = -np.inf


def philox(seed, c0, c1, c2, c3):
    """Philox 4x32-10 on arrays of counters: four words per counter."""
    m32 = np.uint64(0xFFFFFFFF)
    c = [np.asarray(x, np.uint64) & m32 for x in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), b & m32, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), a & m32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout_factors(p, seed, batch, heads, rows, columns):
    """[batch, heads, rows, columns]: 0 where the weight is dropped, else 1 / (1 - p)."""
    b, h, i, j = np.ogrid[:batch, :heads, :rows, :columns]
    words = philox(seed, j // 4, i, h, b)
    draws = np.choose(np.broadcast_to(j % 4, words[0].shape), words)
    keep = np.float32(1) / (np.float32(1) - np.float32(p)) if p < 1 else 0
    return np.where(draws >= np.uint64(int(float(np.float32(p)) * 2.0**32)), float(keep), 0.0)


def aligned(rows, keys, mask, align_offset=None):
    """[rows, 1]: the key that each row is aligned with."""
    offset = {"top_left": 0, "offset": align_offset}.get((mask or "").partition("_")[2], keys - rows)
    return np.arange(rows)[:, None] + offset


def visible(rows, keys, mask=None, window=None, align_offset=None):
    """[rows, keys]: which keys the band lets each row see."""
    distance = np.arange(keys)[None, :] - aligned(rows, keys, mask, align_offset)
    left, right = window or (-1, -1)
    if mask is not None and mask.startswith("causal"):
        right = 0
    seen = np.ones((rows, keys), bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def attention(
    q,
    k,
    v,
    *,
    mask=None,
    align_offset=None,
    window=None,
    bool_mask=None,
    bias=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    softcap=0.0,
    dropout_p=0.0,
    seed=0,
    batch_offset=0,
):
    """(out, lse) in float64 of [batch, heads, seq, dim] arrays."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    keys = k.shape[2]
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (dim**-0.5 if scale is None else scale)
    if softcap > 0:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + np.asarray(bias).astype(np.float64)
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes, np.float64)
        slopes = slopes[None, :, None, None] if slopes.ndim == 1 else slopes[:, :, None, None]
        s = s - slopes * np.abs(aligned(rows, keys, mask, align_offset) - np.arange(keys))
    seen = visible(rows, keys, mask, window, align_offset) & (True if bool_mask is None else bool_mask)
    s = np.where(np.broadcast_to(seen, s.shape), s, NEG_INF)
    m = s.max(axis=-1, keepdims=True, initial=NEG_INF)
    p = np.exp(s - np.where(m == NEG_INF, 0, m))
    total = p.sum(axis=-1, keepdims=True)
    empty = total == 0
    with np.errstate(divide="ignore"):
        lse = np.where(empty, NEG_INF, np.where(empty, 0, m) + np.log(total))[..., 0]
    if sinks is not None:
        lse = np.logaddexp(lse, np.asarray(sinks, np.float64)[None, :, None])
        total = np.where(empty, 1, np.exp(lse[..., None] - np.where(empty, 0, m)))
    weights = p / np.where(empty, 1, total)
    if dropout_p > 0:
        weights = weights * dropout_factors(dropout_p, seed, batch_offset + batch, heads, rows, keys)[batch_offset:]
    return weights @ v, lse


def packed(q, k, v, cu_q, cu_k, **options):
    """The same for packed [total, heads, dim] arrays; lse [heads, total]. Rows outside every sequence: 0, -inf."""
    out = np.zeros((*q.shape[:2], v.shape[-1]))
    lse = np.full((q.shape[1], q.shape[0]), NEG_INF)
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = (x.transpose(1, 0, 2)[None] for x in (q[rows], k[keys], v[keys]))
        part, part_lse = attention(*one, batch_offset=b, **options)
        out[rows], lse[:, rows] = part[0].transpose(1, 0, 2), part_lse[0]
    return out, lse
