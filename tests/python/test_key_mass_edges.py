"""onepass.key_mass and onepass.weights: sums, NaN, strides, refusals, and tensors of PyTorch."""

import warnings

import numpy as np
import onepass
import pytest
from test_key_mass import DTYPES, HEADS, KEYS, ROWS, made, near, packed_case, textbook


def test_masses_sum_to_the_rows_that_see_a_key_less_the_sinks_part(rng):
    q, k, v = made(rng)
    options = dict(mask="causal_offset", align_offset=-5, sinks=np.float32([0, 1, 2, 3]))
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    mass = onepass.key_mass(q, k, lse, **options)
    share = np.exp(options["sinks"][:, None] - lse[:, :, 5:].astype(float))
    np.testing.assert_allclose(mass.sum(-1), (1 - share).sum(-1), rtol=1e-4)
    assert (mass[:, :, ROWS - 5 :] == 0).all()


def test_tokens_behind_the_last_document_have_no_mass(rng):
    cu = np.array([0, 9, 30], np.int32)
    q, k, v = packed_case(rng, [37], [37])
    _, lse = onepass.attention(q, k, v, return_lse=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    mass = onepass.key_mass(q, k, lse, cu_seqlens_q=cu, cu_seqlens_k=cu)
    assert (mass[:, 30:] == 0).all()
    np.testing.assert_allclose(mass.sum(1), 30, rtol=1e-5)


def test_nothing_to_sum(rng):
    q, k, v = made(rng)
    no_rows, lse = q[:, :, :0], np.zeros((2, HEADS, 0), np.float32)
    assert (onepass.key_mass(no_rows, k, lse) == np.zeros((2, HEADS, KEYS))).all()
    assert onepass.weights(no_rows, k, lse).shape == (2, 0, KEYS)
    lse = np.full((2, HEADS, ROWS), -np.inf, np.float32)
    assert onepass.key_mass(q, k[:, :, :0], lse).shape == (2, HEADS, 0)
    assert onepass.weights(q, k[:, :, :0], lse).shape == (2, ROWS, 0)
    assert onepass.key_mass(q[:0], k[:0], lse[:0]).shape == (0, HEADS, KEYS)
    used = np.zeros(2, np.int32)
    assert onepass.weights(q[:, :, :0], k, lse[:, :, :0], seqused_k=used).shape == (2, 0, KEYS)
    assert onepass.weights(q, k[:, :, :0], lse, mean=None, seqused_k=used).shape == (2, HEADS, ROWS, 0)
    assert onepass.key_mass(q[:, :0], k, lse[:, :0]).shape == (2, 0, KEYS)
    assert (onepass.weights(q[:, :0], k, lse[:, :0]) == np.zeros((2, ROWS, KEYS))).all()
    turned = (x.swapaxes(1, 2) for x in (q[:, :0], k, lse[:, :0]))
    assert onepass.weights(*turned, mean=None, layout="bshd").shape == (2, 0, ROWS, KEYS)


def test_more_heads_for_a_key_than_columns_of_v(rng):
    q, k = np.zeros((1, 513, 2, 8), np.float32), np.zeros((1, 1, 4, 8), np.float32)
    lse = np.full((1, 513, 2), np.log(4), np.float32)
    np.testing.assert_allclose(onepass.key_mass(q, k, lse), np.full((1, 513, 4), 0.5), rtol=1e-6)


def test_what_weights_refuses(rng):
    q, k, v = made(rng)
    _, lse = onepass.attention(q, k, v, return_lse=True)
    for error, sentence, options in (
        (ValueError, "dimension 2 of bias must be 37 or 1", {"bias": np.zeros((2, HEADS, 3, KEYS), np.float32)}),
        (ValueError, "dimension 0 of bias must be 37 or 1", {"bias": np.zeros((40, KEYS), np.float32)}),
        (ValueError, "bias must have 1 to 4 dimensions .got 5", {"bias": np.zeros((1,) * 5, np.float32)}),
        (TypeError, "bias must be a NumPy array.* .got list", {"bias": [[0.0]]}),
        (TypeError, "score_mod must be a function, or .* .got int", {"score_mod": 3}),
    ):
        with pytest.raises(error, match=sentence):
            onepass.weights(q, k, lse, **options)
    packed = {"cu_seqlens_q": np.int32([0, 9]), "cu_seqlens_k": np.int32([0, 9])}
    with pytest.raises(TypeError, match="max_seqlen_q must be None .unknown. or a positive integer .got 'x'"):
        onepass.weights(*packed_case(rng, [9], [9])[:2], lse[0, :, :9], **packed, max_seqlen_q="x")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_that_is_hidden_stays_where_it_is(rng, dtype):
    q, k, v = made(rng, dtype)
    k[0, 0, 50:] = np.nan
    q[1, 3, 20:] = np.nan  # from the key 20 on these rows alone see keys
    seen = np.arange(KEYS) < 50
    options = dict(bool_mask=seen, mask="causal_top_left")
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    mass, maps = onepass.key_mass(q, k, lse, **options), onepass.weights(q, k, lse, mean=None, **options)
    clean = textbook(np.nan_to_num(q.astype(float)), np.nan_to_num(k.astype(float)), **options)
    spoiled = np.zeros((2, HEADS, ROWS, KEYS), bool)
    spoiled[1, 3, 20:] = (np.arange(KEYS) <= np.arange(ROWS)[20:, None]) & seen
    assert (np.isnan(maps) == spoiled).all() and (np.isnan(mass) == spoiled.any(2)).all()
    near(maps[~spoiled], clean[~spoiled])
    near(mass[~spoiled.any(2)], clean.sum(2)[~spoiled.any(2)])


def test_a_nan_of_a_key_reaches_all_keys_of_the_rows_that_see_it(rng):
    q, k, v = made(rng)
    k[0, 0, 30] = np.nan  # rows from 30 on see it, of the heads 0 and 1
    _, lse = onepass.attention(q, k, v, return_lse=True, mask="causal_top_left")
    mass = onepass.key_mass(q, k, lse, mask="causal_top_left")
    assert np.isnan(mass[0, :2, :ROWS]).all() and (mass[0, :2, ROWS:] == 0).all()
    assert np.isfinite(mass[0, 2:]).all() and np.isfinite(mass[1]).all()


def test_strides(rng):
    q, k, v = made(rng)
    _, lse = onepass.attention(q, k, v, return_lse=True)
    wide = np.full((2, HEADS, 3 * ROWS, 48), np.nan, np.float32)
    wide[:, :, ::3, :40] = q
    keys = np.ascontiguousarray(k.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    rows = np.ascontiguousarray(lse[:, ::-1])[:, ::-1]
    for function in (onepass.key_mass, onepass.weights):
        np.testing.assert_array_equal(function(wide[:, :, ::3, :40], keys, rows), function(q, k, lse))


def test_parts_of_the_keys_have_the_masses_of_all(rng):
    q, k, v = made(rng)
    parts = slice(0, 30), slice(30, KEYS)
    outs, lses = zip(*(onepass.attention(q, k[:, :, x], v[:, :, x], return_lse=True) for x in parts))
    _, lse = onepass.merge(outs, lses)
    masses = [onepass.key_mass(q, k[:, :, x], lse) for x in parts]
    near(np.concatenate(masses, -1), textbook(q, k).sum(2))


def test_threads_do_not_change_bits(rng):
    q, k, v = made(rng, rows=300, keys=700)
    _, lse = onepass.attention(q, k, v, return_lse=True)
    for function in (onepass.key_mass, onepass.weights):
        np.testing.assert_array_equal(function(q, k, lse, threads=1), function(q, k, lse, threads=3))


def test_what_is_refused(rng):
    q, k, v = made(rng)
    _, lse = onepass.attention(q, k, v, return_lse=True)
    for function in (onepass.key_mass, onepass.weights):
        name = function.__name__
        with pytest.raises(ValueError, match=rf"{name} does not support dropout_p \(got 0.5\), because"):
            function(q, k, lse, dropout_p=0.5, seed=1)
        with pytest.raises(TypeError, match=f"{name} does not accept 'causal': .*mask='causal_bottom_right'"):
            function(q, k, lse, causal=True)
        with pytest.raises(TypeError, match=f"{name} does not accept 'grads'"):
            function(q, k, lse, grads="dq")
        with pytest.raises(TypeError, match=r"lse must be a NumPy or CuPy array or a torch tensor \(got NoneType\)"):
            function(q, k, None)
        with pytest.raises(ValueError, match=r"lse must have the shape \[2, 4, 37\] \(got \[2, 4, 36\]\)"):
            function(q, k, lse[:, :, 1:])
        with pytest.raises(ValueError, match=r"q must have the shape \[batch, heads, seq, dim\] \(got \[4, 37, 40\]\)"):
            function(q[0], k, lse)
        with pytest.raises(ValueError, match=r"heads_q \(4\) must be a multiple of heads_kv \(3\)"):
            function(q, np.concatenate([k, k[:, :1]], 1), lse)
        with pytest.raises(ValueError, match=r"page_table must be given with seqused_k \(got None\)"):
            function(q, k, lse, page_table=np.zeros((2, 1), np.int32))
        with pytest.raises(ValueError, match=r"seqused_k must be 2 integers from 0 to the capacity 65 \(got \[3, 66\]"):
            function(q, k, lse, seqused_k=np.int32([3, 66]))
        with pytest.raises(ValueError, match="layout must be 'bhsd' or 'bshd'"):
            function(q, k, lse, layout="sbhd")
        with pytest.raises(TypeError, match=r"q must be float32, float16 or bfloat16 \(got float64\)"):
            function(q.astype(float), k, lse)
        with pytest.raises(TypeError, match="does not support a Quantized k"):
            function(q, onepass.quantize(k), lse)
    with pytest.raises(TypeError, match=r"seqused_k must be int32 \(got float64\)"):
        onepass.key_mass(q, k, lse, seqused_k=[2.5, 3.5])
    with pytest.raises(ValueError, match=r"page_table must have the shape \[batch, pages\] \(got \[2\]\)"):
        onepass.key_mass(q, k.swapaxes(1, 2), lse, seqused_k=np.int32([3, 3]), page_table=np.int32([0, 1]))
    with pytest.raises(ValueError, match=r"cu_seqlens_q must be given with cu_seqlens_k \(got None\)"):
        onepass.key_mass(q, k[0], lse, cu_seqlens_k=np.int32([0, 4]))
    with pytest.raises(ValueError, match="mean must be 'heads' or None \\(got 'rows'\\)"):
        onepass.weights(q, k, lse, mean="rows")
    with pytest.raises(ValueError, match=r"page_table must hold pages from 0 to 1 where keys count"):
        pages = np.zeros((2, 8, 2, 40), np.float32)
        onepass.key_mass(q, pages, lse, page_table=np.full((2, 3), 2, np.int32), seqused_k=np.int32([3, 3]))


def test_in_torch(rng, torch, device):
    import onepass.torch

    q, k, v = made(rng)
    expected = textbook(q, k, mask="causal_top_left")
    tensors = [torch.from_numpy(x).to(device).requires_grad_() for x in (q, k, v)]
    _, lse = onepass.torch.attention(*tensors, mask="causal_top_left", return_lse=True)
    for function, wanted in ((onepass.torch.key_mass, expected.sum(2)), (onepass.torch.weights, expected.mean(1))):
        found = function(*tensors[:2], lse, mask="causal_top_left")
        assert found.device == lse.device and not found.requires_grad
        near(found.cpu().numpy(), wanted, size=1 if device == "cpu" else 100)
        columns = tensors[0].detach().transpose(2, 3).contiguous().transpose(2, 3)
        assert torch.equal(function(columns, tensors[1], lse, mask="causal_top_left"), found)
        with pytest.raises(TypeError, match="q must be a torch.Tensor"):
            function(q, tensors[1], lse)
        with pytest.raises(RuntimeError, match="call onepass.torch.attention"):
            getattr(onepass, function.__name__)(*tensors[:2], lse)


def test_torch_in_groups_with_nan_and_caches(rng, torch, device):
    import onepass.torch

    q, k, v = (torch.from_numpy(x).to(device, torch.bfloat16) for x in made(rng))
    q[0, 1, 3] = torch.nan
    _, lse = onepass.torch.attention(q, k, v, return_lse=True)
    mass = onepass.torch.key_mass(q, k, lse)
    assert mass.dtype == torch.float32 and mass[0, 1].isnan().all() and mass[0, 0].isfinite().all()
    used = torch.tensor([40, 65], dtype=torch.int32, device=device)
    _, lse = onepass.torch.attention(q, k, v, return_lse=True, seqused_k=used)
    mass, maps = (f(q, k, lse, seqused_k=used) for f in (onepass.torch.key_mass, onepass.torch.weights))
    assert (mass[0, :, 40:] == 0).all() and (maps[0, :, 40:] == 0).all()
    torch.testing.assert_close(mass[1].mean(0), maps[1].sum(0), rtol=1e-2, atol=1e-2)


def test_torch_multihead_attention_has_the_same_map(rng, torch):
    import onepass.torch

    torch.manual_seed(0)
    layer, x = torch.nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 11, 32)
    _, expected = layer(x, x, x, need_weights=True)
    q, k, v = (
        (x @ w.T + b).unflatten(-1, (4, 8)) for w, b in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3))
    )
    _, lse = onepass.torch.attention(q, k, v, layout="bshd", return_lse=True)
    torch.testing.assert_close(onepass.torch.weights(q, k, lse, layout="bshd"), expected.detach())


