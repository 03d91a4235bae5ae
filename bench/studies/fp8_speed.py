"""FP8 attention on a GPU beside bf16's and beside other libraries' FP8, interleaved.

16k tokens, heads x head dim = 2048, in memory [batch, seq, heads, dim], N(0, 1), full and causal. Times are medians of
CUDA graphs; L2 is overwritten before each. Inputs are quantized by head (q by block of 128 rows, as by fp8=True):

  bf16                  onepass on bf16
  exact, fast           onepass on e4m3
  from bf16: exact ..   onepass.attention(..., fp8=True): quantizing and attention
  flash-attn-3          FlashAttention-3's FP8 kernels: $ONEPASS_FA3 names a library of bench/peers/fa3/build.sh
  cudnn                 cuDNN's FP8, by the wheel nvidia-cudnn-frontend; one factor for a tensor, O in e4m3

error: root mean square of a peer's differences from onepass's exact results, relative to these. The inputs are the same
(for cuDNN with one factor for a tensor).
"""

from bench.peers.fp8 import PEERS
from bench.tables import fp8
from bench.timing import Timer, graphed, in_turn, medians

NEEDS = "torch", "onepass"


def onepass_calls(torch, onepass, q, k, v, mask):
    how = {"mask": mask, "out": torch.empty_like(q)}
    q8, fq = onepass.quantize(q, factors="block", hadamard=True)
    k8, fk = onepass.quantize(k, hadamard=True)
    v8, fv = onepass.quantize(v)
    e4m3 = how | {"q_descale": fq, "k_descale": fk, "v_descale": fv}
    calls = {"bf16": lambda: onepass.attention(q, k, v, **how)}
    for sums in ("exact", "fast"):
        calls[sums] = lambda sums=sums: onepass.attention(q8, k8, v8, accumulation=sums, **e4m3)
        calls[f"from bf16: {sums}"] = lambda sums=sums: onepass.attention(q, k, v, fp8=True, accumulation=sums, **how)
    return calls


def measured(torch, onepass, timer, options, batch, rows, heads, dim, causal):
    tensors = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    q, k, v = (x.transpose(1, 2) for x in tensors)
    mask = "causal_bottom_right" if causal else None
    calls = {name: graphed(torch, call) for name, call in onepass_calls(torch, onepass, q, k, v, mask).items()}
    refused, errors = {}, {}
    for name, peer in PEERS.items():
        try:
            call, numbers, factors, scale = peer(torch, onepass, q, k, v, causal)
            given = dict(zip(("q_descale", "k_descale", "v_descale"), factors, strict=True))
            want = onepass.attention(*numbers, **given, mask=mask)
            found = call().float() * scale
            calls[name] = graphed(torch, call)
            errors[name] = float((found - want.float()).pow(2).mean().sqrt() / want.float().pow(2).mean().sqrt())
        except Exception as error:  # the peer is not installed, or refuses
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    clocks = {name: lambda call=call: timer.spans(call) for name, call in calls.items()}
    in_turn(clocks, 2, options.pause)  # warm-up
    seconds = medians(in_turn(clocks, options.rounds, options.pause))
    flops = 4 * batch * heads * rows * rows * dim / (2 if causal else 1)
    return {
        "length": rows, "dim": dim, "causal": causal, "flops": flops, "median_s": seconds, "errors": errors,
        "refused": refused,
    }  # fmt: skip


def arguments(parser):
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--dims", nargs="*", type=int, default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds before every turn")


def rows(torch, onepass, options):
    torch.manual_seed(0)
    timer = Timer(torch)
    for dim in options.dims:
        for length in options.lengths:
            for causal in (False, True):
                shape = 16384 // length, length, 2048 // dim, dim
                yield measured(torch, onepass, timer, options, *shape, causal)


def said(row):
    us = {name: f"{1e6 * s:.0f}" for name, s in row["median_s"].items()}
    lines = [f"d{row['dim']} {row['length']} {'causal' if row['causal'] else 'full'} {us} {row['errors']}"]
    return "\n".join(lines + [f"  {name}: {why}" for name, why in row["refused"].items()])


def document(rows, torch, onepass, options):
    return {"device": torch.cuda.get_device_name(), "rows": rows}


def table(document):
    return "\n".join(fp8.speed(document["rows"]))
