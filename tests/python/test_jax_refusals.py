"""What onepass.jax refuses, in a sentence."""

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
    "q is None": dict(q=None),
    "q is int8": dict(q=np.zeros((1, 2, 3, 8), np.int8)),
    "q must have shape": dict(q=np.zeros(3, np.float32)),
    "sinks": dict(sinks=np.zeros(3, np.float32)),
    "layout is 'bsh'; 'bhsd' and 'bshd' are accepted": dict(layout="bsh"),
    "scale is ": dict(scale="wide"),
    "seqused_k is float32; int32, int64 are accepted": dict(seqused_k=np.float32([1.5])),
    "sinks is int32; float32, float16": dict(sinks=np.zeros(2, np.int32)),
    "mod_buffers is a list; a dict of arrays": dict(mod_buffers=[X]),
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
        r"local_window_size is \(-1, 2\); a number from 0": {"local_window_size": (-1, 2)},
        "local_window_size is .*-1.*; a number from 0": {"local_window_size": -1},
        r"key_value_seq_lengths is float32 of shape \[2\]; int32": {"key_value_seq_lengths": np.float32([3, 4])},
        r"query_seq_lengths is int32 of shape \[3\]; int32 of shape \[2\]": {"query_seq_lengths": np.int32([1, 2, 3])},
    }.items():
        with pytest.raises(ValueError, match=sentence):
            onepass.jax.dot_product_attention(q, k, v, **options)
