"""Draws the results of `onepass bench --json` on a GPU as bars.

    plot.py h200.json --out docs/h200.svg

The cells of suites/h200.txt become a panel for each head dim and mask, bars of TFLOP/s over the sequence length and the
matrix product of the same run as a line; any other problems become rows of bars, times the best peer. Needs matplotlib.
"""

import argparse
import json
import re

CELL = re.compile(r"fwd b\d+ h\d+ s(\d+) d(\d+) bf16( causal_bottom_right)? layout=bshd cuda:\d+")
COLOURS = {"onepass": "#c0392b", "torch-cudnn": "#2c6fbb", "torch-flash": "#7f8c8d", "torch-efficient": "#bdc3c7"}
NAMES = {"onepass": "onepass", "torch-cudnn": "cuDNN", "torch-flash": "flash (PyTorch)", "torch-efficient": "efficient"}


def seconds(row):
    """{contender: median seconds} of those that ran."""
    peers = row.get("peers", {})
    timed = {name: entry["median_s"] for name, entry in peers.items() if "median_s" in entry}
    return ({"onepass": row["median_s"]} if "median_s" in row else {}) | timed


def tflops(row, name):
    return 1e-12 * row["flops"] / seconds(row)[name]


def cells(rows):
    """{(dim, causal): [(seq, row)]} if every row is a cell of the 18, else None."""
    found = {}
    for row in rows:
        match = CELL.fullmatch(row["problem"])
        if not match:
            return None
        found.setdefault((int(match[2]), bool(match[3])), []).append((int(match[1]), row))
    return {key: sorted(group, key=lambda pair: pair[0]) for key, group in found.items()}


def label(problem):
    """The problem without what every row of a table repeats; lengths and sizes shortened."""
    text = re.sub(r"^fwd | layout=bshd| cuda:\d+| seed=\d+", "", problem).replace("causal_bottom_right", "causal")
    return re.sub(r"varlen=[\dx,]+", "varlen", re.sub(r"\bs(\d+)000\b", r"s\1k", text))


def draw_cells(plt, found):
    dims, masks = sorted({d for d, _ in found}), sorted({m for _, m in found})
    figure, axes = plt.subplots(
        len(masks), len(dims), figsize=(4 * len(dims), 3 * len(masks)), sharey=True, squeeze=False
    )
    for (dim, causal), group in found.items():
        axis = axes[masks.index(causal)][dims.index(dim)]
        names = [name for name in COLOURS if any(name in seconds(row) for _, row in group)]
        for i, name in enumerate(names):
            at = [x + (i - (len(names) - 1) / 2) * 0.8 / len(names) for x in range(len(group))]
            heights = [tflops(row, name) if name in seconds(row) else 0 for _, row in group]
            bars = axis.bar(at, heights, 0.8 / len(names), color=COLOURS[name], label=NAMES[name])
            if name == "onepass":
                axis.bar_label(bars, [f"{row.get('times_best_peer', 0):.2f}x" for _, row in group], fontsize=8)
        ceiling = group[0][1].get("matmul_flops_per_s", 0)
        if ceiling:
            axis.axhline(1e-12 * ceiling, color="black", linewidth=0.8, linestyle="--", label="matrix product 8192")
        axis.set_xticks(range(len(group)), [f"{seq // 1024}k" for seq, _ in group])
        axis.set_title(f"head dim {dim}, {'causal' if causal else 'full'}", fontsize=10)
    for row in axes:
        row[0].set_ylabel("TFLOP/s")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="upper center", ncols=5)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def draw_rows(plt, rows):
    rows = [row for row in rows if "median_s" in row and len(seconds(row)) > 1]
    figure, axis = plt.subplots(figsize=(9, 0.5 + 0.45 * len(rows)))
    for y, row in enumerate(reversed(rows)):
        names = [name for name in COLOURS if name in seconds(row)]
        best = min(s for name, s in seconds(row).items() if name != "onepass")
        for i, name in enumerate(names):
            speed = best / seconds(row)[name]
            height = 0.8 / len(names)
            at = y - (i - (len(names) - 1) / 2) * height
            axis.barh(at, speed, height, color=COLOURS[name])
            if name == "onepass":
                axis.text(speed + 0.02, at, f"{speed:.2f}", va="center", fontsize=7)
    axis.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(rows)), [label(row["problem"]) for row in reversed(rows)], fontsize=7)
    axis.set_xlabel("speed, times the best peer's")
    shown = [name for name in COLOURS if any(name in seconds(row) for row in rows)]
    axis.legend([plt.Rectangle((0, 0), 1, 1, color=COLOURS[n]) for n in shown], [NAMES[n] for n in shown], fontsize=7)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="JSON of onepass bench")
    parser.add_argument("--out", required=True, help=".svg or .png")
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "onepass"  # the same picture from the same numbers, byte for byte
    from matplotlib import pyplot as plt

    with open(options.results) as file:
        rows = json.load(file)
    found = cells(rows)
    figure = draw_cells(plt, found) if found else draw_rows(plt, rows)
    metadata = {"Date": None} if options.out.endswith(".svg") else None
    figure.savefig(options.out, dpi=150, metadata=metadata, bbox_inches="tight")


if __name__ == "__main__":
    main()
