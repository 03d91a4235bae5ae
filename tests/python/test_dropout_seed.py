"""A seed of dropout in memory: read when kernels run, with the bits of the same number."""

import numpy as np
import onepass
import pytest

SEEDS = (0, 7, 2**40 + 5, 2**64 - 3)


def qkv(rng, batch=2, heads=4, kv=2, s=19, n=40, d=24):
    return [rng.standard_normal(x, dtype=np.float32) for x in ((batch, heads, s, d), *((batch, kv, n, d),) * 2)]


def in_memory(seed):
    return np.array([seed], np.uint64).view(np.int64)


@pytest.mark.parametrize("seed", SEEDS)
def test_numpy(rng, seed):
    q, k, v = qkv(rng)
    options = dict(dropout_p=0.4, dropout_start=(1, 2, 3, 8))
    out, lse = onepass.attention(q, k, v, **options, seed=seed, return_lse=True)
    for array in (in_memory(seed), in_memory(seed)[0:1].reshape(())):
        np.testing.assert_array_equal(onepass.attention(q, k, v, **options, seed=array), out)
    dout = rng.standard_normal(out.shape, dtype=np.float32)
    for x, y in zip(
        onepass.attention_backward(dout, q, k, v, out, lse, **options, seed=seed),
        onepass.attention_backward(dout, q, k, v, out, lse, **options, seed=in_memory(seed)),
    ):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(*(onepass.jvp(q, k, v, q, k, v, **options, seed=s) for s in (seed, in_memory(seed)))):
        np.testing.assert_array_equal(x, y)


def test_a_changed_array_drops_other_weights(rng):
    q, k, v = qkv(rng)
    seed = np.zeros(1, np.int64)
    found = []
    for number in (3, 4, 3):
        seed[0] = number
        found.append(onepass.attention(q, k, v, dropout_p=0.4, seed=seed))
        np.testing.assert_array_equal(found[-1], onepass.attention(q, k, v, dropout_p=0.4, seed=number))
    assert (found[0] != found[1]).any() and (found[0] == found[2]).all()


@pytest.mark.parametrize(
    "kind, seed, got",
    [
        (ValueError, np.zeros(2, np.int64), r"int64 of shape \[2\]"),
        (ValueError, np.zeros((1, 1), np.int64), r"int64 of shape \[1, 1\]"),
        (TypeError, np.zeros(1, np.int32), r"int32 of shape \[1\]"),
        (TypeError, np.zeros(1, np.float32), r"float32 of shape \[1\]"),
    ],
)
def test_refusals(rng, kind, seed, got):
    q, k, v = qkv(rng)
    sentence = rf"seed must be an integer from 0 to 2\^64 - 1 or an int64 array of one element \(got {got}\)"
    with pytest.raises(kind, match=sentence):
        onepass.attention(q, k, v, dropout_p=0.1, seed=seed)


def gradients(torch, attention, given, seed, dout):
    given = [torch.from_numpy(x).requires_grad_() for x in given]
    attention(*given, seed).backward(dout)
    return [x.grad for x in given]


def test_torch(rng):
    torch = pytest.importorskip("torch")
    given = qkv(rng)
    dout = torch.from_numpy(rng.standard_normal(given[0].shape, dtype=np.float32))

    def attention(q, k, v, seed):
        return onepass.torch.attention(q, k, v, mask="causal_bottom_right", dropout_p=0.4, seed=seed)

    from torch._dynamo.testing import CompileCounter

    counted = CompileCounter()
    for call in (attention, torch.compile(attention, fullgraph=True, backend=counted)):
        for seed in SEEDS:
            expected = gradients(torch, attention, given, seed, dout)
            found = gradients(torch, call, given, torch.from_numpy(in_memory(seed)), dout)
            assert all(torch.equal(x, y) for x, y in zip(expected, found)), seed
    assert counted.frame_count == 1


