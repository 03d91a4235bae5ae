"""The cases of PyTorch's own tests of BlockMask, on the masks of onepass.torch.create_block_mask.

Source of the cases: TestBlockMask in test/inductor/test_flex_attention.py of PyTorch 2.15 (BSD-3-Clause); the code is
written anew. test_flex_pytorch.py says which cases are not taken.
"""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_like_pytorch import HEADS, LENGTH, causal_mask, draw, follows  # noqa: E402
from flex_mods import NEW_BLOCK_MASKS  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402
from torch.utils import _pytree  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile"),
    NEW_BLOCK_MASKS,
]
flex, create_block_mask, BlockMask = onepass.torch.flex_attention, onepass.torch.create_block_mask, theirs.BlockMask
both = pytest.mark.parametrize("create", [create_block_mask, theirs.create_block_mask], ids=["onepass", "torch"])


def shifted_by(offset):
    return lambda b, h, q, kv: q + offset[b] * 128 >= kv


def same_mask(mine, other):
    """All lists and all that is beside them."""
    for x, y in zip(mine.as_tuple(), other.as_tuple(), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert mine.shape == other.shape and mine.sparsity() == other.sparsity()
    assert torch.equal(mine.to_dense(), other.to_dense()) and str(mine) == str(other) and repr(mine) == repr(other)


def test_attributes():
    mask = create_block_mask(shifted_by(torch.zeros(8)), 4, 2, 2048, 2048, "cpu")
    assert mask.shape == (4, 2, 2048, 2048) and mask.numel() == math.prod(mask.shape)
    assert mask[0].shape == (1, 2, 2048, 2048) and mask[0, 0].shape == (1, 1, 2048, 2048)
    assert mask.sparsity() == mask[0].sparsity() == mask[1, 0].sparsity() == 46.875
    mask = create_block_mask(shifted_by(torch.arange(8)), 8, 1, 2048, 2048, "cpu")
    assert mask.sparsity() == 29.1015625
    assert mask[0].sparsity() > mask.sparsity() and mask[0].sparsity() > mask[1].sparsity()


def test_sparsity_of_a_part_of_a_tile():
    document = torch.tensor([0] * 10 + [1] * 10 + [2] * 20 + [3] * 60)
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (document[q] == document[kv]), 1, 1, 100, 100, "cpu")
    assert mask.sparsity() == 0.0 and "sparsity=0.00%" in str(mask)


def test_picture():
    mask = create_block_mask(causal_mask, 1, 1, 2048, 2048, "cpu")
    first, *rows, last = str(mask).split("\n")
    assert first == "BlockMask(shape=(1, 1, 2048, 2048), sparsity=46.88%, " and last == ")"
    assert rows[0] == "(0, 0)"
    assert [len(row.rstrip()) for row in rows[1:]] == [2 * i for i in range(1, 17)]


@pytest.mark.parametrize("size", [32, 64, 128, 256, (32, 64), (64, 32)])
def test_block_sizes(size):
    mask = create_block_mask(theirs.noop_mask, 4, 2, 2048, 2048, "cpu", BLOCK_SIZE=size)
    assert mask.BLOCK_SIZE == ((size, size) if isinstance(size, int) else size) and mask.shape == (4, 2, 2048, 2048)
    same_mask(mask, theirs.create_block_mask(theirs.noop_mask, 4, 2, 2048, 2048, "cpu", BLOCK_SIZE=size))


