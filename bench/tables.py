"""Writes the tables of measurements in README.md, docs and src from bench/results/*.json.

    tables.py [FILES]            writes what stands between `<!-- table: NAME -->` and `<!-- end -->` anew
    tables.py --check [FILES]    only says where it would differ; exit status 1 if anywhere

NAME is a key of TABLES below. Without FILES: every Markdown file of the repository that holds such a mark.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)

H200_CELL = "{op} b{batch} h{heads} s{seq} d{dim} bf16{mask} layout=bshd cuda:0"
LENGTHS = {"1k": 1024, "4k": 4096, "16k": 16384}
MASKS = {"": "", " causal": " causal_bottom_right"}
GPU_PEERS = {"flash-attn-4": "FlashAttention-4", "flash-attn-3": "FlashAttention-3", "torch-cudnn": "cuDNN",
             "torch-flash": "FlashAttention-2", "flash-mla": "FlashMLA"}  # fmt: skip
CPU_PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
# One of the 18 cells of a GPU's suite: sequence, head dim, mask.
CELL = re.compile(r"(?:fwd|bwd) b\d+ h\d+ s(\d+) d(64|128|256) bf16( causal_bottom_right)? layout=bshd cuda(?::\d+)?")
GRADIENTS = "dq", "dk", "dv"
GPT2_MEDIUM = "b64 h16 s1024 d64"  # its attention, as the first figure of FlashAttention-1's paper has it


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


# ------------------------------------------------------------------------------------------------------- one H200


def h200_cell(rows, dim, mask, seq, op="fwd"):
    heads = 2048 // dim
    return row_of(rows, H200_CELL.format(op=op, batch=16384 // seq, heads=heads, seq=seq, dim=dim, mask=MASKS[mask]))


def h200(name="h200", op="fwd", peers=("flash-attn-3", "torch-cudnn")):
    """TFLOP/s, and the best two peers' of the same run, over lengths."""
    rows, lines = rows_of(name), []
    for dim in (64, 128, 256):
        for mask in MASKS:
            line = [f"d{dim}{mask or ' full'}"]
            for seq in LENGTHS.values():
                row = h200_cell(rows, dim, mask, seq, op)
                speeds = [rate(row)] + [rate(row, row["peers"][peer]["median_s"]) for peer in peers]
                line.append(" / ".join(f"{1e-12 * s:.0f}" for s in speeds) + f" ({speeds[0] / max(speeds[1:]):.2f})")
            lines.append(line)
    return markdown(["", *LENGTHS], lines)


def h200_means(name="h200"):
    """Geometric means of the 18 cells."""
    rows = [row for row in rows_of(name) if CELL.fullmatch(row["problem"])]
    raced = {peer: named for peer, named in GPU_PEERS.items() if peer in rows[0]["peers"]}
    ratios = {named: [row["peers"][peer]["times_ours"] for row in rows] for peer, named in raced.items()}
    ratios["the best of them"] = [row["times_best_peer"] for row in rows]
    ceiling = [rate(row) / row["matmul_flops_per_s"] for row in rows]
    lines = [
        [name, f"{statistics.geometric_mean(r):.2f}", f"{min(r):.2f}", f"{max(r):.2f}"] for name, r in ratios.items()
    ]
    product = rows[0]["matmul_flops_per_s"]
    lines.append(
        [f"share of the matrix product ({1e-12 * product:.0f} TFLOP/s)"]
        + [f"{100 * x:.0f} %" for x in (statistics.geometric_mean(ceiling), min(ceiling), max(ceiling))]
    )
    return markdown(["onepass over", "geometric mean", "least", "most"], lines)


def h200_backward():
    """Beside the newest peers of the run."""
    raced = [peer for peer in GPU_PEERS if peer in rows_of("h200_backward")[0]["peers"]]
    return h200("h200_backward", "bwd", [peer for peer in raced if peer != "flash-attn-3"][:2])


def h200_backward_others():
    """What is no cell of the suite's 18: features, other head dims, fp32, packed sequences."""
    names, lines = GPU_PEERS | {"torch-efficient": "efficient"}, []
    names = {peer: name for peer, name in names.items() if peer in rows_of("h200_backward")[0]["peers"]}
    for row in rows_of("h200_backward"):
        if CELL.fullmatch(row["problem"]):
            continue
        problem = short(row["problem"]).removesuffix(" cuda:0").replace(" layout=bshd", "")
        peers = [times(row["peers"][peer]) for peer in names]
        lines.append([f"`{problem}`", three(1e3 * row["median_s"]), f"{1e-12 * rate(row):.0f}", *peers])
    return markdown(["problem", "ms", "TFLOP/s", *names.values()], lines)


