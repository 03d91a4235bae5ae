"""Forward mode in PyTorch: onepass.torch.attention under torch.func.jvp beside other kernels that have a tangent.

    python3 -m bench study jvp_speed --json results.json

[batch, heads, seq, dim], tangents of q, k and v. jvp-flash-attention is the Triton kernel of that package (0.14),
with the tiles that it tunes for each problem; it has self-attention with even lengths. math is PyTorch's attention
that keeps the scores in memory. `forward` is onepass.torch.attention without tangents. Contenders take turns within a
round; times are medians of the rounds' medians. difference: the largest of O and of its tangent from onepass's.
"""

from bench.tables import gpu
from bench.timing import Timer, in_turn, medians

NEEDS = "torch", "onepass.torch"
CASES = [
    (batch, 2048 // dim, seq, dim, dtype, causal)
    for dtype, dims in (("bfloat16", (64, 128)), ("float16", (128,)), ("float32", (64,)))
    for dim in dims
    for batch, seq in ((4, 1024), (1, 4096))
    for causal in (False, True)
]


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a contender's turn")
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first of the cases")


def triton_kernel():
    """Its function of q, k, v and causal, or None."""
    try:
        from jvp_flash_attention.jvp_attention import JVPAttn
    except ImportError:
        return None
    return lambda q, k, v, causal: JVPAttn.fwd_dual(q, k, v, causal=causal)


def contenders(torch, onepass, tensors, causal):
    """{name: function of no arguments that returns O and its tangent}."""
    inputs, tangents = tensors
    functional = torch.nn.functional

    def math(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    mask = {"mask": "causal_top_left"} if causal else {}
    calls = {"onepass": lambda q, k, v: onepass.attention(q, k, v, **mask), "math": math}
    triton = triton_kernel()
    if triton:
        calls["jvp-flash-attention"] = lambda q, k, v: triton(q, k, v, causal)
    found = {name: lambda call=call: torch.func.jvp(call, inputs, tangents) for name, call in calls.items()}
    found["forward"] = lambda: (calls["onepass"](*inputs), inputs[0])
    return found


def measured(torch, onepass, case, options, timer):
    batch, heads, seq, dim, dtype, causal = case
    new = {"dtype": getattr(torch, dtype), "device": "cuda"}
    tensors = [tuple(torch.randn(batch, heads, seq, dim, **new) for _ in "qkv") for _ in range(2)]
    clocks, results, refused = {}, {}, {}
    for name, run in contenders(torch, onepass, tensors, causal).items():
        try:
            results[name] = [x.float() for x in run()]
        except Exception as error:  # noqa: BLE001 - a peer's refusal is a result
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        clocks[name] = lambda run=run: [timer.answer(run, options.seconds)["median_s"]]
    ours = results.pop("onepass")
    results.pop("forward")
    far = {name: [float((x - y).abs().max()) for x, y in zip(ours, r, strict=True)] for name, r in results.items()}
    seconds = medians(in_turn(clocks, options.rounds, options.pause))
    name = f"b{batch} h{heads} s{seq} d{dim} {dtype}{' causal' if causal else ''}"
    return {"problem": name, "seconds": seconds, "difference": far, "refused": refused}


def rows(torch, onepass, options):
    timer = Timer(torch)
    for case in CASES[: options.cases]:
        yield measured(torch, onepass, case, options, timer)


def said(row):
    times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in row["seconds"].items())
    return f"{row['problem']}: {times}; difference {row['difference']}; refused {row['refused']}"


def document(rows, torch, *_):
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def table(document):
    return "\n".join(gpu.jvp_speed(document["rows"]))
