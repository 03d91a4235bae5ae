"""Gradients of the mod_buffers of onepass.jax.attention, beside those of PyTorch and JAX's own of the formula."""

import functools

import numpy as np
import pytest
from conftest import jax_or_skip

torch = pytest.importorskip("torch", reason="torch is not installed")
jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import onepass.jax  # noqa: E402
import onepass.torch  # noqa: E402
from test_learned_buffers import BUFFERS, MODS, OPTIONS, PLACE, draw, losses  # noqa: E402

attention = onepass.jax.attention
TABLE = "score + table(head, q_index - k_index + 53)"


def array(x):
    return jnp.asarray(x.detach().numpy()) if isinstance(x, torch.Tensor) else x


def of_jax(call, text, options):
    """A loss of buffers, q, k and v."""

    def loss(t, q, k, v):
        given = {**t, "place": array(PLACE)} if "place" in text else t
        out, lse = call(q, k, v, score_mod=text, mod_buffers=given, return_lse=True, **options)
        lse = jnp.where(jnp.isfinite(lse), lse, 0)
        return (out * jnp.linspace(-1, 1, out.shape[-1])).sum() + 0.5 * lse.sum()

    return loss


def compare(text, options):
    names = [name for name in BUFFERS if name in text]
    tensors = [BUFFERS[name].clone().requires_grad_() for name in names]
    qkv = [x.requires_grad_() for x in draw(options.get("layout", "bhsd"))]
    given = dict(zip(names, tensors)) | ({"place": PLACE} if "place" in text else {})
    out, lse = onepass.torch.attention(*qkv, score_mod=text, mod_buffers=given, return_lse=True, **options)
    expected = torch.autograd.grad(losses(out, lse), [*tensors, *qkv])
    loss = of_jax(attention, text, {name: array(x) for name, x in options.items()})
    arrays = {name: array(BUFFERS[name]) for name in names}, *map(array, qkv)
    found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*arrays)
    for mine, other in zip([*(found[0][name] for name in names), *found[1:]], expected, strict=True):
        size = max(1, float(other.abs().max()))
        np.testing.assert_allclose(mine, other.numpy(), atol=2e-5 * size, rtol=0)


@pytest.mark.parametrize("text", MODS)
def test_texts(text):
    compare(text, {})


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    compare("one * tanh(score / one) + one" if name in ("alibi", "sinks") else TABLE, OPTIONS[name])


@pytest.mark.parametrize("rows", [1, 5, 36])
def test_strips(monkeypatch, rows):
    """Also of sizes that do not divide the rows, and of one row each."""
    jax.clear_caches()
    monkeypatch.setattr("onepass._jax_buffers._ELEMENTS", rows * 2 * 4 * 53)
    for name in ("alibi", "bool_mask"):
        compare(TABLE, OPTIONS[name])
    jax.clear_caches()


# ------------------------------------------------------------------------------------- the formula in JAX's operations
def dense(q, k, v, t):
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    distance = jnp.arange(q.shape[2])[:, None] - jnp.arange(k.shape[2])
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + t["table"][:, distance + 53]
    scores = jnp.where(distance >= 0, scores * t["one"], -jnp.inf)
    return jax.nn.softmax(scores, -1) @ v, jax.nn.logsumexp(scores, -1)


def mine(q, k, v, t, **options):
    words = {"score_mod": f"({TABLE}) * one", "mask": "causal_top_left", **options}
    return attention(q, k, v, mod_buffers=t, return_lse=True, **words)


def drawn():
    return *map(array, draw()), {name: array(BUFFERS[name]) for name in ("table", "one")}


def close(mine, other):
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=3e-5 * max(1, np.abs(y).max()), rtol=0)


def scalar(call, *args):
    out, lse = call(*args)
    return (out * jnp.linspace(-1, 1, out.shape[-1])).sum() + 0.5 * lse.sum()


def test_forward_mode():
    primals = drawn()
    tangents = jax.tree.map(lambda x: jnp.cos(7 * x) * 0.3, primals)
    close(jax.jvp(mine, primals, tangents), jax.jvp(dense, primals, tangents))
    only = tuple(map(jnp.zeros_like, tangents[:3])), tangents[3]
    close(jax.jvp(mine, primals, (*only[0], only[1])), jax.jvp(dense, primals, (*only[0], only[1])))
    close(jax.linearize(mine, *primals)[1](*tangents), jax.jvp(dense, primals, tangents)[1])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "checkpoint"])
def test_reverse_mode(wrap):
    primals = drawn()
    gradients = [jax.grad(wrap(functools.partial(scalar, f)), (0, 3))(*primals) for f in (mine, dense)]
    close(*gradients)


def test_only_one_result():
    q, k, v, t = drawn()
    for i in (0, 1):
        grads = [jax.grad(lambda t, f=f, i=i: jnp.sin(f(q, k, v, t)[i]).sum())(t) for f in (mine, dense)]
        close(*grads)


