"""Attention in float64 NumPy: the whole score matrix, every option, in the order of docs/reference/conventions.md."""

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


def twin(text, buffers, **names):
    """A score_mod or mask_mod that is C++ and Python alike, in float64. An index beyond an end is that of the end."""

    def table(of):
        return lambda *at: of[tuple(np.clip(i, 0, size - 1) for i, size in zip(at, of.shape, strict=True))]

    functions = {"abs": np.abs, "min": np.minimum, "max": np.maximum, "tanh": np.tanh, "exp": np.exp, "log": np.log}
    functions |= {"sqrt": np.sqrt, "floor": np.floor}
    return eval(text, functions | {name: table(np.asarray(x)) for name, x in (buffers or {}).items()} | names)


class Corner(ArithmeticError):
    """A score lies where score_mod has no derivative, or so near that differences do not show it."""


class Scores:
    """[batch, heads, rows, keys]: `value`, -inf where hidden, and how it was made. Hidden pairs hold 0 elsewhere."""

    def __init__(
        self,
        q,
        k,
        *,
        mask=None,
        align_offset=None,
        window=None,
        bool_mask=None,
        bias=None,
        alibi_slopes=None,
        scale=None,
        softcap=0.0,
        score_mod=None,
        mask_mod=None,
        mod_buffers=None,
        batch_offset=0,
    ):
        batch, heads, rows, dim = q.shape
        keys = k.shape[2]
        shape = (batch, heads, rows, keys)
        b, h, i, j = np.ogrid[batch_offset : batch_offset + batch, :heads, :rows, :keys]
        at = {"batch": b, "head": h, "q_index": i, "k_index": j}
        seen = visible(rows, keys, mask, window, align_offset) & (True if bool_mask is None else bool_mask)
        if mask_mod is not None:
            seen = seen & (twin(mask_mod, mod_buffers, **at) != 0)
        seen = np.broadcast_to(seen, shape)
        self.scale = (dim or 1) ** -0.5 if scale is None else scale
        x = np.where(seen, q @ k.swapaxes(-1, -2), 0) * self.scale
        self.capped = x
        self.by_product = self.by_product_size = np.ones(shape)  # derivative by the scaled product; its terms
        if softcap > 0:
            self.capped = softcap * np.tanh(x / softcap)
            self.by_product, self.by_product_size = (1 + sign * np.tanh(x / softcap) ** 2 for sign in (-1, 1))
        t = self.capped
        if bias is not None:
            t = t + np.asarray(bias).astype(np.float64)
        self.distance = np.abs(aligned(rows, keys, mask, align_offset) - np.arange(keys))
        if alibi_slopes is not None:
            slopes = np.asarray(alibi_slopes, np.float64)
            t = t - (slopes[None, :, None, None] if slopes.ndim == 1 else slopes[:, :, None, None]) * self.distance
        t = np.broadcast_to(t, shape)
        self.value, self.by_mod, self.by_mod_size = t, np.ones(shape), 1
        if score_mod is not None:
            step = 1e-6 * (1 + np.abs(t))
            above, below, self.value = (
                np.broadcast_to(twin(score_mod, mod_buffers, score=x, **at), shape) for x in (t + step, t - step, t)
            )
            self.by_mod = (above - below) / (2 * step)
            bend = np.abs(above + below - 2 * self.value) / step
            if (bend[seen] > 1e-3 * (1 + np.abs(self.by_mod[seen]))).any():
                raise Corner
            self.by_mod_size = 1 + np.abs(self.by_mod)
        self.seen = seen & (self.value != NEG_INF)
        self.value = np.where(self.seen, self.value, NEG_INF)


