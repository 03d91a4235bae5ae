"""onepass.jax under jax.shard_map, with and without jit, forward and backward."""

import numpy as np
import pytest
from conftest import inputs, jax_or_skip

jax = jax_or_skip()

import onepass.jax  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402


def sharded(f, **options):
    mesh, batch = Mesh(np.array(jax.devices()[:1]), ("b",)), PartitionSpec("b")
    return jax.shard_map(f, mesh=mesh, in_specs=batch, out_specs=batch, **options)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_attention_and_its_gradients(rng, jit, checked):
    given = inputs(rng)
    attention = jit(sharded(onepass.jax.attention, check_vma=checked))
    np.testing.assert_array_equal(attention(*given), onepass.jax.attention(*given))

    def loss(q, k, v):
        return (onepass.jax.attention(q, k, v, mask="causal_bottom_right") ** 2).sum()

    grads = jax.grad(loss, (0, 1, 2))
    for mine, theirs in zip(jit(sharded(grads, check_vma=checked))(*given), grads(*given), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_gradients_through_it(rng):
    """By operands that every device has a part of, and by sinks that all of them share."""
    q, k, v = inputs(rng)
    sinks = np.zeros(4, np.float32)
    mesh = Mesh(np.array(jax.devices()[:1]), ("b",))
    batch, whole = PartitionSpec("b"), PartitionSpec()

    def attention(q, k, v, sinks):
        return onepass.jax.attention(q, k, v, sinks=sinks)

    parts = jax.shard_map(attention, mesh=mesh, in_specs=(batch, batch, batch, whole), out_specs=batch)
    for mine, theirs in zip(
        *(jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 3))(q, k, v, sinks) for f in (parts, attention)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
