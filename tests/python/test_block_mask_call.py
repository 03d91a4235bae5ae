"""block_mask in calls: empty tiles hide, full ones need no mask_mod, mixed ones have all masks."""

import itertools

import numpy as np
import onepass
import pytest
from conftest import check, jax_or_skip, normal


def elements(states, tile, rows, keys):
    """states of each element, [.., rows, keys]"""
    return np.repeat(np.repeat(states, tile[0], -2), tile[1], -1)[..., :rows, :keys]


def by_definition(states, tile, rows, keys, mixed):
    each = elements(states, tile, rows, keys)
    return (each == 2) | ((each != 0) & mixed)


MOD = "(q_index * 7 + k_index * 3) % 5 != 0"


def random_case(rng, rows, keys, tile, batch=2, heads=4):
    shape = (batch, heads, -(-rows // tile[0]), -(-keys // tile[1]))
    states = rng.choice(np.array([0, 0, 1, 2, -3, 9], np.int32), shape)
    q, k, v = normal(rng, (batch, heads, rows, 40)), *normal(rng, (2, batch, heads, keys, 40))
    mixed = (np.arange(rows)[:, None] * 7 + np.arange(keys) * 3) % 5 != 0
    return (q, k, v), states, by_definition(states, tile, rows, keys, mixed)


@pytest.mark.parametrize(("rows", "keys", "tile"), [(300, 500, (64, 96)), (3, 700, (1, 100)), (130, 90, (17, 33))])
def test_a_block_mask_is_the_mask_of_its_elements(rng, rows, keys, tile):
    inputs, states, seen = random_case(rng, rows, keys, tile)
    tiles = {"mask_tile_q": tile[0], "mask_tile_k": tile[1]}
    more = {"mask": "causal_bottom_right", "softcap": 20.0}
    out, lse = onepass.attention(*inputs, bool_mask=seen, return_lse=True, **more)
    mine, mine_lse = onepass.attention(*inputs, block_mask=states, mask_mod=MOD, return_lse=True, **tiles, **more)
    check(mine, out)
    check(mine_lse, lse, scale=10)
    dout = normal(rng, out.shape)
    expected = onepass.attention_backward(dout, *inputs, out, lse, bool_mask=seen, **more)
    gradients = onepass.attention_backward(dout, *inputs, out, lse, block_mask=states, mask_mod=MOD, **tiles, **more)
    for one, other in zip(gradients, expected, strict=True):
        check(one, other, scale=10)


def test_tiles_may_repeat_and_have_any_strides(rng):
    inputs, states, _ = random_case(rng, 200, 300, (50, 64))
    wide = np.zeros((4, 10), np.int32)
    wide[:, ::2] = states[0, 0, :, :5]
    call = {"mask_tile_q": 50, "mask_tile_k": 64}
    expected = onepass.attention(*inputs, block_mask=np.broadcast_to(states[:1, :1], states.shape).copy(), **call)
    for same in (states[:1, :1], states[0, 0], wide[:, ::2], np.broadcast_to(states[0, 0], states.shape)):
        assert np.array_equal(onepass.attention(*inputs, block_mask=same, **call), expected)
    assert np.array_equal(onepass.attention(*inputs, block_mask=states[0, 0].astype(np.int64), **call), expected)


def test_a_block_mask_object_has_its_tiles_and_its_mask_mod(rng):
    document = np.repeat(np.arange(5), 60)
    q, k, v = normal(rng, (3, 2, 3, 300, 32))
    text, buffers = "doc[q_index] == doc[k_index] && q_index >= k_index", {"doc": document}
    expected = onepass.attention(q, k, v, mask_mod=text, mod_buffers=buffers)
    mask = onepass.block_mask(text, 300, 300, tile=(40, 70), mod_buffers=buffers)
    check(onepass.attention(q, k, v, block_mask=mask), expected)
    check(onepass.attention(q, k, v, block_mask=mask, mask_mod=text, mod_buffers=buffers), expected)
    scaled = {"score_mod": "score * factor", "mod_buffers": {"factor": np.array([0.5], np.float32)}}
    own = onepass.attention(q, k, v, mask_mod=text, score_mod="score * 0.5f", mod_buffers=buffers)
    check(onepass.attention(q, k, v, block_mask=mask, **scaled), own)
    assert "tiles of 40 x 70 are empty" in onepass.explain(q, k, v, block_mask=mask)
    seen = rng.random((300, 300)) < 0.5
    seen[:64, 128:] = False
    listed = onepass.block_mask(seen, tile=(64, 64))
    check(onepass.attention(q, k, v, block_mask=listed, bool_mask=seen), onepass.attention(q, k, v, bool_mask=seen))
    with pytest.raises(ValueError, match=r"mask_tile_q must be None with a BlockMask, .* \(got 40\)"):
        onepass.attention(q, k, v, block_mask=mask, mask_tile_q=40)


def test_tiles_of_no_size_are_refused_by_their_name(rng):
    q, k, v = normal(rng, (3, 1, 2, 300, 32))
    states = np.ones((1, 1, 3, 3), np.int32)
    for name, tile in itertools.product(("mask_tile_q", "mask_tile_k"), (-1, 1 << 40)):
        with pytest.raises(ValueError, match=rf"{name} must be .* \(got {tile}\)"):
            onepass.attention(q, k, v, block_mask=states, **{name: tile})
    with pytest.raises(ValueError, match="mask_tile_k requires block_mask"):
        onepass.attention(q, k, v, mask_tile_k=64)


def test_a_block_mask_object_does_not_repeat_its_only_tile(rng):
    q, k, v = normal(rng, (3, 2, 3, 300, 32))
    for shape, sentence in (
        ((60, 300), "300 rows, as q says .got 60"),
        ((300, 60), "300 keys, as k says"),
    ):
        mask = onepass.block_mask("true", *shape)
        with pytest.raises(ValueError, match=f"block_mask must have {sentence}"):
            onepass.attention(q, k, v, block_mask=mask)
        with pytest.raises(ValueError, match="block_mask must have 300"):
            onepass.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), block_mask=mask, layout="bshd")
    packed = {"cu_seqlens_q": np.array([0, 300]), "cu_seqlens_k": np.array([0, 300]), "max_seqlen_k": 300}
    with pytest.raises(ValueError, match="block_mask must have 300 keys, as max_seqlen_k says"):
        onepass.attention(*(x[0].swapaxes(0, 1) for x in (q, k, v)), block_mask=mask, **packed)
    onepass.attention(q, k, v, block_mask=onepass.block_mask("true", 299, 301))  # the same tiles


