"""Tables of FP8: lines of Markdown from the rows of a result."""

from bench.tables.cells import markdown


def errors(rows):
    """The study fp8_errors: RMSE of O by length, and the share of O that is missing where V has a mean."""
    lengths, lines = sorted({row["length"] for row in rows}), []
    named = {"normal": ("N(0, 1)", "rmse"), "outliers": ("outliers", "rmse"), "v_mean": ("V of mean 1: bias", "bias")}
    cells = {(r["case"], r["way"], r["accumulation"], r["length"]): r for r in rows}
    for case, way, accumulation in dict.fromkeys(key[:3] for key in cells):
        if accumulation == "fast" and case != "v_mean":
            continue  # as exact
        title, key = named[case]
        how = f"{way}, {accumulation}" if case == "v_mean" and way.startswith("fp8") else way
        lines.append([title, how, *(f"{cells[case, way, accumulation, n][key]:.1e}" for n in lengths)])
    lines.sort(key=lambda line: [title for title, _ in named.values()].index(line[0]))
    for case in ("normal", "outliers"):
        for way in ("fp8", "fp8 without Hadamard"):
            found = (f"{cells[case, way, 'exact', n]['lse_relative']:.1e}" for n in lengths)
            lines.append([f"{named[case][0]}: LSE, relative", way, *found])
    return markdown(["inputs", "how", *(f"{n // 1024}k" for n in lengths)], lines)


def model(rows):
    """The study fp8_model: the effect of each way of quantizing on a model's results."""
    lines = []
    for row in rows:
        layers = " ".join(f"{layer['least_cosine']:.3f}" for layer in row["layers"])
        embedding = " / ".join(f"{1e4 * row[key]:.1f}" for key in ("embedding_mean", "embedding_most"))
        lines.append([row["way"], embedding, f"{100 * row['hidden']:.1f} %", layers])
    head = ["`fp8`", "embeddings, 1e-4: mean / most", "last layer", "least cosine of a row of O, by layer"]
    return markdown(head, lines)


def speed(rows):
    """The study fp8_speed: TFLOP/s beside other FP8, and the speed of fp8=True relative to bf16's kernel."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["dim"], row["causal"], row["length"])):
        tera = {name: f"{1e-12 * row['flops'] / s:.0f}" for name, s in row["median_s"].items()}
        times = {name: f"{row['median_s']['bf16'] / s:.2f}" for name, s in row["median_s"].items()}
        title = f"d{row['dim']} {'causal' if row['causal'] else 'full'}, {row['length'] // 1024}k"
        whole = " / ".join(times[f"from bf16: {sums}"] for sums in ("exact", "fast"))
        peers = [tera.get(name, "-") for name in ("flash-attn-3", "cudnn")]
        lines.append([title, f"{tera['exact']} / {tera['fast']}", *peers, tera["bf16"], whole])
    return markdown(["TFLOP/s", "exact / fast", "FlashAttention-3", "cuDNN", "bf16", "`fp8=True` over bf16"], lines)


def quantizing(rows):
    """bench/suites/h200_quantize.txt: microseconds, and bytes read and written per second relative to a copy."""
    lines = []
    for row in rows:
        share = row["kv_bytes"] / row["median_s"] / row["copy_bytes_per_s"]
        problem = row["problem"].removesuffix(" cuda:0")
        lines.append([f"`{problem}`", f"{1e6 * row['median_s']:.1f}", f"{100 * share:.0f} %"])
    return markdown(["", "us", "of copy"], lines)
