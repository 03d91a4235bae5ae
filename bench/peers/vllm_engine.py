"""vLLM's engine with one attention backend: reads cells as lines of JSON, and answers each with tokens and seconds.

python3 -m bench.peers.vllm_engine BACKEND OPTIONS: OPTIONS is JSON with layers, cache_gib, longest, chunk and eager.
The model has the shape of Llama 3 8B and random weights. It is a process of its own, because a process of vLLM's has
one attention backend.
"""

import itertools
import json
import os
import random
import sys
import tempfile
import time

SHAPE = dict(
    hidden_size=4096,
    intermediate_size=14336,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    tie_word_embeddings=False,
)
ENVIRONMENT = dict(
    HF_HUB_OFFLINE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_PLUGINS="",
)


def randomize(model):
    """Values as random as those of a trained model: a GPU is faster on vLLM's own dummies, which are nearly zero."""
    for weights in model.parameters():
        weights.data.fill_(1.0) if weights.dim() == 1 else weights.data.normal_(std=0.02)


def engine_of(backend, options):
    import transformers
    from vllm import LLM

    if backend == "CUSTOM":
        import onepass.vllm

        onepass.vllm.register()
    layers, longest = options["layers"], options["longest"]
    config = transformers.LlamaConfig(
        **SHAPE, num_hidden_layers=layers, max_position_embeddings=longest, dtype="bfloat16", eos_token_id=None
    )
    config.architectures = ["LlamaForCausalLM"]
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            attention_config={"backend": backend},
            max_model_len=longest,
            max_num_seqs=64,
            max_num_batched_tokens=options["chunk"],
            enable_prefix_caching=True,
            gpu_memory_utilization=0.3,
            kv_cache_memory_bytes=int(options["cache_gib"] * 2**30),
            enforce_eager=options["eager"],
            compilation_config={"mode": 0} if options["eager"] else graphs,
            seed=0,
        )
    llm.apply_model(randomize)
    return llm.llm_engine


class Requests:
    """Requests of one engine, which run step by step."""

    def __init__(self, engine):
        self.engine, self.names, self.made = engine, itertools.count(), {}

    def add(self, seed, length, tokens):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        draw, name = random.Random(seed), str(next(self.names))
        prompt = {"prompt_token_ids": draw.choices(range(3, 128000), k=length)}
        how = dict(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, prompt, SamplingParams(**how, output_kind=RequestOutputKind.DELTA))
        self.made[name] = 0
        return name

    def step(self):
        """The number of new tokens."""
        made = {x.request_id: len(x.outputs[0].token_ids) for x in self.engine.step()}
        for name, count in made.items():
            self.made[name] += count
        return sum(made.values())

    def until(self, names, tokens=1):
        """Runs until each of the requests has that many tokens; returns the number of tokens made."""
        made = 0
        while any(self.made[name] < tokens for name in names):
            made += self.step()
        return made

    def stop(self):
        self.engine.abort_request(list(self.made))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        self.made.clear()


def timed(requests, run, prompt_tokens=0):
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    tokens = run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    requests.stop()
    return {"tokens": tokens + prompt_tokens, "seconds": seconds}


def decode(requests, turn, prompts, length, steps):
    """Steps of single tokens; the prompts are the same in each turn, so the prefix cache has them."""
    names = [requests.add(i, length, steps + 8) for i in range(prompts)]
    requests.until(names, 3)
    have = min(requests.made[name] for name in names)
    return timed(requests, lambda: requests.until(names, have + steps))


def prefill(requests, turn, prompts, length):
    """Prompts that no cache has, until each has its first token."""
    names = [requests.add(f"{turn} {i}", length, 1) for i in range(prompts)]
    return timed(requests, lambda: requests.until(names), prompts * length)


def mixed(requests, turn, prompts, length, others, other_length):
    """Single tokens of some requests beside the prompts of others, in the same steps."""
    names = [requests.add(i, length, 4096) for i in range(prompts)]
    requests.until(names, 3)
    late = [requests.add(f"late {turn} {i}", other_length, 1) for i in range(others)]
    return timed(requests, lambda: requests.until(late), others * other_length)


CELLS = {"decode": decode, "prefill": prefill, "mixed": mixed}


def main(backend, options):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints
    os.environ |= ENVIRONMENT | {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    requests = Requests(engine_of(backend, json.loads(options)))
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        cell = json.loads(line)
        print(json.dumps(CELLS[cell.pop("kind")](requests, **cell)), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
