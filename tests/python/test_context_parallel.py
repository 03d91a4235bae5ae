"""onepass.torch.context_parallel over gloo: one to four processes, and eight for equal bits."""

import functools
import pathlib
import time

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()

import context_parallel_cases as cases  # noqa: E402
import context_parallel_kernels  # noqa: E402
import context_parallel_maxima  # noqa: E402
import context_parallel_pooled  # noqa: E402
import onepass.torch  # noqa: E402
import rank_processes  # noqa: E402
from context_parallel_errors import beyond_one_device  # noqa: E402
from onepass.context_parallel import Layout, attention  # noqa: E402

RANKS = cases.those_that_fit((1, 2, 3, 4))


@pytest.fixture(scope="module", autouse=True)
def kernels():
    if rank_processes.ON_GPUS:
        assert context_parallel_kernels.load_all() == list(cases.cases(1))


@functools.cache
def expected(name, ranks):
    """(by one device, in float64) of a case."""
    _, _, tensors, given, options = cases.cases(ranks)[name]
    options = {key: x for key, x in options.items() if key != "head_groups"}
    call = *tensors, cases.of_rows(tensors[0], given)
    return cases.one_device(*call, **options), cases.textbook(*call, **options)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_feature_is_as_exact_as_on_one_device(ranks, tmp_path):
    found = cases.spawned(cases.compared, ranks, tmp_path)
    assert set(found) == set(cases.cases(ranks))
    wrong = [line for name, mine in found.items() for line in beyond_one_device(name, mine, *expected(name, ranks))]
    assert not wrong, "\n".join(wrong)


def test_fp32_errors_are_those_of_one_device(tmp_path):
    """Sums over many results. A ring merges states whose LSE is rounded to fp32: docs/notes/context-parallel.md."""
    found = cases.spawned(context_parallel_pooled.pooled, max(RANKS), tmp_path)
    assert len(found) == 3 * len(cases.MASKS) * 6
    bounds = {key: 1.08 if key[0] == "ring" and key[2] == "out" else 1.05 for key in found}
    assert not {key: x for key, x in found.items() if x > bounds[key]}


def test_reproducible_results_have_the_same_bits_for_any_number_of_ranks(tmp_path):
    one = cases.spawned(cases.reproduced, 1, tmp_path)
    for ranks in cases.those_that_fit((2, 3, 4, 8)):
        other = cases.spawned(cases.reproduced, ranks, tmp_path)
        different = [
            f"{name} {key}" for name in one for key in one[name] if not torch.equal(one[name][key], other[name][key])
        ]
        assert not different, f"{ranks} ranks: {different}"


@pytest.mark.parametrize("ranks", cases.those_that_fit((1, 2, 3, 8)))
def test_dropout_leaves_the_weights_that_it_leaves_on_one_device(ranks, tmp_path):
    q, k, _, _ = cases.inputs(48)
    v = torch.eye(48).expand(1, 2, 48, 48)
    torch.manual_seed(0)
    drawn = int(torch.randint(2**62, (1,)))  # by rank 0
    for (scheme, seed), left in cases.spawned(cases.dropped, ranks, tmp_path).items():
        whole = onepass.torch.attention(
            *cases.on_device(q, k, v), mask="causal_top_left", dropout_p=0.4, seed=drawn if seed is None else seed
        ).cpu()
        assert torch.equal(left, whole != 0), (scheme, seed)
        assert 0.2 < left.float().mean() < 0.4


@pytest.mark.parametrize("ranks", cases.those_that_fit((1, 3, 4)))
def test_every_rank_gets_the_largest_score_of_each_head(ranks, tmp_path):
    q, k, v, _ = cases.on_device(*cases.inputs(cases.LENGTH))
    _, most = onepass.torch.attention(q, k, v, mask="causal_top_left", return_max="head")
    everybody = cases.spawned(context_parallel_maxima.largest, ranks, tmp_path)
    assert everybody == [everybody[0]] * ranks
    for (scheme, length), found in everybody[0].items():
        assert found == pytest.approx(most.tolist() if length else [-torch.inf] * 4, rel=1e-6), (scheme, length)