def h200_backward_race():
    """How many times longer the newest peers took, problem by problem."""
    names = {peer: name for peer, name in GPU_PEERS.items() if peer in rows_of("h200_backward_race")[0]["peers"]}
    lines = []
    for row in rows_of("h200_backward_race"):
        problem = row["problem"].removeprefix("bwd ").removesuffix(" layout=bshd cuda:0")
        peers = [times(row["peers"][peer]) for peer in names]
        lines.append([f"`{problem}`", three(1e3 * row["median_s"]), f"{1e-12 * rate(row):.0f}", *peers])
    return markdown(["problem", "ms", "TFLOP/s", *names.values()], lines)


def h200_keys(name, *peers):
    """Microseconds, TFLOP/s, and the GB/s of the keys and values that are read."""
    lines = []
    for row in rows_of(name):
        bytes_read = "-" if "window" in row["problem"] else f"{1e-9 * row['kv_bytes'] / row['median_s']:.0f}"
        line = [f"`{short(row['problem'], ' cuda:0')}`", three(1e6 * row["median_s"]), f"{1e-12 * rate(row):.0f}"]
        lines.append([*line, bytes_read, *(times(row.get("peers", {}).get(peer, {})) for peer in peers)])
    return markdown(["problem", "us", "TFLOP/s", "GB/s", *(GPU_PEERS[peer] for peer in peers)], lines)


def errors_table(rows):
    """Of errors.py: thousandths of each gradient's norm, every contender's."""
    lines = []
    for row in rows:
        cell = CELL.fullmatch(row["problem"])
        title = f"d{cell[2]} {'causal' if cell[3] else 'full'}, {int(cell[1]) // 1024}k"
        entries = row["contenders"].values()
        lines.append([title, *(" / ".join(f"{1e3 * e[which]['rms']:.2f}" for e in entries) for which in GRADIENTS)])
    return "\n".join(markdown([" / ".join(rows[0]["contenders"]), *GRADIENTS], lines))


def cascade():
    """Microseconds of a step of all continuations (cascade.py)."""
    lines = []
    for cell in rows_of("cascade"):
        us = {name: 1e3 * ms for name, ms in cell["milliseconds"].items()}
        cut = [us[name] for name in us if name.startswith("cascade_")]
        lines.append([str(cell["prefix"]), str(cell["continuations"]), three(us["pages"]), three(us["copies"])])
        lines[-1] += [*map(three, cut), f"{us['pages'] / min(cut):.1f}x"]
    parts = [f"prompt in {name.removeprefix('cascade_')}" for name in us if name.startswith("cascade_")]
    return markdown(["prompt", "continuations", "each by itself, shared pages", "copies", *parts, "gain"], lines)


def xeon_backward():
    """Of the peak of one core: that of all wanders by a fifth on a shared host."""
    rows, lines = rows_of("xeon16_backward"), []
    for row in rows:
        share = rate(row) / peaks(rows)[row["threads"], row["implementation"].rpartition(".")[2]]
        peak = f"{100 * share:.0f} %" if " fp32" in row["problem"] and row["threads"] == 1 else "-"
        cells = [str(row["threads"]), three(1e3 * row["median_s"]), f"{1e-9 * rate(row):.0f}", peak]
        lines.append([f"`{short(row['problem'], '')}`", *cells, times(row["peers"]["torch"])])
    return markdown(["problem", "threads", "ms", "GFLOP/s", "of the FMA peak", "PyTorch"], lines)


# ----------------------------------------------------------------------------------------------------------- CPUs


def peaks(rows):
    """{(threads, instruction set): median FMA peak}: the peaks sampled beside single rows wander."""
    groups = {}
    for row in rows:
        isa = row["implementation"].rpartition(".")[2]
        groups.setdefault((row["threads"], isa), []).append(row["fma_peak_flops_per_s"])
    return {key: statistics.median(samples) for key, samples in groups.items()}


def short(problem, suffix=" causal_top_left"):
    """The problem without what all rows of a table have."""
    return problem.removeprefix("fwd ").removeprefix("bwd ").removesuffix(suffix)


