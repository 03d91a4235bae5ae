"""FlashMLA's dense decoding on Hopper as a peer of `onepass bench`: the library of the wheel sgl-flash-mla 1.0.0, which
carries DeepSeek's kernels (https://github.com/deepseek-ai/FlashMLA) and registers them with PyTorch when it is loaded.

$ONEPASS_FLASHMLA names the wheel's flash_mla/_C_legacy.abi3.so. Its cache is in pages of 64 keys, so a contiguous
problem is timed as one in such pages, and one in pages as it is. Its schedule is made once, outside the timed span.
"""

import os
import statistics

from bench.peers.torch_cuda import Timer, settle
from bench.problem import Refused

PAGE = 64


class FlashMla:
    module = "torch"

    def __init__(self, torch):
        self.torch = torch

    @staticmethod
    def version(_):
        return "sgl-flash-mla 1.0.0"

    def refuse(self, p):
        p.refuse_extras(("v_in_k", "kv", "seqused"))
        if (p.dim, p.dim_v) != (576, 512) or "v_in_k" not in p.extras or p.dtype == "fp32" or p.heads_kv != 1:
            raise Refused("it is for head dims 576/512 with v in k, one K/V head, fp16 and bf16")
        if p.extra("kv") not in (None, f"paged:{PAGE}") or p.keys % PAGE:
            raise Refused(f"its cache is in pages of {PAGE} keys")
        if not os.environ.get("ONEPASS_FLASHMLA"):
            raise Refused("$ONEPASS_FLASHMLA does not name its library")

    def prepare(self, problem, threads):
        """A function (seconds) -> answer."""
        torch, p = self.torch, problem
        self.refuse(p)
        settle(torch, p)
        torch.ops.load_library(os.environ["ONEPASS_FLASHMLA"])
        decode = torch.ops.flash_mla_legacy.dense_decode_fwd
        options = {"dtype": torch.bfloat16 if p.dtype == "bf16" else torch.float16, "device": p.device}
        per_sequence = p.keys // PAGE
        cache = torch.randn(p.batch * per_sequence, PAGE, 1, p.dim, **options)
        q = torch.randn(p.batch, p.rows, p.heads, p.dim, **options)
        table = torch.randperm(len(cache), device=p.device).to(torch.int32).view(p.batch, per_sequence)
        lengths = [int(n) for n in p.extra("seqused").split(",")] if p.extra("seqused") else [p.keys] * p.batch
        used = torch.tensor(lengths, dtype=torch.int32, device=p.device)
        what = (q, cache, p.dim_v, used, table, p.scale or p.dim**-0.5, bool(p.causal))
        out, _, *schedule = decode(*what, None, None)
        first = slice(0, 1)  # one sequence, against float64: what is timed is right
        keys = cache[table[0].long()].view(-1, p.dim)[: lengths[0]].double()
        scores = q[0].double() @ keys.T * what[5]
        if p.causal:
            ends = torch.arange(lengths[0] - p.rows, lengths[0], device=p.device)
            scores.masked_fill_(torch.arange(lengths[0], device=p.device) > ends[:, None, None], -torch.inf)
        expected = scores.softmax(-1) @ keys[:, : p.dim_v]
        if (error := (out[first] - expected).abs().max().item()) > 0.02:
            raise RuntimeError(f"its result is off by {error}")
        timer = Timer(torch, p.device)

        def measure(seconds):
            times = timer.times(lambda: decode(*what, *schedule), seconds)
            return {"median_s": statistics.median(times), "min_s": min(times), "runs": len(times),
                    "note": "pages of 64"}  # fmt: skip

        return measure


PEERS = {"flash-mla": FlashMla}
