"""onepass.torch.context_parallel inside torch.compile: one node of the graph, with the bits of the eager call."""

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_cases as cases  # noqa: E402
import context_parallel_compiled  # noqa: E402
import onepass.torch  # noqa: E402


@pytest.mark.parametrize("ranks", (1, 2))
def test_compiled_without_a_graph_break(ranks, tmp_path):
    assert cases.spawned(context_parallel_compiled.compiled, ranks, tmp_path) == [[]] * ranks


def test_compiled_dropout_without_a_seed_draws_a_new_one_in_each_call(tmp_path):
    first, second = cases.spawned(context_parallel_compiled.drawn, 2, tmp_path)
    assert not torch.equal(first, second)
    assert 0.5 < first.float().mean() < 0.7

    q, k, _, _ = cases.inputs(context_parallel_compiled.LENGTH)
    v = torch.eye(context_parallel_compiled.LENGTH).expand(1, 2, -1, -1)
    torch.manual_seed(0)  # as on rank 0
    seed = int(torch.randint(2**62, (1,)))
    assert torch.equal(first, onepass.torch.attention(q, k, v, dropout_p=0.4, seed=seed) != 0)


def test_compiled_seeds_are_inputs_and_are_checked(tmp_path):
    compiled, sentences = cases.spawned(context_parallel_compiled.seeds, 1, tmp_path)
    assert compiled <= 2  # the first one, and any
    wanted = "ValueError: seed must be an integer from 0 to 2^64 - 1 (got {})"
    assert sentences == [wanted.format(seed) for seed in (-1, 2**64)]
