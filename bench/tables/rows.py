"""Tables of softmax over rows and of linear layers."""

import re

from bench.tables.cells import MEANS, markdown, means, rows_of, three, times


def h200_rows():
    """Softmax over rows: bytes read once and written once per second, beside a copy of the same size."""
    lines = []
    for row in rows_of("h200_rows"):
        copy, others = row["peers"]["torch-copy"]["times_ours"], ("torch-rows", "triton-rows")
        us, speed = three(1e6 * row["median_s"]), f"{1e-12 * row['kv_bytes'] / row['median_s']:.2f}"
        problem = re.sub(r" b1 h1 s(\d+) ", r" s\1x\1 ", row["problem"]).replace(" b1 h1", "").removesuffix(" cuda:0")
        lines.append([f"`{problem}`", us, speed, f"{100 * copy:.0f} %"])
        lines[-1] += [times(row["peers"].get(peer, {})) for peer in others]
    return markdown(["problem", "us", "TB/s", "of a copy's speed", "PyTorch", "Triton"], lines)


def linear_cells():
    """{[n, k]: {m: row}} of the linear layers."""
    cells = {}
    for row in rows_of("h200_linear"):
        m, n, k = (int(number) for number in re.match(r"flat_gemm m(\d+) n(\d+) k(\d+) ", row["problem"]).groups())
        cells.setdefault((n, k), {})[m] = row
    return cells


def h200_linear():
    """Microseconds by rows of x, beside the time of cuBLASLt and of reading w alone."""
    lines = []
    for (n, k), cells in linear_cells().items():
        reading = cells[1]["peers"]["read"]["median_s"]
        share = f"{100 * reading / cells[1]['median_s']:.0f} %"
        line = [f"[{n}, {k}]", f"{2 * n * k / 2**20:.0f}", f"{1e6 * reading:.2f}", share]
        for row in cells.values():
            line.append(f"{1e6 * row['median_s']:.2f} ({row['peers']['cuda.cublas']['times_ours']:.2f}x)")
        lines.append(line)
    head = ["[n, k]", "MiB", "reading, us", "its share at m = 1"]
    return markdown(head + [f"m = {m}" for m in next(iter(linear_cells().values()))], lines)


def h200_linear_means():
    """Geometric means of cuBLASLt's time over ours."""
    ratios = {}
    for cells in linear_cells().values():
        for m, row in cells.items():
            ratios.setdefault(m, []).append(row["peers"]["cuda.cublas"]["times_ours"])
    ratios["all"] = [ratio for of_m in ratios.values() for ratio in of_m]
    return markdown(["m", *MEANS], means(ratios))


def xeon16_linear():
    """A flat GEMM on the CPU, on tiles and on vectors: milliseconds, and the w read per second on tiles."""
    cells = {}
    for row in rows_of("xeon16_linear"):
        key = row["problem"].removeprefix("flat_gemm "), row["threads"]
        cells.setdefault(key, {})[row["implementation"].rpartition(".")[2]] = row
    lines = []
    for (problem, threads), by_unit in cells.items():
        tiles, vectors = by_unit["amx"], by_unit.get("avx512")
        line = [f"`{problem}`", str(threads), three(1e3 * tiles["median_s"])]
        line += [f"{1e-9 * tiles['kv_bytes'] / tiles['median_s']:.0f}"]
        line += [three(1e3 * vectors["median_s"]) if vectors else "-", times(tiles["peers"]["torch"])]
        lines.append(line)
    return markdown(["flat_gemm", "threads", "AMX, ms", "GB/s", "AVX-512, ms", "PyTorch over AMX"], lines)
