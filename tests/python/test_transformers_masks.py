"""onepass.transformers.register(expressions=True): masks as expressions, beside eager attention."""

import pytest
from test_transformers import GROUPED, SIZES, pair

LLAMA4 = GROUPED | dict(attention_chunk_size=8, num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=96)


@pytest.fixture
def seen(torch, monkeypatch):
    """The calls of attention: (a mask_mod, a bool_mask) of each."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    import onepass.torch
    import onepass.transformers

    onepass.transformers.register(expressions=True)
    torch.manual_seed(0)
    calls, attention = [], onepass.torch.attention

    def call(*tensors, **options):
        calls.append((options.get("mask_mod"), options["bool_mask"]))
        return attention(*tensors, **options)

    monkeypatch.setattr(onepass.torch, "attention", call)
    yield calls
    onepass.transformers.register()


@pytest.fixture
def transformers(seen):
    import transformers

    return transformers


def of_expressions(calls):
    """All masks are expressions, and there are some."""
    return any(text for text, _ in calls) and all(mask is None for _, mask in calls)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Phimoe", "GptOss"])
def test_padding_on_either_side_and_caches(transformers, torch, seen, name):
    eager, mine = pair(transformers, name)
    ids = torch.randint(97, (2, 21))
    masks = [torch.ones(2, 21, dtype=torch.long), torch.ones(2, 21, dtype=torch.long)]
    masks[0][1, :5], masks[1][0, 15:] = 0, 0
    with torch.no_grad():
        for mask in masks:
            expected, logits = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (eager, mine))
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        assert of_expressions(seen)
        for cache in (transformers.DynamicCache, lambda config: transformers.StaticCache(config, max_cache_len=30)):
            turns = []
            for model in (eager, mine):
                past = cache(config=model.config)
                turns.append(torch.cat([model(x, past_key_values=past).logits for x in ids.split([12, 1, 8], 1)], 1))
            torch.testing.assert_close(turns[1], turns[0], atol=1e-4, rtol=1e-4)
    assert of_expressions(seen)
    words = dict(max_new_tokens=8, do_sample=False, pad_token_id=0, disable_compile=True, attention_mask=masks[0])
    assert torch.equal(*(m.generate(ids, **words) for m in (eager, mine))) and of_expressions(seen)


def test_packed_sequences_by_position_ids(transformers, torch, seen):
    eager, mine = pair(transformers, "Llama")
    ids = torch.randint(97, (1, 20))
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None]
    with torch.no_grad():
        packed = mine(ids, position_ids=positions, use_cache=False).logits
        apart = torch.cat([eager(ids[:, :8]).logits, eager(ids[:, 8:]).logits], 1)
    torch.testing.assert_close(packed, apart, atol=1e-4, rtol=1e-4)
    assert of_expressions(seen)


def test_chunks_and_training(transformers, torch, seen):
    """Llama 4's chunks, with gradients."""
    config = transformers.Llama4TextConfig(**LLAMA4)
    results = []
    for implementation in ("eager", "onepass"):
        config._attn_implementation = implementation
        torch.manual_seed(0)
        model = transformers.Llama4ForCausalLM(config)
        ids = torch.randint(97, (2, 30), generator=torch.Generator().manual_seed(1))
        loss = model(ids, labels=ids).loss
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((loss.detach(), *gradients))
    for mine, other in zip(*results):
        size = max(1e-3, other.abs().max().item())
        torch.testing.assert_close(mine, other, atol=2e-4 * size, rtol=1e-3)
    assert of_expressions(seen)


def test_windows_to_both_sides(transformers, torch, seen):
    sizes = SIZES | dict(max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2)
    eager, mine = pair(transformers, "ModernBert", "ForMaskedLM", **sizes, cls_token_id=1, sep_token_id=2)
    ids, mask = torch.randint(97, (3, 20)), torch.ones(3, 20, dtype=torch.long)
    mask[1, 11:], mask[2, 3:] = 0, 0
    with torch.no_grad():
        for used in (torch.ones_like(mask), mask):
            expected, logits = (m(ids, attention_mask=used).logits[used.bool()] for m in (eager, mine))
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert of_expressions(seen)


def test_t5_with_its_position_bias(transformers, torch, seen):
    sizes = dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=97, decoder_start_token_id=0)
    eager, mine = pair(transformers, "T5", "ForConditionalGeneration", **sizes)
    ids, mask = torch.randint(97, (2, 15)), torch.ones(2, 15, dtype=torch.long)
    mask[1, 9:] = 0
    words = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.randint(97, (2, 7)))
    with torch.no_grad():
        expected, logits = (m(**words).logits for m in (eager, mine))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert of_expressions(seen)


def test_models_without_block_masks(transformers, torch, seen):
    """transformers does not let GPT-2 have FlexAttention's masks: they are tensors."""
    eager, mine = pair(transformers, "GPT2")
    ids, mask = torch.randint(97, (2, 15)), torch.ones(2, 15, dtype=torch.long)
    mask[1, :6] = 0
    with torch.no_grad():
        expected, logits = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (eager, mine))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert not any(text for text, _ in seen) and any(mask is not None for _, mask in seen)


def test_compiled(transformers, torch, seen):
    torch._dynamo.reset()
    _, mine = pair(transformers, "Llama")
    ids, mask = torch.randint(97, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[1, :5] = 0
    with torch.no_grad():
        expected = mine(ids, attention_mask=mask, use_cache=False).logits
        compiled = torch.compile(mine, backend="aot_eager")(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(compiled[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)
