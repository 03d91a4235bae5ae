"""bench/studies/context_parallel_scale.py: its bytes and its work are those of the library's plan, on one node."""

import pathlib
import sys

import pytest
from onepass import _onepass
from onepass._ranks.layout import Layout

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.studies import context_parallel_scale as scale  # noqa: E402
from bench.tables.cells import rows_of  # noqa: E402

SHAPE = 1, scale.HEADS, scale.HEADS_KV, scale.DIM, scale.DIM, 2


@pytest.fixture(scope="module")
def machine():
    return scale.machine_of(rows_of("h200x2_context_parallel"))


@pytest.mark.parametrize("ranks", [2, 8])
def test_exchanges_take_the_time_of_the_plan(ranks):
    plan = _onepass.context_parallel
    fast = 1e30, scale.NVLINK  # operations a second: only the exchanges take time
    found = plan.estimates(Layout.zigzag(2**17, ranks).plan, plan.Visibility(-1, 0, []), SHAPE, fast)
    for scheme, *seconds, _, _ in found:
        for backward in (False, True):
            sent = sum(x for x, _ in scale.sent(scheme, 2**17, ranks, backward))
            if scheme == "ring":
                sent = (ranks - 1) * (sent + scale.LATENCY) - scale.LATENCY
            if backward and scheme != "ulysses":
                # The plan has both directions of a backward at once. K and V come first, and gradients go home last.
                assert sent > seconds[backward]
                continue
            each = 2 if backward else 1
            assert sent + each * scale.LATENCY == pytest.approx(seconds[backward], rel=1e-6), (scheme, backward)


def test_memory_is_that_of_the_plan():
    plan, length, ranks = _onepass.context_parallel, 2**17, 8
    found = plan.estimates(Layout.zigzag(length, ranks).plan, plan.Visibility(-1, 0, []), SHAPE, None)
    rows = length / ranks * 2 * (4 * scale.HEADS * scale.DIM + 2 * scale.HEADS_KV * scale.KV)
    q = length * scale.HEADS / ranks * scale.DIM * 10
    own = length / ranks * scale.HEADS_KV * scale.KV * 6  # which the plan counts beside what comes
    for scheme, *_, memory in found:
        beside = {"gather": -own, "ring": 0, "ulysses": q - own}[scheme]
        assert scale.memory(scheme, length, ranks) == memory + rows + beside, scheme


@pytest.mark.parametrize("length", scale.LENGTHS)
@pytest.mark.parametrize("ranks", scale.RANKS)
def test_ranks_have_equal_work(length, ranks):
    assert len(set(Layout.zigzag(length, ranks).work(causal=True))) == 1


def test_a_share_is_lost_to_what_is_named(machine):
    for scheme in scale.SCHEMES:
        share, lost = scale.share(scheme, 2**20, 64, machine)
        assert 0 < share < 1 and all(x >= 0 for x in lost.values())
    assert scale.share("ulysses", 2**24, 1024, machine)[1]["heads"] > 0
    slow = scale.share("mesh", 2**18, 64, machine)
    assert max(slow[1], key=slow[1].get) == "InfiniBand"


def test_the_fit_finds_the_constants_of_a_machine():
    given = scale.Machine((7e14, 6e14), ((1.05, 2e-4), (1.02, 3e-4)), ((1.1, 1e-4), (1.2, 2e-4)))
    cells = {}
    for length in (2**14, 2**15, 2**16):
        for scheme in scale.MEASURED:
            cells[scheme, length] = [sum(scale.spent(scheme, length, 2, b, given).values()) for b in (False, True)]
    for backward in (False, True):
        assert scale.fitted(cells, given.rates, ("gather", "ulysses"), backward) == pytest.approx(given.whole[backward])
        assert scale.fitted(cells, given.rates, ("ring",), backward) == pytest.approx(given.ring[backward])
