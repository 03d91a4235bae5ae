"""onepass.block_mask: tiles against the elements of the mask."""

import copy

import numpy as np
import onepass
import pytest
from conftest import check, normal
from onepass import _block_mask_device


def by_elements(seen, tile_q, tile_k):
    """The states of the tiles of seen [batch, heads, rows, keys]."""
    batch, heads, rows, keys = seen.shape
    states = np.zeros((batch, heads, -(-rows // tile_q), -(-keys // tile_k)), np.uint8)
    for i in range(states.shape[2]):
        for j in range(states.shape[3]):
            part = seen[:, :, i * tile_q : (i + 1) * tile_q, j * tile_k : (j + 1) * tile_k]
            states[:, :, i, j] = part.any((2, 3)).astype(np.uint8) + part.all((2, 3))
    return states


DOCUMENTS = np.repeat(np.arange(5), 60)
ROWS, KEYS = np.arange(250)[:, None], np.arange(300)


@pytest.mark.parametrize("tile", [(128, 128), (16, 32), (7, 5)])
def test_text(tile):
    text = "doc[q_index] == doc[k_index] && q_index >= k_index"
    made = onepass.block_mask(text, 250, 300, heads=2, tile=tile, mod_buffers={"doc": DOCUMENTS}, exact=True)
    seen = np.broadcast_to((DOCUMENTS[ROWS] == DOCUMENTS[KEYS]) & (ROWS >= KEYS), (1, 2, 250, 300))
    np.testing.assert_array_equal(made.states(), by_elements(seen, *tile))
    bounds = onepass.block_mask(text, 250, 300, heads=2, tile=tile, mod_buffers={"doc": DOCUMENTS}).states()
    assert ((bounds == 1) | (bounds == made.states())).all()
    assert made.sparsity == pytest.approx((made.states() == 0).mean())
    for key in range(made.key_tiles):
        np.testing.assert_array_equal(made.full_rows.of(key), np.nonzero(made.states()[0, 0, :, key] == 2)[0])
    again = onepass.block_mask(
        None,
        250,
        300,
        heads=2,
        tile=tile,
        mixed=(made.mixed.begin, made.mixed.tiles),
        full=(made.full.begin, made.full.tiles),
    )
    np.testing.assert_array_equal(again.states(), made.states())


def test_array():
    seen = np.random.default_rng(0).random((2, 3, 40, 50)) < 0.9
    seen[:, :, :16] = False
    made = onepass.block_mask(seen, tile=(8, 10))
    np.testing.assert_array_equal(made.states(), by_elements(seen, 8, 10))
    assert "sparsity=0.4" in repr(made)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        (("q_index", 8, 8), {}, ValueError, "a mask_mod must be a bool"),
        (("true", 8, 8), {"tile": (0, 8)}, ValueError, "tile must be two positive numbers"),
        (("true",), {}, TypeError, "seq_q must be a size"),
        ((lambda b, h, i, j: np.sort(i) >= j, 8, 8), {}, TypeError, "do not support np.sort"),
        ((np.ones((4, 4)),), {}, TypeError, "bool_mask must be bool"),
        ((None, 8, 8), {"mixed": ([0, 1], [3])}, ValueError, "must ascend within 1 tiles"),
    ],
)
def test_refused(arguments, options, error, sentence):
    with pytest.raises(error, match=sentence):
        onepass.block_mask(*arguments, **options)


def test_functions():
    """Numbers of a shared mask may be any: an index that may be negative counts from the end."""
    documents = np.repeat(np.arange(4), 32)
    mask = onepass.block_mask(lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k), 128, 128, tile=(32, 32))
    assert mask.mask_mod == "t0[q_index] == t0[k_index] && q_index >= k_index"
    assert (mask.states()[0, 0] == np.eye(4)).all()
    assert "b" not in onepass.block_mask(lambda b, h, q, k: q >= k, 8, 8).mask_mod
    seen = onepass.block_mask(lambda b, h, q, k: documents[3 - b] == k, 8, 8).mask_mod
    assert seen == "t0[(3 - batch < 0 ? 3 - batch + 128 : 3 - batch)] == k_index"


@pytest.fixture
def on_tensors(torch, monkeypatch):
    """Tiles are made where a mask for a device makes them, but in CPU memory."""
    monkeypatch.setattr(_block_mask_device, "like_of", lambda device, buffers: torch.empty(0))
    return torch


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("documents", [DOCUMENTS, DOCUMENTS.astype(np.int32)])
def test_on_a_device(on_tensors, rng, exact, documents):
    text = "doc[q_index] == doc[k_index] && q_index >= k_index && k_index % 2 <= head"
    shape = {"heads": 2, "tile": (32, 48), "exact": exact}
    made = onepass.block_mask(text, 250, 300, mod_buffers={"doc": documents}, **shape)
    assert not set(vars(made)) & {"mixed", "full"}  # made when they are read
    q, k, v = (on_tensors.from_numpy(normal(rng, (1, 2, n, 16))) for n in (250, 300, 300))
    assert made.states_like(q) is made.states_like(q) and made.states_like(q).dtype == on_tensors.int32
    out = onepass.attention(q, k, v, block_mask=made)
    check(
        out.numpy(), onepass.attention(*(x.numpy() for x in (q, k, v)), mask_mod=text, mod_buffers={"doc": DOCUMENTS})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_mask_device, "like_of", lambda device, buffers: None)
        expected = onepass.block_mask(text, 250, 300, mod_buffers={"doc": DOCUMENTS}, **shape)
    np.testing.assert_array_equal(made.states(), expected.states())
    assert repr(made) == repr(expected) and made.sparsity == expected.sparsity
    for name in ("mixed", "full", "mixed_rows", "full_rows"):
        for one, other in zip(vars(getattr(made, name)).values(), vars(getattr(expected, name)).values(), strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
    with pytest.raises(AttributeError, match="no attribute 'blocks'"):
        made.blocks  # noqa: B018
    assert copy.deepcopy(made).states().shape == (1, 2, 8, 7)


def test_pytorchs_lists_on_a_device(on_tensors):
    documents = on_tensors.from_numpy(DOCUMENTS)

    def mask(b, h, q, k):
        return (documents[q] == documents[k]) & (q >= k)

    size = (None, None, 250, 300, "cpu", 32)
    made = onepass.torch.create_block_mask(mask, *size)
    from torch.nn.attention.flex_attention import create_block_mask

    expected = create_block_mask(mask, *size)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_indices", "full_q_indices"):
        assert on_tensors.equal(getattr(made, name), getattr(expected, name))


def test_where_it_is_made(torch):
    like = _block_mask_device.like_of
    assert like(None, {}) is None and like("cpu", {}) is None
    assert like(None, {"doc": DOCUMENTS, "t": torch.zeros(3)}) is None
    if torch.cuda.is_available():
        there = torch.zeros(3, device="cuda")
        assert like(None, {"doc": DOCUMENTS, "t": there}) is there and like("cuda", {}).is_cuda
