"""A statistic of the weights as a call of the backward: its arguments, and a cache as packed keys."""

import sys
from typing import Any

from . import _arrays, _devices, _options, _unknown, _values
from . import _numpy as np
from ._gradients import attention_backward
from ._quantized import Quantized

_NOT_OURS = ("dlse", "grads", "grad_dtype", "into")


def options_of(function: str, options: dict[str, Any], others: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keywords of attention_backward that a statistic has, all of them; others: names that it has besides."""
    known = {x: y for x, y in _options.keywords(attention_backward).items() if x not in _NOT_OURS}
    if unknown := [x for x in options if x not in known]:
        _unknown.refuse(function, unknown, {**known, **dict.fromkeys(others)})
    dropout_p = options.get("dropout_p", 0)
    if _values.number("dropout_p", dropout_p) != 0:
        raise ValueError(
            f"{function} does not support dropout_p (got {dropout_p!r}), because it is about the softmax's weights"
        )
    return {**known, **options}


class WeightsCall:
    """q, k, lse and the options of a call; with a cache those of packed sequences, and where its keys lie."""

    def __init__(
        self, function: str, q: Any, k: Any, lse: Any, seqused_k: Any, page_table: Any, options: dict[str, Any]
    ) -> None:
        self.options = options_of(function, options, ("seqused_k", "page_table"))
        for name, x in (("q", q), ("k", k), ("lse", lse)):
            if isinstance(x, Quantized):
                raise TypeError(f"{function} does not support a Quantized {name}")
            if not (isinstance(x, np.ndarray) or _devices.is_torch(x) or _devices.is_cupy(x)):
                kinds = "a NumPy or CuPy array or a torch tensor"
                raise TypeError(f"{name} must be {kinds} (got {type(x).__name__})")
            dtype = str(x.dtype).rpartition(".")[2]
            if name != "lse" and dtype not in _arrays.DATA:
                raise TypeError(f"{name} must be float32, float16 or bfloat16 (got {dtype})")
        if k.dtype != q.dtype:
            names = (str(x.dtype).rpartition(".")[2] for x in (q, k))
            raise TypeError("k must be {}, as q (got {})".format(*names))
        self.tokens_first = _options.tokens_first(self.options["layout"])
        self.packed = _options.is_packed(self.options)
        self.q, self.k, self.lse = q, k, lse
        self.capacity = 0
        self._rows: int | None = None  # of each sequence beside a cache, where q is not packed
        self._keys: Any = None  # of a cache: the sequence and the token of each key that counts
        if page_table is not None and seqused_k is None:
            raise ValueError("page_table must be given with seqused_k (got None)")
        dims = 3 if self.options["cu_seqlens_q"] is not None else 4
        dims_k = 3 if self.options["cu_seqlens_k"] is not None and seqused_k is None else 4
        if dims == 4 and dims_k == 3:
            raise ValueError("cu_seqlens_q must be given with cu_seqlens_k (got None)")
        form = _options.batched(self.tokens_first)
        for name, x, n in (("q", q, dims), ("k", k, dims_k)):
            if len(x.shape) != n:
                paged = name == "k" and page_table is not None
                shape = "[pages, page_size, heads, dim]" if paged else form if n == 4 else "[total, heads, dim]"
                raise ValueError(f"{name} must have the shape {shape} (got {list(x.shape)})")
        rows = tuple(q.shape[1::-1] if dims == 3 else q.shape[:3])
        if tuple(lse.shape) != rows:
            raise ValueError(f"lse must have the shape {list(rows)} (got {list(lse.shape)})")
        by_token = self.tokens_first or page_table is not None
        self.heads = q.shape[1 if dims == 3 else 2 if self.tokens_first else 1]
        kv = k.shape[1 if dims_k == 3 else 2 if by_token else 1]
        if kv == 0 or self.heads % kv != 0:
            raise ValueError(f"heads_q ({self.heads}) must be a multiple of heads_kv ({kv})")
        self.group = self.heads // kv
        if self.heads == 0:
            self.k, self.group = k[:, :0] if dims_k == 3 or not by_token else k[:, :, :0], 1
        if seqused_k is not None:
            self._pack(seqused_k, page_table)

    def keep_heads_apart(self) -> None:
        """Gives each head of q keys of its own where a weight is not finite: its column of V would spoil the others.

        So it does where V would have more columns than attention takes.
        """
        if self.group == 1 or (self.group <= 512 and bool((self.lse < float("inf")).all())):
            return
        axis = 2 if self.tokens_first and not self.packed else 1
        if _devices.is_torch(self.k):
            self.k = self.k.repeat_interleave(self.group, axis)
        else:
            self.k = _library(self.k).repeat(self.k, self.group, axis)
        self.group = 1

    def columns(self, n: int) -> int:
        """Columns of V for n that count. The tensor cores of GPUs take eight at a time."""
        return n if _devices.cuda_index(self.q) is None else -(-n // 8) * 8

    def sizes(self) -> tuple[int, int, int]:
        """(batch, rows, keys) of the map."""
        if not self.packed:
            seq = 1 if self.tokens_first else 2
            return self.q.shape[0], self.q.shape[seq], self.k.shape[seq]
        most = []
        for side in "qk":
            lengths = self.options[f"cu_seqlens_{side}"]
            if lengths is None:
                raise ValueError(f"cu_seqlens_{side} must be given for packed sequences (got None)")
            name = f"max_seqlen_{side}"
            known = self.options[name]
            longest = int(np.diff(on_host(lengths)).max(initial=0)) if known is None else _options.bound(name, known)
            most.append(longest)
        if self._keys is None:
            return len(lengths) - 1, most[0], most[1]
        return len(lengths) - 1, most[0] if self._rows is None else self._rows, self.capacity

    def backward(self, columns: Any, **words: Any) -> Any:
        """The gradients where V and O are 0 and dO is `columns`, repeated along rows."""
        dim = columns.shape[-1]
        zero = filled(self.q, (dim,), 0)
        of_rows, of_keys = ((*x.shape[:-1], dim) for x in (self.q, self.k))
        repeated = spread(columns, of_rows), spread(zero, of_keys), spread(zero, of_rows)
        if _devices.cuda_index(self.q) is not None:  # kernels read 16 bytes of each row at once
            repeated = tuple(map(dense, repeated))
        dout, v, out = repeated
        return attention_backward(dout, self.q, self.k, v, out, self.lse, **words, **self.options)

    def to_cache(self, x: Any) -> Any:
        """[heads, total] where the keys of a cache lie; without one as it is."""
        if self._keys is None:
            return x
        batch = self.options["cu_seqlens_q"].shape[0] - 1
        result = _arrays.new(self.q, (batch, self.capacity, self.heads), "float32", ordered=False, fill=0)
        result[self._keys] = x.swapaxes(0, 1)
        return result if self.tokens_first else result.swapaxes(1, 2)

    def _pack(self, seqused_k: Any, page_table: Any) -> None:
        """Gathers the keys of a cache that count. Its rows become packed ones."""
        if self.options["cu_seqlens_k"] is not None:
            raise ValueError("cu_seqlens_k must be None with seqused_k")
        k, by_page = self.k, page_table is not None
        tokens = k if by_page or self.tokens_first else k.swapaxes(1, 2)
        used = integers("seqused_k", seqused_k)
        table: Any = integers("page_table", page_table) if by_page else None
        if by_page and table.ndim != 2:
            raise ValueError(f"page_table must have the shape [batch, pages] (got {list(table.shape)})")
        batch = len(table) if by_page else k.shape[0]
        self.capacity = table.shape[1] * k.shape[1] if by_page else tokens.shape[1]
        if used.shape != (batch,) or ((used < 0) | (used > self.capacity)).any():
            got = used.tolist()
            raise ValueError(f"seqused_k must be {batch} integers from 0 to the capacity {self.capacity} (got {got})")
        ends = np.concatenate([[0], np.cumsum(used, dtype=np.int64)])
        if ends[-1] > np.iinfo(np.int32).max:
            raise ValueError(f"seqused_k must have a sum below 2**31 (got {ends[-1]})")
        sequence = np.repeat(np.arange(batch), used)
        token = np.arange(ends[-1]) - ends[sequence]
        self._keys = at = tuple(like(self.q, x) for x in (sequence, token))
        if by_page:
            page = table[sequence, token // k.shape[1]]
            if ((page < 0) | (page >= k.shape[0])).any():
                raise ValueError(f"page_table must hold pages from 0 to {k.shape[0] - 1} where keys count")
            at = tuple(like(self.q, x) for x in (page, token % k.shape[1]))
        self.k = tokens[at]
        words = self.options
        words["cu_seqlens_k"] = like(self.q, ends.astype(np.int32))
        words["max_seqlen_k"] = max(self.capacity, 1)  # the keys of a bias
        if words["cu_seqlens_q"] is None:
            self._pack_rows(batch)
        self.packed = True

    def _pack_rows(self, batch: int) -> None:
        q, lse = (self.q, self.lse) if self.tokens_first else (self.q.swapaxes(1, 2), self.lse.swapaxes(1, 2))
        if q.shape[0] != batch:
            raise ValueError(f"q must have the batch {batch} of the cache (got {q.shape[0]})")
        self._rows = rows = q.shape[1]
        self.options["cu_seqlens_q"] = like(self.q, (np.arange(batch + 1) * rows).astype(np.int32))
        self.options["max_seqlen_q"] = max(rows, 1)
        self.lse = dense(lse.reshape((batch * rows, self.heads)).swapaxes(0, 1))
        self.q = q.reshape((batch * rows, *q.shape[2:]))


def _library(x: Any) -> Any:
    """NumPy, or CuPy or JAX of their arrays."""
    return sys.modules["cupy" if _devices.is_cupy(x) else "jax.numpy" if _devices.is_jax(x) else "numpy"]


def filled(like_x: Any, shape: Any, value: float) -> Any:
    return _arrays.new(like_x, shape, ordered=False, fill=value)


def spread(x: Any, shape: Any) -> Any:
    """x repeated to a shape, as a view."""
    if _devices.is_torch(x):
        return x.expand(shape)
    return _library(x).broadcast_to(x, shape)


def dense(x: Any) -> Any:
    if _devices.is_torch(x):
        return x.contiguous()
    if _devices.is_jax(x):  # which has no strides
        return x
    return _library(x).ascontiguousarray(x)


def on_host(x: Any) -> Any:
    """The values as a NumPy array. A device is waited for."""
    if _devices.is_torch(x):
        return x.detach().cpu().numpy()
    return x.get() if _devices.is_cupy(x) else np.asarray(x)


def integers(name: str, x: Any) -> Any:
    values = on_host(x)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} must be int32 (got {values.dtype})")
    return values.astype(np.int64)


def like(x: Any, values: Any) -> Any:
    """A NumPy array as an array of the kind of x, on its device."""
    if _devices.is_torch(x):
        return sys.modules["torch"].from_numpy(values).to(x.device)
    return sys.modules["cupy"].asarray(values) if _devices.is_cupy(x) else values