def test_torch_compiles_around_it(rng, torch):
    import onepass.torch

    q, k, v = (torch.from_numpy(x) for x in made(rng))
    _, lse = onepass.torch.attention(q, k, v, return_lse=True)
    compiled = torch.compile(lambda q, k, lse: onepass.torch.key_mass(q * 2, k, lse) + 1, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(q / 2, k, lse), onepass.torch.key_mass(q, k, lse) + 1)


def test_in_jax(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    options = dict(mask="causal_bottom_right", sinks=np.float32([1, -2, 5, 30]), score_mod="score * 0.5")
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    expected = textbook(q, k, **options).sum(2)
    mass = jax.jit(lambda q, k, lse: onepass.jax.key_mass(q, k, lse, **options))
    near(np.asarray(mass(q, k, lse)), expected)
    near(np.asarray(jax.vmap(mass)(q[:, None], k[:, None], lse[:, None]))[:, 0], expected)
    turned = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, lse))
    near(np.asarray(onepass.jax.key_mass(*turned, layout="bshd", **options)), expected.swapaxes(1, 2))
    function = dict(options, score_mod=lambda score, *_: score * 0.5)
    near(np.asarray(onepass.jax.key_mass(q, k, lse, **function)), expected)
    assert onepass.jax.key_mass(q[:, :0], k, lse[:, :0]).shape == (2, 0, KEYS)
    grad = jax.grad(lambda q: onepass.jax.key_mass(q, k, lse).sum() + (q * q).sum())(q)
    np.testing.assert_allclose(grad, 2 * q, rtol=1e-6)  # the masses have no gradient


