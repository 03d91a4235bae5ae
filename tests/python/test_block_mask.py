"""onepass.block_mask: tiles against the elements of the mask."""

import copy
import sys
import types

import numpy as np
import onepass
import pytest
from conftest import check, jax_or_skip, normal
from onepass import _block_mask_device, _devices


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
        (
            (np.ones((4, 4), bool),),
            {"device": "cpu"},
            ValueError,
            r"device must be None without a mask_mod \(got 'cpu'",
        ),
        ((None, 8, 8), {"device": "cpu"}, ValueError, "device must be None without a mask_mod"),
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


def test_states_on_a_device_are_read_as_they_are(on_tensors, rng):
    """A replay of a CUDA graph writes them again."""
    made = onepass.block_mask("q_index >= k_index", 64, 64, tile=(16, 16))
    q, k, v = normal(rng, (3, 1, 1, 64, 16))
    assert made.mixed.of(1) == [1] and made.full.of(1) == [0] and made.sparsity == 0.375
    assert onepass.attention(q, k, v, block_mask=made).all()
    made.states_like(on_tensors.empty(0)).zero_()
    assert made.mixed.tiles.size == made.full_rows.tiles.size == 0 and made.sparsity == 1
    assert "mixed=0, full=0, sparsity=1" in repr(made)
    assert not onepass.attention(q, k, v, block_mask=made).any()


@pytest.mark.parametrize("lengths", [(8, 0), (0, 8), (0, 0)])
def test_no_tiles_on_a_device(on_tensors, lengths):
    made = onepass.block_mask("true", *lengths)
    assert "mixed=0, full=0, sparsity=0" in repr(made)
    assert made.full.begin.shape == (made.row_tiles + 1,) and made.full_rows.begin.shape == (made.key_tiles + 1,)


def test_arrays_on_another_device_go_through_the_cpu(torch, monkeypatch):
    jax = jax_or_skip()
    elsewhere = [torch.arange(4.0), torch.arange(4).bfloat16(), jax.numpy.arange(4)]
    monkeypatch.setattr(_devices, "cuda_index", lambda x: 0 if any(x is y for y in elsewhere) else None)
    for x in elsewhere:
        found = _block_mask_device.there(x, torch.empty(0)), _block_mask_device.there(x, None)
        assert isinstance(found[0], torch.Tensor) and found[0].tolist() == [0, 1, 2, 3]
        if x is not elsewhere[1]:
            assert found[0].dtype == torch.from_numpy(np.array(x)).dtype
        assert isinstance(found[1], np.ndarray) and found[1].tolist() == [0, 1, 2, 3]
    assert _block_mask_device.there(elsewhere[0], elsewhere[2]) is elsewhere[0]  # DLPack hands it over
    made = onepass.block_mask("t[k_index] > 1", 4, 4, tile=(1, 1), mod_buffers={"t": elsewhere[2]})
    assert (made.states() == [0, 0, 2, 2]).all()
    call = made.in_call({**dict.fromkeys(CALL), "q": np.zeros((1, 1, 4, 8)), "k": np.zeros((1, 1, 4, 8))})
    assert isinstance(call["mod_buffers"]["t"], np.ndarray)


CALL = ("mask_tile_q", "mask_tile_k", "mask_mod", "mod_buffers", "cu_seqlens_q", "cu_seqlens_k", "layout")


def test_states_of_cupy_in_a_call_of_numpy(on_tensors, monkeypatch):
    """Arrays of NumPy 1 have no device."""
    made = onepass.block_mask("q_index >= k_index", 64, 64, tile=(16, 16))

    class Array(types.SimpleNamespace):  # as CuPy's
        def get(self):
            return self.values

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=Array))
    made.__dict__["_on_device"] = Array(values=made.states(), device=0)

    class Old(np.ndarray):
        @property
        def device(self):
            raise AttributeError("device")

    found = made.states_like(np.zeros(1).view(Old))
    assert found.dtype == np.int32 and (found == made.states()).all()


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


def test_wrong_devices(torch, monkeypatch):
    for wrong in ("nonsense", "meta", 1.5):
        with pytest.raises(ValueError, match=rf"^device must be the CPU or a CUDA device \(got {wrong}\)$"):
            onepass.block_mask("true", 8, 8, device=wrong)
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"^device must be one of the {count} CUDA devices that PyTorch finds"):
        onepass.block_mask("true", 8, 8, device=f"cuda:{count}")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"^device must be None without PyTorch \(got 'cpu'\)$"):
        onepass.block_mask("true", 8, 8, device="cpu")


def test_where_it_is_made(torch):
    like = _block_mask_device.like_of
    assert like(None, {}) is None and like("cpu", {}) is None
    assert like(None, {"doc": DOCUMENTS, "t": torch.zeros(3)}) is None
    if torch.cuda.is_available():
        there = torch.zeros(3, device="cuda")
        assert like(None, {"doc": DOCUMENTS, "t": there}) is there and like("cuda", {}).is_cuda
