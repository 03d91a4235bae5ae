"""Refusals of calls of PyTorch and JAX: gradients that would be lost, and inputs that are not tensors."""

import numpy as np
import pytest
from conftest import inputs, qkv


def test_what_has_no_gradient_is_refused(attention, torch, device):
    """A table of a mask_mod, or a factor, that a loss would be differentiated by would stay as it is, silently."""
    q, k, v = qkv(torch, device, grad=True)
    table = torch.zeros(64, device=device, requires_grad=True)

    def biased(table, q=q):
        return attention(q, k, v, mask_mod="table[q_index] >= 0", mod_buffers={"table": table})

    with pytest.raises(
        RuntimeError, match=r"mod_buffers\['table'\].requires_grad is set, but attention does not return its gradient"
    ):
        biased(table)
    with pytest.raises(RuntimeError, match=r"mod_buffers\['table'\]"):
        torch.func.grad(lambda table: biased(table, q.detach()).sum())(table.detach())
    biased(table.detach()).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(biased(table), biased(table.detach()))
    cache = (x.detach().to(torch.float8_e4m3fn) for x in (k, v))
    with pytest.raises(RuntimeError, match=r"k_descale.requires_grad is set.*pass k_descale.detach\(\)"):
        attention(q.detach(), *cache, k_descale=torch.ones(1, device=device, requires_grad=True))


def test_narrower_keys_and_values(attention, torch, device):
    q, k, v = qkv(torch, device, grad=True)
    half = k.detach().half(), v.detach().half()
    with torch.no_grad():
        out = attention(q, *half)
        assert torch.equal(out, torch.compile(attention, fullgraph=True, backend="eager")(q, *half))
        torch.testing.assert_close(out, attention(q, *(x.float() for x in half)), rtol=1e-5, atol=1e-6)
    sentence = "with torch.float32 q and torch.float16 k and v does not support gradients, but q.requires_grad is set"
    with pytest.raises(RuntimeError, match=sentence):
        attention(q, *half)


def test_refusals_of_arguments(attention, torch, device):
    q, k, v = qkv(torch, device)
    for error, sentence, words in [
        (TypeError, r"q must be a torch.Tensor \(got ndarray\)", dict(q=np.zeros((2, 4, 19, 16), np.float32))),
        (TypeError, r"seqused_k must be a torch.Tensor \(got list\)", dict(seqused_k=[3, 4])),
        (ValueError, r"window must be a pair \(left, right\)", dict(window=3)),
        (TypeError, "mod_buffers must be a dict", dict(mod_buffers=[q])),
        (ValueError, "mod buffer name must be .*got '3'", dict(score_mod="score", mod_buffers={3: q})),
        (
            ValueError,
            "invalid mod_buffers name 'a,b': use letters, digits and underscores",
            dict(score_mod="score + a(0)", mod_buffers={"a,b": q}),
        ),
    ]:
        with pytest.raises(error, match=sentence):
            attention(**(dict(q=q, k=k, v=v) | words))


def test_jax_refuses_a_buffer_s_gradient(jax, rng):
    """Asked for one, zeros would say that a table needs no training."""
    import jax.numpy as jnp
    import onepass.jax

    q, k, v = inputs(rng)

    def loss(q, table):
        out = onepass.jax.attention(q, k, v, mask_mod="table[head] >= 0", mod_buffers={"table": table})
        return (out**2).sum()

    table = jnp.zeros(4)
    with pytest.raises(
        ValueError,
        match=r"gradient of mod_buffers\['table'\] that score_mod does not read; pass jax.lax.stop_gradient",
    ):
        jax.jit(jax.grad(loss, (0, 1)))(q, table)
    by_q = jax.grad(loss)(q, table)
    np.testing.assert_array_equal(jax.grad(jax.checkpoint(loss))(q, table), by_q)
    both = jax.grad(lambda q, table: loss(q, jax.lax.stop_gradient(table)), (0, 1))(q, table)
    np.testing.assert_array_equal(both[0], by_q)
    for buffers, sentence in (
        ([table], "mod_buffers must be a dict"),
        ({3: table}, "mod buffer name must be .*got '3'"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            onepass.jax.attention(q, k, v, score_mod="score", mod_buffers=buffers)