@pytest.mark.parametrize(
    "rows, keys, block", [(9, 9, 128), (4, 4, 128), (2, 2048, 16), (7896, 2048, 16), (1023, 1023, 128)]
)
def test_lists_of_small_masks_and_of_parts_of_tiles(rows, keys, block):
    documents = torch.tensor([2, 42, 18, 21, 4, 2, 7, 1, 1]).repeat(rows // 9 + 300)
    for mask_mod in (causal_mask, lambda b, h, q, kv: (documents[q] == documents[kv]) & (documents[q] != -1)):
        same_mask(
            *(x(mask_mod, None, None, rows, keys, "cpu", block) for x in (create_block_mask, theirs.create_block_mask))
        )


def test_masks_joined():
    def later(b, h, q, kv):
        return q < kv

    def window(b, h, q, kv):
        return q - kv <= 512

    size = 1, 1, 2048, 2048, "cpu"
    mask = create_block_mask(onepass.torch.and_masks(causal_mask, window), *size)
    assert mask.kv_num_blocks.sum() == 28
    assert create_block_mask(onepass.torch.and_masks(causal_mask, later), *size).kv_num_blocks.sum() == 0
    everything = create_block_mask(onepass.torch.or_masks(causal_mask, later), *size)
    assert everything.sparsity() == create_block_mask(onepass.torch.noop_mask, *size).sparsity() == 0
    follows(None, onepass.torch.and_masks(causal_mask, lambda b, h, q, kv: q - kv <= 100))


# --------------------------------------------------------------------------------------------------------- indexing
@both
def test_slices_of_rows_have_their_lengths(create):
    mask = create(causal_mask, None, None, 8, 9, "cpu", BLOCK_SIZE=4)
    first, second = mask[:, :, :1], mask[:, :, 1]
    assert first.shape == mask[:, :, 0].shape == second.shape == (1, 1, 4, 9) and first.seq_lengths == (4, 9)
    assert torch.equal(second.to_dense(), mask.to_dense()[:, :, 1:2])
    with pytest.raises(IndexError):
        mask[:, :, :, :1]

    mask = create(causal_mask, None, None, 9, 10, "cpu", BLOCK_SIZE=4)
    for index, rows in (
        (slice(None), 9),
        (1, 4),
        (slice(1, None), 5),
        (slice(0), 0),
        (slice(None, None, 2), 5),
        (-1, 1),
    ):
        assert mask[:, :, index].shape == (1, 1, rows, 10)
    assert torch.equal(mask[:, :, ::2].to_dense(), mask.to_dense()[:, :, ::2])
    assert (mask[:, :, 2].q_indices == 0).all()


@both
def test_indices(create):
    mask = create(shifted_by(torch.zeros(8)), 4, 2, 512, 512, "cpu")
    assert mask.kv_num_blocks.shape == (4, 2, 4) and mask.kv_indices.shape == (4, 2, 4, 4)
    one, rows = torch.tensor([1], dtype=torch.int32), slice(None)
    for index, shape in (
        (0, (1, 2, 4)),
        ((0, 1), (1, 1, 4)),
        ((-1, -2), (1, 1, 4)),
        ((slice(0, 2), slice(1, 2)), (2, 1, 4)),
        ((slice(0, 2), slice(1, 2), one), (2, 1, 1)),
    ):
        part = mask[index]
        assert part.kv_num_blocks.shape == shape and part.kv_indices.shape == (*shape, 4)
    part = mask[:, :, one]
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        assert torch.equal(getattr(part, name), getattr(mask, name)[rows, rows, one])


@both
def test_a_slice_of_a_mask_in_a_call(create):
    """Decoding at position 128: the tile of its row, whose mask_mod has an offset, and a length of one row."""
    here, (q, k, v) = 128, draw(rows=512)
    mask = create(causal_mask, 2, None, 512, 512, "cpu")
    part = mask[:, :, here // 128]
    with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
        flex(q[:, :, :128], k, v, block_mask=part)
    offset = torch.tensor(here)
    part.mask_mod = lambda b, h, q, kv: q + offset >= kv
    part.seq_lengths = 1, part.seq_lengths[1]
    row = q[:, :, here : here + 1]
    expected = torch.nn.functional.scaled_dot_product_attention(row, k[:, :, : here + 1], v[:, :, : here + 1])
    torch.testing.assert_close(flex(row, k, v, block_mask=part), expected, atol=1e-5, rtol=1e-5)


@both
def test_adjusted(create):
    """Fewer rows and keys: lists keep what is inside."""

    def mask_mod(b, h, q, kv):
        return (kv < 128) | ((kv >= 384) & (kv < 512))

    mask = create(mask_mod, 1, 1, 128, 640, "cpu")._adjust(128, 384)
    expected = create(mask_mod, 1, 1, 128, 384, "cpu")
    assert torch.equal(mask.full_kv_num_blocks, expected.full_kv_num_blocks)
    assert torch.equal(mask.to_dense(), expected.to_dense())
    q, k, v = draw(rows=128, keys=384)
    seen = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :128], v[:, :, :128])
    torch.testing.assert_close(flex(q, k, v, block_mask=mask), seen, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------- masks of lists
def int32(*numbers, shape):
    return torch.tensor(numbers, dtype=torch.int32).view(shape)


def lists(full):
    """One row of tiles and two tiles of keys: both partial, or one full and one partial."""
    if full:
        some = int32(1, shape=(1, 1, 1)), int32(1, -1, shape=(1, 1, 1, 2))
        return *some, int32(1, shape=(1, 1, 1)), int32(0, -1, shape=(1, 1, 1, 2))
    return int32(2, shape=(1, 1, 1)), int32(0, 1, shape=(1, 1, 1, 2)), None, None


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", [BlockMask, onepass.torch.BlockMask], ids=["torch", "onepass"])
def test_from_kv_blocks(kind, full, compute):
    given = lists(full)
    mask = kind.from_kv_blocks(*given, compute_q_blocks=compute)
    assert isinstance(mask, kind) and mask.BLOCK_SIZE == (128, 128)
    assert kind.from_kv_blocks(*given, BLOCK_SIZE=(64, 64)).BLOCK_SIZE == (64, 64)
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    for name, x in zip(names, given):
        found = getattr(mask, name)
        assert found is None if x is None else torch.equal(found, x)
    expected = {}
    if compute and full:
        expected = {"q_num_blocks": [0, 1], "q_indices": [0, 0], "full_q_num_blocks": [1, 0], "full_q_indices": [0, 0]}
    elif compute:
        expected = {"q_num_blocks": [1, 1], "q_indices": [0, 0]}
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        found = getattr(mask, name)
        assert found is None if name not in expected else found.flatten().tolist() == expected[name]
    # PyTorch refuses gradients without the lists of q; onepass does not read them.
    q, k, v = draw(rows=128, keys=256)
    follows(inputs=(q, k, v), block_mask=(mask, theirs.BlockMask.from_kv_blocks(*given)))
    part = mask[0]
    assert part.shape == (1, 1, 128, 256) and (part.q_indices is None) == (not compute)


def test_from_kv_blocks_with_short_lists():
    """A list as long as its largest count."""
    counts, indices = torch.ones(1, 1, 3, dtype=torch.int32), torch.arange(3, dtype=torch.int32).view(1, 1, 3, 1)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32, seq_lengths=(96, 96))
    assert mask.shape == (1, 1, 96, 96) and torch.equal(mask.q_num_blocks, counts)
    tiles = torch.block_diag(*(torch.ones(32, 32) for _ in range(3))).bool()
    q, k, v = draw(rows=96)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=tiles)
    torch.testing.assert_close(flex(q, k, v, block_mask=mask), expected, atol=1e-5, rtol=1e-5)


