"""Continuous batching of Hugging Face's transformers with onepass.transformers.serving, beside its own sdpa.

    python3 -m bench study serving_transformers --threads 1 --json results.json

A small random Llama (256 wide, 4 layers, 8 heads on 2, head dim 64) on the CPU generates from prompts of nearly equal
length. A turn is one generate_batch; contenders take turns, and the numbers are medians of the turns: CPU seconds of
the process, and seconds by the wall clock. The results say if the tokens are the same.
"""

import contextlib
import time

from bench.timing import in_turn, medians

NEEDS, CUDA = ("torch", "transformers", "onepass.transformers"), False
CONTENDERS = ("onepass", "sdpa")


def arguments(parser):
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of PyTorch and onepass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1500], help="tokens of the first prompt")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each prompt")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")


def model_of(torch, transformers, dtype):
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=1024,
        initializer_range=0.2,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype).eval()


def rows(torch, transformers, onepass_transformers, options):
    torch.set_num_threads(options.threads)
    model = model_of(torch, transformers, getattr(torch, options.dtype))
    words = dict(
        generation_config=transformers.GenerationConfig(
            max_new_tokens=options.tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            page_size=16, num_blocks=2048, max_batch_tokens=256, allow_block_sharing=False
        ),
        progress_bar=False,
    )
    draw = torch.Generator().manual_seed(1)
    for length in options.lengths:
        prompts = [torch.randint(3, 1000, (length + 7 * i,), generator=draw).tolist() for i in range(options.prompts)]
        tokens, wall = {}, {name: [] for name in CONTENDERS}

        def turn(name, prompts=prompts, tokens=tokens, wall=wall):
            context = onepass_transformers.serving(model) if name == "onepass" else contextlib.nullcontext()
            begin, cpu = time.perf_counter(), time.process_time()
            with context:
                made = model.generate_batch(prompts, **words)
            wall[name].append(time.perf_counter() - begin)
            cpu = time.process_time() - cpu
            tokens[name] = sorted(list(x.generated_tokens) for x in made.values())
            return [cpu]

        cpu = medians(in_turn({name: lambda name=name: turn(name) for name in CONTENDERS}, options.rounds))
        same = tokens["onepass"] == tokens["sdpa"]
        yield {
            "prompts": options.prompts,
            "length": length,
            "tokens": options.tokens,
            "same_tokens": same,
            "cpu_s": cpu,
            "wall_s": medians(wall),
        }


def said(row):
    shown = (f"{name} {row['cpu_s'][name]:.2f} s of CPU, {row['wall_s'][name]:.2f} s in all" for name in CONTENDERS)
    return (
        f"{row['prompts']} x {row['length']} + {row['tokens']}: {'; '.join(shown)}; same tokens: {row['same_tokens']}"
    )


def document(rows, torch, transformers, onepass_transformers, options):
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return versions | {"dtype": options.dtype, "threads": options.threads, "rounds": options.rounds, "rows": rows}


def table(document):
    lines = ["| prompts + new tokens of each | attention | CPU seconds | of onepass |", "|---|---|---|---|"]
    for row in document["rows"]:
        what = f"{row['prompts']} x {row['length']} + {row['tokens']}"
        for name, seconds in row["cpu_s"].items():
            lines.append(f"| {what} | {name} | {seconds:.2f} | {seconds / row['cpu_s']['onepass']:.2f} |")
    return "\n".join(lines)