def cpu_rows(name, chosen, share_of_peak):
    """A line for each problem, its causal twin's numbers behind a comma."""
    rows = rows_of(name)
    peak, lines = peaks(rows), {}
    for row in filter(chosen, rows):
        isa = row["implementation"].rpartition(".")[2]
        cells = [three(1e3 * row["median_s"]), f"{1e-9 * rate(row):.0f}"]
        if share_of_peak:
            cells.append(f"{100 * rate(row) / peak[row['threads'], isa]:.0f} %")
        cells += [times(row["peers"][peer]) for peer in CPU_PEERS]
        title = f"`{short(row['problem'])}`" + " AVX2" * (isa == "avx2")
        lines.setdefault((title, str(row["threads"])), []).append(cells)
    head = ["problem; causal", "threads", "ms", "GFLOP/s"] + ["of the peak"] * share_of_peak + list(CPU_PEERS.values())
    joined = [
        [*key, *(both[0] if len(set(both)) == 1 and both[0] == "-" else ", ".join(both) for both in zip(*pair))]
        for key, pair in lines.items()
    ]
    return markdown(head, joined)


def of_family(family):
    return lambda row: row["implementation"].startswith(f"cpu.{family}")


def one_head_or_far_apart(row):
    """cpu.flash on one head, on two threads, or on rows that are pages apart."""
    heads, threads, bshd = re.search(r" h(\d+)", row["problem"])[1], row["threads"], "bshd" in row["problem"]
    return of_family("flash")(row) and (heads == "1" or threads > 1 or bshd)


def decode_rows(name):
    """K and V read per second, beside a loop that only reads."""
    lines = []
    for row in filter(of_family("decode"), rows_of(name)):
        speed, loop = row["kv_bytes"] / row["median_s"], row["read_bytes_per_s"]
        line = [f"`{short(row['problem'])}`", str(row["threads"]), three(1e3 * row["median_s"])]
        line += [f"{1e-9 * speed:.0f}", f"{1e-9 * loop:.0f}", f"{100 * speed / loop:.0f} %"]
        lines.append(line + [times(row["peers"][peer]) for peer in CPU_PEERS])
    return markdown(["problem", "threads", "ms", "GB/s", "read loop", "share", *CPU_PEERS.values()], lines)


def headline():
    gpu, zen, xeon = rows_of("h200"), rows_of("zen5"), rows_of("xeon16")
    lines = []
    for dim in (64, 128, 256):
        for mask in MASKS:
            row = h200_cell(gpu, dim, mask, 4096)
            ours = f"{1e-12 * rate(row):.0f} TFLOP/s"
            lines.append(["H200", f"bf16 d{dim}, 4k{mask}", ours, said(row, GPU_PEERS)])
    for mask in MASKS:
        row = h200_cell(rows_of("h200_backward"), 128, mask, 4096, "bwd")
        ours = f"{1e-12 * rate(row):.0f} TFLOP/s"
        lines.append(["H200", f"gradients, bf16 d128, 4k{mask}", ours, said(row, GPU_PEERS)])
    for problem, what in (
        ("fwd b1 h1 s4096 d128 fp32", "fp32 d128, 4k"),
        ("fwd b1 h1 s4096 d128 fp32 causal_top_left", "fp32 d128, 4k causal"),
        ("fwd b1 h32/8 s1x8192 d128 bf16", "bf16 d128, decoding, 8k keys"),
    ):
        row = row_of(zen, problem, 1, "avx512")
        lines.append(["Zen 5, 1 core", what, cpu_speed(row), said(row, CPU_PEERS)])
    for problem, what in (
        ("fwd b1 h16 s4096 d128 bf16", "bf16 d128, 4k"),
        ("fwd b1 h16 s4096 d128 fp32", "fp32 d128, 4k"),
        ("fwd b1 h32/8 s1x8192 d128 bf16", "bf16 d128, decoding, 8k keys"),
    ):
        row = row_of(xeon, problem, 16)
        lines.append(["Xeon with AMX, 16 cores", what, cpu_speed(row), said(row, CPU_PEERS)])
    for dtype in ("bf16", "fp32"):
        row = row_of(rows_of("xeon16_backward"), f"bwd b1 h16 s4096 d128 {dtype}", 16)
        what = f"gradients, {dtype} d128, 4k"
        lines.append(["Xeon with AMX, 16 cores", what, cpu_speed(row), said(row, CPU_PEERS)])
    return markdown(["machine", "problem", "onepass", "how many times longer others take"], lines)


def cpu_speed(row):
    if "decode" in row["implementation"]:
        return f"{1e-9 * row['kv_bytes'] / row['median_s']:.0f} GB/s"
    return f"{1e-9 * rate(row):.0f} GFLOP/s"


