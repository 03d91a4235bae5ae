"""FP8 attention on a GPU beside bf16's and beside other libraries' FP8, interleaved.

    fp8_speed.py --json h200_fp8.json [--lengths 1024 4096 16384] [--dims 64 128 256] [--rounds 11] [--pause 0.01]

16k tokens, heads x head dim = 2048, in memory [batch, seq, heads, dim], N(0, 1), full and causal; CUDA graphs, the
median of the rounds, L2 written over before each. On numbers quantized by head (q by block of 128 rows, as fp8=True
has it):

  bf16                  onepass on bf16
  exact, fast           onepass on e4m3
  from bf16: exact ..   onepass.attention(..., fp8=True): quantizing and attention
  flash-attn-3          FlashAttention-3's FP8 kernels: $ONEPASS_FA3 names a library of bench/peers/fa3/build.sh
  cudnn                 cuDNN's FP8, by the wheel nvidia-cudnn-frontend; one factor for a tensor, O in e4m3

error: root mean square of a peer's differences from onepass' exact results on the same numbers (factors by tensor for
cuDNN), by that of these. Needs PyTorch.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import time


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


def numbers_and_factors(onepass, tensors, factors):
    """In memory [batch, seq, heads, dim], seen as [batch, heads, seq, dim]."""
    numbers, found = zip(*(onepass.quantize(x, factors=factors) for x in tensors), strict=True)
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in numbers], [f.contiguous() for f in found]


def flash_attention_3(torch, onepass, q, k, v, causal):
    """A call, which gives its result, the numbers and factors that it is of, and the result's factor."""
    library = ctypes.CDLL(os.environ["ONEPASS_FA3"])
    numbers, factors = numbers_and_factors(onepass, (q, k, v), "head")
    batch, heads, rows, dim = q.shape
    out, lse = torch.empty_like(q), torch.empty(batch, heads, rows, device=q.device)
    counter = torch.zeros(1, dtype=torch.int32, device=q.device)
    tensors = (*numbers, *factors, out, lse, counter)
    sizes = [ctypes.c_int(n) for n in (batch, rows, heads, heads, dim, causal)]

    def call():
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]  # whose memory lives as long as the call
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if code := library.fa3_forward_fp8(*pointers, *sizes, ctypes.c_float(dim**-0.5), stream):
            raise RuntimeError(f"fa3_forward_fp8 returned {code}")
        return out

    return call, numbers, factors, 1


def cudnn_sdpa(torch, onepass, q, k, v, causal):
    import cudnn

    fp8, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph = cudnn.pygraph(io_data_type=fp8, intermediate_data_type=fp32, compute_data_type=fp32, handle=handle)
    numbers, factors = numbers_and_factors(onepass, (q, k, v), "tensor")
    one = torch.ones(1, 1, 1, 1, device=q.device)

    def scalar(name):
        return graph.tensor(name=name, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=fp32)

    nodes = [
        graph.tensor(name=n, dim=list(x.shape), stride=list(x.stride()), data_type=fp8)
        for n, x in zip("qkv", numbers, strict=True)
    ]
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    scales = {name: scalar(name) for name in names}
    out_node, _, most_s, most_o = graph.sdpa_fp8(
        q=nodes[0], k=nodes[1], v=nodes[2], **scales, attn_scale=q.shape[-1] ** -0.5, use_causal_mask=causal,
        is_inference=True,
    )  # fmt: skip
    out = torch.empty_like(numbers[0])  # Hopper's kernels write e4m3 alone, here 64 times O
    out_node.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(fp8)
    most = [torch.zeros(1, 1, 1, 1, device=q.device) for _ in range(2)]
    for node in (most_s, most_o):
        node.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(fp32)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), device=q.device, dtype=torch.uint8)
    given = dict(zip(nodes, numbers, strict=True)) | {out_node: out, most_s: most[0], most_o: most[1]}
    for name, factor in zip(names, (*factors, one, one, 64 * one), strict=True):
        given[scales[name]] = factor.reshape(1, 1, 1, 1)

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(given, workspace, handle=handle)
        return out

    return call, numbers, factors, 1 / 64


def graphed(torch, call):
    """Its launches without what Python and the host take."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_kept=call):  # whose memory the launches name
        graph.replay()

    return replay


PEERS = {"flash-attn-3": flash_attention_3, "cudnn": cudnn_sdpa}


def measured(torch, onepass, options, batch, rows, heads, dim, causal, flushed):
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
        except Exception as error:  # the peer is not here, or does not take it
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    seconds = {name: [] for name in calls}
    for turn in range(options.rounds + 2):
        for name, call in calls.items():
            time.sleep(options.pause)
            flushed.zero_()
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn > 1:
                seconds[name].append(begin.elapsed_time(end) * 1e-3)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    flops = 4 * batch * heads * rows * rows * dim / (2 if causal else 1)
    return {
        "length": rows, "dim": dim, "causal": causal, "flops": flops, "median_s": medians, "errors": errors,
        "refused": refused,
    }  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--dims", nargs="*", type=int, default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--pause", type=float, default=0.01)
    options = parser.parse_args(argv)
    import onepass
    import torch

    torch.manual_seed(0)
    flushed = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    rows = []
    for dim in options.dims:
        for length in options.lengths:
            for causal in (False, True):
                shape = 16384 // length, length, 2048 // dim, dim
                rows.append(measured(torch, onepass, options, *shape, causal, flushed))
                us = {name: f"{1e6 * s:.0f}" for name, s in rows[-1]["median_s"].items()}
                print(f"d{dim} {length} {'causal' if causal else 'full'}", us, rows[-1]["errors"], flush=True)
                for name, why in rows[-1]["refused"].items():
                    print(f"  {name}: {why}", flush=True)
                if options.json:  # a run that is cut keeps what it had
                    text = json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1)
                    options.json.write_text(text + "\n")
