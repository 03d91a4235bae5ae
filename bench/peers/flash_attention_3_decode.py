"""FlashAttention-3's decoding: flash_attn_with_kvcache for one query and a full cache.

A library of bench/peers/fa3/build.sh (decode.cu), named by $ONEPASS_FA3, does the work of mha_fwd: heads packed, the
number of splits by its heuristic, then its combine kernel. The timed span has both kernels, but not the allocation of
the splits' results. The first and the last sequence are compared with float64 before anything is timed.
"""

import ctypes
import os

from bench.problem import Refused

DIMS = 64, 128
MOST_HEADS = 128  # of q for one of k and v: rows of a tile
MOST_ERROR = 0.01  # of the result's norm; bf16 rounds to 0.002


class Decoding(ctypes.Structure):
    """The argument of decode.cu with this name."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse", "parts", "lse_parts", "table")]
    _fields_ += [(name, ctypes.c_int64) for name in ("key_stride", "head_stride", "batch_stride")]
    _fields_ += [(name, ctypes.c_int) for name in ("batch", "heads", "heads_kv", "keys", "dim", "page", "pages")]
    _fields_ += [("scale", ctypes.c_float)]


def page_of(p):
    """Keys of a page, or 0 for a contiguous cache."""
    kind, _, size = (p.extra("kv") or "").partition(":")
    if kind not in ("", "paged"):
        raise Refused(f"kv={kind} is not timed")
    return int(size or 0)


def refuse(p):
    p.refuse_extras(("kv",))
    if p.dtype != "bf16" or p.causal or p.dim != p.dim_v or p.dim not in DIMS:
        raise Refused("this build decodes bf16 only, one query that sees every key, with head dims 64 and 128")
    if p.heads > MOST_HEADS * p.heads_kv:
        raise Refused(f"this build decodes at most {MOST_HEADS} heads of q for one of k and v")
    if (page := page_of(p)) and p.keys % page:
        raise Refused(f"without lengths, keys must be a multiple of the page size {page} (got {p.keys})")


class Calls:
    """Tensors of one problem, and the library's function with its argument."""

    def __init__(self, torch, p):
        self.torch, self.p, page = torch, p, page_of(p)
        new = {"dtype": torch.bfloat16, "device": p.device}
        self.q = torch.randn(p.batch, p.heads, p.dim, **new)
        self.out = torch.empty_like(self.q)
        self.table, shape = None, (p.batch, p.keys, p.heads_kv, p.dim)
        if page:
            pages = p.batch * p.keys // page
            self.table = torch.randperm(pages, device=p.device).to(torch.int32).view(p.batch, -1)
            shape = pages, page, p.heads_kv, p.dim
        # [sequence or page, key, head, dim], in the problem's memory order
        self.k, self.v = (
            torch.randn(shape, **new)
            if page or p.bshd
            else torch.randn(p.batch, p.heads_kv, p.keys, p.dim, **new).transpose(1, 2)
            for _ in range(2)
        )
        library = ctypes.CDLL(os.environ["ONEPASS_FA3"])
        self.decode = library.fa3_decode
        batch_stride, key_stride, head_stride, _ = self.k.stride()
        self.asked = Decoding(
            key_stride=key_stride, head_stride=head_stride, batch_stride=batch_stride, batch=p.batch, heads=p.heads,
            heads_kv=p.heads_kv, keys=p.keys, dim=p.dim, page=page, pages=len(self.k) if page else 0,
            scale=p.scale or p.dim**-0.5, table=self.table.data_ptr() if page else None,
        )  # fmt: skip
        self.splits = library.fa3_decode_splits(ctypes.byref(self.asked))
        sums = {"dtype": torch.float32, "device": p.device}
        self.lse = torch.empty(p.batch, p.heads, **sums)
        parts = self.splits if self.splits > 1 else 0
        self.parts = torch.empty(parts, *self.q.shape, **sums)
        self.lse_parts = torch.empty(parts, *self.lse.shape, **sums)
        for name in ("q", "k", "v", "out", "lse", "parts", "lse_parts"):
            setattr(self.asked, name, getattr(self, name).data_ptr())
        self.stream = ctypes.c_void_p(torch.cuda.current_stream(p.device).cuda_stream)
        self.extra_bytes = 4 * sum(t.numel() for t in (self.lse, self.parts, self.lse_parts))
        self.note = f"{self.splits} splits" if self.splits > 1 else "one split"

    def forward(self):
        if code := self.decode(ctypes.byref(self.asked), self.stream):
            raise RuntimeError(f"fa3_decode returned {code}")
        return self.out

    def expected(self, sequence):
        """[heads, dim] in float64."""
        p = self.p
        which = slice(sequence, sequence + 1) if self.table is None else self.table[sequence].long()
        k, v = (x[which].reshape(p.keys, p.heads_kv, p.dim).double() for x in (self.k, self.v))
        q = self.q[sequence].double().view(p.heads_kv, -1, p.dim)
        scores = self.torch.einsum("hgd,khd->hgk", q, k) * self.asked.scale
        return self.torch.einsum("hgk,khd->hgd", scores.softmax(-1), v).reshape(p.heads, p.dim)

    def check(self):
        """Raises RuntimeError if a result differs from float64's."""
        self.out.fill_(self.torch.nan)
        self.forward()
        for sequence in {0, self.p.batch - 1}:
            expected = self.expected(sequence)
            error = ((self.out[sequence] - expected).norm() / expected.norm()).item()
            if not error <= MOST_ERROR:
                raise RuntimeError(f"its result is off by {error:.3g} of its norm in sequence {sequence}")
