"""The cases of other libraries' tests of context parallelism, over gloo, on two ranks and four.

Sources: ring-flash-attention, test/ (github.com/zhuzilin/ring-flash-attention, commit 89962823), whose tests print
differences, and PyTorch, test/distributed/tensor/test_attention.py (commit 8e4fb1fb; the cases of varlen and of PTRR by
numbers are those of a later text, which has VarlenMetadata). Shapes and dtypes are theirs where
context_parallel_peers.py does not say otherwise. Results are compared with one device's by PyTorch's tolerances, and
with float64 by our rule. Left out: their triton kernels, counts of collectives, DTensor's dispatch, and calls under
torch.compile, which test_context_parallel_compiled.py has.
"""

import functools
import itertools

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_cases as cases  # noqa: E402
import context_parallel_peers as peers  # noqa: E402
from context_parallel_errors import beyond_one_device  # noqa: E402
from onepass._ranks.plan import Kind, Plan  # noqa: E402
from onepass.context_parallel import Layout  # noqa: E402
from rank_processes import those_that_fit  # noqa: E402


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return functools.cache(lambda ranks: cases.spawned(peers.computed, ranks, tmp_path_factory.mktemp("ranks")))


@pytest.mark.parametrize("ranks", those_that_fit((2, 4)))
@pytest.mark.parametrize("family", peers.FAMILIES, ids=lambda family: family.__name__)
def test_each_case(family, ranks, found):
    wrong, alone = [], {}
    for name, case in family(ranks).items():
        mine, key = found(ranks)[family.__name__, name], (*map(id, case.tensors), repr(case.alone))
        if key not in alone:
            call = *case.tensors, None
            alone[key] = [f(*call, **case.alone) for f in (cases.one_device, cases.textbook)]
        one, exact = ({n: x[n] for n in mine} for x in alone[key])
        wrong += beyond_one_device(name, mine, one, exact)
        if case.near:
            for n, x in one.items():
                near, rel = (n in ("dk", "dv") and case.near_of_keys) or case.near
                far = ((mine[n].float() - x.float()).abs() - near - rel * x.float().abs()).max()
                wrong += [f"{name} {n}: {far:.1e} beyond PyTorch's tolerance"] * bool(far > 0)
    assert not wrong, "\n".join(wrong)


def segments(layout, documents, rank):
    """([rows], [keys]) of the documents that a rank's calls have."""
    kind = Kind(layout, -1, 0, tuple(documents), True, False, False, 1)
    rows, keys = [], []
    for part in Plan(kind).gather_parts(rank):
        rows += [b - a for a, b in itertools.pairwise(part.cu_rows or part.rows)]
        keys += [b - a for a, b in itertools.pairwise(part.cu_keys or part.keys)]
    return rows, keys


@pytest.mark.parametrize(
    "documents, kind, expected",
    [
        ([0, 32], "contiguous", [([16], [16]), ([16], [32])]),
        ([0, 32], "zigzag", [([8, 8], [8, 32]), ([16], [24])]),
        ([0, 10, 50, 64], "contiguous", [([10, 22], [10, 22]), ([18, 14], [40, 14])]),
        ([0, 10, 50, 64], "zigzag", [([10, 6, 2, 14], [10, 6, 40, 14]), ([32], [38])]),
        ([0, 1, 8], "contiguous", [([1, 3], [1, 3]), ([4], [7])]),
        ([0, 20, 64], "contiguous", [([16], [16]), ([4, 12], [20, 12]), ([16], [28]), ([16], [44])]),
    ],
)
def test_the_calls_of_a_rank_are_the_segments_of_pytorchs_varlen_metadata(documents, kind, expected):
    layout = getattr(Layout, kind)(documents[-1], len(expected))
    assert [segments(layout, documents, rank) for rank in range(len(expected))] == expected


def test_the_calls_of_eight_ranks_meet_the_keys_of_llama3s_slices():
    documents, layout = [0, 7, 14, 16], Layout.contiguous(16, 8)
    for rank in range(8):
        first = [max(x for x in documents if x <= i) for i in (2 * rank, 2 * rank + 1)]
        rows = [first.count(x) for x in sorted(set(first))]
        keys = [2 * rank + 2 - first[0]] if len(rows) == 1 else [1 + 2 * rank - first[0], 1]
        assert segments(layout, documents, rank) == (rows, keys)


def test_the_steps_of_a_ring_are_causal_whole_or_skipped():
    """PyTorch's test_is_causal_behavior: by rank and step, the masks of the calls."""

    def masks(layout, rank, step):
        kind = Kind(layout, -1, 0, (), True, False, False, 1)
        return {part.masked for part in Plan(kind).ring_parts(rank, (rank - step) % 2)}

    contiguous, zigzag = Layout.contiguous(32, 2), Layout.zigzag(32, 2)
    assert [[masks(contiguous, r, i) for i in range(2)] for r in range(2)] == [[{True}, set()], [{True}, {False}]]
    assert [[masks(zigzag, r, i) for i in range(2)] for r in range(2)] == [[{True}, {False}]] * 2


def test_the_work_of_ranks_is_balanced():
    """The numbers of PyTorch's TestVarlenPTRRLoadBalancer."""
    assert Layout.zigzag(128, 2).work(causal=True) == [4128, 4128]
    assert peers.by_work([0, 128], 2, 32).work(causal=True) == [4128, 4128]
    draw = torch.Generator().manual_seed(0)
    short = torch.randint(16, 65, (30,), generator=draw).tolist()
    medium = torch.randint(200, 321, (2,), generator=draw).tolist()
    lengths = [*short[:15], *medium, 4096 - sum(short) - sum(medium), *short[15:]]  # a long one in the middle
    documents = [0, *itertools.accumulate(lengths)]

    def spread(layout):
        work = layout.work(causal=True, documents=documents)
        return max(work) - min(work)

    for layout in (Layout.documents(documents, 2), peers.by_work(documents, 2, 128)):
        assert spread(layout) < 0.5 * spread(Layout.zigzag(4096, 2))


def test_a_shard_is_the_head_and_the_tail():
    positions, layout = torch.arange(32), Layout.zigzag(32, 2)
    for rank, chunks in enumerate(((0, 3), (1, 2))):
        wanted = torch.cat([positions.chunk(4)[c] for c in chunks])
        assert torch.equal(layout.shard(positions, rank, dim=0), wanted)
        assert torch.equal(layout.shard(positions.expand(4, 32), rank, dim=1), wanted.expand(4, 16))
