"""onepass.jax.context_parallel_attention with q, k and v of float8_e4m3fn on devices of one CPU, beside one device.

Both are compared with float64. Run as a program it prints, as JSON, how many results were compared and the sentences
about wrong ones.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import jax_ranks_cases as cases
import numpy as np
import onepass.jax
from onepass.jax import Layout
from ranks_fp8 import HEADS, HEADS_KV, LENGTH, MASKS


def inputs(batch=1):
    """q, k and v in 8 bits, and their factors: for each head, or one."""
    rng = np.random.default_rng(8)
    given = [rng.standard_normal((batch, h, LENGTH, d)) for h, d in ((HEADS, 64), (HEADS_KV, 64), (HEADS_KV, 32))]
    factors = {
        "q_descale": 0.5 + rng.random((batch, HEADS)),
        "k_descale": 0.5 + rng.random((batch, HEADS_KV, 1)),
        "v_descale": np.array([1.5]),
        "v_mean": rng.standard_normal((batch, HEADS_KV, 32)),
    }
    return [jnp.asarray(x, "float8_e4m3fn") for x in given], {n: jnp.asarray(x, "float32") for n, x in factors.items()}


def wide(q, k, v, factors):
    """The tensors times their factors, in float64."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    f = {name: np.asarray(x, np.float64) for name, x in factors.items()}
    k = k * f["k_descale"][..., None]
    return q * f["q_descale"][..., None, None], k, v * f["v_descale"] + f["v_mean"][:, :, None]


def one_device(q, k, v, factors, causal=False, window=(-1, -1), documents=None):
    words = {"mask": "causal_top_left" if causal else "aligned_top_left", "window": window, **factors}
    found = [
        onepass.jax.attention(*(x[:, :, a:b] for x in (q, k, v)), return_lse=True, **words)
        for a, b in itertools.pairwise(documents or (0, LENGTH))
    ]
    return [jnp.concatenate(x, 2) for x in zip(*found)]


def wrong_of(name, mine, one, exact):
    """Sentences about a result."""
    errors = [cases.rms(np.asarray(x).astype(np.float64), exact["out"]) for x in (mine[0], one[0])]
    if mine[0].dtype != jnp.bfloat16 or not 0 < errors[0] <= 1.05 * errors[1]:
        return [f"{name}: {mine[0].dtype} with an error of {errors[0]:.2e}, one device {errors[1]:.2e}"]
    return [] if np.abs(np.asarray(mine[1]) - exact["lse"]).max() < 1e-5 else [f"{name}: the LSE"]


def exact_of(tensors, factors, options):
    q, k, v = wide(*tensors, factors)
    zeros = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
    return {name: x[0] for name, x in cases.textbook(q, k, v, *zeros, **options).items()}


def compared(ranks, masks):
    """(number of results, sentences about wrong ones)"""
    count, wrong, (tensors, factors) = 0, [], inputs()
    layout, mesh = Layout.zigzag(LENGTH, ranks), cases.mesh_of(ranks)
    for mask in masks:
        one = one_device(*tensors, factors, **MASKS[mask])
        exact = exact_of(tensors, factors, MASKS[mask])
        for scheme, groups in (("gather", 1), ("gather", 2), ("ring", 1), ("ulysses", 1)):
            words = {"mesh": mesh, "axis": "seq", "layout": layout, "scheme": scheme, "head_groups": groups}

            @jax.jit
            def call(tensors, factors, words={**words, **MASKS[mask]}):  # noqa: B006
                given = [layout.shard(x) for x in tensors]
                found = onepass.jax.context_parallel_attention(*given, return_lse=True, **factors, **words)
                return [layout.whole(x) for x in found]

            count += 1
            wrong += wrong_of(f"{ranks} ranks, {scheme} {groups} {mask}", call(tensors, factors), one, exact)
    return count, wrong


def batched():
    """Sentences about a batch that is sharded, with a factor for each entry."""
    wrong, (tensors, factors) = [], inputs(2)
    layout, one = Layout.zigzag(LENGTH, 4), one_device(*tensors, factors)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "seq"))
    for scheme in cases.SCHEMES:
        words = {"mesh": mesh, "axis": "seq", "batch_axis": "data", "layout": layout, "scheme": scheme}
        given = [layout.shard(x) for x in tensors]
        found = onepass.jax.context_parallel_attention(*given, return_lse=True, **factors, **words)
        mine = [layout.whole(x) for x in found]
        wrong += wrong_of(f"a batch axis, {scheme}", mine, one, exact_of(tensors, factors, {}))
    return wrong


if __name__ == "__main__":
    counts, wrong = zip(compared(2, ["full"]), compared(4, ["window", "documents"]), compared(8, ["window"]))
    print(json.dumps({"compared": sum(counts), "wrong": [*itertools.chain(*wrong), *batched()]}))