def test_refusals(rng):
    q = normal(rng, (1, 2, 300, 32))
    states = np.ones((3, 3), np.int32)
    buffers = {f"t{i}": np.ones(3, np.float32) for i in range(8)}
    for words, error, sentence in (
        (
            {"block_mask": states[:2]},
            ValueError,
            r"dimension 2 of block_mask must be 3 or 1 \(got shape \[1, 1, 2, 3\]\)",
        ),
        ({"block_mask": states, "mask_tile_k": 64}, ValueError, "dimension 3 of block_mask must be 5 or 1"),
        ({"block_mask": states.astype(np.float32)}, TypeError, "block_mask must be int32"),
        ({"mask_tile_q": 64}, ValueError, "mask_tile_q requires block_mask"),
        (
            {"block_mask": states, "mask_tile_q": 0},
            ValueError,
            r"mask_tile_q must be None \(128\) or a positive integer",
        ),
        ({"block_mask": states, "mask_mod": "true", "mod_buffers": buffers}, ValueError, "must have at most 7 buffers"),
    ):
        with pytest.raises(error, match=sentence):
            onepass.attention(q, q, q, **words)


def test_torch(rng, torch):
    import onepass.torch

    ml_dtypes = pytest.importorskip("ml_dtypes")
    from torch._subclasses import fake_tensor

    (q, k, v), states, seen = random_case(rng, 200, 300, (64, 96))
    call = {"mask_mod": MOD, "mask_tile_q": 64, "mask_tile_k": 96}
    expected = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    onepass.torch.attention(*expected, bool_mask=torch.from_numpy(seen)).square().sum().backward()
    for attend in (onepass.torch.attention, torch.compile(onepass.torch.attention, fullgraph=True)):
        for x in tensors:
            x.grad = None
        attend(*tensors, block_mask=torch.from_numpy(states), **call).square().sum().backward()
        for one, other in zip(tensors, expected, strict=True):
            check(one.grad.numpy(), other.grad.numpy(), scale=10)
    mask = onepass.block_mask("q_index >= k_index", 200, 300, tile=(64, 96))
    causal = onepass.torch.attention(*tensors, mask="causal_top_left")
    check(onepass.torch.attention(*tensors, block_mask=mask).detach().numpy(), causal.detach().numpy())
    buffers = {"first": np.arange(200) // 7, "width": torch.tensor([90], dtype=torch.int32)}
    text = "k_index >= first[q_index] && k_index < first[q_index] + width"
    mask = onepass.block_mask(text, 200, 300, mod_buffers=buffers)
    expected = onepass.attention(q, k, v, mask_mod=text, mod_buffers=buffers)
    plain = [x.detach() for x in tensors]
    for attend in (onepass.torch.attention, torch.compile(lambda *x, **o: onepass.torch.attention(*x, **o))):
        check(attend(*plain, block_mask=mask).numpy(), expected)
    with pytest.raises(ValueError, match="block_mask must have 200 rows"):
        onepass.torch.attention(*plain, block_mask=onepass.block_mask("true", 100, 300))
    for buffer in (np.broadcast_to(np.int32(1), 300), ml_dtypes.bfloat16(1) * np.ones(300, ml_dtypes.bfloat16)):
        mask = onepass.block_mask("seen[k_index] > 0", 200, 300, mod_buffers={"seen": buffer})
        check(onepass.torch.attention(*plain, block_mask=mask).numpy(), onepass.attention(q, k, v))
    theirs = onepass.torch.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 200, 300, device="cpu")
    with pytest.raises(TypeError, match="got PyTorch's BlockMask, which onepass.torch.flex_attention accepts"):
        onepass.torch.attention(*plain, block_mask=theirs)
    with pytest.raises(TypeError, match="got an onepass.BlockMask, which onepass.torch.attention accepts"):
        onepass.torch.flex_attention(*plain, block_mask=mask)
    for first in (torch.inference_mode, fake_tensor.FakeTensorMode):
        mask = onepass.block_mask("q_index >= k_index", 200, 300, mod_buffers={"unread": np.zeros(1, np.int32)})
        with first():
            onepass.torch.attention(*(torch.empty(x.shape) for x in plain), block_mask=mask)
        onepass.torch.attention(*tensors, block_mask=mask).sum().backward()
    mapped = torch.vmap(lambda q, s: onepass.torch.attention(q, *tensors[1:], block_mask=s, **call))
    with torch.no_grad():
        both = mapped(torch.stack([tensors[0]] * 2), torch.from_numpy(np.stack([states, states[:, ::-1].copy()])))
    check(both[0].numpy(), onepass.attention(q, k, v, bool_mask=seen))
    check(both[1].numpy(), onepass.attention(q, k, v, block_mask=states[:, ::-1], **call))


def test_jax(rng):
    jax = jax_or_skip()
    import onepass.jax

    (q, k, v), states, _ = random_case(rng, 200, 300, (64, 96))
    call = {"mask_tile_q": 64, "mask_tile_k": 96}
    expected = onepass.attention(q, k, v, block_mask=states, **call)
    attend = jax.jit(lambda q, k, v, states: onepass.jax.attention(q, k, v, block_mask=states, **call))
    check(np.asarray(attend(q, k, v, states)), expected)
    one = jax.vmap(lambda q, k, v, states: attend(q[None], k[None], v[None], states[None])[0])
    check(np.asarray(one(q, k, v, states)), expected)
    mask = onepass.block_mask("q_index >= k_index", 200, 300, tile=(64, 96))
    causal = onepass.attention(q, k, v, mask="causal_top_left")
    check(np.asarray(onepass.jax.attention(q, k, v, block_mask=mask)), causal)
    check(np.asarray(jax.jit(lambda q: onepass.jax.attention(q, k, v, block_mask=mask))(q)), causal)
    assert jax.grad(lambda q: attend(q, k, v, states).sum())(q).shape == q.shape
