"""Tables of measurements on CPUs."""

import re
import statistics

from bench.tables.cells import CPU_PEERS, markdown, rate, rows_of, short, three, times


def peaks(rows):
    """{(threads, instruction set): median FMA peak}: the peaks sampled beside single rows vary."""
    groups = {}
    for row in rows:
        isa = row["implementation"].rpartition(".")[2]
        groups.setdefault((row["threads"], isa), []).append(row["fma_peak_flops_per_s"])
    return {key: statistics.median(samples) for key, samples in groups.items()}


def cpu_rows(name, chosen, share_of_peak):
    """A line for each problem; the numbers of its causal twin follow after a comma."""
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


def xeon_backward():
    """Gradients. Only one core has a share of the peak; the peak of all cores varies by a fifth on a shared host."""
    rows, lines = rows_of("xeon16_backward"), []
    for row in rows:
        share = rate(row) / peaks(rows)[row["threads"], row["implementation"].rpartition(".")[2]]
        peak = f"{100 * share:.0f} %" if " fp32" in row["problem"] and row["threads"] == 1 else "-"
        cells = [str(row["threads"]), three(1e3 * row["median_s"]), f"{1e-9 * rate(row):.0f}", peak]
        lines.append([f"`{short(row['problem'], '')}`", *cells, times(row["peers"]["torch"])])
    return markdown(["problem", "threads", "ms", "GFLOP/s", "of the FMA peak", "PyTorch"], lines)
