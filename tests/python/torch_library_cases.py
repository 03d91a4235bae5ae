"""Calls of PyTorch's operators, and what they give: by the kernels of this process.

python torch_library_cases.py LIBRARY FILE [meta]: by libonepass_torch.so alone, saved in FILE.
"""

import sys

import torch


def qkv(rows=19, keys=23, dim=16, dim_v=24, heads=4, heads_kv=2, dtype=None, batch=2):
    shapes = (batch, heads, rows, dim), (batch, heads_kv, keys, dim), (batch, heads_kv, keys, dim_v)
    return [torch.randn(shape).to(dtype or torch.float32) for shape in shapes]


def packed(dtype=torch.int64):
    q, k, v = torch.randn(30, 4, 16), torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    bounds = torch.tensor([0, 11, 28], dtype=dtype), torch.tensor([0, 17, 37], dtype=dtype)
    return (q, k, v), dict(cu_seqlens_q=bounds[0], cu_seqlens_k=bounds[1])


def paged():
    q, k, v = torch.randn(2, 4, 3, 16), torch.randn(6, 8, 2, 16), torch.randn(6, 8, 2, 16)
    return (q, k, v), dict(seqused_k=torch.tensor([9, 20]), page_table=torch.tensor([[4, 0, 0], [1, 5, 2]]))


def fp8():
    e4m3 = torch.float8_e4m3fn
    return [x.to(e4m3) for x in qkv(dim_v=16)], {f"{x}_descale": torch.tensor([2.0**-i]) for i, x in enumerate("qkv")}


def turned(x):
    """The same numbers with another stride than 1 in the last dimension."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def of_flash(x):
    """The same numbers with tokens before heads in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


# Arguments that a forward and its backward both have.
BOTH = {
    "plain": lambda: (qkv(), {}),
    "bf16": lambda: (qkv(dtype=torch.bfloat16), dict(mask="causal_bottom_right")),
    "window": lambda: (qkv(), dict(mask="causal_top_left", window_left=5)),
    "offset": lambda: (qkv(), dict(mask="causal_offset", align_offset=3, scale=0.3, softcap=2.5)),
    "aligned": lambda: (qkv(), dict(mask="aligned_top_left", window_left=4, window_right=3)),
    "aligned offset": lambda: (qkv(), dict(mask="aligned_offset", align_offset=-2, window_right=6)),
    "bias": lambda: (qkv(), dict(bias=torch.randn(4, 19, 23, dtype=torch.bfloat16))),
    "mask": lambda: (qkv(), dict(bool_mask=torch.rand(1, 1, 19, 23) > 0.3)),
    "slopes": lambda: (qkv(), dict(alibi_slopes=torch.rand(4, dtype=torch.float64), sinks=torch.randn(4).half())),
    "tiles": lambda: (
        qkv(),
        dict(block_mask=torch.tensor([[2, 0], [1, 1]]), mask_tile_q=16, mask_tile_k=16, mask_mod="k_index % 3 != 0"),
    ),
    "expressions": lambda: (
        qkv(),
        dict(
            score_mod="score * factor + table[q_index]",
            mod_buffers=[torch.tensor(2.0), torch.arange(19)],
            mod_names="factor,table",
        ),
    ),
    "dropout": lambda: (qkv(), dict(dropout_p=0.25, seed=-5, dropout_start=[1, 0, 3, 8])),
    "drawn": lambda: (qkv(), dict(dropout_p=0.25, random_seed=torch.tensor(77))),
    "packed": lambda: packed(),
    "packed32": lambda: (packed(torch.int32)[0], packed(torch.int32)[1] | dict(max_seqlen_q=20, max_seqlen_k=25)),
    "strides": lambda: ([turned(x) for x in qkv()], {}),
    "tokens": lambda: ([x.transpose(1, 2).contiguous() for x in qkv()], dict(tokens_first=True)),
    "order": lambda: ([of_flash(x) for x in qkv()], {}),
    "same order": lambda: ([of_flash(x) for x in qkv(dim_v=16)], {}),
    "expanded": lambda: ([x[:1].expand(2, *x.shape[1:]) for x in qkv(dim_v=16)], {}),
    "nothing": lambda: (qkv(rows=0, keys=0), {}),
    "no keys": lambda: (qkv(keys=0), {}),
    "threads": lambda: (qkv(), dict(threads=1)),
    "many": lambda: (qkv(rows=300, keys=300, heads=8), dict(mask="causal_top_left")),
}
FORWARD = BOTH | {
    "paged": paged,
    "tree": lambda: (
        qkv(rows=3, keys=9),
        dict(mask="causal_bottom_right", tree=torch.tensor([[-1, 0, 0], [-1, 0, 1]], dtype=torch.int32)),
    ),
    "fp8": fp8,
    "fp8 by text": lambda: (
        qkv(dim_v=16, dtype=torch.bfloat16),
        dict(fp8="by_block=1,hadamard=1,center=1,seed=18446744073709551615"),
    ),
    "fast": lambda: (fp8()[0], dict(accumulation="fast", v_mean=torch.randn(2, 2, 16))),
    "invariant": lambda: (qkv(), dict(batch_invariant=True)),
    "unified": lambda: (qkv(rows=1), dict(unified_max=0.5)),
    "partial": lambda: (qkv(dtype=torch.float16), dict(out_dtype=torch.float32, partial=True, return_max=True)),
    "out alone": lambda: (qkv(), dict(return_lse=False)),
    "packed maxima": lambda: (packed()[0], packed()[1] | dict(return_max=True)),
    "by name": lambda: (qkv(), dict(implementation="reference")),
}