@both
def test_compacted_lists(create):
    document = torch.arange(512).clamp(min=400)
    ref = create(lambda b, h, q, kv: (q >= kv) | (document[q] == document[kv]), 1, None, 512, 512, "cpu")
    names = ("kv", "full_kv", "q", "full_q")
    counts = {f"{name}_num_blocks": getattr(ref, f"{name}_num_blocks") for name in names}
    indices = {
        f"{name}_indices": getattr(ref, f"{name}_indices")[..., : max(1, int(counts[f"{name}_num_blocks"].max()))]
        for name in names
    }
    mask = BlockMask(ref.seq_lengths, **counts, **indices, BLOCK_SIZE=ref.BLOCK_SIZE, mask_mod=ref.mask_mod)
    follows(block_mask=(mask, ref), inputs=draw(batch=1, rows=512))
    other = onepass.torch.BlockMask(ref.seq_lengths, **counts, **indices, BLOCK_SIZE=(128, 128), mask_mod=ref.mask_mod)
    follows(block_mask=(other, ref), inputs=draw(batch=1, rows=512))


def test_a_list_by_hand_is_the_mask_of_its_mask_mod():
    n = 8
    counts, indices = torch.arange(n)[None, None] + 1, torch.arange(n).expand(1, 1, n, n)
    by_hand = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, mask_mod=causal_mask)
    made = create_block_mask(causal_mask, 1, 1, n * 128, n * 128, "cpu")
    assert torch.equal(made.to_dense(), by_hand.to_dense())


def test_positional_constructor():
    ref = create_block_mask(causal_mask, 1, 1, 256, 256, "cpu", BLOCK_SIZE=64)
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    names += ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
    mask = BlockMask(ref.seq_lengths, *(getattr(ref, name) for name in names), ref.BLOCK_SIZE, ref.mask_mod)
    assert mask.BLOCK_SIZE == (64, 64) and mask.mask_mod is causal_mask and mask.dq_write_order is None


@pytest.mark.parametrize("missing", ["full_kv_indices", "full_q_indices"])
@pytest.mark.parametrize("kind", [BlockMask, onepass.torch.BlockMask], ids=["torch", "onepass"])
def test_lists_that_do_not_belong_together(kind, missing):
    counts, indices, *_ = lists(False)
    given = {f"{which}_num_blocks": counts for which in ("kv", "q", "full_kv", "full_q")}
    given |= {f"{which}_indices": indices for which in ("kv", "q", "full_kv", "full_q")}
    with pytest.raises(AssertionError):
        kind((1, 1), **{**given, missing: None}, BLOCK_SIZE=(64, 64), mask_mod=theirs.noop_mask)


