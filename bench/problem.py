"""Problem lines (docs/reference/problem.md) as peers read them."""

import re
from dataclasses import dataclass, field

import numpy as np

SIZES = {"b": ["batch"], "h": ["heads", "heads_kv"], "s": ["rows", "keys"], "d": ["dim", "dim_v"]}


class Refused(Exception):
    """A peer cannot compute this problem, or not as it is meant; the sentence says why."""


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
    extras: list = field(default_factory=list)  # the other words, which a peer accepts or refuses

    @classmethod
    def parse(cls, line):
        p = cls()
        for word in line.split():
            if word in ("fwd", "cpu", "lse", "layout=bhsd"):
                continue
            elif word in ("bwd", "bwd_jvp", "merge", "softmax", "softmax_bwd", "flat_gemm", "linear"):
                p.op, p.backward = word, word in ("bwd", "bwd_jvp")
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
            elif re.fullmatch(r"b\d+|[hd]\d+(/\d+)?|s\d+(x\d+)?", word):
                numbers = [int(n) for n in re.findall(r"\d+", word)]
                for name, number in zip(SIZES[word[0]], 2 * numbers):
                    setattr(p, name, number)
            else:
                p.extras.append(word)
        if p.causal == "causal_bottom_right" and p.rows == 1:
            p.causal = ""  # the only query sees every key
        return p

    def sizes(self):
        """(heads, tokens, dim) of q, k and v."""
        k = self.heads_kv, self.keys
        return (self.heads, self.rows, self.dim), (*k, self.dim), (*k, self.dim_v)

    def refuse_extras(self, accepted=()):
        for word in self.extras:
            if word.partition("=")[0] not in accepted:
                raise Refused(f"{word if len(word) < 40 else word.partition('=')[0]} is not timed")

    def extra(self, name):
        """The text after `name=` among the extras, or None."""
        return next((value for key, _, value in (word.partition("=") for word in self.extras) if key == name), None)

    def torch_dtype(self, torch):
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[self.dtype]

    def grads(self):
        """The gradients that a backward computes."""
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
        return [rng.standard_normal((self.batch, *shape), np.float32) for shape in self.sizes()]
