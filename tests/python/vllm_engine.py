"""Runs vLLM's engine on small random models, and writes the tokens and log probabilities as JSON to its output file.

python vllm_engine.py OUTPUT MODEL[:KIND]...: with ONEPASS_VLLM_CPU=1 in the environment the attention is onepass's. It
is a process of its own, because a process of vLLM's has one attention backend. Its start takes a minute.
"""

import gc
import json
import os
import random
import resource
import sys
import tempfile

DEFAULTS = dict(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="2",
)
os.environ |= DEFAULTS | os.environ

SIZES = dict(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=1024,
    max_position_embeddings=4096,
    initializer_range=0.1,  # larger than usual: with flat logits any attention gives the same tokens
)
WINDOW = dict(sliding_window=64)
MODELS = {"Llama": SIZES, "Mistral": SIZES | WINDOW, "Gemma2": SIZES | WINDOW}
# tokens of each prompt, and new ones
SHORT, LONG = [(64 + 7 * i, 32) for i in range(8)], [(1500 + 7 * i, 32) for i in range(4)]
KINDS = {"": (SHORT, {}), "pages16": (SHORT, dict(block_size=16)), "chunks": (LONG, dict(max_num_batched_tokens=512))}


def run(name, prompts, **options):
    """(tokens, log probabilities of the 5 likeliest tokens, CPU seconds) of the prompts."""
    import torch
    import transformers
    from vllm import LLM, SamplingParams

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name], eos_token_id=None)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=4096,
            enforce_eager=True,
            enable_prefix_caching=False,
            max_num_seqs=32,
            seed=0,
            **options,
        )
    wanted = [
        SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=5)
        for _, new in prompts
    ]
    inputs = [{"prompt_token_ids": [draw.randrange(3, 1000) for _ in range(n)]} for n, _ in prompts]
    llm.generate(inputs[:2], wanted[:2], use_tqdm=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    outputs = [x.outputs[0] for x in llm.generate(inputs, wanted, use_tqdm=False)]
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    tokens = [list(x.token_ids) for x in outputs]
    logprobs = [[{t: p.logprob for t, p in row.items()} for row in x.logprobs] for x in outputs]
    del llm
    gc.collect()  # a GiB of cache each
    return tokens, logprobs, seconds


def main(output, *jobs):
    import vllm.plugins

    vllm.plugins.load_general_plugins()  # finds onepass by its entry point, as a server does
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    results = {}
    for job in jobs:
        name, _, kind = job.partition(":")
        prompts, options = KINDS[kind]
        tokens, logprobs, seconds = run(name, prompts, **options)
        results[job] = dict(tokens=tokens, logprobs=logprobs, seconds=seconds)
    results["backend"] = AttentionBackendEnum.CPU_ATTN.get_path()
    with open(output, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
