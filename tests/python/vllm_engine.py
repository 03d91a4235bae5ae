"""Runs vLLM's engine on small random models, and writes the tokens and log probabilities as JSON to its output file.

python vllm_engine.py OUTPUT BACKEND MODEL[:KIND]...: BACKEND is vLLM's name of the attention on CUDA, or transformers,
whose own engine then says the same in float32. On the CPU it is CPU_ATTN, and with ONEPASS_VLLM_CPU=1 in the
environment the attention is onepass's. It is a process of its own, because a process of vLLM's has one attention
backend. Its start takes a minute.
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
    VLLM_USE_FLASHINFER_SAMPLER="0",
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
EAGER = dict(enforce_eager=True)
GRAPHS = dict(mode=0, cudagraph_mode="FULL_DECODE_ONLY", cudagraph_capture_sizes=[1, 2, 4, 8])
KINDS = {
    "": (SHORT, EAGER),
    "pages16": (SHORT, EAGER | dict(block_size=16)),
    "chunks": (LONG, EAGER | dict(max_num_batched_tokens=512)),
    "graphs": (SHORT, dict(compilation_config=GRAPHS)),
    "graphs-chunks": (LONG, dict(compilation_config=GRAPHS, max_num_batched_tokens=512)),
    "bf16": (SHORT, dict(compilation_config=GRAPHS, dtype="bfloat16")),
    "bf16-chunks": (LONG, EAGER | dict(max_num_batched_tokens=512, dtype="bfloat16")),
}


def on_cuda(backend):
    """The options of an engine on a GPU, which other programs may use too."""
    return dict(gpu_memory_utilization=0.1, kv_cache_memory_bytes=2**30, attention_config=dict(backend=backend))


def model_of(name):
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name], eos_token_id=None)
    config._attn_implementation = "eager"  # Gemma 2's softcap needs it
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def inputs_of(prompts):
    draw = random.Random(0)
    return [[draw.randrange(3, 1000) for _ in range(n)] for n, _ in prompts]


def run(name, prompts, alone, **options):
    """Tokens, log probabilities of the 5 likeliest and CPU seconds of the prompts together; alone: one by one too."""
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        model_of(name).save_pretrained(folder)
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            max_model_len=4096,
            enable_prefix_caching=False,
            max_num_seqs=32,
            seed=0,
            **dict(dtype="float32") | options,
        )
    wanted = [
        SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=5)
        for _, new in prompts
    ]
    inputs = [{"prompt_token_ids": tokens} for tokens in inputs_of(prompts)]
    llm.generate(inputs[:2], wanted[:2], use_tqdm=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    outputs = [x.outputs[0] for x in llm.generate(inputs, wanted, use_tqdm=False)]
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    result = said(outputs) | dict(seconds=seconds)
    if alone:
        result["alone"] = said(llm.generate(x, y, use_tqdm=False)[0].outputs[0] for x, y in zip(inputs, wanted))
    del llm
    gc.collect()  # a GiB of cache each
    return result


def by_transformers(name, prompts):
    import torch

    model, result = model_of(name).cuda().eval(), dict(tokens=[], logprobs=[], seconds=0.0)
    how = dict(do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
    for tokens, (_, new) in zip(inputs_of(prompts), prompts):
        made = model.generate(torch.tensor([tokens]).cuda(), max_new_tokens=new, **how)
        top = torch.cat(made.logits).float().log_softmax(-1).topk(5)
        result["tokens"].append(made.sequences[0, len(tokens) :].tolist())
        result["logprobs"].append([dict(zip(*row)) for row in zip(top.indices.tolist(), top.values.tolist())])
    return result


def said(outputs):
    outputs = list(outputs)
    logprobs = [[{t: p.logprob for t, p in row.items()} for row in x.logprobs] for x in outputs]
    return dict(tokens=[list(x.token_ids) for x in outputs], logprobs=logprobs)


def main(output, backend, *jobs):
    results = {}
    if backend != "transformers":
        import vllm.plugins

        vllm.plugins.load_general_plugins()  # finds onepass by its entry point, as a server does
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        results["backend"] = AttentionBackendEnum[backend].get_path()
    for job in jobs:
        name, _, kind = job.partition(":")
        prompts, options = KINDS[kind]
        if backend == "transformers":
            results[job] = by_transformers(name, prompts)
            continue
        if backend != "CPU_ATTN":
            options = on_cuda(backend) | options
        results[job] = run(name, prompts, os.environ.get("VLLM_BATCH_INVARIANT") == "1", **options)
    with open(output, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
