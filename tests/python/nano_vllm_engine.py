"""nano-vllm-fork with onepass.flash_attn in the place of flash-attn, beside transformers: the same tokens.

    pip install torch transformers xxhash && pip install --no-deps nano-vllm-fork==20260210
    python3 nano_vllm_engine.py cuda          # or cuda-graphs, or cpu

nano-vllm runs on CUDA alone. On the CPU what it asks of CUDA is replaced, and its Triton kernel, which writes new keys;
its attention is onepass's on both.
"""

import random
import sys
import tempfile
import time

import onepass.flash_attn
import torch
import transformers

SIZES = dict(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=1024,
    max_position_embeddings=2048,
    initializer_range=0.15,
    tie_word_embeddings=False,
    rope_parameters=dict(rope_type="default", rope_theta=1e6),  # nano-vllm's, which reads no other
)
NEW = 16


class Tokens:
    """In the place of a tokenizer: texts are tokens."""

    eos_token_id = -1

    def decode(self, tokens):
        return tokens


def without_cuda():
    """Replaces CUDA where nano-vllm asks for it."""
    torch.compile = lambda function: function
    torch.set_default_device = lambda device: None
    torch.Tensor.cuda = lambda x, non_blocking=False: x
    for name in "set_device", "empty_cache", "reset_peak_memory_stats", "synchronize":
        setattr(torch.cuda, name, lambda *x: None)
    torch.cuda.mem_get_info = lambda: (2**28, 2**28)
    torch.cuda.memory_stats = lambda: {"allocated_bytes.all.current": 0}
    for name in "zeros", "tensor":
        make = getattr(torch, name)
        setattr(torch, name, lambda *x, _make=make, pin_memory=False, **o: _make(*x, **o))
    join = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, *x, **o: join("gloo", *x, **o)

    import nanovllm.layers.attention as attention

    def store(key, value, k_cache, v_cache, slots):
        used = slots >= 0
        k_cache.flatten(0, 1)[slots[used].long()] = key[used]
        v_cache.flatten(0, 1)[slots[used].long()] = value[used]

    attention.store_kvcache = store


def normed(norm, x, residual=None):
    """nano-vllm's RMSNorm overwrites its input if that is float32, which this script compares in."""
    x = x if residual is None else x + residual
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight
    return out if residual is None else (out, x)


def prompts():
    draw = random.Random(0)

    def tokens(n):
        return [draw.randrange(3, 1000) for _ in range(n)]

    shared = tokens(300)  # more than a block of 256, which the second prompt finds in the cache
    return [tokens(64 + 7 * i) for i in range(6)] + [shared + tokens(20), shared + tokens(9)]


def served(folder, device):
    """The tokens of nano-vllm, seconds, and the calls that read keys of another prompt."""
    sys.modules["flash_attn"] = onepass.flash_attn
    if device == "cpu":
        without_cuda()
    import nanovllm.layers.attention as attention
    import nanovllm.models.qwen3 as qwen3
    from nanovllm import LLM, SamplingParams

    qwen3.RMSNorm.forward = normed
    rotary = qwen3.get_rope  # transformers 5 gives a dict where it knows no scaling
    qwen3.get_rope = lambda *x, rope_scaling=None, **o: rotary(*x, rope_scaling=None, **o)
    packed, shared = attention.flash_attn_varlen_func, []

    def counted(*x, **o):
        shared.extend([True] * (o["block_table"] is not None))
        return packed(*x, **o)

    attention.flash_attn_varlen_func = counted
    llm = LLM(folder, tokenizer=Tokens(), enforce_eager=device != "cuda-graphs", max_model_len=1024)
    params = SamplingParams(max_tokens=NEW, ignore_eos=True, top_k=1)
    start = time.perf_counter()
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    return [x["token_ids"] for x in outputs], time.perf_counter() - start, len(shared)


def main(device="cuda"):
    torch.manual_seed(0)
    where = "cpu" if device == "cpu" else "cuda"
    config = transformers.Qwen3Config(**SIZES, eos_token_id=None, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(where).eval()
    greedy = dict(do_sample=False, max_new_tokens=NEW, pad_token_id=0)
    expected = [model.generate(torch.tensor([p], device=where), **greedy)[0, len(p) :].tolist() for p in prompts()]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokens, seconds, shared = served(folder, device)
    same = sum(mine == theirs for mine, theirs in zip(tokens, expected))
    distinct = len({t for row in tokens for t in row})
    print(
        f"{device}: {same} of {len(expected)} prompts have the tokens of eager attention, {distinct} different tokens"
    )
    print(f"{len(expected) * NEW / seconds:.0f} tokens a second, compilation included; {shared} calls shared a prefix")
    return 0 if tokens == expected and shared else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
