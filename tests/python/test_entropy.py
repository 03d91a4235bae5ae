"""The entropies of rows and their gradient, beside float64 in NumPy and autograd of PyTorch."""

import numpy as np
import onepass
import pytest

CAUSAL = dict(mask="causal_bottom_right")


def qkv(rng, batch=2, heads=4, kv=2, s=19, n=40, d=24):
    return (rng.standard_normal(x, dtype=np.float32) for x in ((batch, heads, s, d), *((batch, kv, n, d),) * 2))


def entropies(q, k, sinks=None, causal=True):
    s = np.einsum("bhid,bhjd->bhij", q.astype(float), np.repeat(k, q.shape[1] // k.shape[1], 1)) / q.shape[-1] ** 0.5
    hidden = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    s = np.where(hidden & causal, -np.inf, s)
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))], -1)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def test_beside_the_other_results(rng):
    q, k, v = qkv(rng)
    out, lse, most, entropy = onepass.attention(
        q, k, v, **CAUSAL, return_lse=True, return_max=True, return_entropy=True
    )
    assert entropy.dtype == np.float32 and entropy.shape == lse.shape
    np.testing.assert_allclose(entropy, entropies(q, k), rtol=2e-6, atol=2e-6)
    same, alone = onepass.attention(q, k, v, **CAUSAL, return_entropy=True)
    np.testing.assert_array_equal(alone, entropy)
    np.testing.assert_array_equal(same, out)
    _, by_head, again = onepass.attention(q, k, v, **CAUSAL, return_max="head", return_entropy=True)
    np.testing.assert_array_equal(by_head, most.max((0, 2)))
    np.testing.assert_array_equal(again, entropy)


def test_a_sink_is_a_key(rng):
    q, k, v = qkv(rng)
    sinks = np.float32([9.0, -3.0, 0.0, 1.0])
    _, entropy = onepass.attention(q, k, v, **CAUSAL, sinks=sinks, return_entropy=True)
    np.testing.assert_allclose(entropy, entropies(q, k, sinks), rtol=2e-6, atol=2e-6)
    hidden = np.zeros((1, 1, 19, 40), bool)
    assert (onepass.attention(q, k, v, bool_mask=hidden, sinks=sinks, return_entropy=True)[1] == 0).all()
    assert (onepass.attention(q, k, v, bool_mask=hidden, return_entropy=True)[1] == 0).all()


@pytest.mark.parametrize("shift", [0.0, 3e4])
def test_what_scores_have_in_common_cancels(rng, shift):
    q, k, v = qkv(rng)
    bias = np.full((1, 1, 1, 40), shift, np.float32)
    _, entropy = onepass.attention(q, k, v, bias=bias, return_entropy=True)
    np.testing.assert_allclose(entropy, entropies(q, k, causal=False), rtol=1e-6 if shift == 0 else 4e-3)


def test_layouts_and_packed_tokens(rng):
    q, k, v = qkv(rng, s=9, n=9)
    turned = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    _, entropy = onepass.attention(*turned, layout="bshd", **CAUSAL, return_entropy=True)
    np.testing.assert_allclose(entropy.swapaxes(1, 2), entropies(q, k), rtol=2e-6, atol=2e-6)
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k, v))
    lengths, keys = np.array([0, 4, 6], np.int32), np.array([0, 0, 5], np.int32)
    _, entropy = onepass.attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=keys, return_entropy=True)
    assert entropy.shape == (4, 9)
    assert (entropy[:, :4] == 0).all() and (entropy[:, 4:6] > 0).all() and (entropy[:, 6:] == 0).all()


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_decoding_step_has_the_entropies_of_its_rows(rng, batch_invariant):
    q, k, v = qkv(rng, s=40, n=3000)
    options = dict(**CAUSAL, return_entropy=True, batch_invariant=batch_invariant)
    _, whole = onepass.attention(q, k, v, **options)
    _, step = onepass.attention(q[:, :, -2:], k, v, **options)
    np.testing.assert_allclose(step, entropies(q, k)[:, :, -2:], rtol=2e-6)
    if batch_invariant:
        np.testing.assert_array_equal(step, whole[:, :, -2:])


