"""onepass.transformers.record_max: the largest score of each head, beside the scores of q and k."""

import contextlib

import pytest
from test_transformers import pair, transformers  # noqa: F401  a fixture

NAMES = {"Llama": "model.layers.{}.self_attn", "Gemma2": "model.layers.{}.self_attn", "GPT2": "transformer.h.{}.attn"}


@contextlib.contextmanager
def spied(torch, monkeypatch):
    """The largest visible score of each head of each call: of the textbook, from q and k."""
    import onepass.torch

    attention, most = onepass.torch.attention, []

    def call(q, k, v, **o):
        s = (q.detach() @ k.detach().repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * o["scale"]
        s = o["softcap"] * (s / o["softcap"]).tanh() if o["softcap"] else s
        back = torch.arange(s.shape[2])[:, None] - torch.arange(s.shape[3])
        seen = (back >= 0) & (back <= (o["window"] or (s.shape[3], 0))[0])
        seen = seen if o["bool_mask"] is None else o["bool_mask"]
        most.append(s.masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
        return attention(q, k, v, **o)

    with monkeypatch.context() as patch:
        patch.setattr(onepass.torch, "attention", call)
        yield most


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_training_step(transformers, torch, monkeypatch, name, checkpointing):  # noqa: F811
    """The maxima of two batches, one with padding; the gradients are those of a step without."""
    import onepass.transformers

    model = pair(transformers, name)[1].train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids, mask = torch.randint(97, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[1, 15:] = 0
    batches = [dict(input_ids=ids), dict(input_ids=ids[:, 3:], attention_mask=mask[:, 3:])]

    def gradients():
        model.zero_grad()
        sum(model(**x, labels=x["input_ids"]).loss for x in batches).backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    with spied(torch, monkeypatch) as most, torch.no_grad():
        for x in batches:
            model(**x)
    with onepass.transformers.record_max(model) as maxima:
        assert maxima == {}
        found = gradients()
    assert list(maxima) == [NAMES[name].format(i) for i in range(2)]
    for i, x in enumerate(maxima.values()):
        assert x.dtype == torch.float32 and not x.requires_grad
        torch.testing.assert_close(x, torch.maximum(most[i], most[i + 2]), atol=1e-5, rtol=1e-5)
    assert expected.keys() == found.keys() and all(torch.equal(found[n], expected[n]) for n in expected)
    before = dict(maxima)
    model(ids).logits.sum().backward()  # outside of the block
    assert maxima == before


def test_the_backward_may_be_outside(transformers, torch):  # noqa: F811
    """Checkpointed layers run again there, without a recorder."""
    import onepass.transformers

    model = pair(transformers, "Llama")[1].train()
    model.gradient_checkpointing_enable()
    ids = torch.randint(97, (2, 21))
    with onepass.transformers.record_max(model) as maxima:
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert len(maxima) == 2 and model.model.layers[0].self_attn.q_proj.weight.grad is not None


def test_blocks_know_their_own_models(transformers, torch):  # noqa: F811
    import onepass.transformers

    (_, one), (eager, two) = pair(transformers, "Llama"), pair(transformers, "Llama")
    ids = torch.randint(97, (2, 21))
    with (
        onepass.transformers.record_max(one) as of_one,
        onepass.transformers.record_max(two) as of_two,
        onepass.transformers.record_max(two.model.layers[1]) as of_layer,
        onepass.transformers.record_max(eager) as of_eager,
        torch.no_grad(),
    ):
        one(ids), two(ids), eager(ids)
    assert len(of_one) == len(of_two) == 2 and of_eager == {}
    assert not torch.equal(of_one["model.layers.0.self_attn"], of_two["model.layers.0.self_attn"])
    assert torch.equal(of_layer["self_attn"], of_two["model.layers.1.self_attn"])


def test_torch_compile(transformers, torch):  # noqa: F811
    import onepass.transformers

    model = pair(transformers, "Llama")[1].model
    ids = torch.randint(97, (2, 21))
    with onepass.transformers.record_max(model) as expected, torch.no_grad():
        model(ids, use_cache=False)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(ids, use_cache=False)  # a graph without maxima, which the block must not take
    with onepass.transformers.record_max(model) as found:
        compiled(ids, use_cache=False).last_hidden_state.sum().backward()
    assert model.layers[0].self_attn.q_proj.weight.grad is not None
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
