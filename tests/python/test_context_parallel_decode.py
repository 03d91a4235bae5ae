"""onepass.torch.context_parallel.decode over gloo: one to eight processes, with and without pages."""

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_caches as caches  # noqa: E402
from context_parallel_errors import rms  # noqa: E402
from onepass.context_parallel import decode  # noqa: E402
from rank_processes import spawned  # noqa: E402


@pytest.mark.parametrize("ranks", (1, 2, 3, 8))
def test_decoding_is_as_exact_as_from_one_cache(ranks, tmp_path):
    """8 ranks have 6 heads: two of them get none."""
    found = spawned(caches.decoded, ranks, tmp_path)
    assert set(found) == set(caches.cases())
    for (paged, rows, dtype, name), mine in found.items():
        one, exact = caches.one_device(rows, dtype, name), caches.textbook(rows, dtype, name)
        assert mine.dtype == dtype and mine.shape == one.shape
        bound = (1.3 if dtype == torch.float32 else 1.05) * rms(one, exact)
        assert rms(mine, exact) <= bound, (paged, rows, dtype, name)
        assert (mine[0] == 0).all()  # a sequence without keys


def test_all_ranks_hear_the_same_sentence(tmp_path):
    everybody = spawned(caches.disagreeing, 3, tmp_path)
    assert everybody == [everybody[0]] * 3
    assert everybody[0] == {
        "newest": "ValueError: rank 2: newest must have shape [5] where q has 3 rows (got None)",
        "softcap": "ValueError: options must be the same on all ranks (rank 0 has [True, False, False, None, 0.0], "
        "rank 2 has [True, False, False, None, 2.0])",
        "right": "nothing was raised",
    }


def test_a_call_that_one_device_refuses_is_refused():
    q, cache = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 8, 16)
    used = torch.tensor([8], dtype=torch.int32)
    with pytest.raises(ValueError, match="softcap must be 0"):
        decode(q, cache, cache, seqused_k=used, softcap=-1.0)
    with pytest.raises(ValueError, match=r"q must have shape \[batch, heads, rows, dim\] \(got \[2, 1, 16\]\)"):
        decode(q[0], cache, cache, seqused_k=used)
