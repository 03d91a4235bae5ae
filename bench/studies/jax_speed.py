"""onepass.jax beside cuDNN, called through JAX: jitted forward, and forward and backward, on a GPU.

    jax_speed.py --json h200_jax.json [--rounds 7] [--calls 10]

jax.nn.dot_product_attention's arguments, [batch, seq, heads, dim], bf16; each turn is so many calls without a wait
between them, contenders in turn, medians of the turns. Needs JAX with CUDA.
"""

import argparse
import json
import pathlib
import statistics
import time

SHAPES = [  # batch, heads, heads_kv, seq, dim
    (4, 16, 16, 4096, 128),
    (4, 32, 8, 4096, 128),
    (1, 32, 8, 16384, 128),
    (4, 32, 32, 4096, 64),
    (16, 16, 16, 1024, 128),
]


def contenders(jax, onepass, causal):
    def cudnn(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")

    def ours(q, k, v):
        return onepass.jax.dot_product_attention(q, k, v, is_causal=causal)

    for name, attention in (("onepass", ours), ("cudnn", cudnn)):

        def loss(q, k, v, attention=attention):
            return (attention(q, k, v).astype("float32") ** 2).sum()

        yield name, "forward", jax.jit(attention)
        yield name, "forward and backward", jax.jit(jax.grad(loss, (0, 1, 2)))


def measured(jax, onepass, shape, causal, options):
    batch, heads, heads_kv, seq, dim = shape
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((batch, seq, h, dim) for h in (heads, heads_kv, heads_kv))
    q, k, v = (jax.random.normal(key, size, "bfloat16") for key, size in zip(keys, sizes, strict=True))
    calls = {(name, what): call for name, what, call in contenders(jax, onepass, causal)}
    results = {key: jax.block_until_ready(call(q, k, v)) for key, call in calls.items()}
    far = abs(results["onepass", "forward"].astype("float32") - results["cudnn", "forward"].astype("float32")).max()
    times = {key: [] for key in calls}
    for _ in range(options.rounds):
        for key, call in calls.items():
            jax.block_until_ready(call(q, k, v))
            start = time.perf_counter()
            for _ in range(options.calls):
                made = call(q, k, v)
            jax.block_until_ready(made)
            times[key].append((time.perf_counter() - start) / options.calls)
    line = f"b{batch} h{heads}/{heads_kv} s{seq} d{dim} {'causal' if causal else 'full'}"
    print(f"{line}: {float(far):.3g} is the largest difference of two results", flush=True)
    for what in ("forward", "forward and backward"):
        yield f"{line}, {what}", {name: statistics.median(times[name, what]) for name in ("onepass", "cudnn")}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=10)
    options = parser.parse_args(argv)
    import jax
    import onepass.jax

    seconds = {}
    for shape in SHAPES:
        for causal in (True, False):
            for what, medians in measured(jax, onepass, shape, causal, options):
                seconds[what] = medians
                print(what, {name: f"{1e3 * x:.3f} ms" for name, x in medians.items()}, flush=True)
    if options.json:
        versions = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "onepass": onepass.__version__}
        options.json.write_text(json.dumps(versions | {"seconds": seconds}, indent=1) + "\n")
