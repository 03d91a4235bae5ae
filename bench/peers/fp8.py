"""FP8 attention of other libraries, for the studies of FP8.

Each function returns a call that computes the result, its FP8 inputs and their factors, and the factor of the result.
"""

import ctypes
import os


def numbers_and_factors(onepass, tensors, factors):
    """In memory [batch, seq, heads, dim], seen as [batch, heads, seq, dim]."""
    numbers, found = zip(*(onepass.quantize(x, factors=factors) for x in tensors), strict=True)
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in numbers], [f.contiguous() for f in found]


def flash_attention_3(torch, onepass, q, k, v, causal):
    library = ctypes.CDLL(os.environ["ONEPASS_FA3"])
    numbers, factors = numbers_and_factors(onepass, (q, k, v), "head")
    batch, heads, rows, dim = q.shape
    out, lse = torch.empty_like(q), torch.empty(batch, heads, rows, device=q.device)
    counter = torch.zeros(1, dtype=torch.int32, device=q.device)
    tensors = (*numbers, *factors, out, lse, counter)
    sizes = [ctypes.c_int(n) for n in (batch, rows, heads, heads, dim, causal)]

    def call():
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
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


PEERS = {"flash-attn-3": flash_attention_3, "cudnn": cudnn_sdpa}
