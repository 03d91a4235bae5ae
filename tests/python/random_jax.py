"""Random problems, onepass.jax beside jax.nn.dot_product_attention: values and gradients, under jit, some under vmap.

random_jax.py [--seconds 60] [--seed N]      exit status 1 at the first difference beyond the rule

The rule of docs/reference/conventions.md for largest errors, with jax.nn in the same precision as the base and in
float64 as the reference. Rows that see no key are made to see one: there JAX gives the mean of all values and
onepass 0. No float16: jax.nn has no products of it on CPUs.
"""

import argparse
import collections
import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402

EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-8}  # half the distance of 1 to the next number
GRADIENT_OF = ("query", "key", "value", "bias")


def problem(rng):
    """(arrays by name in float64, static options, dtype)."""
    heads_kv, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 4]))
    batch, heads = int(rng.integers(1, 4)), heads_kv * group
    rows, keys = (int(x) for x in np.exp(rng.uniform(0, np.log(200), 2)))
    dim = int(rng.choice([1, 8, 33, 64, 128]))
    arrays = {
        "query": rng.normal(size=(batch, rows, heads, dim)) * rng.choice([1, 3]),
        "key": rng.normal(size=(batch, keys, heads_kv, dim)),
        "value": rng.normal(size=(batch, keys, heads_kv, dim)) + rng.choice([0, 5]),
    }
    options = {}
    if rng.random() < 0.4 and rows <= keys:
        options["is_causal"] = True
    if rng.random() < 0.3 and rows <= keys:
        options["local_window_size"] = (int(rng.integers(0, 9)), int(rng.integers(0, 9)))
    if rng.random() < 0.3:
        options["scale"] = float(rng.uniform(0.02, 0.5))

    def scores():
        return [size if rng.random() < 0.7 else 1 for size in (batch, heads, rows, keys)]

    if rng.random() < 0.3:
        arrays["bias"] = rng.normal(size=scores())
    if rng.random() < 0.3:
        arrays["mask"] = rng.random(scores()) < 0.7
    if rng.random() < 0.2:
        arrays["key_value_seq_lengths"] = rng.integers(1, keys + 1, size=batch).astype(np.int32)
    return arrays, options, str(rng.choice(list(EPSILON)))


def visible(arrays, options):
    """[batch, heads, rows, keys]"""
    batch, rows, heads, _ = arrays["query"].shape
    keys = arrays["key"].shape[1]
    i, j = np.ogrid[:rows, :keys]
    seen = np.ones((batch, heads, rows, keys), bool)
    if options.get("is_causal"):
        seen &= j <= i
    if "local_window_size" in options:
        left, right = options["local_window_size"]
        seen &= (j >= i - left) & (j <= i + right)
    if "key_value_seq_lengths" in arrays:
        seen &= j < arrays["key_value_seq_lengths"][:, None, None, None]
    return seen & arrays.get("mask", True)


