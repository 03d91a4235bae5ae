"""Tokens per second of vLLM's engine with onepass (CUSTOM), beside vLLM's own attention.

    VLLM_BATCH_INVARIANT=1 python3 -m bench study vllm_speed --only 32768 --json results.json

A Llama of the shape of 8B (4096 wide, 32 heads on 8, head dim 128) has random bf16 weights. Each backend has an engine
in a process of its own on the same GPU, with CUDA graphs of decoding steps. The engines take turns, and the numbers are
medians of the turns: new tokens in a decoding cell, tokens of prompts too in the others.
"""

import json
import os
import statistics
import subprocess
import sys

NEEDS = ("torch", "vllm")

CELLS = {
    "decode 64 x 4096": dict(kind="decode", prompts=64, length=4096, steps=64),
    "decode 8 x 32768": dict(kind="decode", prompts=8, length=32768, steps=64),
    "decode 1 x 32768": dict(kind="decode", prompts=1, length=32768, steps=64),
    "decode 8 x 4096": dict(kind="decode", prompts=8, length=4096, steps=64),
    "prefill 8 x 8192": dict(kind="prefill", prompts=8, length=8192),
    "mixed: 32 x 4096 beside 8 prompts of 4096": dict(
        kind="mixed", prompts=32, length=4096, others=8, other_length=4096
    ),
}


def arguments(parser):
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which must be in a cell's name")
    parser.add_argument("--backends", nargs="+", default=["CUSTOM", "FLASH_ATTN"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cache-gib", type=float, default=38, help="of each engine")
    parser.add_argument("--longest", type=int, default=33024, help="max_model_len")
    parser.add_argument("--chunk", type=int, default=8192, help="max_num_batched_tokens")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")


class Engine:
    def __init__(self, backend, options):
        words = {name: getattr(options, name) for name in ("layers", "cache_gib", "longest", "chunk", "eager")}
        command = [sys.executable, "-m", "bench.peers.vllm_engine", backend, json.dumps(words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, cell):
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def rows(torch, vllm, options):
    engines = {backend: Engine(backend, options) for backend in options.backends}
    for engine in engines.values():
        engine.answer()
    for name, cell in CELLS.items():
        if options.only and not any(word in name for word in options.only):
            continue
        speeds = {backend: [] for backend in engines}
        for turn in range(options.rounds + 1):  # the first one warms up
            order = list(engines.items())
            for backend, engine in order[::-1] if turn % 2 else order:
                made = engine.run(cell | {"turn": turn})
                if turn:
                    speeds[backend].append(made["tokens"] / made["seconds"])
        yield {"cell": name, "tokens_per_s": {b: statistics.median(x) for b, x in speeds.items()}, "turns": speeds}
    for engine in engines.values():
        engine.stop()


def said(row):
    first, *others = row["tokens_per_s"].items()
    shown = [f"{backend} {speed:,.0f} ({first[1] / speed:.3f})" for backend, speed in others]
    return f"{row['cell']}: {first[0]} {first[1]:,.0f} tokens/s, {', '.join(shown)}"


def document(rows, torch, vllm, options):
    invariant = os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1"
    versions = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "vllm": vllm.__version__}
    return versions | {"layers": options.layers, "batch_invariant": invariant, "rows": rows}


def table(document):
    names = list(document["rows"][0]["tokens_per_s"])
    lines = [f"| cell | {' | '.join(names)} | of {names[-1]} |", "|---" * (len(names) + 2) + "|"]
    for row in document["rows"]:
        speeds = row["tokens_per_s"]
        shown = " | ".join(f"{speeds[name]:,.0f}" for name in names)
        lines.append(f"| {row['cell']} | {shown} | {speeds[names[0]] / speeds[names[-1]]:.2f} |")
    return "\n".join(lines)