def test_all_ranks_hear_the_same_sentence(tmp_path):
    everybody = cases.spawned(cases.disagreeing, 3, tmp_path)
    assert everybody == [everybody[0]] * 3
    assert everybody[0] == {
        "shape": "ValueError: batch, heads and dims of q, k and v must be the same on all ranks (rank 0 has "
        "[(1, 2, 16), (1, 2, 16), (1, 2, 16)], rank 2 has [(1, 4, 16), (1, 4, 16), (1, 4, 16)])",
        "dtype": "ValueError: dtypes and devices of q, k and v must be the same on all ranks (rank 0 has [('float32', "
        "'cpu'), ('float32', 'cpu'), ('float32', 'cpu')], rank 2 has [('bfloat16', 'cpu'), ('bfloat16', 'cpu'), "
        "('bfloat16', 'cpu')])",
        "rows": "ValueError: rank 2: q must have 8 rows, as layout gives this rank (got 7)",
        "layout": "ValueError: layout must be the same on all ranks (rank 0 has Layout(cuts=(0, 8, 16, 24), order=(0, "
        "1, 2), shares=(0, 1, 2, 3)), rank 2 has Layout(cuts=(0, 4, 8, 12, 16, 20, 24), order=(0, 5, 1, 4, 2, 3), "
        "shares=(0, 2, 4, 6)))",
        "mask": "ValueError: mask must be the same on all ranks (rank 0 has (-1, -1, ()), rank 2 has (-1, 0, ()))",
        "option": everybody[0]["option"],
        "maximum": "ValueError: rank 0: return_max must be False, True or 'head' (got 'rows')",
        "value": "ValueError: rank 2: softcap must be 0 (none) or positive (got -1)",
        "gradient": "ValueError: gradients that are wanted must be the same on all ranks (rank 0 has [False, False, "
        "False, False, False, False], rank 2 has [True, True, True, False, False, False])",
        "dropout": everybody[0]["dropout"],
        "drawn": "nothing was raised",
        "right": "nothing was raised",
    }
    assert everybody[0]["dropout"].startswith("ValueError: options must be the same on all ranks (rank 0 has ")
    assert everybody[0]["option"].startswith("ValueError: options must be the same on all ranks (rank 0 has ")


def heard(folder, job, ranks):
    """The sentences that each rank hears of a failure in mid-call, and after how long the last process has ended."""
    start = time.monotonic()
    try:
        cases.spawned(job, ranks, folder)
    except (torch.multiprocessing.ProcessExitedException, FileNotFoundError):
        pass
    files = {rank: folder / f"heard{rank}" for rank in range(ranks)}
    return {rank: path.read_text() for rank, path in files.items() if path.exists()}, time.monotonic() - start


def test_a_rank_that_raises_ends_the_others(tmp_path):
    said, seconds = heard(tmp_path, cases.failing, 3)
    assert said[1].startswith("RuntimeError: out of something\n")
    for rank in (0, 2):
        assert said[rank].startswith("RuntimeError: rank 1 has failed: out of something\n"), said
    for sentence in said.values():
        again = "\nRuntimeError: the process group cannot be used any more: rank 1 has failed: out of something"
        assert sentence.endswith(again), said
    assert seconds < 60


def test_a_rank_whose_process_ends_ends_the_others(tmp_path):
    said, seconds = heard(tmp_path, cases.dying, 3)
    assert seconds < 60
    for rank in said:
        assert said[rank].startswith("RuntimeError: an exchange failed, because a rank has ended"), said


def test_without_a_process_group_it_is_one_rank():
    q, k, v, dout = cases.inputs(40)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, layout=Layout.zigzag(40, 1), causal=True)
    whole = onepass.torch.attention(*leaves, mask="causal_top_left")
    assert torch.equal(out, whole)
    grads = zip(*(torch.autograd.grad(x, leaves, dout) for x in (out, whole)))
    assert all(torch.equal(a, b) for a, b in grads)


def test_pytorchs_function_attends_to_all_ranks_inside_a_block():
    q, k, v, _ = cases.inputs(40)
    theirs, layout = torch.nn.functional.scaled_dot_product_attention, Layout.zigzag(40, 1)
    mask = torch.arange(40)[None, None, None, :] % 3 != 0
    with onepass.torch.context_parallel.sdpa(layout, softcap=2.0):
        causal = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        masked = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.5, enable_gqa=True)
        with pytest.raises(ValueError, match=r"same number of heads without enable_gqa=True \(got \(4, 2\)\)"):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.equal(causal, attention(q, k, v, layout=layout, causal=True, softcap=2.0))
    assert torch.equal(masked, attention(q, k, v, layout=layout, bool_mask=mask, scale=0.5, softcap=2.0))
    with pytest.raises(ZeroDivisionError), onepass.torch.context_parallel.sdpa(layout):
        raise ZeroDivisionError
    assert torch.nn.functional.scaled_dot_product_attention is theirs


def test_two_groups_and_inputs_of_any_strides(tmp_path):
    assert cases.spawned(cases.grouped, 4, tmp_path) == ["right"] * 4


def test_training_on_ranks_has_the_curve_of_one(tmp_path):
    one, two = (cases.spawned(cases.trained, ranks, tmp_path) for ranks in (1, 2))
    assert len(one) == cases.STEPS and one[-1] < one[0] - 0.1
    assert max(abs(a - b) for a, b in zip(one, two)) < 1e-3


