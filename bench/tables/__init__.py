"""Writes the tables of measurements in README.md, docs and src from bench/results/*.json.

    python -m bench tables [FILES]           rewrites the text between `<!-- table: NAME -->` and `<!-- end -->`
    python -m bench tables --check [FILES]   only prints where it would differ; exit status 1 if anywhere

NAME is a key of TABLES in bench/tables. Without FILES: every Markdown file of the repository with such a mark.
"""

import pathlib
import re

import bench
from bench.studies import (
    block_mask_build,
    context_parallel,
    context_parallel_scale,
    flex_speed,
    mask_gallery,
    precision_errors,
    serving_transformers,
    vllm_speed,
)
from bench.tables import cpu, fp8, gpu
from bench.tables import rows as of_rows
from bench.tables.cells import CPU_PEERS, GPU_PEERS, markdown, rate, row_of, rows_of, said, three, times

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)


def headline():
    lines = []

    def add(card, rows, dim, mask, op="fwd", other_run=None):
        row, what = gpu.h200_cell(rows, dim, mask, 4096, op), "gradients, " if op == "bwd" else ""
        if other_run:  # its peers' ratios; they are ratios to our time in that run
            row = row | {"peers": gpu.h200_cell(other_run, dim, mask, 4096, op)["peers"] | row["peers"]}
        speed = f"{1e-12 * rate(row):.0f} TFLOP/s"
        lines.append([card, f"{what}bf16 d{dim}, 4k{mask}", speed, said(row, GPU_PEERS)])

    for dim in (64, 128, 256):
        for mask in gpu.MASKS:
            add("H200", rows_of("h200"), dim, mask, other_run=rows_of("h200_fa3"))
    for mask in gpu.MASKS:
        add("H200", rows_of("h200_backward"), 128, mask, "bwd")
    add("H100", rows_of("h100"), 128, " causal")
    add("H100", rows_of("h100_backward"), 128, " causal", "bwd")
    zen, xeon, decoding = "Zen 5, 1 core", "Xeon with AMX, 16 cores", "fwd b1 h32/8 s1x8192 d128 bf16"
    for name, machine, threads, problem, what in (
        ("zen5", zen, 1, "fwd b1 h1 s4096 d128 fp32", "fp32 d128, 4k"),
        ("zen5", zen, 1, "fwd b1 h1 s4096 d128 fp32 causal_top_left", "fp32 d128, 4k causal"),
        ("zen5", zen, 1, decoding, "bf16 d128, decoding, 8k keys"),
        ("xeon16", xeon, 16, "fwd b1 h16 s4096 d128 bf16", "bf16 d128, 4k"),
        ("xeon16", xeon, 16, "fwd b1 h16 s4096 d128 fp32", "fp32 d128, 4k"),
        ("xeon16", xeon, 16, decoding, "bf16 d128, decoding, 8k keys"),
        ("xeon16_backward", xeon, 16, "bwd b1 h16 s4096 d128 bf16", "gradients, bf16 d128, 4k"),
        ("xeon16_backward", xeon, 16, "bwd b1 h16 s4096 d128 fp32", "gradients, fp32 d128, 4k"),
    ):
        row = row_of(rows_of(name), problem, threads, "avx512" if name == "zen5" else "")
        lines.append([machine, what, cpu_speed(row), said(row, CPU_PEERS)])
    return markdown(["machine", "problem", "onepass", "how many times longer others take"], lines)


def cpu_speed(row):
    if "decode" in row["implementation"]:
        return f"{1e-9 * row['kv_bytes'] / row['median_s']:.0f} GB/s"
    return f"{1e-9 * rate(row):.0f} GFLOP/s"