def test_packed_in_jax(rng, jax, bfloat16):
    import onepass.jax

    cu = np.array([0, 9, 30], np.int32)
    q, k, v = (x.astype(bfloat16) for x in packed_case(rng, [37], [37]))
    _, lse = onepass.attention(q, k, v, return_lse=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    expected = onepass.key_mass(q, k, lse, cu_seqlens_q=cu, cu_seqlens_k=cu)
    found = onepass.jax.key_mass(q, k, lse, cu_seqlens_q=cu, cu_seqlens_k=cu)
    assert found.dtype == np.float32 and (found[:, 30:] == 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_jax_refuses(rng, jax):
    import onepass.jax

    q, k, v = made(rng)
    lse = np.zeros((2, HEADS, ROWS), np.float32)
    with pytest.raises(TypeError, match="onepass.jax.key_mass does not accept 'causal'"):
        onepass.jax.key_mass(q, k, lse, causal=True)
    with pytest.raises(ValueError, match=r"key_mass does not support dropout_p \(got 0.5\)"):
        onepass.jax.key_mass(q, k, lse, dropout_p=0.5, seed=1)
    with pytest.raises(
        ValueError, match=r"lse must be float32 of the shape \[2, 4, 37\] \(got float32 of \[2, 4, 36\]"
    ):
        onepass.jax.key_mass(q, k, lse[:, :, 1:])
    with pytest.raises(ValueError, match=r"heads_q \(4\) must be a multiple of heads_kv \(3\)"):
        onepass.jax.key_mass(q, np.concatenate([k, k[:, :1]], 1), lse)
    with pytest.raises(ValueError, match=r"q and k must have the shape \[batch, heads, seq, dim\]"):
        onepass.jax.key_mass(q[0], k, lse)