def test_a_layout_shards_and_joins():
    x = torch.arange(2 * 3 * 29).reshape(2, 3, 29)
    for layout in (Layout.zigzag(29, 3), Layout.documents((0, 2, 20, 29), 3), Layout.contiguous(29, 5, multiple=8)):
        shards = [layout.shard(x, r) for r in range(layout.ranks)]
        assert torch.equal(layout.whole(shards), x)
        positions = torch.cat([layout.positions(r) for r in range(layout.ranks)])
        assert torch.equal(positions.sort()[0], torch.arange(29))
        assert [len(layout.positions(r)) for r in range(layout.ranks)] == [layout.count(r) for r in range(layout.ranks)]
        assert torch.equal(shards[1], x[:, :, layout.positions(1)])
    assert Layout.zigzag(8, 2).work(causal=True) == [18, 18]
    assert Layout.zigzag(8, 2) == Layout((0, 2, 4, 6, 8), (0, 3, 1, 2), (0, 2, 4))
    with pytest.raises(ValueError, match=r"x must have 29 positions in dimension 2 \(got 28\)"):
        Layout.zigzag(29, 3).shard(x[:, :, :28], 0)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"layout": 3}, r"layout must be a context_parallel.Layout \(got int\)"),
        ({"layout": Layout.zigzag(8, 2)}, r"layout must be for 1 ranks, as the group has \(got 2\)"),
        ({"scheme": "star"}, r"scheme must be one of 'gather', 'ring', 'ulysses' or 'auto' \(got 'star'\)"),
        ({"scheme": "ring", "reproducible": True}, r"reproducible=True needs scheme='gather' \(got 'ring'\)"),
        ({"scheme": "ring", "head_groups": 2}, r"head_groups=2 needs scheme='gather' \(got 'ring'\)"),
        ({"head_groups": 0}, r"head_groups must be a positive integer \(got 0\)"),
        ({"head_groups": "2"}, r"head_groups must be a positive integer \(got '2'\)"),
        ({"causal": True, "window": (3, 2)}, r"window's right side must be -1 or 0 with causal=True \(got 2\)"),
        ({"documents": (0, 9)}, r"documents must ascend from 0 to 8, the length of the layout \(got \[0, 9\]\)"),
        ({"bias": torch.zeros(8, 8)}, r"bias must have shape \[1, 2, 8, 8\] or 1 in some dimensions \(got \[8, 8\]\)"),
        ({"scheme": "ulysses", "bias": torch.zeros(1, 1, 8, 8)}, "scheme 'ulysses' does not support a bias with rows"),
        ({"sinks": torch.zeros(3)}, r"sinks must have shape \[2\] \(got \[3\]\)"),
        ({"documents": (0, 8), "score_mod": "score + batch"}, "score_mod does not support 'batch' with documents"),
        ({"score_mod": "score + nothing"}, "nothing"),
        ({"dropout_p": 1.5}, r"dropout_p must be from 0 to 1 \(got 1.5\)"),
        ({"dropout_p": 0.5, "seed": -1}, r"seed must be an integer from 0 to 2\^64 - 1 \(got -1\)"),
        (
            {"dropout_p": 0.5, "scheme": "ring", "layout": Layout((0, 4, 5, 8), (0, 1, 2), (0, 3))},
            r"dropout in scheme 'ring' needs cuts at multiples of 4 in their document \(got 5\)",
        ),
    ],
)
def test_refusals(options, sentence):
    q = torch.zeros(1, 2, 8, 16)
    with pytest.raises((ValueError, TypeError), match=sentence):
        attention(q, q, q, **{"layout": Layout.zigzag(8, 1), **options})


def test_nan_reaches_only_the_rows_that_see_it():
    q, k, v, _ = cases.inputs(40)
    k[:, :, 20] = float("nan")
    for scheme in ("gather", "ring", "ulysses"):
        out = attention(q, k, v, layout=Layout.zigzag(40, 1), scheme=scheme, causal=True)
        assert out[:, :, :20].isfinite().all() and out[:, :, 20:].isnan().all()


def test_the_package_is_an_attribute_of_onepass_torch():
    assert onepass.torch.context_parallel.attention is attention
    assert pathlib.Path(onepass.torch.context_parallel.__file__).parent.name == "context_parallel"


def test_options_are_tried_once_for_each_kind_of_call(monkeypatch):
    """A call without rows raises what its parts would raise in mid-call."""
    tried, compute = [], onepass.attention

    def counted(q, *given, **options):
        if q.shape[2] == 0:
            tried.append(options["softcap"])
        return compute(q, *given, **options)

    monkeypatch.setattr(onepass, "attention", counted)
    q, layout = torch.randn(1, 2, 12, 16), Layout.contiguous(12, 1)
    for softcap in (1.25, 1.25, 2.75):
        attention(q, q, q, layout=layout, causal=True, softcap=softcap)
    wider = torch.randn(1, 2, 12, 24)
    attention(wider, wider, q, layout=layout, causal=True, softcap=1.25)
    for _ in range(2):
        with pytest.raises(ValueError, match="softcap"):
            attention(q, q, q, layout=layout, causal=True, softcap=-1.0)
    assert tried == [1.25, 2.75, 1.25, -1.0, -1.0]
