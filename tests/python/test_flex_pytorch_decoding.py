"""The cases of PyTorch's tests of flex decoding and of its paged attention, through onepass.torch.flex_attention.

Source of the cases: test/inductor/test_flex_decoding.py, and TestPagedAttention in test_flex_attention.py beside it, of
PyTorch 2.15 (BSD-3-Clause); the code is written anew. test_flex_pytorch.py says which cases are not taken.
PagedAttention is PyTorch's class, which makes masks and score mods of physical pages.
"""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_like_pytorch import DTYPES, SCORE_MODS, causal_mask, draw, follows, near  # noqa: E402
from flex_mods import NEW_BLOCK_MASKS  # noqa: E402
from test_flex_attention import eager  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402
from torch.nn.attention.experimental._paged_attention import PagedAttention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile")
flex, create_block_mask = onepass.torch.flex_attention, onepass.torch.create_block_mask
each_score_mod = pytest.mark.parametrize("score_mod", SCORE_MODS.values(), ids=SCORE_MODS)
KEYS = 300
generator = torch.Generator().manual_seed(9)
OF_KEYS = torch.randn(KEYS, generator=generator)
OF_ROWS = torch.randn(8, generator=generator)
BIAS = torch.randn(2, 4, 8, KEYS, generator=generator)
FROM = torch.tensor(KEYS // 2 - 3, dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads_kv", [4, 2, 1])
@each_score_mod
def test_one_row(score_mod, heads_kv, dtype):
    """PyTorch's decoding has no gradients, so that the rule was not made for those of one row in bfloat16."""
    follows(score_mod, dtype=dtype, gradients=dtype == torch.float32, rows=1, keys=KEYS, heads_kv=heads_kv)


@each_score_mod
@pytest.mark.parametrize("block", [64, (128, 256)])
@pytest.mark.parametrize("batch_kv", [1, 2])
def test_one_row_with_a_mask(score_mod, block, batch_kv):
    follows(score_mod, theirs.noop_mask, mask=(2, 1), rows=1, keys=KEYS, block=block, batch_kv=batch_kv)
    follows(score_mod, lambda b, h, q, kv: q + FROM >= kv, mask=(2, 1), rows=1, keys=KEYS, block=block)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", ["none", "keys", "both", "table"])
def test_lengths_that_tiles_do_not_divide(rows, name):
    score_mod = {
        "none": None,
        "keys": lambda score, b, h, q, kv: score + OF_KEYS[kv],
        "both": lambda score, b, h, q, kv: score + OF_KEYS[kv] + OF_ROWS[q],
        "table": lambda score, b, h, q, kv: score + BIAS[b, h, q, kv],
    }[name]
    follows(score_mod, lambda b, h, q, kv: kv >= q + FROM, mask=(2, 1), rows=rows, keys=KEYS - 3)
    follows(score_mod, lambda b, h, q, kv: q + 192 >= kv, rows=rows, keys=65)


@pytest.mark.parametrize("dims", [(16, 8), (8, 16), (17, 17)], ids=str)
@each_score_mod
def test_head_dims(score_mod, dims):
    follows(score_mod, rows=1, keys=KEYS, dim=dims[0], dim_v=dims[1], heads_kv=2)


@pytest.mark.parametrize("heads_kv", [4, 2])
@each_score_mod
def test_masks_by_head(score_mod, heads_kv):
    shown = torch.tensor([False, True, True, True])
    follows(score_mod, lambda b, h, q, kv: shown[h] & (q >= kv), mask=(1, 4), rows=1, keys=KEYS, heads_kv=heads_kv)


@pytest.mark.parametrize("by", ["score_mod", "both", "mask_mod"])
def test_windows_beside_sdpa(by):
    def score_mod(score, b, h, q, kv):
        return torch.where(q + 100 >= kv, score, float("-inf"))

    mask = create_block_mask(lambda b, h, q, kv: q + 100 >= kv, 1, 1, 8, KEYS, "cpu")
    q, k, v = draw(rows=8, keys=KEYS)
    seen = torch.ones(8, KEYS, dtype=torch.bool).tril(100)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    out = flex(q, k, v, None if by == "mask_mod" else score_mod, None if by == "score_mod" else mask)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_keys_in_a_larger_buffer():
    """Strides of a cache that is longer than its keys."""
    memory = torch.randn(2, 2, 2, KEYS * 2, 16, generator=generator)
    q, *_ = draw(rows=1)
    follows(SCORE_MODS["alibi"], inputs=(q, *memory[:, :, :, 5 : KEYS + 5]))


# ------------------------------------------------------------------------------------------------------------- pages
def paged(pages, size, entries, lengths):
    """Pages that are given out in turns, so that those of a sequence are not next to each other."""
    cache = PagedAttention(pages, size, entries, device="cpu")
    for share in (0.25, 0.6, 1.0):
        for b, length in enumerate(lengths):
            cache.reserve(torch.tensor(b), torch.tensor(math.ceil(length * share)))
    return cache


def filled(cache, pages, size, k, v, lengths):
    """K and V of the sequences in physical pages; NaN where there is nothing."""
    caches = [torch.full((1, x.shape[1], pages * size, x.shape[3]), math.nan, dtype=x.dtype) for x in (k, v)]
    for b, length in enumerate(lengths):
        place = torch.arange(length, dtype=torch.int32)[None]
        cache.assign(torch.tensor([b]), place, k[b : b + 1, :, :length], v[b : b + 1, :, :length], *caches)
    return caches


@NEW_BLOCK_MASKS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@each_score_mod
def test_pages(score_mod, masked, dtype):
    batch, rows, size, pages = 3, 96, 32, 14
    q, k, v = draw(dtype, batch=batch, rows=rows, heads_kv=2)
    cache = paged(pages, size, batch, [rows] * batch)
    caches = filled(cache, pages, size, k, v, [rows] * batch)
    mask_mod = causal_mask if masked else theirs.noop_mask
    mask = theirs.create_block_mask(mask_mod, batch, 1, rows, rows, "cpu", BLOCK_SIZE=size)
    lengths = torch.full((batch,), rows)
    physical = cache.convert_logical_block_mask(mask, kv_len=lengths)
    out = flex(q, *caches, cache.get_score_mod(score_mod, lengths), physical, enable_gqa=True)
    exact, _ = eager(q.double(), k.double(), v.double(), score_mod, mask)
    near("out", out, eager(q, k, v, score_mod, mask)[0], exact, dtype)


@NEW_BLOCK_MASKS
@each_score_mod
def test_one_row_at_other_places(score_mod):
    """Four sequences of different lengths decode a row; the mask is causal from its own first row."""
    lengths, size, pages = [5, 98, 47, 194], 64, 16
    q, k, v = draw(batch=4, rows=1, keys=max(lengths))
    cache = paged(pages, size, 4, lengths)
    caches = filled(cache, pages, size, k, v, lengths)
    mask = theirs.create_block_mask(causal_mask, 4, 1, 512, 512, "cpu", BLOCK_SIZE=size)
    physical = cache.convert_logical_block_mask(mask)
    physical.seq_lengths = 1, physical.seq_lengths[1]
    out = flex(q, *caches, cache.get_score_mod(score_mod), physical)
    for b, length in enumerate(lengths):
        own = [x[b : b + 1, :, :length] for x in (k, v)]
        logical = theirs.create_block_mask(causal_mask, 1, 1, 1, length, "cpu")
        results = [
            eager(*(x.to(kind) for x in (q[b : b + 1], *own)), score_mod, logical)[0]
            for kind in (q.dtype, torch.float64)
        ]
        near(f"out of sequence {b}", out[b : b + 1], *results, torch.float32)