def attention(q, k, v, *, sinks=None, dropout_p=0.0, seed=0, batch_offset=0, **options):
    """(out, lse) in float64 of [batch, heads, seq, dim] arrays."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    batch, heads, rows, _ = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    s = Scores(q, k, batch_offset=batch_offset, **options).value
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
        factors = dropout_factors(dropout_p, seed, batch_offset + batch, heads, rows, k.shape[2])
        weights = weights * factors[batch_offset:]
    return weights @ v, lse


def sequences(cu_q, cu_k, options):
    """(rows, keys, the options of this sequence alone) of packed tokens."""
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        own = dict(options, batch_offset=b)
        for name in ("bool_mask", "bias"):
            if own.get(name) is not None:
                x = np.asarray(own[name])
                x = x.reshape((1,) * (4 - x.ndim) + x.shape)
                x = x[b : b + 1] if x.shape[0] > 1 else x
                x = x[:, :, : rows.stop - rows.start] if x.shape[2] > 1 else x
                own[name] = x[..., : keys.stop - keys.start] if x.shape[3] > 1 else x
        if np.ndim(own.get("alibi_slopes")) == 2:
            own["alibi_slopes"] = np.asarray(own["alibi_slopes"])[b : b + 1]
        yield rows, keys, own


def alone(x):
    """A packed sequence [tokens, heads, dim] as a batch of one."""
    return np.asarray(x).transpose(1, 0, 2)[None]


def packed(q, k, v, cu_q, cu_k, **options):
    """The same for packed [total, heads, dim] arrays; lse [heads, total]. Rows outside every sequence: 0, -inf."""
    out = np.zeros((*q.shape[:2], v.shape[-1]))
    lse = np.full((q.shape[1], q.shape[0]), NEG_INF)
    for rows, keys, own in sequences(cu_q, cu_k, options):
        part, part_lse = attention(alone(q[rows]), alone(k[keys]), alone(v[keys]), **own)
        out[rows], lse[:, rows] = part[0].transpose(1, 0, 2), part_lse[0]
    return out, lse


def _sum(weights, seen, x):
    """weights @ x, of what is seen: elsewhere x adds nothing, NaN either."""
    if np.isfinite(x).all() and np.isfinite(weights).all():
        return weights @ x
    with np.errstate(invalid="ignore"):
        return np.where(seen[..., None], weights[..., None] * x[..., None, :, :], 0).sum(-2)


def _like(x, shape):
    """x [batch, heads, rows, keys], summed over what an array of `shape` is broadcast along."""
    full = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(n for n, size in enumerate(full) if size == 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


def gradients(dout, q, k, v, out, lse, *, dlse=None, sinks=None, dropout_p=0.0, seed=0, batch_offset=0, **options):
    """By name, each gradient in float64 and the sum of the sizes of its terms; and the largest score, `t`, that a
    weight is known by. From the out and lse that are given, as docs/reference/conventions.md has them."""
    dout, q, k, v, out = (np.asarray(x).astype(np.float64) for x in (dout, q, k, v, out))
    lse = np.asarray(lse, np.float64)
    batch, heads, rows, _ = q.shape
    heads_kv, keys = k.shape[1], k.shape[2]
    k, v = (np.repeat(x, heads // max(heads_kv, 1), axis=1) for x in (k, v))
    s = Scores(q, k, batch_offset=batch_offset, **options)
    there = lse != NEG_INF  # a key or a sink is seen
    pairs = s.seen & there[..., None]
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.where(out == 0, 0, dout * out)
        delta = products.sum(-1) - (0 if dlse is None else np.asarray(dlse, np.float64))
        delta_size = np.abs(products).sum(-1) + (0 if dlse is None else np.abs(dlse))
        p = np.exp(np.where(pairs, s.value - np.where(there, lse, 0)[..., None], NEG_INF))
        z = 1.0
        if dropout_p > 0:
            z = dropout_factors(dropout_p, seed, batch_offset + batch, heads, rows, keys)[batch_offset:]
        dp = np.where(pairs, z * (dout @ v.swapaxes(-1, -2)), 0)
        dp_size = np.where(pairs, z * (np.abs(dout) @ np.abs(v).swapaxes(-1, -2)), 0)
        dt = np.where(pairs, p * (dp - delta[..., None]) * s.by_mod, 0)
        dt_size = np.where(pairs, p * (dp_size + delta_size[..., None]) * s.by_mod_size, 0)
        dx, dx_size = s.scale * dt * s.by_product, abs(s.scale) * dt_size * s.by_product_size

        def of_keys(weights, x):
            turned = np.broadcast_to(weights, pairs.shape).swapaxes(-1, -2)
            x = _sum(turned, pairs.swapaxes(-1, -2), x)
            return x.reshape(batch, heads_kv, heads // max(heads_kv, 1), *x.shape[2:]).sum(2)

        made = {
            "dq": (_sum(dx, pairs, k), _sum(dx_size, pairs, np.abs(k))),
            "dk": (of_keys(dx, q), of_keys(dx_size, np.abs(q))),
            "dv": (of_keys(p * z, dout), of_keys(p * z, np.abs(dout))),
        }
        if options.get("bias") is not None:
            shape = np.shape(options["bias"])
            made["dbias"] = _like(dt, shape), _like(dt_size, shape)
        if options.get("alibi_slopes") is not None:
            axis = (0, 2, 3) if np.ndim(options["alibi_slopes"]) == 1 else (2, 3)
            made["dalibi_slopes"] = -(dt * s.distance).sum(axis), (dt_size * s.distance).sum(axis)
        if sinks is not None:
            weight = np.where(there, np.exp(np.asarray(sinks, np.float64)[None, :, None] - np.where(there, lse, 0)), 0)
            made["dsinks"] = -(weight * np.where(there, delta, 0)).sum((0, 2)), (weight * delta_size).sum((0, 2))
    lengths = [np.linalg.norm(np.where(np.isfinite(x), x, 0), axis=-1).max(initial=0) for x in (q, k)]
    known = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in (s.value, lse)]
    return made | {"t": max(*known, abs(s.scale) * lengths[0] * lengths[1])}


def packed_gradients(dout, q, k, v, out, lse, cu_q, cu_k, dlse=None, **options):
    """The same of packed arrays."""
    made = {"t": 0.0}
    shapes = {"dq": q.shape, "dk": k.shape, "dv": v.shape}
    for name in ("bias", "alibi_slopes", "sinks"):
        if options.get(name) is not None:
            shapes["d" + name] = np.shape(options[name])
    made |= {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    for b, (rows, keys, own) in enumerate(sequences(cu_q, cu_k, options)):
        parts = (alone(x[at]) for x, at in ((dout, rows), (q, rows), (k, keys), (v, keys), (out, rows)))
        one = gradients(*parts, lse[None, :, rows], dlse=None if dlse is None else dlse[None, :, rows], **own)
        made["t"] = max(made["t"], one.pop("t"))
        for name, two in one.items():
            for whole, x in zip(made[name], two, strict=True):
                if name in ("dq", "dk", "dv"):
                    whole[rows if name == "dq" else keys] += x[0].transpose(1, 0, 2)
                elif name == "dbias":
                    at = whole.reshape((1,) * (4 - whole.ndim) + whole.shape)
                    at = at[b : b + 1] if at.shape[0] > 1 else at
                    at[:, :, : x.shape[2], : x.shape[3]] += x
                elif whole.ndim == 2:
                    whole[b] += x[0]
                else:
                    whole += x
    return made
