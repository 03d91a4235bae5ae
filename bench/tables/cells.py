"""What the tables of measurements are made of: rows of bench/results, peers' names, numbers as text, Markdown."""

import json
import pathlib
import re

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
GPU_PEERS = {"flash-attn-4": "FlashAttention-4", "flash-attn-3": "FlashAttention-3", "torch-cudnn": "cuDNN",
             "torch-flash": "FlashAttention-2", "flash-mla": "FlashMLA"}  # fmt: skip
CPU_PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
# One of the 18 cells of a GPU's suite: sequence, head dim, mask.
CELL = re.compile(r"(?:fwd|bwd) b\d+ h\d+ s(\d+) d(64|128|256) bf16( causal_bottom_right)? layout=bshd cuda(?::\d+)?")


def rows_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def row_of(rows, problem, threads=None, implementation=""):
    """The one row of a problem; threads and the end of the implementation's name tell rows of one problem apart."""
    found = [
        row
        for row in rows
        if row["problem"] == problem
        and (threads is None or row["threads"] == threads)
        and row["implementation"].endswith(implementation)
    ]
    if len(found) != 1:
        raise SystemExit(f"{len(found)} rows of the results are of {problem!r}")
    return found[0]


def markdown(head, lines):
    """A line of Markdown for each, and the one under the head."""
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + [
        "| " + " | ".join(line) + " |" for line in lines
    ]


def three(number):
    """Three significant digits, without an exponent."""
    text = f"{number:#.3g}"
    return f"{float(text):.0f}" if "e+" in text or text.endswith(".") else text


def times(entry):
    """How many times longer a peer took; "-" where it has no such attention."""
    ours = entry.get("times_ours")
    return "-" if ours is None else f"{ours:.{0 if ours >= 10 else 1 if ours >= 1.95 else 2}f}x"


def rate(row, seconds=None):
    return row["flops"] / (seconds or row["median_s"])


def short(problem, suffix=" causal_top_left"):
    """The problem without what all rows of a table have."""
    return problem.removeprefix("fwd ").removeprefix("bwd ").removesuffix(suffix)


def said(row, peers):
    ran = {name: row["peers"][peer] for peer, name in peers.items() if "times_ours" in row["peers"].get(peer, {})}
    return ", ".join(f"{name} {times(entry)}" for name, entry in ran.items())