def append():
    new, rest = torch.randn(2, 2, 3, 16), dict(cache_seqlens=torch.tensor([2, 5]))
    cos, sin = torch.rand(12, 8, dtype=torch.bfloat16), torch.rand(12, 8, dtype=torch.bfloat16)
    return (new, new + 1, torch.zeros(2, 2, 12, 16), torch.zeros(2, 2, 12, 16)), rest | dict(cos=cos, sin=sin)


def slots():
    new = torch.randn(3, 2, 16)
    caches = torch.zeros(4, 4, 2, 16), torch.zeros(4, 4, 2, 16)
    rest = dict(positions=torch.tensor([1, 2, 3]), cos_sin_cache=torch.rand(9, 16), interleaved=True, q=turned(new))
    return (new, new + 1, *caches), dict(slot_mapping=torch.tensor([9, -1, 3])) | rest


def appended_packed():
    new = torch.randn(5, 2, 16)
    caches = torch.zeros(2, 2, 9, 16).to(torch.float8_e4m3fn), torch.zeros(2, 2, 9, 16).to(torch.float8_e4m3fn)
    bounds = dict(cu_seqlens_q=torch.tensor([0, 1, 4]), cache_seqlens=torch.tensor([0, 3]))
    tables = dict(cos=torch.rand(9, 4), sin=torch.rand(9, 4))
    return (new, new + 1, *caches), bounds | tables | dict(q=new, k_descale=torch.tensor([0.5]))


APPEND = {"append": append, "slots": slots, "packed append": appended_packed}
QUANTIZE = {
    "heads": lambda: ((torch.randn(2, 3, 150, 16),), {}),
    "blocks": lambda: ((torch.randn(2, 150, 3, 16),), dict(factors="block", layout="bshd", hadamard=True, seed=-3)),
    "tensor": lambda: ((turned(torch.randn(150, 16)),), dict(factors="tensor", mean=True)),
    "rows": lambda: ((torch.randn(7, 3, 16, dtype=torch.float16),), dict(layout="bshd", mean=True, threads=1)),
}


def results(device="cpu"):
    """By operator and case. On the meta device: tensors of their shapes and strides."""
    ops, all = torch.ops.onepass, {}

    def moved(x):
        if isinstance(x, (list, tuple)):
            return [moved(y) for y in x]
        return x.to(device) if isinstance(x, torch.Tensor) else x

    def made(case):
        torch.manual_seed(0)
        tensors, options = case()
        return moved(tensors), {name: moved(x) for name, x in options.items()}

    for name, case in FORWARD.items():
        tensors, options = made(case)
        all["attention", name] = ops.attention(*tensors, **options)
    for name, case in BOTH.items():
        tensors, options = made(case)
        out, lse, _ = ops.attention(*tensors, **options)
        wanted = [True] * 3 + [name in options for name in ("bias", "alibi_slopes", "sinks")]
        dlse = None if name == "plain" else torch.ones(1, device=device).expand(lse.shape)
        all["backward", name] = ops.attention_backward(
            torch.ones_like(out), dlse, out, lse, wanted, *tensors, **options
        )
    for name, case in APPEND.items():
        tensors, options = made(case)
        all["append_kv", name] = ops.append_kv(*tensors, **options), *tensors[2:]
    for name, case in QUANTIZE.items():
        tensors, options = made(case)
        all["quantize", name] = ops.quantize(*tensors, **options)
    return all


if __name__ == "__main__":
    library, file, *device = sys.argv[1:]
    torch.ops.load_library(library)
    found = results(*device)
    torch.save({key: [(x.stride(), x) for x in tensors] for key, tensors in found.items()}, file)