def slack(arrays, options, dout, dtype):
    """By result, what fp32 cannot know: u (2 t + 16) times the sum of the sizes of the terms of a number. And what a
    gradient by scores inherits from an O that was rounded to the dtype before dO . O was taken of it."""
    q, k, v, do = (x.swapaxes(1, 2) for x in (*(arrays[name] for name in GRADIENT_OF[:3]), dout))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat(group, axis=1) for x in (k, v))
    scale = options.get("scale", q.shape[-1] ** -0.5)
    s = scale * q @ k.swapaxes(-1, -2) + arrays.get("bias", 0)
    s = np.where(visible(arrays, options), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (np.abs(dp) + np.abs((p * dp).sum(-1, keepdims=True)))

    def of_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    def by_scores(ds):
        made = {
            "query": scale * ds @ np.abs(k),
            "key": scale * of_group(ds.swapaxes(-1, -2) @ np.abs(q)),
        }
        if "bias" in arrays:
            spread = [i for i, size in enumerate(arrays["bias"].shape) if size == 1]
            made["bias"] = ds.sum(axis=tuple(spread), keepdims=True)
        return {name: x.max() for name, x in made.items()}

    sizes = by_scores(ds) | {
        "out": (p @ np.abs(v)).max(),
        "value": of_group(p.swapaxes(-1, -2) @ np.abs(do)).max(),
    }
    inherited = by_scores(p * EPSILON[dtype] * (np.abs(do) * np.abs(p @ v)).sum(-1, keepdims=True))
    t = scale * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max()
    return {name: 2.0**-24 * (2 * t + 16) * x + inherited.get(name, 0) for name, x in sizes.items()}


def computed(attention, arrays, options, dtype, dout, mapped):
    """out and the gradients of sum(out * dout), in float64. mapped: by vmap over the batch, each a batch of one."""
    arrays = {name: jnp.asarray(x, dtype if x.dtype.kind == "f" else x.dtype) for name, x in arrays.items()}
    wanted = {name: x for name, x in arrays.items() if name in GRADIENT_OF}
    rest = {name: x for name, x in arrays.items() if name not in wanted}

    def one(wanted, rest):
        return attention(**wanted, **rest, **options)

    def whole(wanted, rest):
        if not mapped:
            return one(wanted, rest)
        axes = [{name: 0 if x.shape[0] == len(dout) else None for name, x in part.items()} for part in (wanted, rest)]

        def singles(wanted, rest):
            grown = [
                {name: x[None] if of[name] == 0 else x for name, x in part.items()}
                for part, of in zip((wanted, rest), axes, strict=True)
            ]
            return one(*grown)[0]

        return jax.vmap(singles, in_axes=tuple(axes))(wanted, rest)

    def loss(wanted, rest, dout):
        out = whole(wanted, rest)
        return (out.astype("float64") * dout).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(wanted, rest, dout)
    return {"out": np.asarray(out, np.float64)} | {name: np.asarray(x, np.float64) for name, x in gradients.items()}


def check(rng):
    """A sentence if a random problem differs, and what it was."""
    arrays, options, dtype = problem(rng)
    arrays = {
        name: np.asarray(jnp.asarray(x, dtype), np.float64) if x.dtype.kind == "f" else x for name, x in arrays.items()
    }
    if not visible(arrays, options).any(-1).all():
        arrays.pop("mask", None)
        arrays.pop("key_value_seq_lengths", None)
    if not visible(arrays, options).any(-1).all():
        options.pop("local_window_size", None)
    # XLA's jax.nn in 16 bits rounds the cotangent too: what is representable is the same for all.
    dout = np.asarray(jnp.asarray(rng.normal(size=arrays["query"].shape), dtype), np.float64)
    mapped = bool(rng.random() < 0.3)
    theirs = jax.nn.dot_product_attention
    try:
        exact = computed(theirs, arrays, options, "float64", dout, False)
        base = computed(theirs, arrays, options, dtype, dout, False)
    except jax.errors.JaxRuntimeError as e:  # jax 0.10.2 on CPUs, for some bfloat16 products of one row
        if "ElementalIrEmitter" not in str(e):
            raise
        return None, "XLA has no jax.nn of it:"
    given = computed(onepass.jax.dot_product_attention, arrays, options, dtype, dout, mapped)
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
    line = f"{dtype}{', vmap' if mapped else ''}: {shapes}, {options}"
    unknown = slack(arrays, options, dout, dtype)
    for name, wanted in exact.items():
        size = max(np.abs(wanted).max(initial=0), 1e-3)
        factor = 2 if name == "out" else 3
        allowed = factor * np.abs(base[name] - wanted).max(initial=0) + 4 * EPSILON[dtype] * size + unknown[name]
        worst = np.abs(given[name] - wanted).max(initial=0)
        if not worst <= allowed:
            return f"{name} is off by {worst:.3g}, {allowed:.3g} is accepted", line
    return None, line


def draw(seed, seconds):
    """Problems until the time is over; how many there were of each kind."""
    rng, end, counts = np.random.default_rng(seed), time.monotonic() + seconds, collections.Counter()
    while time.monotonic() < end:
        complaint, line = check(rng)
        counts[line.partition(":")[0]] += 1
        if complaint:
            raise SystemExit(f"{complaint}\n{line}")
    return counts


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="default: the time")
    parser.add_argument("--alone", action="store_true", help="in this process")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"--seed {seed}", flush=True)
    if options.alone:
        print(json.dumps(draw(seed, options.seconds)))
        return
    # Two minutes to a process: jaxlib 0.10.2 ends its process in one of thousands of its own fusions.
    end, counts, ended = time.monotonic() + options.seconds, collections.Counter(), 0
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, __file__, "--alone", f"--seconds={min(120, left)}", f"--seed={seed}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            counts.update(json.loads(done.stdout.splitlines()[-1]))
        elif done.returncode == -signal.SIGABRT and "ynn_emitter.cc" in done.stderr:
            ended += 1
        else:
            raise SystemExit(f"--seed {seed}, exit status {done.returncode}\n{done.stderr}")
        seed += 1
    print(f"{sum(counts.values())} problems, no difference: {dict(counts)}; jaxlib ended {ended} processes")


if __name__ == "__main__":
    main()
