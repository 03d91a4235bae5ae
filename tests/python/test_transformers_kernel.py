"""onepass as a kernel of Hugging Face's kernels: alone, and in transformers beside its own attention."""

import os

import pytest
from test_transformers_serving import alone, model_of, prompts_of, served


@pytest.fixture
def name(torch, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("LOCAL_KERNELS", "some/other=folder")
    import onepass.transformers

    return onepass.transformers.flash_attn_kernel()


@pytest.fixture
def transformers(name):
    transformers = pytest.importorskip("transformers")
    if not transformers.utils.is_kernels_available():
        pytest.skip("kernels is not installed in a version that transformers takes")
    if "page_size" not in transformers.ContinuousBatchingConfig.__dataclass_fields__:
        pytest.skip("transformers is older than 5.22")
    return transformers


def test_the_entry_of_the_environment(name):
    import onepass.transformers

    first, second = os.environ["LOCAL_KERNELS"].split(":")
    assert first == "some/other=folder" and second.startswith("onepass/flash-attn2=/")
    assert onepass.transformers.flash_attn_kernel() == name
    assert os.environ["LOCAL_KERNELS"] == f"{first}:{second}"
    assert onepass.transformers.flash_attn_kernel("kernels-community/flash-attn2") == "kernels-community/flash-attn2"
    assert len(os.environ["LOCAL_KERNELS"].split(":")) == 3
    for wrong in (3, None, "", "flash-attn2", "a/b/c", "a/b=c", "a/b:c"):
        with pytest.raises(ValueError, match="name must be OWNER/KERNEL"):
            onepass.transformers.flash_attn_kernel(wrong)


def test_kernels_loads_it(name):
    kernels = pytest.importorskip("kernels", reason="kernels is not installed")
    import onepass.flash_attn

    kernel = kernels.get_kernel(name, version=1)
    for function in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
        assert getattr(kernel, function) is getattr(onepass.flash_attn, function)


@pytest.mark.parametrize("model_name", ["Llama", "Qwen3", "Mistral", "Gemma2"])
def test_continuous_batching(transformers, torch, name, model_name):
    model = model_of(transformers, torch, model_name)
    prompts = prompts_of(torch, [5, 61, 17, 16, 1, 40])
    if model.config._attn_implementation == "eager":
        tokens, logprobs = alone(transformers, torch, model, prompts)
    else:
        tokens, logprobs = served(transformers, model, prompts)
    model.set_attn_implementation(name)
    my_tokens, my_logprobs = served(transformers, model, prompts, max_requests_per_batch=3)
    assert my_tokens == tokens
    torch.testing.assert_close(torch.tensor(my_logprobs), torch.tensor(logprobs), atol=3e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_gradients(transformers, torch, name, side):
    """The logits of the real tokens and the gradients of their sum of squares."""
    model = model_of(transformers, torch, "Gemma2").train()
    ids = torch.tensor(prompts_of(torch, [24, 24]))
    seen = torch.ones_like(ids)
    seen[0, slice(0, 9) if side == "left" else slice(15, 24)] = 0
    results = []
    for implementation in ("eager", name):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        logits = model(ids, attention_mask=seen).logits[seen.bool()]
        logits.square().mean().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
    for mine, theirs in zip(*results[::-1]):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_sinks(transformers, torch, name):
    """gpt-oss takes few names, and transformers leaves sinks out, without a word, where a function lacks s_aux."""
    import onepass.transformers

    model = model_of(transformers, torch, "GptOss")
    prompts = prompts_of(torch, [24, 5, 24])
    tokens, logprobs = alone(transformers, torch, model, prompts)
    model.set_attn_implementation(onepass.transformers.flash_attn_kernel("kernels-community/vllm-flash-attn3"))
    my_tokens, my_logprobs = served(transformers, model, prompts)
    assert my_tokens == tokens
    torch.testing.assert_close(torch.tensor(my_logprobs), torch.tensor(logprobs), atol=3e-5, rtol=0)
    ids = torch.tensor(prompts_of(torch, [24, 24]))
    with torch.no_grad():
        mine = model(ids).logits
        model.set_attn_implementation("eager")
        torch.testing.assert_close(mine, model(ids).logits, atol=1e-5, rtol=1e-4)