def frameworks(measured, *peers):
    """Milliseconds of the studies frameworks and jax_speed, and times of a framework's own relative to them."""
    lines = []
    for what, seconds in measured.items():
        ours = seconds["onepass"]
        shown = what.removeprefix("block: ").replace("host time: call", "host time of a call")
        ratios = ({"times_ours": seconds[peer] / ours} if ours and seconds[peer] else {} for peer in peers)
        lines.append([shown, three(1e3 * ours) if ours else "-", *map(times, ratios)])
    names = {"torch": "PyTorch's choice", "cudnn": "cuDNN", "flex": "FlexAttention", "option": "onepass, by option"}
    names |= GPU_PEERS
    return markdown(["", "ms", *(names[peer] for peer in peers)], lines)


TABLES = {
    "headline": headline,
    "h200": gpu.h200,
    "h200-means": gpu.h200_means,
    "h200-fa3-means": lambda: gpu.h200_means("h200_fa3"),
    "h100": lambda: gpu.h200("h100", peers=("torch-cudnn", "torch-flash")),
    "h100-backward": lambda: gpu.h200("h100_backward", "bwd", ("torch-cudnn", "torch-flash")),
    "h100-decode": lambda: gpu.h200_keys("h100_decode", "torch-cudnn", "torch-flash"),
    "h200-backward": lambda: gpu.h200("h200_backward", "bwd"),
    "h200-backward-means": lambda: gpu.h200_means("h200_backward"),
    "h200-backward-others": gpu.h200_backward_others,
    "h200-backward-race": lambda: gpu.h200_backward_others("h200_backward_race"),
    "h200-sm80-backward": lambda: gpu.h200("h200_sm80_backward", "bwd", ("torch-flash",)),
    "h100-target-sm80": lambda: gpu.h200("h100_target_sm80", peers=("torch-flash",)),
    "h100-target-sm80-backward": lambda: gpu.h200("h100_target_sm80", "bwd", ("torch-flash",)),
    "h100-target-sm89": lambda: gpu.h200("h100_target_sm89", peers=("torch-flash",)),
    "h100-target-sm89-backward": lambda: gpu.h200("h100_target_sm89", "bwd", ("torch-flash",)),
    "h200-wide": gpu.wide,
    "h200-jvp": gpu.jvp,
    "h200-second": gpu.second,
    "h200-tf32": gpu.tf32,
    "h200-precision-errors": lambda: precision_errors.table(rows_of("h200_precision_errors")).splitlines(),
    "h200-block-mask-build": lambda: block_mask_build.table(rows_of("h200_block_mask_build")).splitlines(),
    "h200-jvp-torch": lambda: gpu.jvp_speed(rows_of("h200_jvp_torch")["rows"]),
    "h200-decode": lambda: gpu.h200_keys("h200_decode", "torch-cudnn", "torch-flash"),
    "h200-decode-fa3": lambda: gpu.h200_keys("h200_decode_fa3", "torch-cudnn", "flash-attn-3"),
    "h200-fp8-cache": gpu.h200_fp8_cache,
    "xeon16-linear": of_rows.xeon16_linear,
    "h200-rows": of_rows.h200_rows,
    "h200-linear": of_rows.h200_linear,
    "h200-linear-means": of_rows.h200_linear_means,
    "h200-unified-max": gpu.h200_unified_max,
    "h200-mla": lambda: gpu.h200_keys("h200_mla", "flash-mla"),
    "h200-paged": gpu.h200_paged,
    "h200-backward-errors": lambda: gpu.errors_table(rows_of("h200_backward_errors")).splitlines(),
    "cascade": lambda: gpu.cascade(rows_of("cascade")),
    "context-parallel": lambda: context_parallel.table(rows_of("h200x2_context_parallel")).splitlines(),
    "context-parallel-documents": lambda: context_parallel.table(rows_of("h200x2_documents")).splitlines(),
    "context-parallel-h100": lambda: context_parallel.table(rows_of("h100x2_context_parallel")).splitlines(),
    "context-parallel-scale": lambda: context_parallel_scale.table([*context_parallel_scale.rows(None)]).splitlines(),
    "context-parallel-scale-errors": lambda: context_parallel_scale.errors(),
    "h100-serving": lambda: gpu.serving(rows_of("h100_serving")["rows"]),
    "h200-serving": lambda: gpu.serving(rows_of("h200_serving")["rows"]),
    "h200-invariant": gpu.invariant,
    "h200-stranger": gpu.stranger,
    "h100-serving-transformers": lambda: serving_transformers.table(rows_of("h100_serving_transformers")).splitlines(),
    "h200-serving-kernel": lambda: serving_transformers.table(rows_of("h200_serving_kernel")).splitlines(),
    "h200-vllm": lambda: vllm_speed.table(rows_of("h200_vllm")).splitlines(),
    "h200-vllm-invariant": lambda: vllm_speed.table(rows_of("h200_vllm_invariant")).splitlines(),
    "h200-frameworks": lambda: frameworks(rows_of("h200_frameworks")["seconds"], "torch", "torch-cudnn", "torch-flash"),
    "h200-flex": lambda: flex_speed.table(rows_of("h200_flex")).splitlines(),
    "zen3-flex": lambda: flex_speed.table(rows_of("zen3_flex")).splitlines(),
    "zen3-gallery": lambda: mask_gallery.table(rows_of("zen3_gallery")).splitlines(),
    "h200-jax": lambda: frameworks(rows_of("h200_jax")["seconds"], "cudnn"),
    "xeon16-frameworks": lambda: frameworks(rows_of("xeon16_frameworks")["seconds"], "torch"),
    "xeon16-backward": cpu.xeon_backward,
    "zen5-flash": lambda: cpu.cpu_rows("zen5", cpu.one_head_or_far_apart, True),
    "xeon16-flash": lambda: cpu.cpu_rows("xeon16", cpu.of_family("flash"), False),
    "xeon16-amx": lambda: cpu.cpu_rows("xeon16", cpu.of_family("amx"), False),
    "zen5-decode": lambda: cpu.decode_rows("zen5"),
    "xeon16-decode": lambda: cpu.decode_rows("xeon16"),
    "fa1": lambda: gpu.fa1_table(rows_of("fa1")).splitlines(),
    "fa1-backward": lambda: gpu.fa1_table(rows_of("fa1_backward")).splitlines(),
    "h200-fp8-errors": lambda: fp8.errors(rows_of("h200_fp8_errors")["rows"]),
    "h200-fp8": lambda: fp8.speed(rows_of("h200_fp8")["rows"]),
    "h200-quantize": lambda: fp8.quantizing(rows_of("h200_quantize")),
    "minilm-fp8": lambda: fp8.model(rows_of("minilm_fp8")),
}


