"""Draws results of `onepass bench --json` on a GPU as bars, and those of two studies as lines.

    python -m bench plot                          draws docs/images/NAME.svg for every NAME of PICTURES
    python -m bench plot --check                  names the pictures that show other numbers; exit status 1 if any
    python -m bench plot h200.json --out a.svg    draws other results

The 18 cells of a suite become a panel for each head dim and mask: bars of TFLOP/s over the sequence length, and the
matrix product of the same run as a line. Other problems, where there are no cells or with --others, become rows of
bars, relative to the best peer. The study fa1_claim has panels of time, bytes moved and extra memory for each head dim,
and context_parallel has the share of linear by scheme, forward and with the backward.
Drawing needs matplotlib. --check does not: it compares the numbers in the SVG with bench/results.
"""

import hashlib
import json
import pathlib
import re

import bench
from bench.tables.cells import CELL, RESULTS
from bench.tables.gpu import GPT2_MEDIUM

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "docs/images"
PICTURES = {  # name: (results, True for the problems beyond the 18 cells)
    "h200": ("h200", False),
    "h200_backward": ("h200_backward", False),
    "h200_backward_others": ("h200_backward", True),
    "h200_decode": ("h200_decode", False),
    "h200_mla": ("h200_mla", False),
    "fa1": ("fa1", False),
    "context_parallel": ("h200x2_context_parallel", False),
}

COLOURS = {"onepass": "#c0392b", "flash-attn-4": "#f0c27b", "flash-attn-3": "#e59866", "torch-cudnn": "#2c6fbb",
           "torch-flash": "#7f8c8d", "torch-efficient": "#bdc3c7", "flash-mla": "#2c6fbb"}  # fmt: skip
NAMES = {"onepass": "onepass", "flash-attn-4": "FlashAttention-4", "flash-attn-3": "FlashAttention-3",
         "torch-cudnn": "cuDNN", "torch-flash": "flash (PyTorch)", "torch-efficient": "efficient",
         "flash-mla": "FlashMLA"}  # fmt: skip

FA1 = {"onepass": ("onepass", "#c0392b"), "math": ("math, scores in fp32", "#2c6fbb"),
       "math-bf16": ("math, scores in bf16", "#8fb8e0")}  # fmt: skip
FA1_PANELS = (  # title, keys that are added up, unit, key of the model's value
    ("time, ms", ("median_s",), 1e-3, None),
    ("moved to and from HBM, GB", ("read_bytes", "written_bytes"), 1e9, "model_bytes"),
    ("memory beside Q, K, V, O, MB", ("extra_bytes",), 1e6, "model_extra_bytes"),
)

SHARES = {"gather zigzag": ("gather", "#c0392b"), "ring zigzag": ("ring", "#e59866"),
          "ulysses contiguous": ("ulysses", "#7f8c8d"), "gather contiguous": ("gather, contiguous", "#e6b0aa"),
          "torch context_parallel": ("PyTorch", "#2c6fbb")}  # fmt: skip
SHARE_PANELS = "forward", "forward and backward"  # of the row's "share"


def seconds(row):
    """{contender: median seconds} for the contenders that ran."""
    peers = row.get("peers", {})
    timed = {name: entry["median_s"] for name, entry in peers.items() if "median_s" in entry}
    return ({"onepass": row["median_s"]} if "median_s" in row else {}) | timed


def tflops(row, name):
    return 1e-12 * row["flops"] / seconds(row)[name]


def cells(rows):
    """{(dim, causal): [(seq, row)]} of the rows that are cells."""
    found = {}
    for row in rows:
        if match := CELL.fullmatch(row["problem"]):
            found.setdefault((int(match[2]), bool(match[3])), []).append((int(match[1]), row))
    return {key: sorted(group, key=lambda pair: pair[0]) for key, group in found.items()}


def label(problem):
    """The problem without the words that all rows share; lengths and sizes shortened."""
    text = re.sub(r"^(fwd|bwd) | layout=bshd| cuda:\d+| seed=\d+", "", problem).replace("causal_bottom_right", "causal")
    return re.sub(r"varlen=[\dx,]+", "varlen", re.sub(r"\bs(\d+)000\b", r"s\1k", text))


def extent(axis, text):
    """(width, height) of a text in the units of the data."""
    box = axis.transData.inverted().transform(text.get_window_extent())
    return abs(box[1] - box[0])


def beyond(start, length, pad, line):
    """The begin of a label after a bar's end at `start`, where it covers neither the bar nor the line."""
    return (max(start, line) if line < start + length + 2 * pad else start) + pad


def covered(bars, low, high):
    """The largest length of the bars (middle, width, length) that a label between low and high would touch."""
    return max(length for middle, width, length in bars if middle - width / 2 < high and low < middle + width / 2)