def said(row, peers):
    ran = {name: row["peers"][peer] for peer, name in peers.items() if "times_ours" in row["peers"].get(peer, {})}
    return ", ".join(f"{name} {times(entry)}" for name, entry in ran.items())


# ------------------------------------------------------------------------------------- FlashAttention's first claim


def amount(entry, *keys, unit):
    """The sum of what stands behind the keys, three digits of it in that unit, or a dash."""
    return three(sum(entry[key] for key in keys) / unit) if all(key in entry for key in keys) else "-"


def fa1_table(rows):
    """By head dim, mask and N. Times of the others are in onepass's; bytes moved are `measured (model)`."""
    found = []
    for row in rows:
        cell = CELL.fullmatch(row["problem"])
        found.append((GPT2_MEDIUM not in row["problem"], int(cell[2]), bool(cell[3]), int(cell[1]), row))
    lines = []
    for other, dim, causal, seq, row in sorted(found, key=lambda cell: cell[:4]):
        ours, *theirs = entries = [row["contenders"][name] for name in ("onepass", "math", "math-bf16")]
        who = str(dim) if other else "GPT-2 medium: 64"
        line = [f"{who}, {'causal' if causal else 'full'}", str(seq), amount(ours, "median_s", unit=1e-3)]
        line += [e.get("refused") or f"{e['median_s'] / ours['median_s']:.1f}x" for e in theirs]
        for e in entries:
            moved, expected = amount(e, "read_bytes", "written_bytes", unit=1e9), amount(e, "model_bytes", unit=1e9)
            line.append(f"{moved} ({expected})")
        line += [amount(e, "extra_bytes", unit=unit) for e, unit in zip(entries, (1e6, 1e9, 1e9))]
        lines.append(line)
    head = ["d, mask", "N", "onepass ms", "math", "bf16", "HBM GB: onepass", "math", "bf16"]
    return "\n".join(markdown([*head, "extra MB: onepass", "GB: math", "bf16"], lines))


TABLES = {
    "headline": headline,
    "h200": h200,
    "h200-means": h200_means,
    "h200-backward": h200_backward,
    "h200-backward-means": lambda: h200_means("h200_backward"),
    "h200-backward-others": h200_backward_others,
    "h200-backward-race": h200_backward_race,
    "h200-decode": lambda: h200_keys("h200_decode", "torch-cudnn", "torch-flash"),
    "h200-mla": lambda: h200_keys("h200_mla", "flash-mla"),
    "h200-backward-errors": lambda: errors_table(rows_of("h200_backward_errors")).splitlines(),
    "cascade": cascade,
    "xeon16-backward": xeon_backward,
    "zen5-flash": lambda: cpu_rows("zen5", one_head_or_far_apart, True),
    "xeon16-flash": lambda: cpu_rows("xeon16", of_family("flash"), False),
    "xeon16-amx": lambda: cpu_rows("xeon16", of_family("amx"), False),
    "zen5-decode": lambda: decode_rows("zen5"),
    "xeon16-decode": lambda: decode_rows("xeon16"),
    "fa1": lambda: fa1_table(rows_of("fa1")).splitlines(),
}


def rendered(text):
    """The text with every marked table written anew. Raises ValueError for marks that make no pair, or no table."""

    def table(match):
        if match[2] not in TABLES:
            raise ValueError(f"there is no table {match[2]!r}; there are {', '.join(TABLES)}")
        return match[1] + "\n".join(TABLES[match[2]]()) + "\n" + match[4]

    if len(MARKED.findall(text)) != text.count("<!-- table:") or text.count("<!-- table:") != text.count(
        "<!-- end -->"
    ):
        raise ValueError("a `<!-- table: NAME -->` or an `<!-- end -->` stands alone")
    return MARKED.sub(table, text)


def marked_files():
    patterns = ("README*.md", "docs/**/*.md", "src/**/*.md", "bench/**/*.md")
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return [file for file in files if "<!-- table:" in file.read_text()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    wrong = 0
    files = options.files or marked_files()
    for file in files:
        text = file.read_text()
        try:
            fresh = rendered(text)
        except ValueError as error:
            print(f"{file}: {error}")
            wrong += 1
            continue
        if fresh == text:
            continue
        wrong += options.check
        print(f"{file}: {'differs from bench/results; bench/tables.py writes it' if options.check else 'written'}")
        if options.check:
            shown = text.splitlines()
            for line in fresh.splitlines():
                if line not in shown:
                    print(f"  should say: {line}")
        else:
            file.write_text(fresh)
    print(f"{len(files)} files, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