@pytest.mark.parametrize("spt", [True, False])
def test_orders_of_dq(spt):
    """Lists for a kernel of PyTorch's; onepass's kernels do not read them."""
    options = dict(BLOCK_SIZE=128, compute_dq_write_order=True, dq_kv_order=spt)
    mine, other = (
        x(causal_mask, 2, 2, 384, 384, "cpu", **options) for x in (create_block_mask, theirs.create_block_mask)
    )
    same_mask(mine, other)
    assert mine.dq_write_order is not None and mine._dq_kv_order() is spt
    for part in (mine[0], mine._adjust(128, 128), mine.to("cpu")):
        assert part.dq_write_order is not None and part._dq_kv_order() is spt
    with pytest.raises(ValueError, match="dq_kv_order must be a bool"):
        create_block_mask(causal_mask, 1, 1, 256, 256, "cpu", compute_dq_write_order=True, dq_kv_order=torch.ones(1))
    follows(inputs=draw(rows=384, heads=2), block_mask=(mine, other))


# ------------------------------------------------------------------------------------ devices, trees, torch.compile
def test_other_devices():
    mask = create_block_mask(shifted_by(torch.zeros(8)), 1, 1, 512, 512, "cpu")
    away = mask.to("meta")
    for name in ("kv_indices", "kv_num_blocks", "q_indices", "q_num_blocks"):
        assert getattr(mask, name).device.type == "cpu" and getattr(away, name).device.type == "meta"
    same_mask(mask.to("cpu"), mask)


@both
def test_flattened(create):
    mask = create(causal_mask, 2, 4, 512, 512, "cpu")
    leaves, context = mask._flatten()
    same_mask(type(mask)._unflatten(leaves, context), mask)
    assert len(leaves) == sum(getattr(mask, name) is not None for name in mask._TENSOR_ATTRS)
    with_keys, _ = mask._flatten_with_keys()
    assert [key for key, _ in with_keys] == [_pytree.GetAttrKey(key.name) for key, _ in with_keys]
    assert all(torch.equal(x, y) for (_, x), y in zip(with_keys, leaves))


def test_compiled():
    torch._dynamo.reset()
    document = torch.arange(512) // 127

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (document[q] == document[kv])

    made = torch.compile(create_block_mask, fullgraph=True, backend="eager")(mask_mod, 1, 1, 512, 512, "cpu")
    assert isinstance(made, BlockMask)
    same_lists = theirs.create_block_mask(mask_mod, 1, 1, 512, 512, "cpu")
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        assert torch.equal(getattr(made, name), getattr(same_lists, name))
    follows(inputs=draw(rows=512), block_mask=(made, same_lists))


def test_pytorchs_function_takes_our_mask():
    q, k, v = draw()
    mine, other = (
        x(causal_mask, None, None, LENGTH, LENGTH, "cpu") for x in (create_block_mask, theirs.create_block_mask)
    )
    assert torch.equal(
        theirs.flex_attention(q, k, v, block_mask=mine), theirs.flex_attention(q, k, v, block_mask=other)
    )


@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 1, 128)])
def test_masks_of_entries_of_the_batch(shape):
    document = torch.zeros(2, 128, dtype=torch.int32)
    document[:, 64:] = 1
    batch, heads, rows = shape
    inputs = draw(batch=batch, heads=heads, rows=rows)
    follows(None, lambda b, h, q, kv: document[b, q] == document[b, kv], inputs=inputs, mask=(2, 1))
    follows(None, causal_mask, inputs=inputs, mask=(2, None))


def test_a_mask_that_sees_only_the_last_part_of_a_tile():
    for block in (256, 128, (64, 256)):
        follows(None, lambda b, h, q, kv: kv >= 256, inputs=draw(rows=384), block=block)


@pytest.mark.parametrize("length", [127, 128, 129])
def test_masks_of_documents_of_clamped_indices(length):
    document = torch.repeat_interleave(torch.arange(4), torch.tensor([5, 60, 1, length - 66]))

    def mask_mod(b, h, q, kv):
        return document[q.clamp(0, document.shape[0] - 1)] == document[kv.clamp(0, document.shape[0] - 1)]

    follows(None, mask_mod, rows=length)


@pytest.mark.parametrize("made, rows", [(1024, 2048), (1023, 1024), (1024, 1023)])
@both
def test_masks_of_other_lengths_are_refused(create, made, rows):
    mask = create(causal_mask, None, None, made, made, "cpu")
    q, k, v = draw(batch=1, heads=1, rows=rows)
    with pytest.raises(ValueError, match=rf"block_mask must have the lengths of query and key, \({rows}, {rows}\)"):
        flex(q, k, v, block_mask=mask)


def test_masks_by_head():
    seen = torch.arange(HEADS) % 3 != 0
    follows(None, lambda b, h, q, kv: seen[h] & (q >= kv), mask=(1, HEADS))
    follows(None, lambda b, h, q, kv: seen[h] & (q >= kv), mask=(1, HEADS), heads_kv=2)
