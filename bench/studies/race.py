"""Two builds of onepass, in turn: the speed of the new one beside the old one, and a verdict for each cell.

    ./dev race OLD NEW [ARGS]                                       builds two commits and runs this study on them
    python3 -m bench study race OLD/onepass NEW/onepass [ARGS]      the same with two command-line tools

A round runs a group of cells by one tool and then by the other; every second round begins with the other tool. A cell's
number is the median over the rounds of old time / new time within a round, so slow drifts of a machine cancel. A cell
fails below --least, and only if at least three quarters of its rounds are below 1. The exit status is 1 if a cell
fails. Without --suite, the cells are those of the machine at hand: forward, backward, decoding, mixed steps and
FP8 on a GPU, the forward and the backward on a CPU.
"""

import itertools
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

NEEDS, CUDA = (), False
SUITES = pathlib.Path(__file__).resolve().parents[1] / "suites"
ON_GPU = (
    "h200",
    "h200_backward",
    "h200_decode",
    "h200_paged",
    "h200_mixed",
    "h200_fp8",
    "h200_fp8_cache",
    "h200_mla",
)
ON_CPU = "cpu", "cpu_backward"


def arguments(parser):
    parser.add_argument("old", nargs="?", help="the onepass tool of the old commit")
    parser.add_argument("new", nargs="?", help="that of the new commit")
    parser.add_argument("--suite", action="append", help="a file, or a name in bench/suites; may be repeated")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, help="of a cell in a round; default: that of onepass bench")
    parser.add_argument("--pause", type=float, help="before each cell, on a GPU; default: that of onepass bench")
    parser.add_argument("--group", type=int, default=6, help="cells that one process measures in a round")
    parser.add_argument("--least", type=float, default=0.99, help="old time / new time that a cell must reach")


def has_gpu():
    return pathlib.Path("/dev/nvidiactl").exists()


def lines_of(suite):
    """The cells of a suite, without its comments."""
    path = SUITES / f"{suite}.txt"
    text = (path if path.exists() else pathlib.Path(suite)).read_text()
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def measured(tool, lines, options):
    """A row of `onepass bench` for each line."""
    with tempfile.TemporaryDirectory() as folder:
        suite, result = pathlib.Path(folder, "suite.txt"), pathlib.Path(folder, "rows.json")
        suite.write_text("\n".join(lines) + "\n")
        words = [tool, "bench", "--suite", str(suite), "--json", str(result), "--rounds", "1"]
        for name in ("seconds", "pause"):
            if getattr(options, name) is not None:
                words += [f"--{name}", str(getattr(options, name))]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{tool} failed: {done.stderr.strip()[-500:]}")
        return json.loads(result.read_text())


def in_rounds(lines, options):
    """[(old rows, new rows)] of each round."""
    rounds = []
    for number in range(options.rounds):
        order = [options.old, options.new] if number % 2 == 0 else [options.new, options.old]
        by_tool = {tool: measured(tool, lines, options) for tool in order}
        rounds.append((by_tool[options.old], by_tool[options.new]))
    return rounds


def row_of(rounds, cell, options):
    olds, news = [old[cell] for old, _ in rounds], [new[cell] for _, new in rounds]
    row = {"problem": news[0]["problem"], "threads": news[0].get("threads")}
    if not all("median_s" in entry for entry in olds + news):
        refused = next((entry.get("refused") for entry in news + olds if "median_s" not in entry), None)
        return row | {"refused": refused or "was not measured"}
    ratios = [old["median_s"] / new["median_s"] for old, new in zip(olds, news)]
    ratio = statistics.median(ratios)
    slower = sum(r < 1 for r in ratios) >= 0.75 * len(ratios)
    return row | {
        "implementation": [olds[0]["implementation"], news[0]["implementation"]],
        "old_s": statistics.median(old["median_s"] for old in olds),
        "new_s": statistics.median(new["median_s"] for new in news),
        "ratio": ratio,
        "ratios": ratios,
        "passed": not (ratio < options.least and slower),
    }


def rows(options):
    if not (options.old and options.new) or options.old == options.new:
        raise SystemExit("race needs two tools, OLD and NEW, that differ")
    suites = options.suite or (ON_GPU if has_gpu() else ON_CPU)
    lines = list(dict.fromkeys(itertools.chain.from_iterable(map(lines_of, suites))))
    for first in range(0, len(lines), options.group):
        group = lines[first : first + options.group]
        rounds = in_rounds(group, options)
        yield from (row_of(rounds, cell, options) for cell in range(len(group)))


def failures(rows):
    return [row for row in rows if not row.get("passed", True)]


def said(row):
    name = row["problem"] + (f" ({row['threads']} threads)" if row.get("threads") else "")
    if "ratio" not in row:
        return f"{name}: {row['refused']}"
    spread = f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}"
    return f"{row['ratio']:.3f} ({spread}) {'' if row['passed'] else 'SLOWER '}{name}"


def table(rows):
    timed = [row for row in rows if "ratio" in row]
    if not timed:
        return "no cell was timed by both"
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in timed))
    least = min(row["ratio"] for row in timed)
    text = [f"{len(timed)} cells, old time over new: mean {mean:.3f}, least {least:.3f}"]
    return "\n".join(text + ([said(row) for row in failures(timed)] or ["no cell is slower"]))


def status(rows):
    return 1 if failures(rows) else 0
