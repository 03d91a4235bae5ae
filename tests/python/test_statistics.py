"""Statistics of scores that onepass.attention returns, beside numbers of NumPy, in each interface."""

import numpy as np
import onepass
import pytest


def qkv(rng, batch=2, heads=4, kv=2, s=19, n=40, d=24):
    return (rng.standard_normal(x, dtype=np.float32) for x in ((batch, heads, s, d), *((batch, kv, n, d),) * 2))


def scores(q, k, causal=True):
    group = q.shape[1] // k.shape[1]
    s = np.einsum("bhid,bhjd->bhij", q.astype(float), np.repeat(k, group, 1).astype(float)) / q.shape[-1] ** 0.5
    hidden = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    return np.where(hidden & causal, -np.inf, s)


def test_row_maxima(rng):
    q, k, v = qkv(rng)
    out, lse, most = onepass.attention(q, k, v, mask="causal_bottom_right", return_lse=True, return_max=True)
    np.testing.assert_allclose(most, scores(q, k).max(-1), rtol=1e-5, atol=1e-5)
    assert most.dtype == np.float32 and most.shape == lse.shape and (most <= lse).all()
    same, alone = onepass.attention(q, k, v, mask="causal_bottom_right", return_max=True)
    np.testing.assert_array_equal(alone, most)
    np.testing.assert_array_equal(same, out)


@pytest.mark.parametrize("options", [dict(sinks=[9.0, -3.0, 0.0, 1.0]), dict(softcap=2.0), dict(unified_max=1.0)])
def test_with_other_options(rng, options):
    q, k, v = qkv(rng, s=2)
    options = {name: np.float32(x) for name, x in options.items()}
    expected = scores(q, k, causal=False).max(-1)
    if "softcap" in options:
        expected = 2 * np.tanh(expected / 2)
    _, most = onepass.attention(q, k, v, **options, return_max=True)
    np.testing.assert_allclose(most, expected, rtol=1e-5, atol=1e-5)


def test_heads_in_every_layout(rng):
    q, k, v = qkv(rng)
    expected = scores(q, k).max((0, 2, 3))
    options = dict(mask="causal_bottom_right", return_max="head")
    np.testing.assert_allclose(onepass.attention(q, k, v, **options)[1], expected, rtol=1e-5)
    q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    np.testing.assert_allclose(onepass.attention(q, k, v, layout="bshd", **options)[1], expected, rtol=1e-5)
    boundaries = [np.arange(3, dtype=np.int32) * n for n in (19, 40)]
    packed = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    _, rows, most = onepass.attention(
        *packed, cu_seqlens_q=boundaries[0], cu_seqlens_k=boundaries[1], return_lse=True, **options
    )
    assert rows.shape == (4, 38) and most.shape == (4,)
    np.testing.assert_allclose(most, expected, rtol=1e-5)


def test_rows_without_keys_and_tokens_behind_the_last_sequence(rng):
    q, k, v = (x[0].swapaxes(0, 1) for x in qkv(rng, s=9, n=9))
    lengths = np.array([0, 4, 6], np.int32)
    keys = np.array([0, 0, 5], np.int32)
    _, most = onepass.attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=keys, return_max=True)
    assert (most[:, :4] == -np.inf).all() and np.isfinite(most[:, 4:6]).all() and (most[:, 6:] == -np.inf).all()


def test_heads_without_rows(rng):
    q, k, v = qkv(rng, s=9, n=9)
    no_rows, tokens = np.zeros((2, 4, 0, 24), np.float32), np.zeros((0, 4, 24), np.float32)
    assert (onepass.attention(no_rows, k, v, return_max="head")[1] == np.full(4, -np.inf, np.float32)).all()
    no_rows = no_rows.swapaxes(1, 2)
    keys, values = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v))
    assert (onepass.attention(no_rows, keys, values, layout="bshd", return_max="head")[1] == [-np.inf] * 4).all()
    lengths = np.zeros(2, np.int32)
    _, most = onepass.attention(tokens, tokens, tokens, cu_seqlens_q=lengths, cu_seqlens_k=lengths, return_max="head")
    assert most.dtype == np.float32 and (most == [-np.inf] * 4).all()


