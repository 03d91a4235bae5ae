"""Tables of linear layers, for bench/tables.py."""

from table_cells import markdown, rows_of, three, times


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