def test_parts_join_by_the_chain_rule(rng):
    q, k, v = qkv(rng)
    _, lse, whole = onepass.attention(q, k, v, return_lse=True, return_entropy=True)
    total = 0.0
    for keys in (slice(0, 13), slice(13, 40)):
        _, part, entropy = onepass.attention(q, k[:, :, keys], v[:, :, keys], return_lse=True, return_entropy=True)
        total = total + np.exp(part - lse) * (entropy + lse - part)
    np.testing.assert_allclose(whole, total, rtol=2e-6)


def test_a_nan_shows(rng):
    q, k, v = qkv(rng)
    k[0, 0, 5, 3] = np.nan
    _, entropy = onepass.attention(q, k, v, mask="causal_top_left", return_entropy=True)
    assert np.isnan(entropy[0, :2, 5:]).all() and np.isfinite(entropy[0, :2, :5]).all()
    assert np.isfinite(entropy[1]).all()


def test_gradients_beside_differences(rng):
    q, k, v = qkv(rng, batch=1, s=5, n=7, d=6)
    sinks, weights = rng.standard_normal(4).astype(np.float32), rng.standard_normal((1, 4, 5)).astype(np.float32)
    options = dict(**CAUSAL, sinks=sinks)
    out, lse, entropy = onepass.attention(q, k, v, **options, return_lse=True, return_entropy=True)
    dq, dk, dv, dsinks = onepass.attention_backward(
        np.zeros_like(out),
        q,
        k,
        v,
        out,
        lse,
        entropy=entropy,
        dentropy=weights,
        grads=("dq", "dk", "dv", "dsinks"),
        **options,
    )
    assert (dv == 0).all()
    for x, gradient in ((q, dq), (k, dk), (sinks, dsinks)):
        exact = {id(y): y.astype(float) for y in (q, k, sinks)}
        moved, step = exact[id(x)], 1e-5
        for at in np.ndindex(*x.shape):
            found = []
            for side in (step, -step):
                moved[at] += side
                found.append((entropies(exact[id(q)], exact[id(k)], exact[id(sinks)]) * weights).sum())
                moved[at] -= side
            assert abs((found[0] - found[1]) / (2 * step) - gradient[at]) < 1e-5


def test_what_is_refused(rng):
    q, k, v = qkv(rng)
    with pytest.raises(ValueError, match="attention does not support entropy with unified_max"):
        onepass.attention(q, k, v, unified_max=1.0, return_entropy=True)
    out, lse, entropy = onepass.attention(q, k, v, return_lse=True, return_entropy=True)
    for given, sentence in (
        (dict(entropy=entropy), "entropy requires dentropy"),
        (dict(dentropy=lse), "dentropy requires"),
    ):
        with pytest.raises(ValueError, match=sentence):
            onepass.attention_backward(out, q, k, v, out, lse, **given)
    assert "does not support entropy with fp8_e4m3" in onepass.explain(
        "fwd h2 s4 entropy d64 fp8_e4m3 cuda", target="sm_90"
    )
    for line in ("jvp h2 s4 d64 entropy", "fwd h2 s4 d64 dentropy"):
        with pytest.raises(ValueError, match="does not support .d?entropy."):
            onepass.explain(line)


def textbook(torch, q, k, v, sinks):
    s = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, 1)) / q.shape[-1] ** 0.5
    keys, rows = (torch.arange(x.shape[2], device=q.device) for x in (k, q))
    s = s.masked_fill(keys > rows[:, None] + k.shape[2] - q.shape[2], -torch.inf)
    s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:-1], 1)], -1)
    log = s.log_softmax(-1)
    p = log.exp()
    entropy = -(p * log.masked_fill(p == 0, 0)).sum(-1)
    return p[..., :-1] @ v.repeat_interleave(2, 1), s.logsumexp(-1), entropy


