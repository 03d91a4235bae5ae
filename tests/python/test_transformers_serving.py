"""Continuous batching with onepass.transformers.serving beside transformers' own, on small random models."""

import types

import pytest

GROUPED = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=97,
    max_position_embeddings=256,
)
# name: (the sizes, the implementation that it is compared with). Only eager attention has softcaps and sinks. Over a
# paged cache it leaves softcaps out, so it generates each prompt alone.
MODELS = {
    "Llama": (GROUPED, "sdpa"),
    "Qwen3": (GROUPED, "sdpa"),
    "Mistral": (GROUPED | dict(sliding_window=6), "sdpa"),
    # Layers with a window and without one take turns.
    "Gemma2": (
        GROUPED
        | dict(sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=16, tie_word_embeddings=False),
        "eager",
    ),
    "GptOss": (GROUPED | dict(sliding_window=6, num_local_experts=2, num_experts_per_tok=1), "eager"),
}


@pytest.fixture
def transformers(torch, monkeypatch):
    """transformers, with a paged cache that is NaN where nothing has been written."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    cache = pytest.importorskip("transformers.generation.continuous_batching.cache").PagedAttentionCache
    if not hasattr(cache, "_infer_read_cache_limit"):
        pytest.skip("transformers is older than 5.23")
    make = cache.__init__

    def poisoned(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.cache_tensor.fill_(255)

    monkeypatch.setattr(cache, "__init__", poisoned)
    return transformers


@pytest.fixture
def calls(torch, monkeypatch):
    """The keywords of the calls of onepass.torch.attention."""
    import onepass.torch

    seen, attention = [], onepass.torch.attention
    monkeypatch.setattr(onepass.torch, "attention", lambda *x, **o: seen.append(o) or attention(*x, **o))
    return seen


def model_of(transformers, torch, name):
    sizes, peer = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    config._attn_implementation = peer
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # scores that are far from flat
        parameter.data.normal_(0, 0.2)
    return model


def prompts_of(torch, lengths):
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (n,), generator=draw).tolist() for n in lengths]


def served(transformers, model, prompts, page_size=16, **more):
    """The tokens and log probabilities of each prompt, in order."""
    words = dict(num_blocks=1024 // page_size, max_batch_tokens=48, return_logprobs=True)
    outputs = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(page_size=page_size, **(words | more)),
        progress_bar=False,
    )
    results = [outputs[name] for name in sorted(outputs, key=lambda name: int(name.split("_")[-1]))]
    assert [(x.error, len(x.generated_tokens)) for x in results] == [(None, 12)] * len(prompts)
    return [x.generated_tokens for x in results], [x.logprobs for x in results]


def alone(transformers, torch, model, prompts):
    """`served` by generate(), one prompt after the other."""
    tokens, logprobs = [], []
    for prompt in prompts:
        words = dict(
            max_new_tokens=12, do_sample=False, pad_token_id=0, return_dict_in_generate=True, output_logits=True
        )
        made = model.generate(torch.tensor([prompt]), **words)
        tokens.append(made.sequences[0, len(prompt) :].tolist())
        logprobs.append([x[0].log_softmax(-1)[token].item() for x, token in zip(made.logits, tokens[-1])])
    return tokens, logprobs


def compare(transformers, torch, model, prompts, **words):
    import onepass.transformers

    peer = model.config._attn_implementation
    if peer == "eager":
        tokens, logprobs = alone(transformers, torch, model, prompts)
    else:
        tokens, logprobs = served(transformers, model, prompts, **words)
    with onepass.transformers.serving(model):
        my_tokens, my_logprobs = served(transformers, model, prompts, **words)
    assert model.config._attn_implementation == peer
    assert my_tokens == tokens
    torch.testing.assert_close(torch.tensor(my_logprobs), torch.tensor(logprobs), atol=3e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_log_probabilities(transformers, torch, calls, name):
    """Chunks of prompts and single tokens in one step; three sequences at most, so that others join as some leave."""
    prompts = prompts_of(torch, [5, 61, 17, 16, 1, 40, 33, 9])
    compare(transformers, torch, model_of(transformers, torch, name), prompts, max_requests_per_batch=3)
    assert any("page_table" in o for o in calls) == (name != "Mistral")  # each of its layers has a window


@pytest.mark.parametrize("page_size", [4, 8, 256])
def test_page_sizes(transformers, torch, page_size):
    compare(
        transformers, torch, model_of(transformers, torch, "Llama"), prompts_of(torch, [30, 7]), page_size=page_size
    )


def test_a_shared_prefix_is_read_from_the_same_pages(transformers, torch, calls):
    prefix, *tails = prompts_of(torch, [32, 3, 5, 9, 4])
    model = model_of(transformers, torch, "Llama")
    compare(transformers, torch, model, [prefix + tail for tail in tails], max_requests_per_batch=2)
    tables = [o["page_table"] for o in calls if "page_table" in o]
    assert any(len(t) == 2 and torch.equal(t[0, :2], t[1, :2]) for t in tables)


def test_maxima_are_those_of_the_whole_texts(transformers, torch):
    import onepass.transformers

    prompts, model = prompts_of(torch, [5, 61, 17]), model_of(transformers, torch, "Gemma2")
    with onepass.transformers.serving(model), onepass.transformers.record_max(model) as found:
        tokens, _ = served(transformers, model, prompts)
    onepass.transformers.register()
    model.config._attn_implementation = "onepass"
    with onepass.transformers.record_max(model) as whole, torch.no_grad():
        for prompt, more in zip(prompts, tokens):
            model(torch.tensor([prompt + more[:-1]]))  # nothing attends to the last token
    assert len(found) == 4 and found.keys() == whole.keys()
    for name in whole:
        torch.testing.assert_close(found[name], whole[name], atol=1e-4, rtol=1e-4)


def test_the_tables_of_a_step_are_made_once(transformers, torch, calls):
    """The four layers of Llama get the same tensors; pages are read in each step but those of whole prompts only."""
    compare(transformers, torch, model_of(transformers, torch, "Llama"), prompts_of(torch, [9, 12]))
    steps = [calls[i : i + 4] for i in range(0, len(calls), 4)]
    assert len(steps) == 12 and all("cu_seqlens_k" in o for o in steps[0])
    for step in steps[1:]:
        assert all(o["page_table"] is step[0]["page_table"] for o in step)
        assert all(o["seqused_k"] is step[0]["seqused_k"] for o in step)
    tables = {id(step[0]["page_table"]) for step in steps[1:]}
    assert len(tables) == 11


@pytest.mark.parametrize("name", ["onepass", "paged|onepass"])
@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])
def test_the_name_alone_serves(transformers, torch, calls, kind, name):
    """Twice, as the first call must leave the model as it was. Flash packages that transformers finds are not taken."""
    import onepass.transformers

    onepass.transformers.register()
    model, prompts = model_of(transformers, torch, kind), prompts_of(torch, [5, 61, 17, 9])
    by_peer = alone(transformers, torch, model, prompts) if kind == "Gemma2" else served(transformers, model, prompts)
    assert not calls
    model.set_attn_implementation(name)
    plain = model(torch.tensor(prompts[:1])).logits
    for _ in range(2):
        tokens, logprobs = served(transformers, model, prompts, auto_switch_to_flash=True)
        assert tokens == by_peer[0] and any("page_table" in o for o in calls)
        torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(by_peer[1]), atol=3e-5, rtol=0)
        assert model.config._attn_implementation == "onepass"  # transformers removes the prefix
        assert torch.equal(model(torch.tensor(prompts[:1])).logits, plain)
        calls.clear()


def test_a_model_made_with_the_name_serves(transformers, torch, calls):
    """Beside a model whose implementation is not onepass, which is served as before."""
    import onepass.transformers

    onepass.transformers.register("mine")
    theirs, prompts = model_of(transformers, torch, "Llama"), prompts_of(torch, [5, 17])
    config = type(theirs.config)(**MODELS["Llama"][0])
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="paged|mine").eval()
    model.load_state_dict(theirs.state_dict())
    tokens = served(transformers, model, prompts)[0]
    made = len(calls)
    assert made and tokens == served(transformers, theirs, prompts)[0] and len(calls) == made


def test_the_implementation_comes_back_after_an_error(transformers, torch):
    import onepass.transformers

    model = model_of(transformers, torch, "Llama")
    with pytest.raises(KeyError), onepass.transformers.serving(model) as inside:
        assert inside is model and model.config._attn_implementation == "onepass_flash"
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_refusals(transformers, torch):
    import onepass.transformers

    attend = onepass.transformers._attend
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(NotImplementedError, match="does not support transformers before 5.23"):
        attend(None, q, q, q, None, cache=object())
    cache = types.SimpleNamespace(layer_to_allocator={})
    with pytest.raises(NotImplementedError, match="does not support transformers' block_table"):
        attend(None, q, q, q, None, cache=cache, block_table=q)