def test_torch_with_a_seed_that_was_changed_before_the_backward(rng):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv(rng))
    seed = torch.tensor(5)
    out = onepass.torch.attention(q, k, v, dropout_p=0.4, seed=seed)
    seed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_torch_refusals(rng):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, qkv(rng))
    with pytest.raises(TypeError, match=r"seed must be .* \(got int32 of shape \[1\]\)"):
        onepass.torch.attention(q, k, v, dropout_p=0.1, seed=torch.zeros(1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"seed must be on cpu, as q is \(got meta\)"):
        onepass.torch.attention(q, k, v, dropout_p=0.1, seed=torch.zeros(1, dtype=torch.int64, device="meta"))


def test_torch_vmap_over_seeds(rng):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, qkv(rng))

    def attention(seed):
        return onepass.torch.attention(q, k, v, dropout_p=0.4, seed=seed)

    found = torch.func.vmap(attention)(torch.arange(3))
    for seed in range(3):
        assert torch.equal(found[seed], attention(seed))


@pytest.mark.parametrize("seed", [None, 7, "tensor"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(rng, seed, reentrant):
    torch = pytest.importorskip("torch")
    given = qkv(rng)
    dout = torch.from_numpy(rng.standard_normal(given[0].shape, dtype=np.float32))
    seed = torch.tensor([7]) if seed == "tensor" else seed

    def attention(q, k, v, seed):
        return onepass.torch.attention(q, k, v, dropout_p=0.4, seed=seed)

    def again(*call):
        return torch.utils.checkpoint.checkpoint(attention, *call, use_reentrant=reentrant)

    found = []
    for call in (attention, again):
        torch.manual_seed(3)
        found.append(gradients(torch, call, given, seed, dout))
    assert all(torch.equal(x, y) for x, y in zip(*found))


def test_jax(rng):
    jax = pytest.importorskip("jax")
    import onepass.jax

    given = qkv(rng)
    compiled = []

    def loss(q, k, v, seed):
        compiled.append(seed)
        return (onepass.jax.attention(q, k, v, dropout_p=0.4, seed=seed) ** 2).sum()

    gradients = jax.grad(loss, (0, 1, 2))
    step = jax.jit(gradients)
    for seed in (0, 7, 2**31 - 1):
        expected = gradients(*given, seed)
        compiled.clear()
        jax.tree.map(np.testing.assert_array_equal, expected, step(*given, jax.numpy.int32(seed)))
        assert len(compiled) == (seed == 0)
    with jax.enable_x64(True):
        found = onepass.jax.attention(*given, dropout_p=0.4, seed=jax.numpy.uint64(2**64 - 3))
        signed = onepass.jax.attention(*given, dropout_p=0.4, seed=jax.numpy.int64(-3))
    for x in (found, signed, onepass.jax.attention(*given, dropout_p=0.4, seed=in_memory(2**64 - 3))):
        np.testing.assert_array_equal(x, onepass.jax.attention(*given, dropout_p=0.4, seed=2**64 - 3))


def test_jax_keys(rng):
    jax = pytest.importorskip("jax")
    import onepass.jax

    q, k, v = qkv(rng)

    def attention(key):
        return onepass.jax.attention(q, k, v, dropout_p=0.4, seed=key)

    keys = jax.random.split(jax.random.key(1), 3)
    each = [attention(key) for key in keys]
    np.testing.assert_array_equal(jax.jit(jax.vmap(attention))(keys), np.stack(each))
    np.testing.assert_array_equal(attention(jax.random.key_data(keys[0])), each[0])
    assert (each[0] != each[1]).any()
    with pytest.raises(TypeError, match=r"seed must be .* a key of jax.random .* \(got float32 of shape \[\]\)"):
        attention(jax.numpy.float32(1))


def test_jax_forward_mode_and_second_derivatives(rng):
    jax = pytest.importorskip("jax")
    import onepass.jax

    given = qkv(rng)

    def attention(seed):
        return lambda *x: (onepass.jax.attention(*x, dropout_p=0.4, seed=seed) ** 2).sum()

    def both(seed):
        along = jax.jvp(attention(seed), given, given)
        return along, jax.jvp(jax.grad(attention(seed), (0, 1, 2)), given, given)

    jax.tree.map(np.testing.assert_array_equal, both(9), both(jax.numpy.int32(9)))
