"""Continuous batching of Hugging Face's transformers with onepass, beside its own sdpa.

    python3 -m bench study serving_transformers --threads 1 --json results.json
    python3 -m bench study serving_transformers --device cuda --model 8b --layers 4 --dtype bfloat16 --prompts 64
        --lengths 4096 --tokens 64 --page 256 --pages 1200 --step 4096

A random Llama generates from prompts of nearly equal length: a small one (256 wide, 4 layers, 8 heads on 2, head dim
64), or one of the shape of Llama 3 8B. A turn is one generate_batch; contenders take turns, and the numbers are medians
of the turns: CPU seconds of the process, and seconds by the wall clock. The results say if the tokens are the same.
`onepass` is onepass.transformers.serving, and `kernel` onepass as a kernel of `kernels`.
"""

import contextlib
import dataclasses
import time

from bench.timing import in_turn, medians

NEEDS = ("torch", "transformers", "onepass.transformers")
CONTENDERS = ("onepass", "kernel", "sdpa")
SHAPES = {
    "small": dict(
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=1024,
        initializer_range=0.2,
    ),
    "8b": dict(
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
}


def arguments(parser):
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of PyTorch and onepass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1500], help="tokens of the first prompt")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each prompt")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--page", type=int, default=16, help="tokens of a page")
    parser.add_argument("--pages", type=int, default=2048)
    parser.add_argument("--attention", choices=CONTENDERS, nargs="+", default=["onepass", "sdpa"])
    parser.add_argument("--step", type=int, default=256, help="most tokens of a step")


def model_of(torch, transformers, options):
    config = transformers.LlamaConfig(
        **SHAPES[options.model],
        num_hidden_layers=options.layers,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=getattr(torch, options.dtype)
        )
    return model.eval()


@contextlib.contextmanager
def attention_of(model, name, onepass_transformers):
    if name == "onepass":
        with onepass_transformers.serving(model):
            yield
    else:
        model.set_attn_implementation(onepass_transformers.flash_attn_kernel() if name == "kernel" else name)
        yield
        model.set_attn_implementation("sdpa")


def rows(torch, transformers, onepass_transformers, options):
    torch.set_num_threads(options.threads)
    model = model_of(torch, transformers, options)
    pages = transformers.ContinuousBatchingConfig
    names = {field.name for field in dataclasses.fields(pages)}
    page = {"page_size" if "page_size" in names else "block_size": options.page}  # by version
    words = dict(
        generation_config=transformers.GenerationConfig(
            max_new_tokens=options.tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=pages(
            **page, num_blocks=options.pages, max_batch_tokens=options.step, allow_block_sharing=False
        ),
        progress_bar=False,
    )
    draw = torch.Generator().manual_seed(1)
    for length in options.lengths:
        prompts = [torch.randint(3, 1000, (length + 7 * i,), generator=draw).tolist() for i in range(options.prompts)]
        tokens, wall = {}, {name: [] for name in options.attention}

        def turn(name, prompts=prompts, tokens=tokens, wall=wall):
            begin, cpu = time.perf_counter(), time.process_time()
            with attention_of(model, name, onepass_transformers):
                made = model.generate_batch(prompts, **words)
            wall[name].append(time.perf_counter() - begin)
            cpu = time.process_time() - cpu
            tokens[name] = sorted(list(x.generated_tokens) for x in made.values())
            return [cpu]

        turns = {name: lambda name=name: turn(name) for name in options.attention}
        if options.device == "cuda":  # kernels are compiled in the first turn
            in_turn(turns, 1)
            wall.update((name, []) for name in options.attention)
        cpu = medians(in_turn(turns, options.rounds))
        same = all(made == tokens[options.attention[0]] for made in tokens.values())
        yield {
            "prompts": options.prompts,
            "length": length,
            "tokens": options.tokens,
            "same_tokens": same,
            "cpu_s": cpu,
            "wall_s": medians(wall),
        }


def said(row):
    shown = (f"{name} {row['cpu_s'][name]:.2f} s of CPU, {row['wall_s'][name]:.2f} s in all" for name in row["cpu_s"])
    return (
        f"{row['prompts']} x {row['length']} + {row['tokens']}: {'; '.join(shown)}; same tokens: {row['same_tokens']}"
    )


def document(rows, torch, transformers, onepass_transformers, options):
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    how = {name: getattr(options, name) for name in ("dtype", "threads", "rounds", "model", "layers", "page", "step")}
    return versions | {"device": device} | how | {"rows": rows}


def table(document):
    on_cpu = document.get("device", "cpu") == "cpu"
    kind, key = ("CPU seconds", "cpu_s") if on_cpu else ("seconds", "wall_s")
    first = next(iter(document["rows"][0][key]))
    lines = [f"| prompts + new tokens of each | attention | {kind} | of {first} |", "|---|---|---|---|"]
    for row in document["rows"]:
        what = f"{row['prompts']} x {row['length']} + {row['tokens']}"
        for name, seconds in row[key].items():
            lines.append(f"| {what} | {name} | {seconds:.2f} | {seconds / row[key][first]:.2f} |")
    return "\n".join(lines)