def test_a_nan_shows(rng):
    q, k, v = qkv(rng)
    k[0, 0, 5, 3] = np.nan
    _, most = onepass.attention(q, k, v, mask="causal_top_left", return_max=True)
    assert np.isnan(most[0, :2, 5:]).all() and np.isfinite(most[0, :2, :5]).all() and np.isfinite(most[1]).all()


def test_what_is_refused(rng):
    q, k, v = qkv(rng)
    for wrong in ("heads", None, 2):
        with pytest.raises(ValueError, match="return_max must be False, True or 'head'"):
            onepass.attention(q, k, v, return_max=wrong)
    assert "row_max" in onepass.explain("fwd h2 s4 row_max d64 bf16 cuda", target="sm_90")
    with pytest.raises(ValueError, match="bwd does not support .row_max."):
        onepass.explain("bwd h2 s4 d64 row_max")


def test_in_torch_with_gradients(rng, attention, torch):
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv(rng))
    expected = attention(q, k, v, mask="causal_bottom_right")
    for function in (attention, torch.compile(attention, fullgraph=True, backend="aot_eager")):
        out, lse, most = function(q, k, v, mask="causal_bottom_right", return_lse=True, return_max=True)
        assert not most.requires_grad and out.requires_grad and lse.requires_grad
        np.testing.assert_allclose(most, scores(q.detach().numpy(), k.detach().numpy()).max(-1), rtol=1e-5, atol=1e-5)
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        for one, other in zip(grads, torch.autograd.grad(expected.sum(), (q, k, v), retain_graph=True)):
            assert torch.equal(one, other)
        by_head = function(q, k, v, mask="causal_bottom_right", return_max="head")[1]
        assert torch.equal(by_head, most.amax((0, 2)))
    assert (attention(q[:, :, :0], k, v, return_max="head")[1] == torch.full((4,), -np.inf)).all()
    with torch.no_grad():
        again = attention(q, k, v, mask="causal_bottom_right", out=torch.empty_like(q), return_max=True)[1]
    assert torch.equal(again, most)


def test_in_vmap_and_functional_gradients(rng, attention, torch):
    q, k, v = (torch.from_numpy(x) for x in qkv(rng))

    def both(q, k, v):
        return attention(q, k, v, return_max=True)

    out, most = torch.func.vmap(both)(*(x[None].repeat(3, 1, 1, 1, 1) for x in (q, k, v)))
    assert torch.equal(most[2], both(q, k, v)[1]) and torch.equal(out[1], both(q, k, v)[0])
    grads, aux = torch.func.grad(lambda q: (both(q, k, v)[0].sum(), both(q, k, v)[1]), has_aux=True)(q)
    assert grads.shape == q.shape and torch.equal(aux, most[0])


def test_in_jax():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")
    import onepass.jax

    rng = np.random.default_rng(0)
    q, k, v = qkv(rng)

    def both(q):
        out, lse, most = onepass.jax.attention(q, k, v, mask="causal_bottom_right", return_lse=True, return_max=True)
        return out.sum() + most.sum(), most

    (_, most), grad = jax.jit(jax.value_and_grad(both, has_aux=True))(q)
    np.testing.assert_allclose(most, scores(q, k).max(-1), rtol=1e-5, atol=1e-5)
    alone = jax.grad(lambda q: onepass.jax.attention(q, k, v, mask="causal_bottom_right").sum())(q)
    np.testing.assert_array_equal(grad, alone)  # the maxima have no gradient
    by_head = onepass.jax.attention(q, k, v, mask="causal_bottom_right", return_max="head")[1]
    np.testing.assert_array_equal(by_head, most.max((0, 2)))
    np.testing.assert_array_equal(onepass.jax.attention(q[:, :, :0], k, v, return_max="head")[1], [-np.inf] * 4)