def draw_cells(plt, found):
    dims, masks = sorted({d for d, _ in found}), sorted({m for _, m in found})
    figure, axes = plt.subplots(
        len(masks), len(dims), figsize=(4 * len(dims), 3 * len(masks)), sharey=True, squeeze=False
    )
    labels = []  # (axis, middle, text, bars of the group, ceiling), placed when the axes have their size
    for (dim, causal), group in found.items():
        axis = axes[masks.index(causal)][dims.index(dim)]
        ceiling = 1e-12 * group[0][1].get("matmul_flops_per_s", 0)
        bars = {x: [] for x in range(len(group))}
        names = [name for name in COLOURS if any(name in seconds(row) for _, row in group)]
        for i, name in enumerate(names):
            at = [x + (i - (len(names) - 1) / 2) * 0.8 / len(names) for x in range(len(group))]
            heights = [tflops(row, name) if name in seconds(row) else 0 for _, row in group]
            axis.bar(at, heights, 0.8 / len(names), color=COLOURS[name], label=NAMES[name])
            for x, height in enumerate(heights):
                bars[x].append((at[x], 0.8 / len(names), height))
            if name == "onepass":
                labels += [
                    (axis, at[x], f"{row.get('times_best_peer', 0):.2f}x", bars[x], ceiling)
                    for x, (_, row) in enumerate(group)
                ]
        if ceiling:
            axis.axhline(ceiling, color="black", linewidth=0.8, linestyle="--", label="matrix product 8192")
        axis.set_xticks(range(len(group)), [f"{seq // 1024}k" for seq, _ in group])
        axis.set_title(f"head dim {dim}, {'causal' if causal else 'full'}", fontsize=10)
    for row in axes:
        row[0].set_ylabel("TFLOP/s")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="upper center", ncols=5)
    highest = max(max(ceiling, *(height for *_, height in bars)) for *_, bars, ceiling in labels)
    axes[0][0].set_ylim(0, 1.15 * highest)  # room for a label above everything
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    for axis, middle, words, bars, ceiling in labels:
        text = axis.text(middle, 0, words, ha="center", va="bottom", fontsize=8)
        width, height = extent(axis, text)
        pad = 0.15 * height
        text.set_y(beyond(covered(bars, middle - width / 2, middle + width / 2), height, pad, ceiling))
    return figure


def draw_rows(plt, rows):
    rows = [row for row in rows if "median_s" in row and len(seconds(row)) > 1]
    figure, axis = plt.subplots(figsize=(9, 0.5 + 0.45 * len(rows)))
    labels = []  # (middle, speed, bars of the row)
    for y, row in enumerate(reversed(rows)):
        names = [name for name in COLOURS if name in seconds(row)]
        best = min(s for name, s in seconds(row).items() if name != "onepass")
        bars = []
        for i, name in enumerate(names):
            speed = best / seconds(row)[name]
            height = 0.8 / len(names)
            at = y - (i - (len(names) - 1) / 2) * height
            axis.barh(at, speed, height, color=COLOURS[name])
            bars.append((at, height, speed))
            if name == "onepass":
                labels.append((at, speed, bars))
    axis.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(rows)), [label(row["problem"]) for row in reversed(rows)], fontsize=7)
    axis.set_xlabel("speed, times the best peer's")
    shown = [name for name in COLOURS if any(name in seconds(row) for row in rows)]
    axis.legend([plt.Rectangle((0, 0), 1, 1, color=COLOURS[n]) for n in shown], [NAMES[n] for n in shown], fontsize=7,
                loc="upper left", bbox_to_anchor=(1, 1))  # fmt: skip
    axis.set_xlim(0, 1.12 * max([1, *(length for *_, bars in labels for *_, length in bars)]))
    for middle, speed, bars in labels:
        text = axis.text(0, middle, f"{speed:.2f}", va="center", fontsize=7)
        width, height = extent(axis, text)
        text.set_x(beyond(covered(bars, middle - height / 2, middle + height / 2), width, 0.15 * width, 1))
    return figure


def fa1_line(rows, dim, causal, contender, keys, unit):
    """(N, sums of the keys' values) for the rows of one head dim and mask that have all keys."""
    points = []
    for row in rows:
        match, entry = CELL.fullmatch(row["problem"]), row["contenders"][contender]
        if (int(match[2]), bool(match[3])) == (dim, causal) and all(key in entry for key in keys):
            points.append((int(match[1]), sum(entry[key] for key in keys) / unit))
    return tuple(zip(*sorted(points))) or ((), ())


