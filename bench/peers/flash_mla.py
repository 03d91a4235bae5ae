"""FlashMLA's dense decoding on Hopper as a peer of `onepass bench`: the library of the wheel sgl-flash-mla 1.0.0.

It has DeepSeek's kernels (https://github.com/deepseek-ai/FlashMLA) and registers them with PyTorch when it is loaded.

$ONEPASS_FLASHMLA names the wheel's flash_mla/_C_legacy.abi3.so. Its cache has pages of 64 keys; a contiguous problem is
timed as one with such pages. Its schedule is made once, outside the timed span.
"""

import os

from bench.peers.base import Asked, Peer
from bench.peers.torch_cuda import settle
from bench.problem import Refused
from bench.timing import Timer

PAGE = 64


class FlashMla(Peer):
    @staticmethod
    def version(_):
        return "sgl-flash-mla 1.0.0"

    def refuse(self, p):
        p.refuse_extras(("v_in_k", "kv", "seqused"))
        if (p.dim, p.dim_v) != (576, 512) or "v_in_k" not in p.extras or p.dtype == "fp32" or p.heads_kv != 1:
            raise Refused("supports only head dims 576/512 with v in k, one K/V head, fp16 and bf16")
        if p.extra("kv") not in (None, f"paged:{PAGE}") or p.keys % PAGE:
            raise Refused(f"supports only pages of {PAGE} keys")
        if not os.environ.get("ONEPASS_FLASHMLA"):
            raise Refused("$ONEPASS_FLASHMLA must name its library")

    def prepare(self, problem, threads):
        torch, p = self.torch, problem
        self.refuse(p)
        settle(torch, p)
        torch.ops.load_library(os.environ["ONEPASS_FLASHMLA"])
        decode = torch.ops.flash_mla_legacy.dense_decode_fwd
        options = {"dtype": p.torch_dtype(torch), "device": p.device}
        per_sequence = p.keys // PAGE
        cache = torch.randn(p.batch * per_sequence, PAGE, 1, p.dim, **options)
        q = torch.randn(p.batch, p.rows, p.heads, p.dim, **options)
        table = torch.randperm(len(cache), device=p.device).to(torch.int32).view(p.batch, per_sequence)
        lengths = [int(n) for n in p.extra("seqused").split(",")] if p.extra("seqused") else [p.keys] * p.batch
        used = torch.tensor(lengths, dtype=torch.int32, device=p.device)
        asked = (q, cache, p.dim_v, used, table, p.scale or p.dim**-0.5, bool(p.causal))
        out, _, *schedule = decode(*asked, None, None)
        first = slice(0, 1)  # one sequence is compared with float64
        keys = cache[table[0].long()].view(-1, p.dim)[: lengths[0]].double()
        scores = q[0].double() @ keys.T * asked[5]
        if p.causal:
            ends = torch.arange(lengths[0] - p.rows, lengths[0], device=p.device)
            scores.masked_fill_(torch.arange(lengths[0], device=p.device) > ends[:, None, None], -torch.inf)
        expected = scores.softmax(-1) @ keys[:, : p.dim_v]
        if (error := (out[first] - expected).abs().max().item()) > 0.02:
            raise RuntimeError(f"its result is off by {error}")
        return Asked(lambda: decode(*asked, *schedule), Timer(torch, p.device), {"note": "pages of 64"})


PEERS = {"flash-mla": FlashMla}
