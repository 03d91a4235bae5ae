"""The words of docs/reference/problem.md that peers can be asked for."""

import re
from dataclasses import dataclass, field

import numpy as np


class Refused(Exception):
    """A peer cannot, or shall not, be asked for this; the sentence says why."""


@dataclass
class Problem:
    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    rows: int = 0
    keys: int = 0
    dim: int = 64
    dim_v: int = 64
    dtype: str = "fp32"
    causal: str = ""
    bshd: bool = False
    device: str = "cpu"
    scale: float = 0.0  # 0: the default
    backward: bool = False
    op: str = "fwd"
    extras: list = field(default_factory=list)  # words of which a peer may refuse one

    @classmethod
    def parse(cls, line):
        p = cls()

        def pair(text, separator):
            first, _, second = text.partition(separator)
            return int(first), int(second or first)

        for word in line.split():
            if word in ("fwd", "cpu", "lse", "layout=bhsd"):
                continue
            elif word == "bwd":
                p.backward, p.op = True, word
            elif word in ("merge", "softmax", "softmax_bwd", "flat_gemm", "linear"):
                p.op = word
            elif word in ("fp32", "fp16", "bf16"):
                p.dtype = word
            elif word in ("causal_top_left", "causal_bottom_right"):
                p.causal = word
            elif word == "layout=bshd":
                p.bshd = True
            elif word.startswith("scale="):
                p.scale = float(word[6:])
            elif re.fullmatch(r"cuda(:\d+)?", word):
                p.device = word if ":" in word else "cuda:0"
            elif re.fullmatch(r"b\d+", word):
                p.batch = int(word[1:])
            elif re.fullmatch(r"h\d+(/\d+)?", word):
                p.heads, p.heads_kv = pair(word[1:], "/")
            elif re.fullmatch(r"s\d+(x\d+)?", word):
                p.rows, p.keys = pair(word[1:], "x")
            elif re.fullmatch(r"d\d+(/\d+)?", word):
                p.dim, p.dim_v = pair(word[1:], "/")
            else:
                p.extras.append(word)
        if p.causal == "causal_bottom_right" and p.rows == 1:
            p.causal = ""  # the only query sees every key
        return p

    def refuse_extras(self, accepted=()):
        for word in self.extras:
            if word.partition("=")[0] not in accepted:
                raise Refused(f"{word if len(word) < 40 else word.partition('=')[0]} is not timed")

    def extra(self, name):
        """What stands behind `name=` among the extras, or None."""
        return next((value for key, _, value in (word.partition("=") for word in self.extras) if key == name), None)

    def grads(self):
        """The gradients that a backward is asked for."""
        return (self.extra("grads") or "dq,dk,dv").split(",") if self.backward else []

    def window(self):
        """(left, right) of the band, -1 for unbounded; causal is (left, 0)."""
        left, right = (int(n) for n in (self.extra("window") or "-1:-1").split(":"))
        return left, (0 if self.causal else right)

    def lengths(self):
        """(lengths of q, lengths of k) of a packed problem, or None."""
        text = self.extra("varlen")
        if text is None:
            return None
        q, _, k = text.partition("/")

        def numbers(part):
            runs = (run.partition("x") for run in part.split(","))
            return [int(n) for n, _, times in runs for _ in range(int(times or 1))]

        return numbers(q), numbers(k or q)

    def arrays(self):
        """q, k, v [batch, heads, seq, dim] in fp32, the same on every call."""
        rng = np.random.default_rng(1)
        shapes = (
            (self.heads, self.rows, self.dim),
            (self.heads_kv, self.keys, self.dim),
            (self.heads_kv, self.keys, self.dim_v),
        )
        return [rng.standard_normal((self.batch, *shape), np.float32) for shape in shapes]
