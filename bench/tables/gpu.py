"""Tables of measurements on GPUs."""

import re

from bench.tables.cells import CELL, GPU_PEERS, MEANS, markdown, means, rate, row_of, rows_of, short, three, times

H200_CELL = "{op} b{batch} h{heads} s{seq} d{dim} bf16{mask} layout=bshd cuda:0"
LENGTHS = {"1k": 1024, "4k": 4096, "16k": 16384}
MASKS = {"": "", " causal": " causal_bottom_right"}
GRADIENTS = "dq", "dk", "dv"
GPT2_MEDIUM = "b64 h16 s1024 d64"  # the attention in the first figure of FlashAttention-1's paper


def h200_cell(rows, dim, mask, seq, op="fwd"):
    heads = 2048 // dim
    return row_of(rows, H200_CELL.format(op=op, batch=16384 // seq, heads=heads, seq=seq, dim=dim, mask=MASKS[mask]))


def raced(rows, *peers):
    """The peers that have a time in each of the rows."""
    return [peer for peer in peers if all("median_s" in row["peers"].get(peer, {}) for row in rows)]


def h200(name="h200", op="fwd", peers=None):
    """TFLOP/s beside the peers', by default the newest of the run, over lengths."""
    rows, lines = rows_of(name), []
    found = [
        h200_cell(rows, dim, mask, seq, op) for dim in (64, 128, 256) for mask in MASKS for seq in LENGTHS.values()
    ]
    peers = peers or raced(found, "flash-attn-4", "flash-attn-3" if op == "fwd" else "", "torch-cudnn")
    for at in range(0, len(found), len(LENGTHS)):
        cell = CELL.fullmatch(found[at]["problem"])
        line = [f"d{cell[2]} {'causal' if cell[3] else 'full'}"]
        for row in found[at : at + len(LENGTHS)]:
            speeds = [rate(row)] + [rate(row, row["peers"][peer]["median_s"]) for peer in peers]
            line.append(" / ".join(f"{1e-12 * s:.0f}" for s in speeds) + f" ({speeds[0] / max(speeds[1:]):.2f})")
        lines.append(line)
    names = " / ".join(["onepass", *(GPU_PEERS[peer] for peer in peers)])
    return markdown([f"TFLOP/s: {names}", *LENGTHS], lines)


def h200_means(name="h200"):
    """Geometric means of the 18 cells."""
    rows = [row for row in rows_of(name) if CELL.fullmatch(row["problem"])]
    ratios = {GPU_PEERS[peer]: [row["peers"][peer]["times_ours"] for row in rows] for peer in raced(rows, *GPU_PEERS)}
    ratios["the best of them"] = [row["times_best_peer"] for row in rows]
    ceiling = [rate(row) / row["matmul_flops_per_s"] for row in rows]
    product = f"share of the matrix product ({1e-12 * rows[0]['matmul_flops_per_s']:.0f} TFLOP/s)"
    return markdown(
        ["onepass over", *MEANS], [*means(ratios), *means({product: ceiling}, lambda x: f"{100 * x:.0f} %")]
    )


def h200_backward_others(name="h200_backward"):
    """The problems that are not cells of the suite: features, other head dims, fp32, packed sequences."""
    rows, lines = rows_of(name), []
    names = {p: title for p, title in (GPU_PEERS | {"torch-efficient": "efficient"}).items() if p in rows[0]["peers"]}
    for row in rows:
        if name == "h200_backward" and CELL.fullmatch(row["problem"]):
            continue
        problem = short(row["problem"]).removesuffix(" cuda:0").replace(" layout=bshd", "")
        peers = [times(row["peers"][peer]) for peer in names]
        lines.append([f"`{problem}`", three(1e3 * row["median_s"]), f"{1e-12 * rate(row):.0f}", *peers])
    return markdown(["problem", "ms", "TFLOP/s", *names.values()], lines)


def wide():
    """Head dims beyond 256: forward, backward and decoding beside PyTorch's kernels that take them."""
    lines = []
    for row in rows_of("h200_wide"):
        peers = (row["peers"][peer] for peer in ("torch-efficient", "torch-math"))
        problem = row["problem"].removesuffix(" cuda:0").replace(" layout=bshd", "").replace(" bf16", "")
        read = 1e-12 * row["kv_bytes"] / row["median_s"]
        cells = [f"{1e-12 * rate(row):.0f}", f"{read:.1f}" if read > 1 else "-"]
        lines.append([f"`{problem}`", three(1e3 * row["median_s"]), *cells, *map(times, peers)])
    return markdown(["problem, bf16 or as named", "ms", "TFLOP/s", "K and V, TB/s", "efficient", "math"], lines)


def by_attention(name):
    """The rows of each problem, whatever is computed of it."""
    problems = {}
    for row in rows_of(name):
        words = (word for word in row["problem"].split()[1:] if word not in ("lse", "tlse", "layout=bshd", "cuda:0"))
        problems.setdefault(" ".join(words), []).append(row)
    return problems


def second():
    """Second derivatives beside other kernels, and a double backward, which has a jvp more, beside PyTorch and a
    forward. A problem's rows are the forward, the forward mode, and second derivatives: as chosen, and by kernels by
    name."""
    lines = []
    for problem, (forward, jvp_row, ours, *others) in by_attention("h200_second").items():
        by = {row["implementation"]: three(1e3 * row["median_s"]) for row in others}
        double = jvp_row["median_s"] + ours["median_s"]
        peer = ours.get("peers", {}).get("torch-math", {}).get("median_s")
        line = [f"`{problem}`", three(1e3 * ours["median_s"])]
        line += [by.get(f"cuda.{name}", "-") for name in ("backward_jvp", "backward_jvp_plain")]
        line += [three(1e3 * double), f"{three(1e3 * peer)} ({times({'times_ours': peer / double})})" if peer else "-"]
        lines.append([*line, f"{double / forward['median_s']:.1f}"])
    head = ["ms", "`backward_jvp`", "by `mma.sync`", "without tensor cores", "double backward", "PyTorch"]
    return markdown([*head, "over the forward"], lines)


def jvp():
    """The forward mode beside the forward of the same problem, and beside its kernel of mma.sync. A problem's rows are
    the forward, the forward mode, and that kernel where another one is chosen."""
    lines = []
    for problem, (forward, ours, *tiles) in by_attention("h200_jvp").items():
        seconds = ours["median_s"]
        beside = f"{three(1e3 * tiles[0]['median_s'])} ({tiles[0]['median_s'] / seconds:.1f}x)" if tiles else "-"
        over = f"{seconds / forward['median_s']:.1f} (`{forward['implementation']}`)"
        lines.append([f"`{problem}`", three(1e3 * seconds), f"{1e-12 * rate(ours):.0f}", beside, over])
    return markdown(["problem", "ms", "TFLOP/s", "by `mma.sync`, ms", "over the forward"], lines)


def tf32():
    """fp32 calls with products of TF32 beside the same calls without, and PyTorch's with allow_tf32."""
    rows = {row["problem"]: row for row in rows_of("h200_tf32")}
    lines = []
    for problem, row in rows.items():
        plain = problem.replace(" precision=tf32", "")
        if plain == problem:
            continue
        shown = plain.removesuffix(" cuda:0").replace(" layout=bshd", "").replace(" fp32", "")
        own = [f"{1e-12 * rate(x):.0f}" for x in (rows[plain], row)]
        peers = (row.get("peers", {}).get(peer, {}) for peer in ("torch-efficient", "torch-math"))
        lines.append([f"`{shown}`", *own, f"{rows[plain]['median_s'] / row['median_s']:.2f}x", *map(times, peers)])
    heads = ["problem", "TFLOP/s, fp32", "tf32", "speedup", "efficient, allow_tf32", "math, allow_tf32"]
    return markdown(heads, lines)


def h200_keys(name, *peers):
    """Microseconds, TFLOP/s, and the GB/s of the keys and values that are read."""
    lines = []
    for row in rows_of(name):
        bytes_read = "-" if "window" in row["problem"] else f"{1e-9 * row['kv_bytes'] / row['median_s']:.0f}"
        line = [f"`{short(row['problem'], ' cuda:0')}`", three(1e6 * row["median_s"]), f"{1e-12 * rate(row):.0f}"]
        lines.append([*line, bytes_read, *(times(row.get("peers", {}).get(peer, {})) for peer in peers)])
    return markdown(["problem", "us", "TFLOP/s", "GB/s", *(GPU_PEERS[peer] for peer in peers)], lines)


def h200_paged():
    """Prefill from pages: TFLOP/s, and the time beside the same problem's with contiguous K and V of bf16."""
    rows, lines = rows_of("h200_paged"), []
    for row in rows:
        words = [word for word in row["problem"].split() if not word.startswith(("kv=", "kv_dtype="))]
        beside = row_of(rows, " ".join("bf16" if word == "fp16" else word for word in words))
        more = 100 * (row["median_s"] / beside["median_s"] - 1)
        line = [f"`{short(row['problem'], ' cuda:0')}`", three(1e6 * row["median_s"]), f"{1e-12 * rate(row):.0f}"]
        lines.append([*line, "-" if row is beside else f"{more:+.1f} %"])
    return markdown(["problem", "us", "TFLOP/s", "beside contiguous bf16"], lines)


def h200_fp8_cache():
    """A cache in e4m3 beside one in q's type."""
    rows, lines = {row["problem"]: row for row in rows_of("h200_fp8_cache")}, []
    for problem, row in rows.items():
        plain = re.sub(r" (kv_dtype|[kv]_descale)=\S+", "", problem)
        if plain != problem:
            us = [1e6 * r["median_s"] for r in (rows[plain], row)]
            line = [f"`{short(plain, ' cuda:0')}`", *map(three, us), f"{us[0] / us[1]:.2f}x"]
            lines.append([*line, f"{1e-3 * row['kv_bytes'] / us[1]:.0f}"])
    return markdown(["problem", "us", "e4m3 us", "", "GB/s"], lines)


def h200_unified_max():
    """Rows with one reference phi beside rows with their own maxima."""
    rows, lines = {row["problem"]: row["median_s"] for row in rows_of("h200_unified_max")}, []
    for problem, seconds in rows.items():
        own = re.sub(r" unified_max=\S+| recomputed", "", problem)
        if own != problem:
            line = [f"`{short(problem, ' cuda:0')}`", *(f"{1e6 * s:.1f}" for s in (rows[own], seconds))]
            lines.append([*line, f"{rows[own] / seconds:.3f}"])
    return markdown(["problem", "own maxima, us", "unified_max, us", ""], lines)


def errors_table(rows):
    """The study gradient_errors: every contender's errors in thousandths of each gradient's norm."""
    lines = []
    for row in rows:
        cell = CELL.fullmatch(row["problem"])
        title = f"d{cell[2]} {'causal' if cell[3] else 'full'}, {int(cell[1]) // 1024}k"
        entries = row["contenders"].values()
        lines.append([title, *(" / ".join(f"{1e3 * e[which]['rms']:.2f}" for e in entries) for which in GRADIENTS)])
    return "\n".join(markdown([" / ".join(rows[0]["contenders"]), *GRADIENTS], lines))


def cascade(cells):
    """Microseconds of one step of all continuations (the study cascade)."""
    lines = []
    for cell in cells:
        us = {name: 1e3 * ms for name, ms in cell["milliseconds"].items()}
        cut = [us[name] for name in us if name.startswith("cascade_")]
        copies = three(us["copies"]) if "copies" in us else "-"  # they may not fit into memory
        lines.append([str(cell["prefix"]), str(cell["continuations"]), three(us["pages"]), copies])
        lines[-1] += [*map(three, cut), f"{us['pages'] / min(cut):.1f}x"]
    parts = [f"prompt in {name.removeprefix('cascade_')}" for name in us if name.startswith("cascade_")]
    return markdown(["prompt", "continuations", "each by itself, shared pages", "copies", *parts, "gain"], lines)


def serving(rows):
    """The study serving_speed: a step beside its parts, decoding beside contiguous K and V, and the best peer."""
    lines = []
    for row in rows:
        us = {name: 1e6 * s for name, s in row["median_s"].items()}
        one, parts = us["one call"], [us[name] for name in us if name.startswith("part ")]
        peers = {name.removeprefix("flashinfer "): t for name, t in us.items() if name.startswith("flashinfer ")}
        beside = sum(parts) or us.get("contiguous", 0)
        line = [f"{row['cell']}, pages of {row['page']}", three(one), " + ".join(map(three, parts)) or "-"]
        line += [three(us["contiguous"]) if "contiguous" in us else "-", f"{one / beside:.2f}" if beside else "-"]
        best = min(peers, key=peers.get, default=None)
        line += [f"{three(peers[best])} ({best})", f"{peers[best] / one:.2f}x"] if best else ["-", "-"]
        lines.append(line)
    return markdown(["us", "onepass", "parts", "contiguous", "onepass over these", "FlashInfer's best", ""], lines)


def stranger():
    """A part of the output of bench/stranger.py: head dim 128, decoding."""
    lines = []
    for result in rows_of("h200_stranger")["results"]:
        cell, seconds = result["cell"], dict(result["seconds"])
        if cell["dim"] != 128 or cell["group"] == "mixed":
            continue
        ours, decoding = seconds.pop("onepass"), cell["group"] == "decoding"
        per_second = result["work"] / ours
        speed = f"{1e-9 * per_second:.0f} GB/s" if decoding else f"{1e-12 * per_second:.0f} TFLOP/s"
        mask = " causal" if cell["causal"] and not decoding else ""
        what = f"{cell['batch']} x {cell['keys']} {'keys' if decoding else 'rows'}{mask}"
        others = ", ".join(f"{name} {s / ours:.2f}x" for name, s in seconds.items())
        lines.append([cell["group"], what, speed, others])
    return markdown(["", "bf16 d128", "onepass", "how many times longer others take"], lines)


def invariant():
    """Calls with batch_invariant beside the same without it."""
    rows, lines = rows_of("h200_invariant"), []
    us = {row["problem"]: 1e6 * row["median_s"] for row in rows}
    for problem, with_it in us.items():
        if " batch_invariant" in problem:
            without = us[problem.replace(" batch_invariant", "")]
            name = short(problem.replace(" batch_invariant", ""), " cuda:0")
            lines.append([f"`{name}`", three(without), three(with_it), f"{with_it / without:.2f}"])
    return markdown(["problem", "us", "with `batch_invariant`", "ratio"], lines)


# ----- FlashAttention-1's claim


def amount(entry, *keys, unit):
    """The sum of the keys' values with three digits in this unit, or a dash."""
    return three(sum(entry[key] for key in keys) / unit) if all(key in entry for key in keys) else "-"


def fa1_table(rows):
    """By head dim, mask and N. The others' times are relative to onepass's; bytes moved are `measured (model)`."""
    found = []
    for row in rows:
        cell = CELL.fullmatch(row["problem"])
        found.append((GPT2_MEDIUM not in row["problem"], int(cell[2]), bool(cell[3]), int(cell[1]), row))
    lines = []
    for other, dim, causal, seq, row in sorted(found, key=lambda cell: cell[:4]):
        ours, *theirs = entries = [row["contenders"][name] for name in ("onepass", "math", "math-bf16")]
        title = str(dim) if other else "GPT-2 medium: 64"
        line = [f"{title}, {'causal' if causal else 'full'}", str(seq), amount(ours, "median_s", unit=1e-3)]
        line += [e.get("refused") or f"{e['median_s'] / ours['median_s']:.1f}x" for e in theirs]
        for e in entries:
            moved, expected = amount(e, "read_bytes", "written_bytes", unit=1e9), amount(e, "model_bytes", unit=1e9)
            line.append(f"{moved} ({expected})")
        line += [amount(e, "extra_bytes", unit=unit) for e, unit in zip(entries, (1e6, 1e9, 1e9))]
        lines.append(line)
    head = ["d, mask", "N", "onepass ms", "math", "bf16", "HBM GB: onepass", "math", "bf16"]
    return "\n".join(markdown([*head, "extra MB: onepass", "GB: math", "bf16"], lines))


def jvp_speed(rows):
    """Forward mode in PyTorch beside the Triton kernel and PyTorch's math."""
    lines = []
    for row in rows:
        ours = row["seconds"]["onepass"]
        peers = (row["seconds"].get(name) for name in ("jvp-flash-attention", "math"))
        ratios = [f"{1e3 * s:.3g} ({s / ours:.1f}x)" if s else "-" for s in peers]
        problem = row["problem"].replace("bfloat", "bf").replace("float16", "fp16").replace("float32", "fp32")
        lines.append([problem, three(1e3 * ours), f"{ours / row['seconds']['forward']:.1f}", *ratios])
    return markdown(["ms", "onepass", "over its forward", "jvp-flash-attention", "PyTorch's math"], lines)
