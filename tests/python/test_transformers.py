"""onepass.transformers beside the models' own eager attention, on small random models."""

import copy

import pytest

SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)
GROUPED = SIZES | dict(num_key_value_heads=2, head_dim=16, max_position_embeddings=128)
MODELS = {
    "Llama": GROUPED,
    "Mistral": GROUPED | dict(sliding_window=6),
    "Gemma2": GROUPED | dict(sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=16),
    # One layer has a window, the last one heads of 512.
    "Gemma4": GROUPED | dict(sliding_window=6, vocab_size_per_layer_input=97, hidden_size_per_layer_input=8),
    "GptOss": GROUPED | dict(sliding_window=6, num_local_experts=2, num_experts_per_tok=1),
    "GPT2": dict(n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=128),
    # Its layers do not pass their window on: only a mask has it.
    "Phimoe": GROUPED | dict(sliding_window=6, num_local_experts=2, num_experts_per_tok=1),
}
CAUSAL = list(MODELS)


@pytest.fixture
def transformers(torch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import onepass.transformers

    onepass.transformers.register()
    torch.manual_seed(0)
    return transformers


def pair(transformers, name, kind="ForCausalLM", **more):
    """One random model with eager attention, and itself with onepass."""
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma4" else f"{name}Config")(
        **MODELS.get(name, {}), **more
    )
    for dropout in ("attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout_rate", "hidden_dropout_prob"):
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    config.attention_dropout = config.attention_probs_dropout_prob = 0.0
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    models = []
    for implementation in ("eager", "onepass"):
        own = copy.deepcopy(config)  # a model keeps the one that it is given
        own._attn_implementation = implementation
        model = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else name + kind)(own)
        if models:
            model.load_state_dict(models[0].state_dict())
        else:
            for parameter in model.parameters():  # scores that are far from flat
                parameter.data.normal_(0, 0.2)
        models.append(model.eval())
    assert [model.config._attn_implementation for model in models] == ["eager", "onepass"]
    return models


@pytest.mark.parametrize("name", CAUSAL)
def test_logits(transformers, torch, name):
    """Without padding, with it on either side, and after a first part in a cache."""
    eager, mine = pair(transformers, name)
    ids = torch.randint(97, (2, 21))
    masks = [None, torch.ones(2, 21, dtype=torch.long), torch.ones(2, 21, dtype=torch.long)]
    masks[1][1, :5], masks[2][0, 15:] = 0, 0
    with torch.no_grad():
        for mask in masks:
            used = torch.ones(2, 21, dtype=torch.bool) if mask is None else mask.bool()
            expected, logits = (m(ids, attention_mask=mask).logits[used] for m in (eager, mine))
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        for cache in (transformers.DynamicCache, lambda config: transformers.StaticCache(config, max_cache_len=30)):
            turns = []
            for model in (eager, mine):
                past = cache(config=model.config)
                turns.append(torch.cat([model(x, past_key_values=past).logits for x in ids.split([12, 1, 8], 1)], 1))
            torch.testing.assert_close(turns[1], turns[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CAUSAL)
def test_greedy_generation(transformers, torch, name, cache):
    ids = torch.randint(97, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # padding on the left
    words = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, disable_compile=True)
    words |= dict(cache_implementation="static") if cache == "static" else {}
    given = [m.generate(ids, attention_mask=mask, **words) for m in pair(transformers, name)]
    assert given[0].shape == (2, 21) and torch.equal(*given)


@pytest.mark.parametrize("name", CAUSAL)
def test_training_step(transformers, torch, name):
    ids = torch.randint(97, (2, 17))
    results = []
    for model in pair(transformers, name):
        loss = model.train()(ids, labels=ids).loss
        loss.backward()
        results.append((loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (loss, grads), (mine, my_grads) = results
    torch.testing.assert_close(mine, loss, atol=1e-5, rtol=1e-5)
    assert grads.keys() == my_grads.keys()
    for n in grads:
        size = max(1e-3, grads[n].abs().max().item())
        torch.testing.assert_close(my_grads[n], grads[n], atol=2e-4 * size, rtol=1e-3, msg=lambda m, n=n: f"{n}: {m}")


def test_all_layers_of_gemma_4(transformers, torch, monkeypatch):
    import onepass.torch

    mine = pair(transformers, "Gemma4")[1]
    seen, attention = [], onepass.torch.attention
    monkeypatch.setattr(onepass.torch, "attention", lambda q, *x, **o: seen.append(q) or attention(q, *x, **o))
    mine(torch.randint(97, (2, 21)))
    assert [q.shape[-1] for q in seen] == [16, 512]


def test_packed_sequences_by_position_ids(transformers, torch):
    eager, mine = pair(transformers, "Llama")
    ids = torch.randint(97, (1, 20))
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None]
    with torch.no_grad():
        packed = mine(ids, position_ids=positions, use_cache=False).logits
        apart = torch.cat([eager(ids[:, :8]).logits, eager(ids[:, 8:]).logits], 1)
    torch.testing.assert_close(packed, apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["Bert", "ModernBert"])
def test_encoders_with_padding_and_windows(transformers, torch, name):
    """ModernBERT's windows reach to both sides, without a padding that would make it a mask too."""
    sizes = SIZES | dict(max_position_embeddings=64)
    if name == "ModernBert":
        sizes |= dict(local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2)
    eager, mine = pair(transformers, name, "ForMaskedLM", **sizes)
    ids, mask = torch.randint(97, (3, 20)), torch.ones(3, 20, dtype=torch.long)
    mask[1, 11:], mask[2, 3:] = 0, 0
    with torch.no_grad():
        for used in (torch.ones_like(mask), mask):
            expected, logits = (m(ids, attention_mask=used).logits[used.bool()] for m in (eager, mine))
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_t5_with_its_position_bias(transformers, torch):
    sizes = dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=97, decoder_start_token_id=0)
    eager, mine = pair(transformers, "T5", "ForConditionalGeneration", **sizes)
    ids, target = torch.randint(97, (2, 15)), torch.randint(97, (2, 7))
    mask = torch.ones(2, 15, dtype=torch.long)
    mask[1, 9:] = 0
    results = []
    for model in (eager, mine):
        output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target)
        output.logits.square().mean().backward()
        table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        results.append((output.logits.detach(), table.grad))
    for expected, given in zip(*results):
        size = expected.abs().max().item()
        torch.testing.assert_close(given, expected, atol=1e-4 * size, rtol=1e-4)
    words = dict(max_new_tokens=8, do_sample=False, attention_mask=mask, pad_token_id=0)
    assert torch.equal(*(m.generate(ids, **words) for m in (eager, mine)))


def test_windows_need_no_mask(transformers, torch, monkeypatch):
    import onepass.torch

    eager, mine = pair(transformers, "Mistral")
    seen, attention = [], onepass.torch.attention
    monkeypatch.setattr(onepass.torch, "attention", lambda *x, **o: seen.append(o) or attention(*x, **o))
    with torch.no_grad():
        mine(torch.randint(97, (2, 21)))
    assert [x["window"] for x in seen] == [(5, 0)] * 2 and all(x["bool_mask"] is None for x in seen)


def test_the_demo_trains_alike(transformers):
    import pathlib
    import runpy

    demo = pathlib.Path(__file__).resolve().parents[2] / "demo" / "train_transformers.py"
    mine, theirs = runpy.run_path(str(demo))["main"](["--steps", "8", "--device", "cpu"])
    assert max(abs(x - y) for x, y in zip(mine[0], theirs[0])) < 1e-4 and len(mine[1]) == len(theirs[1]) == 12
