"""onepass.torch.context_parallel in FP8: forward, with a factor for a head or a tensor."""

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_cases as cases  # noqa: E402
import context_parallel_fp8  # noqa: E402
from context_parallel_errors import rms  # noqa: E402


@pytest.mark.parametrize("ranks", (1, 3))
def test_fp8_is_as_exact_as_on_one_device(ranks, tmp_path):
    expected = context_parallel_fp8.expected()
    found = cases.spawned(context_parallel_fp8.eight_bits, ranks, tmp_path)
    assert len(found) == 9
    for (scheme, mask), mine in found.items():
        one, exact = expected[mask]
        assert mine["out"].dtype == torch.bfloat16
        errors = [rms(x["out"], exact["out"]) for x in (mine, one)]
        assert 0 < errors[0] <= 1.05 * errors[1], (scheme, mask, errors)
        assert (mine["lse"] - exact["lse"]).abs().max() < 1e-5, (scheme, mask)


def test_fp8_inside_torch_compile(tmp_path):
    assert cases.spawned(context_parallel_fp8.compiled, 2, tmp_path) == [True, True]


def test_fp8_refusals(tmp_path):
    gradients = "ValueError: context_parallel.attention does not support gradients of q, k and v in float8_e4m3fn"
    assert cases.spawned(context_parallel_fp8.refused, 1, tmp_path) == {
        "blocks": "ValueError: q_descale must not have blocks; give [batch|1, heads|1] (got [1, 6, 2])",
        "dtypes": "TypeError: q, k and v must have one dtype of float32, float16, bfloat16 and float8_e4m3fn "
        "(got k torch.float32)",
        "gradients": gradients,
        "gradients of k": gradients,
    }
