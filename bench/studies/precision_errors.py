"""Errors of attention and its gradients by the precision of their products, on a GPU.

Two heads of standard normal q, k, v and dO in fp32; q may be multiplied by a factor, which is then the standard
deviation of the scores. The same fp32 numbers go to every way, rounded to fp16 and bf16 for the ways of these dtypes;
float64 from the fp32 numbers is the reference. torch-math is PyTorch's attention of its math backend, with
allow_tf32 as the way says. Each way makes its own O and LSE for its gradients.

rms is ||x - ref|| / ||ref||, max is max|x - ref| / rms(ref); the LSE's is max|lse - ref|.
"""

NEEDS = "torch", "onepass"
RESULTS = "out", "dq", "dk", "dv"
WAYS = "onepass fp32", "onepass tf32", "onepass fp16", "onepass bf16", "torch-math", "torch-math tf32"


def arguments(parser):
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dims", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--factors", nargs="*", type=float, default=[1.0, 4.0])
    parser.add_argument("--tokens", type=int, default=4096)


def reference(torch, q, k, v, dout):
    """out, dq, dk, dv and the LSE in float64."""
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    scale = q.shape[-1] ** -0.5
    scores = scale * q @ k.transpose(-1, -2)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    out = weights @ v
    dscores = weights * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True))
    return out, scale * dscores @ k, scale * dscores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ dout, lse


def by_onepass(torch, onepass, way, tensors):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(way, torch.float32)
    q, k, v, dout = (x.to(dtype) for x in tensors)
    options = {"precision": way} if dtype == torch.float32 else {}
    out, lse = onepass.attention(q, k, v, return_lse=True, **options)
    return out, *onepass.attention_backward(dout, q, k, v, out, lse, **options), lse


def by_torch(torch, tf32, tensors):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    q, k, v, dout = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves)
    gradients = torch.autograd.grad(out, leaves, dout)
    torch.backends.cuda.matmul.allow_tf32 = False
    return out.detach(), *gradients, None


def difference(x, want):
    apart, size = (x.double() - want).abs(), want.pow(2).mean().sqrt()
    return {"rms": (apart.pow(2).mean().sqrt() / size).item(), "max": (apart.max() / size).item()}


def measured(torch, onepass, way, tensors, want):
    library, _, precision = way.partition(" ")
    if library == "onepass":
        *found, lse = by_onepass(torch, onepass, precision, tensors)
    else:
        *found, lse = by_torch(torch, precision == "tf32", tensors)
    row = {name: difference(x, ref) for name, x, ref in zip(RESULTS, found, want)}
    return row | {"lse": None if lse is None else (lse.double() - want[-1]).abs().max().item()}


def rows(torch, onepass, options):
    for dim in options.dims:
        for factor in options.factors:
            torch.manual_seed(0)
            tensors = [torch.randn(1, 2, options.tokens, dim, device=options.device) for _ in range(4)]
            tensors[0] *= factor
            want = reference(torch, *tensors)
            for way in WAYS:
                which = {"dim": dim, "factor": factor, "way": way}
                yield which | measured(torch, onepass, way, tensors, want)


def numbers(row):
    errors = [f"{row[name][kind]:.1e}" for name in RESULTS for kind in ("rms", "max")]
    return [*errors, "-" if row["lse"] is None else f"{row['lse']:.1e}"]


def said(row):
    return f"d{row['dim']} x{row['factor']:g} {row['way']:<16} " + " ".join(numbers(row))


def table(rows):
    head = ["head dim", "scores", "way", *(f"{name} {kind}" for name in RESULTS for kind in ("rms", "max")), "lse max"]
    lines = [head, ["---"] * len(head)]
    lines += [[str(row["dim"]), f"{row['factor']:g}", row["way"], *numbers(row)] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
