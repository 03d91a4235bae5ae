"""Refusals of onepass.jax, each in a sentence."""

import numpy as np
import onepass
import pytest
from conftest import jax_or_skip

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402

X = np.zeros((1, 2, 3, 8), np.float32)
WRONG = {
    "of k must be": dict(k=np.zeros((1, 2, 3, 9), np.float32)),
    r"q must be an array of shape .* \(got None\)": dict(q=None),
    r"q must be .* \(got int8\)": dict(q=np.zeros((1, 2, 3, 8), np.int8)),
    r"q and v must have the shape .* \(got \[3\] and": dict(q=np.zeros(3, np.float32)),
    "sinks": dict(sinks=np.zeros(3, np.float32)),
    r"layout must be 'bhsd' or 'bshd' \(got 'bsh'\)": dict(layout="bsh"),
    "scale must be a number": dict(scale="wide"),
    r"seqused_k must be int32 or int64 \(got float32\)": dict(seqused_k=np.float32([1.5])),
    r"sinks must be float32, .* \(got int32\)": dict(sinks=np.zeros(2, np.int32)),
    "mod_buffers must be a dict of arrays": dict(mod_buffers=[X]),
    "no_such": dict(implementation="no_such"),
    "mod buffer table": dict(score_mod="score + table[head]", mod_buffers={"table": np.zeros((1,) * 5, np.float32)}),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_refusals(sentence):
    """At the call where shapes and options show it, under jit too; by XLA's exception where only the run does."""
    given = dict(q=X, k=X, v=X) | WRONG[sentence]
    arrays = {name: x for name, x in given.items() if name in "qkv" and x is not None}
    rest = {name: x for name, x in given.items() if name not in arrays}
    for call in (
        lambda **x: onepass.jax.attention(**x, **rest),
        jax.jit(lambda **x: onepass.jax.attention(**x, **rest)),
    ):
        with pytest.raises((ValueError, TypeError, jax.errors.JaxRuntimeError), match=sentence):
            jax.block_until_ready(call(**arrays))


def test_what_jax_nn_means_otherwise_is_refused():
    q, k, v = (jnp.zeros((2, 5, 4, 8)) for _ in range(3))
    for sentence, options in {
        r"local_window_size must be an integer from 0, .* \(got \(-1, 2\)\)": {"local_window_size": (-1, 2)},
        "local_window_size must be an integer from 0, .*-1": {"local_window_size": -1},
        r"key_value_seq_lengths must be int32 of shape \[2\] \(got float32": {
            "key_value_seq_lengths": np.float32([3, 4])
        },
        r"query_seq_lengths must be int32 of shape \[2\] \(got int32 of shape \[3\]\)": {
            "query_seq_lengths": np.int32([1, 2, 3])
        },
    }.items():
        with pytest.raises(ValueError, match=sentence):
            onepass.jax.dot_product_attention(q, k, v, **options)
