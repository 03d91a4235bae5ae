"""onepass.transformers.context_parallel over gloo: models on two and three ranks beside eager attention on one."""

import pytest
from conftest import gloo_or_skip

torch = gloo_or_skip()
pytest.importorskip("transformers", reason="transformers is not installed")

import onepass.transformers  # noqa: E402
import rank_processes  # noqa: E402
import transformers_ranks_cases as cases  # noqa: E402
from onepass.context_parallel import Layout  # noqa: E402


def near(name, given, expected, atol, rtol):
    torch.testing.assert_close(given, expected, atol=atol, rtol=rtol, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("ranks", rank_processes.those_that_fit((2, 3)))
def test_a_training_step_is_that_of_one_process(ranks, tmp_path):
    found = rank_processes.spawned(cases.trained, ranks, tmp_path)
    assert set(found) == set(cases.MODELS)
    for name, (logits, grads) in found.items():
        expected, expected_grads = cases.alone(name)
        near(name, logits, expected, 1e-4, 1e-4)
        assert grads.keys() == expected_grads.keys()
        for n, grad in grads.items():
            near(f"{name} {n}", grad, expected_grads[n], 2e-4 * max(1e-3, expected_grads[n].abs().max().item()), 1e-3)


def test_every_rank_records_the_largest_scores_of_all(tmp_path):
    everybody, whole = rank_processes.spawned(cases.largest, 2, tmp_path)
    assert len(whole) == 2 and everybody == [everybody[0]] * 2
    assert everybody[0] == {name: pytest.approx(x, rel=1e-5) for name, x in whole.items()}


def test_torch_compile(tmp_path):
    difference, breaks = rank_processes.spawned(cases.compiled, 2, tmp_path)
    assert difference < 1e-5 and breaks == 0


def test_every_rank_hears_what_is_not_supported(tmp_path):
    everybody = rank_processes.spawned(cases.refused, 3, tmp_path)
    assert everybody == [everybody[0]] * 3
    no = "does not support"
    assert everybody[0] == {
        "positions": "ValueError: rank 1: position_ids must be layout.positions(1) (got others)",
        "padding": f"ValueError: rank 2: context_parallel {no} an attention_mask with padding; give documents",
        "attentions": f"ValueError: rank 0: context_parallel {no} output_attentions",
        "cache": f"ValueError: rank 0: context_parallel {no} a cache that holds tokens (got 15 rows of q and 30 of k)",
        "window": f"ValueError: rank 0: context_parallel {no} the windows of LlamaConfig",
        "blocks": f"ValueError: rank 0: context_parallel {no} the mask that LlamaConfig asks for",
        "rows": "ValueError: rank 0: position_ids must be layout.positions(0) (got others)",
        "right": "nothing was raised",
    }


@pytest.mark.parametrize("inference", [False, True])
def test_positions_that_change_in_place_are_compared_again(inference):
    """A buffer that a caller reuses is the same tensor with other positions."""
    onepass.transformers.register()
    model, layout = cases.model_of("Llama", "onepass").cpu(), Layout.contiguous(cases.LENGTH, 1)
    ids, refused = cases.tokens()[0], r"^position_ids must be layout.positions\(0\) \(got others\)$"
    with torch.inference_mode(inference), onepass.transformers.context_parallel(layout):
        buffer = layout.positions(0)[None].clone()
        assert buffer.is_inference() == inference

        def logits(positions):
            return model(ids, position_ids=positions, use_cache=False).logits

        expected = logits(buffer)
        buffer.add_(7)
        for wrong in (buffer, buffer.clone()):
            with pytest.raises(ValueError, match=refused):
                logits(wrong)
        buffer.sub_(7)
        for right in (buffer, buffer, buffer.clone(), buffer.int()):
            torch.testing.assert_close(logits(right), expected)


def test_a_block_ends_with_an_error():
    onepass.transformers.register()
    model = cases.model_of("Llama", "onepass").cpu()
    ids, layout = cases.tokens()[0], Layout.contiguous(cases.LENGTH, 1)
    whole = model(ids).logits
    with pytest.raises(ValueError, match=r"layout must be for 1 ranks, as the group has \(got 3\)"):
        onepass.transformers.context_parallel(Layout.zigzag(9, 3)).__enter__()
    with pytest.raises(ZeroDivisionError), onepass.transformers.context_parallel(layout):
        torch.testing.assert_close(model(ids).logits, whole)
        with pytest.raises(ValueError, match=r"^position_ids must be layout.positions\(0\) \(got others\)$"):
            model(ids[:, :9])
        raise ZeroDivisionError
    assert model(ids[:, :9]).logits.shape[1] == 9
