"""Errors of FP8 attention beside bf16's, on a GPU.

One batch entry, four heads, head dim 128, fp32 inputs that `onepass.attention(..., fp8=True)` quantizes, and the same
inputs rounded to bf16. O and the LSE of 256 rows spread over the sequence are compared with float64 of the fp32 inputs:

  normal     N(0, 1)
  outliers   N(0, 1) + N(0, 100) in one number of 1000, as in FlashAttention-3's paper
  v_mean     N(0, 1), V of mean 1

flash-attn-3 and cudnn, where they are installed (bench/peers/fp8.py): FP8 of the bf16 inputs with scales per head and
per tensor.

rmse: root mean square of O's differences. bias: the least squares factor of O by the reference, less 1. lse: the
largest difference of LSEs. lse_relative: the largest difference from the LSEs of the same dequantized numbers, relative
to these.
"""

from bench.peers import fp8
from bench.tables import fp8 as tables

NEEDS = "torch", "onepass"
CASES = ("normal", "outliers", "v_mean")
WAYS = {
    "bf16": None,
    "fp8": {},
    "fp8 by block": {"by_block": True},
    "fp8 without Hadamard": {"hadamard": False},
    "fp8, means taken out": {"center": True},
}


def inputs(torch, case, length, device):
    q, k, v = (torch.randn(1, 4, length, 128, device=device) for _ in range(3))
    if case == "outliers":
        q, k, v = (x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 0.001) for x in (q, k, v))
    return q, k, v + 1 if case == "v_mean" else v


def reference(torch, q, k, v):
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def dequantized_lse(torch, onepass, q, k, rows, options):
    """The LSE of the numbers to which attention() quantizes q and k."""
    hadamard = options.get("hadamard", True)
    found = []
    for x, factors in ((q, "block"), (k, "block" if options.get("by_block") else "head")):
        y, descale = onepass.quantize(x, factors=factors, hadamard=hadamard)
        found.append(
            y.float() * descale.repeat_interleave(128, 2)[:, :, : x.shape[2], None]
            if factors == "block"
            else y.float() * descale[..., None]
        )
    return reference(torch, found[0][:, :, rows], found[1], found[1])[1]


def difference(out, want):
    rmse, bias = (out - want).pow(2).mean().sqrt(), (out * want).sum() / (want * want).sum() - 1
    return {"rmse": rmse.item(), "bias": bias.item()}


def measured_peers(torch, onepass, q, k, v, rows, want):
    """Rows of the peers that run here; the reason is printed for the others."""
    halves = [x.bfloat16().transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    for name, peer in fp8.PEERS.items():
        try:
            call, _, _, scale = peer(torch, onepass, *halves, False)
            out = call().double()[:, :, rows] * scale
        except Exception as error:
            print(f"  {name}: {error!r:.200}", flush=True)
            continue
        yield {"way": name, "accumulation": None, **difference(out, want)}


def measured(torch, onepass, case, length, device):
    q, k, v = inputs(torch, case, length, device)
    rows = torch.arange(0, length, max(1, length // 256), device=device)
    want, lse = reference(torch, q[:, :, rows], k, v)
    which = {"case": case, "length": length}
    for way, options in WAYS.items():
        for accumulation in ("exact",) if options is None else ("exact", "fast"):
            if options is None:
                found = onepass.attention(*(x.bfloat16() for x in (q, k, v)), return_lse=True)
            else:
                found = onepass.attention(q, k, v, fp8=options or True, accumulation=accumulation, return_lse=True)
            out, own_lse = (x.double()[:, :, rows] for x in found)
            row = which | {"way": way, "accumulation": accumulation, **difference(out, want)}
            row["lse"] = (own_lse - lse).abs().max().item()
            if options is not None:
                same = dequantized_lse(torch, onepass, q, k, rows, options)
                row["lse_relative"] = ((own_lse - same).abs() / same.abs()).max().item()
            yield row
    if device == "cuda":
        for row in measured_peers(torch, onepass, q, k, v, rows, want):
            yield which | row


def arguments(parser):
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--device", default="cuda")


def rows(torch, onepass, options):
    torch.manual_seed(0)
    for length in options.lengths:
        for case in CASES:
            yield from measured(torch, onepass, case, length, options.device)


said = str


def document(rows, torch, onepass, options):
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    return {"device": device, "onepass": onepass.__version__, "rows": rows}


def table(document):
    return "\n".join(tables.errors(document["rows"]))
