"""Parts of all tables: rows of bench/results, peers' names, numbers as text, Markdown."""

import json
import pathlib
import re
import statistics

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
GPU_PEERS = {"flash-attn-4": "FlashAttention-4", "flash-attn-3": "FlashAttention-3", "torch-cudnn": "cuDNN",
             "torch-flash": "FlashAttention-2", "flash-mla": "FlashMLA"}  # fmt: skip
CPU_PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
# One of the 18 cells of a GPU's suite: sequence, head dim, mask.
CELL = re.compile(r"(?:fwd|bwd) b\d+ h\d+ s(\d+) d(64|128|256) bf16( causal_bottom_right)? layout=bshd cuda(?::\d+)?")


def rows_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def row_of(rows, problem, threads=None, implementation=""):
    """The one row of a problem with these threads and this end of the implementation's name."""
    found = [
        row
        for row in rows
        if row["problem"] == problem
        and (threads is None or row["threads"] == threads)
        and row["implementation"].endswith(implementation)
    ]
    if len(found) != 1:
        raise SystemExit(f"the results must have one row of {problem!r} (got {len(found)})")
    return found[0]


def markdown(head, lines):
    """The lines of a Markdown table."""
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + [
        "| " + " | ".join(line) + " |" for line in lines
    ]


MEANS = ["geometric mean", "least", "most"]


def means(ratios, text="{:.2f}".format):
    """A line for each name: geometric mean, least and most of its ratios."""
    return [[str(name), *map(text, (statistics.geometric_mean(r), min(r), max(r)))] for name, r in ratios.items()]


def three(number):
    """Three significant digits, without an exponent."""
    text = f"{number:#.3g}"
    return f"{float(text):.0f}" if "e+" in text or text.endswith(".") else text


def times(entry):
    """A peer's time relative to ours; "-" if it does not compute this problem."""
    ours = entry.get("times_ours")
    return "-" if ours is None else f"{ours:.{0 if ours >= 10 else 1 if ours >= 1.95 else 2}f}x"


def rate(row, seconds=None):
    return row["flops"] / (seconds or row["median_s"])


def short(problem, suffix=" causal_top_left"):
    """The problem without the words that all rows of a table share."""
    return problem.removeprefix("fwd ").removeprefix("bwd ").removesuffix(suffix)


def said(row, peers):
    ran = {name: row["peers"][peer] for peer, name in peers.items() if "times_ours" in row["peers"].get(peer, {})}
    return ", ".join(f"{name} {times(entry)}" for name, entry in ran.items())
