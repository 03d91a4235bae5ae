"""onepass.jax beside cuDNN, called through JAX: jitted forward, and forward and backward, on a GPU.

jax.nn.dot_product_attention's arguments, [batch, seq, heads, dim], bf16. A turn is --calls calls with one wait at their
end; contenders take turns, and times are medians of the turns. Needs JAX with CUDA.
"""

from bench.tables import frameworks
from bench.timing import in_turn, medians, wall

NEEDS, CUDA = ("jax", "onepass.jax"), False
SHAPES = [  # batch, heads, heads_kv, seq, dim
    (4, 16, 16, 4096, 128),
    (4, 32, 8, 4096, 128),
    (1, 32, 8, 16384, 128),
    (4, 32, 32, 4096, 64),
    (16, 16, 16, 1024, 128),
]


def contenders(jax, onepass_jax, causal):
    def cudnn(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")

    def ours(q, k, v):
        return onepass_jax.dot_product_attention(q, k, v, is_causal=causal)

    for name, attention in (("onepass", ours), ("cudnn", cudnn)):

        def loss(q, k, v, attention=attention):
            return (attention(q, k, v).astype("float32") ** 2).sum()

        yield name, "forward", jax.jit(attention)
        yield name, "forward and backward", jax.jit(jax.grad(loss, (0, 1, 2)))


def measured(jax, onepass_jax, shape, causal, options):
    batch, heads, heads_kv, seq, dim = shape
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((batch, seq, h, dim) for h in (heads, heads_kv, heads_kv))
    q, k, v = (jax.random.normal(key, size, "bfloat16") for key, size in zip(keys, sizes, strict=True))
    calls = {(name, what): call for name, what, call in contenders(jax, onepass_jax, causal)}
    results = {key: jax.block_until_ready(call(q, k, v)) for key, call in calls.items()}
    far = abs(results["onepass", "forward"].astype("float32") - results["cudnn", "forward"].astype("float32")).max()

    def clock(call):
        jax.block_until_ready(call(q, k, v))
        return [wall(lambda: call(q, k, v), options.calls, jax.block_until_ready)]

    clocks = {key: lambda call=call: clock(call) for key, call in calls.items()}
    seconds = medians(in_turn(clocks, options.rounds))
    line = f"b{batch} h{heads}/{heads_kv} s{seq} d{dim} {'causal' if causal else 'full'}"
    print(f"{line}: {float(far):.3g} is the largest difference of two results", flush=True)
    for what in ("forward", "forward and backward"):
        yield f"{line}, {what}", {name: seconds[name, what] for name in ("onepass", "cudnn")}


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=10)


def rows(jax, onepass_jax, options):
    for shape in SHAPES:
        for causal in (True, False):
            yield from measured(jax, onepass_jax, shape, causal, options)


def said(row):
    return f"{row[0]} " + ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in row[1].items())


def document(rows, jax, onepass_jax, options):
    import onepass

    versions = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "onepass": onepass.__version__}
    return versions | {"seconds": dict(rows)}


def table(document):
    return "\n".join(frameworks(document["seconds"], "cudnn"))
