"""onepass.torch.context_parallel on a mesh of two dimensions, over gloo: 2 x 2, 2 x 3 and 2 x 4 processes."""

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_cases as cases  # noqa: E402
import context_parallel_meshes as meshes  # noqa: E402
from context_parallel_errors import beyond_one_device  # noqa: E402
from rank_processes import spawned  # noqa: E402


@pytest.mark.parametrize("ranks", meshes.WITHIN)
def test_every_feature_is_as_exact_as_on_one_device(ranks, tmp_path):
    found, wrong = spawned(meshes.compared, ranks, tmp_path), []
    assert set(found) == set(meshes.calls(ranks))
    for name, (_, tensors, given, options) in meshes.calls(ranks).items():
        call = *tensors, cases.of_rows(tensors[0], given)
        one, exact, mine = cases.one_device(*call, **options), cases.textbook(*call, **options), found[name]
        wrong += beyond_one_device(name, mine, one, exact)
    assert not wrong, "\n".join(wrong)


def test_all_ranks_hear_the_same_sentence(tmp_path):
    everybody = spawned(meshes.disagreeing, 4, tmp_path)
    assert everybody == [everybody[0]] * 4
    option = everybody[0].pop("option")
    assert option.startswith("ValueError: options must be the same on all nodes (node 0 has "), option
    assert everybody[0] == {
        "rows": "ValueError: node 1: rank 1: q must have 8 rows, as layout gives this rank (got 7)",
        "scheme": "ValueError: node 0: rank 0: scheme must be 'mesh' or 'auto' with a group of two dimensions "
        "(got 'ring')",
        "heads": "ValueError: node 0: rank 0: scheme must be 'mesh' or 'auto' with a group of two dimensions "
        "(got head_groups=2)",
        "groups": "ValueError: group must be one process group or two, between nodes and within this one (got 3)",
        "drawn": "nothing was raised",
    }