def test_in_torch(rng, attention, torch, device):
    inputs = [
        torch.from_numpy(x).to(device).requires_grad_() for x in (*qkv(rng), rng.standard_normal(4).astype(np.float32))
    ]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    found = attention(*inputs[:3], sinks=inputs[3], **CAUSAL, return_lse=True, return_entropy=True)
    expected = textbook(torch, *wide)
    weights = [torch.randn_like(x) for x in found]
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    loss = sum((x * w).sum() for x, w in zip(found, weights))
    other = sum((x * w).sum() for x, w in zip(expected, weights))
    for one, two in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(other, wide)):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-4)
    alone = attention(*inputs[:3], sinks=inputs[3], **CAUSAL, return_entropy=True)[1]
    one = torch.autograd.grad(alone.sum(), inputs[0])[0]
    two = torch.autograd.grad(textbook(torch, *wide)[2].sum(), wide[0])[0]
    torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)


def test_in_torch_with_other_options(rng, attention, torch, device):
    q, k, v = (torch.from_numpy(x).to(device) for x in qkv(rng))
    plain = attention(q, k, v, return_entropy=True)
    written = attention(q, k, v, out=torch.empty_like(q), return_entropy=True)
    assert torch.equal(plain[1], written[1])
    out, by_head, entropy = attention(q, k, v, return_max="head", return_entropy=True)
    assert by_head.shape == (4,) and torch.equal(entropy, plain[1])
    compiled = torch.compile(attention, backend="eager")
    assert torch.equal(compiled(q, k, v, return_entropy=True)[1], plain[1])
    with torch.autocast(device, torch.bfloat16):
        narrow = attention(q.requires_grad_(), k, v, return_entropy=True)
    assert narrow[0].dtype == torch.bfloat16 and narrow[1].dtype == torch.float32
    assert torch.autograd.grad(narrow[1].sum(), q)[0].dtype == torch.float32
    dropped = attention(q, k, v, dropout_p=0.5, seed=3, return_entropy=True)
    assert torch.equal(dropped[1], plain[1])  # dropout comes after the weights
    assert torch.isfinite(torch.autograd.grad(dropped[0].sum() + dropped[1].sum(), q)[0]).all()


def test_torch_refuses_what_has_no_derivative(rng, attention, torch, device):
    q, k, v = (torch.from_numpy(x).to(device).requires_grad_() for x in qkv(rng))
    entropy = attention(q, k, v, return_entropy=True)[1]
    (gradient,) = torch.autograd.grad(entropy.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="return_entropy does not support second derivatives"):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match="attention to a cache .* does not support gradients"):
        attention(q, k, v, seqused_k=torch.full((2,), 9, dtype=torch.int32, device=device), return_entropy=True)


def test_in_jax(rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    jax.config.update("jax_platforms", "cpu")
    import onepass.jax

    q, k, v = qkv(rng)
    sinks = rng.standard_normal(4).astype(np.float32)

    def results(q, k, v, sinks):
        return onepass.jax.attention(
            q, k, v, sinks=sinks, **CAUSAL, return_lse=True, return_max=True, return_entropy=True
        )

    mine = onepass.attention(q, k, v, sinks=sinks, **CAUSAL, return_lse=True, return_max=True, return_entropy=True)
    for one, other in zip(jax.jit(results)(q, k, v, sinks), mine):
        np.testing.assert_array_equal(one, other)
    weights = [rng.standard_normal(x.shape).astype(np.float32) for x in mine]

    def loss(*inputs):
        return sum((x * w).sum() for x, w in zip(results(*inputs), weights))

    found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, sinks)
    out, lse, _, entropy = mine
    expected = onepass.attention_backward(
        weights[0],
        q,
        k,
        v,
        out,
        lse,
        dlse=weights[1],
        entropy=entropy,
        dentropy=weights[3],
        sinks=sinks,
        grads=("dq", "dk", "dv", "dsinks"),
        **CAUSAL,
    )
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
    alone = jax.grad(lambda q: onepass.jax.attention(q, k, v, **CAUSAL, return_entropy=True)[1].sum())(q)
    assert np.abs(alone).max() > 0
    many = jax.vmap(lambda q: onepass.jax.attention(q, k, v, **CAUSAL, return_entropy=True)[1])(np.stack([q, 2 * q]))
    np.testing.assert_array_equal(many[1], onepass.attention(2 * q, k, v, **CAUSAL, return_entropy=True)[1])
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: onepass.jax.attention(q, k, v, return_entropy=True)[1], (q,), (q,))
