"""onepass.attention with a unified maximum beside the same without."""

import numpy as np
import onepass


def test_it_changes_no_result_and_says_which_rows_left():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 300, 64), dtype=np.float32)
    q = np.ascontiguousarray(q[:, :, :1])
    q[1] *= 60  # scores beyond 40
    expected, lse = onepass.attention(q, k, v, return_lse=True)
    phi = onepass.unified_max_of(lse[0])
    recomputed = np.full((2, 4, 1), 7, np.int32)
    out, lse_of_phi = onepass.attention(q, k, v, unified_max=phi, recomputed=recomputed, return_lse=True)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(lse_of_phi, lse, rtol=1e-5)
    np.testing.assert_array_equal(recomputed, (lse > 50).astype(np.int32))
    assert recomputed.sum() > 0 and not recomputed[0].any()
    again = np.full((2, 4, 1), 7, np.int32)
    onepass.attention(q, k, v, unified_max=phi, recomputed=again)
    np.testing.assert_array_equal(again, recomputed)


def test_the_middle_of_what_was_seen():
    assert onepass.unified_max_of(np.array([1.0, -np.inf, 3.0]), np.array([[np.nan, 9.0]])) == 5.0
    assert onepass.unified_max_of(np.array([-np.inf])) == 0.0