def rendered(text):
    """The text with every marked table rewritten. Raises ValueError for an unpaired mark or an unknown table."""

    def table(match):
        if match[2] not in TABLES:
            raise ValueError(f"unknown table {match[2]!r}; known: {', '.join(TABLES)}")
        return match[1] + "\n".join(TABLES[match[2]]()) + "\n" + match[4]

    if len(MARKED.findall(text)) != text.count("<!-- table:") or text.count("<!-- table:") != text.count(
        "<!-- end -->"
    ):
        raise ValueError("each `<!-- table: NAME -->` must have an `<!-- end -->` after it")
    return MARKED.sub(table, text)


def marked_files():
    patterns = ("README*.md", "docs/**/*.md", "src/**/*.md", "bench/**/*.md")
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return [file for file in files if "<!-- table:" in file.read_text()]


def main(argv):
    parser = bench.parser("tables", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args(argv)
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
        stale = "differs from bench/results; python3 -m bench tables writes it"
        print(f"{file}: {stale if options.check else 'written'}")
        if options.check:
            shown = text.splitlines()
            for line in fresh.splitlines():
                if line not in shown:
                    print(f"  must be: {line}")
        else:
            file.write_text(fresh)
    print(f"{len(files)} files, {wrong} wrong")
    return bool(wrong)