def draw_fa1(plt, rows):
    dims = sorted({int(CELL.fullmatch(row["problem"])[2]) for row in rows})
    figure, axes = plt.subplots(len(dims), len(FA1_PANELS), figsize=(12, 3.2 * len(dims)), squeeze=False, sharex=True)
    for line, dim in zip(axes, dims):
        for axis, (title, keys, unit, expected) in zip(line, FA1_PANELS):
            for name, (label, colour) in FA1.items():
                for causal, style in ((False, "-o"), (True, "--x")):
                    at = fa1_line(rows, dim, causal, name, keys, unit)
                    axis.plot(*at, style, color=colour, markersize=4, label=label + (", causal" if causal else ""))
                if expected:
                    at = fa1_line(rows, dim, False, name, (expected,), unit)
                    axis.plot(*at, ":", color=colour, linewidth=1, label=f"{name}, model")
            ticks = fa1_line(rows, dim, False, "onepass", ("median_s",), 1)[0]
            axis.set(xscale="log", yscale="log", title=f"d {dim}: {title}")
            axis.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks], minor=False)
            axis.set_xticks([], minor=True)
            axis.title.set_fontsize(9)
    figure.legend(*axes[0][1].get_legend_handles_labels(), fontsize=8, loc="upper center", ncols=len(FA1))
    figure.tight_layout(rect=(0, 0, 1, 0.89))
    return figure


def share_line(rows, name, panel):
    """(tokens, shares of linear in percent) of a scheme."""
    points = sorted((row["length"], 100 * row["share"][panel]) for row in rows if row["name"] == name)
    return tuple(zip(*points)) or ((), ())


def draw_shares(plt, rows):
    figure, axes = plt.subplots(1, len(SHARE_PANELS), figsize=(8, 3.2), sharey=True)
    for panel, (axis, title) in enumerate(zip(axes, SHARE_PANELS)):
        for name, (label, colour) in SHARES.items():
            axis.plot(*share_line(rows, name, panel), "-o", color=colour, markersize=4, label=label)
        ticks = sorted({row["length"] for row in rows})
        axis.set(xscale="log", xlabel="tokens", title=title, ylim=(50, 102))
        axis.set_xticks(ticks, [f"{n // 1024}k" for n in ticks], minor=False)
        axis.set_xticks([], minor=True)
        axis.axhline(100, color="black", linewidth=0.8, linestyle="--")
        axis.title.set_fontsize(10)
    axes[0].set_ylabel(f"share of linear on {rows[0]['ranks']} GPUs, %")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="upper center", ncols=len(SHARES))
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure


def shown(rows, others):
    """The rows that a picture shows: the cells if there are any; without cells or with `others` the other rows."""
    if "problem" not in rows[0]:
        return [row for row in rows if row["name"] in SHARES and "share" in row]
    if "contenders" in rows[0]:
        return [row for row in rows if GPT2_MEDIUM not in row["problem"]]
    found = [row for row in rows if CELL.fullmatch(row["problem"])]
    return found if found and not others else [row for row in rows if row not in found]


def digest(rows):
    """A name for the numbers in a picture of these rows."""
    keys = (
        "problem",
        "median_s",
        "flops",
        "matmul_flops_per_s",
        "times_best_peer",
        "contenders",
        "name",
        "length",
        "share",
    )
    numbers = [{key: row[key] for key in keys if key in row} | {"seconds": seconds(row)} for row in rows]
    return "numbers " + hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def draw(rows, others, out):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "onepass"  # equal numbers give equal bytes
    from matplotlib import pyplot as plt

    rows = shown(rows, others)
    if "problem" not in rows[0]:
        figure = draw_shares(plt, rows)
    elif "contenders" in rows[0]:
        figure = draw_fa1(plt, rows)
    else:
        figure = draw_cells(plt, found) if (found := cells(rows)) else draw_rows(plt, rows)
    metadata = {"Date": None, "Description": digest(rows)} if str(out).endswith(".svg") else None
    figure.savefig(out, dpi=150, metadata=metadata, bbox_inches="tight")


def stale(images=IMAGES, results=RESULTS):
    """The pictures that are missing or show other numbers than the results."""
    wrong = []
    for name, (source, others) in PICTURES.items():
        picture, rows = images / f"{name}.svg", json.loads((results / f"{source}.json").read_text())
        if not picture.exists() or f">{digest(shown(rows, others))}<" not in picture.read_text():
            wrong.append(f"{name}.svg differs from bench/results/{source}.json; python3 -m bench plot draws it")
    return wrong


def main(argv):
    parser = bench.parser("plot", __doc__)
    parser.add_argument(
        "results", nargs="?", help="JSON of onepass bench, or of the study fa1_claim or context_parallel"
    )
    parser.add_argument("--others", action="store_true", help="the problems beyond the 18 cells")
    parser.add_argument("--out", help=".svg or .png")
    parser.add_argument("--check", action="store_true", help="draw nothing; fail if a picture is stale")
    options = parser.parse_args(argv)
    if options.check:
        print("\n".join([*(wrong := stale()), f"{len(PICTURES)} pictures, {len(wrong)} wrong"]))
        return bool(wrong)
    if bool(options.results) != bool(options.out):
        parser.error("results and --out must be given together")
    if options.results:
        draw(json.loads(pathlib.Path(options.results).read_text()), options.others, options.out)
        return 0
    for name, (source, others) in PICTURES.items():
        draw(json.loads((RESULTS / f"{source}.json").read_text()), others, IMAGES / f"{name}.svg")
    return 0