def test_vmap():
    q, k, v, t = drawn()
    many = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), t)
    qs = jnp.stack([q, -q])
    for axes in ((0, None, None, 0), (None, None, None, 0)):
        args = (qs if axes[0] == 0 else q, k, v, many)
        close(*(jax.vmap(jax.grad(functools.partial(scalar, f), (0, 3)), axes)(*args) for f in (mine, dense)))


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_shard_map(jit):
    """Each device has a part of the batch, and all share the buffers, whose gradients are added up."""
    q, k, v, t = drawn()
    batch, whole = jax.sharding.PartitionSpec("b"), jax.sharding.PartitionSpec()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("b",))
    parts = jax.shard_map(mine, mesh=mesh, in_specs=(batch, batch, batch, whole), out_specs=batch)
    close(*(jit(jax.grad(functools.partial(scalar, f), (0, 3)))(q, k, v, t) for f in (parts, dense)))


def test_functions_have_gradients():
    q, k, v, t = drawn()

    def by_function(t):
        return attention(
            q,
            k,
            v,
            score_mod=lambda s, b, h, i, j: (s + t["table"][h, i - j + 53]) * t["one"],
            mask_mod=lambda b, h, i, j: i >= j,
        )

    close(*(jax.grad(lambda t, f=f: jnp.sin(f(t)).sum())(t) for f in (by_function, lambda t: dense(q, k, v, t)[0])))


def test_16_bits():
    q, k, v, t = drawn()
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    wide = [x.astype(jnp.float32) for x in half]
    found = jax.grad(lambda t: scalar(mine, *half, {**t, "table": t["table"].astype(jnp.bfloat16)}))(t)
    expected = jax.grad(lambda t: scalar(dense, *wide, t))(t)
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], atol=2e-2 * float(abs(expected[name]).max()), rtol=0)


def test_no_keys_and_no_rows():
    q, k, v, t = drawn()
    for rows, keys in ((0, 5), (5, 0)):
        grads = jax.grad(lambda t, r=rows, n=keys: mine(q[:, :, :r], k[:, :, :n], v[:, :, :n], t)[0].sum())(t)
        assert all((x == 0).all() for x in grads.values())


def test_what_has_no_gradient_is_refused():
    q, k, v, t = drawn()

    def gradient(t, **options):
        return jax.grad(lambda t: mine(q, k, v, t, **options)[0].sum())(t)

    for call, sentence in (
        (
            lambda: gradient(t, dropout_p=0.5, seed=3),
            r"attention with dropout_p does not return the gradient of mod_buffers",
        ),
        (lambda: gradient(t, return_entropy=True), r"attention does not return the gradient of mod_buffers"),
        (
            lambda: gradient({"one": t["one"]}, score_mod="score", mask_mod="one > 0"),
            r"gradient of mod_buffers\['one'\] that score_mod does not read; pass jax.lax.stop_gradient",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    cu = jnp.array([0, 9, 37], jnp.int32)
    packed = [x[0].swapaxes(0, 1) for x in (q, k[:, :, :37], v[:, :, :37])]
    with pytest.raises(ValueError, match="with packed sequences does not return the gradient of mod_buffers"):
        jax.grad(
            lambda t: attention(*packed, score_mod="score * one", mod_buffers=t, cu_seqlens_q=cu, cu_seqlens_k=cu).sum()
        )({"one": t["one"]})


BESIDE = "onepass.jax.attention does not support second derivatives beside a gradient of mod_buffers"


def loss_of(q, k, v, t):
    return lambda q_, table: scalar(mine, q_, k, v, {**t, "table": table})


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_second_derivatives_are_refused(jit):
    q, k, v, t = drawn()
    loss, table = loss_of(q, k, v, t), t["table"]
    by_q, by_table = jax.grad(loss), jax.grad(loss, 1)

    def along_q(q, table):
        return jax.jvp(lambda q: loss(q, table), (q,), (q,))[1]

    def along_table(q, table):
        return jax.jvp(lambda table: loss(q, table), (table,), (table,))[1]

    for call in (
        jax.grad(lambda table: by_q(q, table).sum()),
        jax.grad(lambda table: by_table(q, table).sum()),
        lambda table: jax.grad(lambda q: by_table(q, table).sum())(q),
        jax.grad(lambda table: along_q(q, table)),
        lambda table: jax.grad(lambda q: along_table(q, table))(q),
        lambda table: jax.jvp(lambda x: by_q(q, x), (table,), (table,)),
        lambda table: jax.jvp(lambda x: by_table(q, x), (table,), (table,)),
        lambda table: jax.jvp(lambda q: by_table(q, table), (q,), (q,)),
        lambda table: jax.jvp(lambda x: along_q(q, x), (table,), (table,)),
        lambda table: jax.jvp(lambda q: along_table(q, table), (q,), (q,)),
        jax.grad(lambda table: jax.vmap(by_q, (0, None))(q[None], table).sum()),
    ):
        with pytest.raises(NotImplementedError, match=BESIDE):
            jit(call)(table)


def test_a_loss_may_detach_what_has_no_second_derivative():
    q, k, v, t = drawn()
    loss, table = loss_of(q, k, v, t), t["table"]

    def penalized(table):
        gradients = jax.grad(loss, (0, 1))(q, table)
        return loss(q, table) + sum(jax.lax.stop_gradient(x).sum() for x in gradients)

    for call in (jax.grad(penalized), jax.jit(jax.grad(penalized))):
        close(call(table), jax.grad(loss, 1)(q, table))


def test_second_derivatives_by_q_beside_a_buffer():
    q, k, v, t = drawn()

    def penalty(f):
        return jax.grad(lambda q: jnp.square(jax.grad(lambda q: scalar(f, q, k, v, t))(q)).sum())(q)

    close(penalty(mine), penalty(dense))
