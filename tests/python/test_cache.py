"""K and V as a cache: lengths of its own and pages, against the same keys side by side."""

import numpy as np
import onepass
import pytest
from conftest import check, normal

import reference


def paged(rng, lengths, page_size, heads=2, dim=40, dtype=np.float32, spare=2):
    """k or v of each sequence, and the same in pages that lie in any order, NaN where no key is."""
    keys = [normal(rng, (heads, n, dim), dtype) for n in lengths]
    most = max(-(-n // page_size) for n in lengths) + 1
    pages = np.full((len(lengths) * most + spare, page_size, heads, dim), np.nan, dtype)
    table = rng.permutation(len(pages))[: len(lengths) * most].reshape(len(lengths), most).astype(np.int32)
    return keys, pages, table, most


def fill(pages, table, keys, page_size):
    for row, of in zip(table, keys, strict=True):
        for j in range(of.shape[1]):
            pages[row[j // page_size], j % page_size] = of[:, j]


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_pages_are_the_keys_side_by_side(rng, page_size, rows):
    lengths = [17, 0, 64]
    k, k_pages, table, most = paged(rng, lengths, page_size)
    v = [normal(rng, x.shape) for x in k]
    v_pages = np.full_like(k_pages, np.nan)
    fill(k_pages, table, k, page_size)
    fill(v_pages, table, v, page_size)
    for b, n in enumerate(lengths):
        table[b, -(-n // page_size) :] = -1 if b else 10**6  # never read
    q = normal(rng, (3, 4, rows, 40), spread=3)
    out, lse = onepass.attention(
        q,
        k_pages,
        v_pages,
        mask="causal_bottom_right",
        seqused_k=np.array(lengths),  # int64 is converted
        page_table=table,
        return_lse=True,
    )
    for b in range(3):
        expected, expected_lse = reference.attention(q[b : b + 1], k[b][None], v[b][None], mask="causal_bottom_right")
        check(out[b], expected[0])
        check(lse[b], expected_lse[0], scale=10)


def test_packed_queries_beside_a_contiguous_cache(rng):
    lengths, rows = np.array([30, 7], np.int32), [2, 5]
    k, v = normal(rng, (2, 2, 50, 40)), normal(rng, (2, 2, 50, 24))
    q = normal(rng, (sum(rows), 4, 40), spread=3)
    cu = np.array([0, 2, 7], np.int32)
    out = onepass.attention(q, k, v, mask="causal_bottom_right", cu_seqlens_q=cu, seqused_k=lengths)
    for b in range(2):
        own = q[cu[b] : cu[b + 1]].transpose(1, 0, 2)[None]
        n = lengths[b]
        expected, _ = reference.attention(own, k[b : b + 1, :, :n], v[b : b + 1, :, :n], mask="causal_bottom_right")
        check(out[cu[b] : cu[b + 1]], expected[0].transpose(1, 0, 2))


def test_batch_invariant(rng):
    k, v = normal(rng, (8, 2, 3000, 64)), normal(rng, (8, 2, 3000, 64))
    q, used = normal(rng, (8, 8, 1, 64)), rng.integers(0, 3001, 8).astype(np.int32)
    together = onepass.attention(q, k, v, seqused_k=used, batch_invariant=True)
    for b in range(8):
        one = slice(b, b + 1)
        alone = onepass.attention(q[one], k[one], v[one], seqused_k=used[one], batch_invariant=True)
        assert np.array_equal(together[one], alone)


def test_errors(rng):
    k, v, q = normal(rng, (6, 4, 2, 40)), normal(rng, (6, 4, 2, 24)), normal(rng, (1, 4, 1, 40))
    table, used = np.arange(6, dtype=np.int32)[None], np.array([24], np.int32)
    out = np.full((1, 4, 1, 24), 7, np.float32)
    call = {"page_table": table, "seqused_k": used, "out": out}
    onepass.attention(q, k, v, **{**call, "out": out.copy()})
    for wrong, sentence in [
        ({"seqused_k": used + 1}, r"seqused_k\[0\] must be 0 to 24 \(got 25\)"),
        ({"page_table": table + 1}, r"page_table\[0, 5\] must be a page from 0 to 5 \(got 6\)"),
        ({"max_seqlen_k": 25}, r"max_seqlen_k must be at most 24, since page_table has 6 pages of 4 keys"),
        ({"cu_seqlens_k": np.array([0, 3], np.int32)}, "keys must be either packed or a cache"),
        ({"page_table": table[0]}, r"page_table must have shape \[batch, max_pages\] \(got \[6\]\)"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            onepass.attention(q, k, v, **{**call, **wrong})
        assert (out == 7).all()
