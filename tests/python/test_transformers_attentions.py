"""output_attentions of models with onepass beside the models' eager attention."""

import pytest
from test_transformers import CAUSAL, SIZES, pair, transformers  # noqa: F401  a fixture

T5 = dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=97, decoder_start_token_id=0)


def close(torch, given, expected, rows=None):
    """rows: bool [batch, rows]; a padded row sees no key, and eager attention gives it an average."""
    assert len(given) == len(expected) > 0
    for x, y in zip(given, expected):
        assert x.shape == y.shape and x.dtype == y.dtype
        x, y = (x, y) if rows is None else (z.transpose(1, 2)[rows] for z in (x, y))
        torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_each_head_s_weights(transformers, torch, name):  # noqa: F811
    """Without padding, with it on either side, and of single tokens after a cache."""
    eager, mine = pair(transformers, name)
    ids, mask = torch.randint(97, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[0, 15:], mask[1, :5] = 0, 0
    for words in ({}, {"attention_mask": mask}):
        expected, found = (m(ids, output_attentions=True, **words) for m in (eager, mine))
        close(torch, found.attentions, expected.attentions, mask.bool() if words else None)
    assert mine(ids).attentions is None
    words = dict(max_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True, disable_compile=True)
    expected, found = (m.generate(ids, output_attentions=True, **words) for m in (eager, mine))
    assert torch.equal(found.sequences, expected.sequences) and len(found.attentions) == 4
    for given, of_step in zip(found.attentions, expected.attentions):
        close(torch, given, of_step)


def test_encoders_and_decoders(transformers, torch):  # noqa: F811
    """BERT with padding; T5 with its position bias, whose attentions are of three kinds."""
    ids, mask = torch.randint(97, (2, 15)), torch.ones(2, 15, dtype=torch.long)
    mask[1, 9:] = 0
    eager, mine = pair(transformers, "Bert", "ForMaskedLM", **SIZES, max_position_embeddings=64)
    expected, found = (m(ids, attention_mask=mask, output_attentions=True) for m in (eager, mine))
    close(torch, found.attentions, expected.attentions)
    models = pair(transformers, "T5", "ForConditionalGeneration", **T5)
    words = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.randint(97, (2, 7)))
    expected, found = (m(**words, output_attentions=True) for m in models)
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        close(torch, found[kind], expected[kind])


def test_masks_as_expressions_and_the_mean_of_the_heads(transformers, torch):  # noqa: F811
    import onepass.transformers

    eager, mine = pair(transformers, "Mistral")
    ids, mask = torch.randint(97, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[0, 15:] = 0
    expected = eager(ids, attention_mask=mask, output_attentions=True).attentions
    onepass.transformers.register("onepass_mean", expressions=True, mean="heads")
    mine.set_attn_implementation("onepass_mean")
    found = mine(ids, attention_mask=mask, output_attentions=True).attentions
    assert [x.shape for x in found] == [(2, 21, 21)] * 2
    used = mask.bool()
    for x, y in zip(found, expected):
        torch.testing.assert_close(x[used], y.mean(1)[used], atol=2e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"mean must be 'heads' or None \(got 'rows'\)"):
        onepass.transformers.register(mean="rows")


def test_16_bits(transformers, torch):  # noqa: F811
    eager, mine = (m.bfloat16() for m in pair(transformers, "Llama"))
    ids = torch.randint(97, (2, 21))
    expected, found = (m(ids, output_attentions=True).attentions for m in (eager, mine))
    for x, y in zip(found, expected):
        assert x.dtype == y.dtype == torch.bfloat16
        torch.testing.assert_close(x, y, atol=0.05, rtol=0.05)


def test_training(transformers, torch):  # noqa: F811
    """Gradients are those of a call without attentions. A loss of the attentions is refused, and not left out."""
    model = pair(transformers, "GptOss")[1].train()
    ids, grads = torch.randint(97, (2, 17)), []
    for words in ({}, {"output_attentions": True}):
        model.zero_grad()
        output = model(ids, labels=ids, **words)
        output.loss.backward(retain_graph=True)
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert len(output.attentions) == 2 and grads[0].keys() == grads[1].keys()
    assert all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])
    with pytest.raises(NotImplementedError, match="does not support gradients of output_attentions; use eager"):
        (output.loss + output.attentions[0].square().sum()).backward()


@pytest.mark.parametrize(
    "name, trained",
    [
        ("GptOss", "model.layers.0.self_attn.q_proj.weight"),
        ("GptOss", "model.layers.0.self_attn.k_proj.weight"),
        ("GptOss", "model.layers.0.self_attn.sinks"),
        ("T5", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        ("GptOss", "model.layers.0.self_attn.v_proj.weight"),
    ],
)
def test_training_of_one_parameter(transformers, torch, name, trained):  # noqa: F811
    """The others are frozen. A loss of the attentions that depend on it is refused, also beside another loss.

    Those of the first layer do not depend on its v.
    """
    model = pair(transformers, name, **({} if name != "T5" else dict(kind="ForConditionalGeneration", **T5)))[1]
    parameter = model.requires_grad_(False).get_parameter(trained).requires_grad_()
    words = {"decoder_input_ids": torch.randint(97, (2, 7))} if name == "T5" else {}
    output = model(input_ids=torch.randint(97, (2, 17)), output_attentions=True, **words)
    attentions = output.encoder_attentions if name == "T5" else output.attentions
    loss = output.logits.square().sum()
    expected = torch.autograd.grad(loss, parameter, retain_graph=True)[0]
    assert expected.any()
    for layer, x in enumerate(attentions):
        both = loss + x.square().sum()
        if layer == 0 and "v_proj" in trained:
            assert torch.equal(torch.autograd.grad(both, parameter, retain_graph=True)[0], expected)
            continue
        with pytest.raises(NotImplementedError, match="does not support gradients of output_attentions; use eager"):
            torch.autograd.grad(both, parameter, retain_graph=True)


def test_torch_compile(transformers, torch):  # noqa: F811
    eager, mine = (m.model for m in pair(transformers, "Llama"))
    ids = torch.randint(97, (2, 21))
    with torch.no_grad():
        torch._dynamo.reset()
        found = torch.compile(mine, backend="eager")(ids, use_cache=False, output_attentions=True).attentions
        close(torch, found, eager(ids, output_attentions=True).attentions)
