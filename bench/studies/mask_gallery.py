"""The masks of docs/features/masks.md at length: by their block masks, as dense arrays of bools, and without a mask.

    python3 -m bench study mask_gallery --json results.json            # on a GPU
    python3 -m bench study mask_gallery --device cpu --threads 1 --heads 1 --dim 64 --dtype float32 --seq 8192

A block mask and its dense array are made before the calls; `make` is the time of the former. Contenders take turns
within a round. Times are medians of all turns, and ratios are medians of the rounds' ratios. One thread of a CPU is
timed by its CPU time.
"""

import pathlib
import statistics
import time

from bench.timing import CpuTimer, Timer, in_turn

NEEDS = ("torch", "numpy", "onepass", "onepass.torch")
CONTENDERS = ("block mask", "bool_mask", "no mask")


def gallery(np, n):
    """The masks by name, for n queries and keys; n is a multiple of 1024."""
    rng = np.random.default_rng(0)
    document = np.repeat(np.arange(8), np.diff([0, *np.sort(rng.choice(np.arange(1, n), 7, False)), n]))
    prefix, length, wide = np.array([n // 4]), np.array([n * 7 // 10]), n // 8
    listed = rng.random((n // 128, n // 128)) < 0.2
    # A prompt, then a complete binary tree of 511 drafted tokens in preorder: descendants of token k end before end[k].
    end = np.append(np.full(n - 511, n), n - 511 + ends_of_tree(np, 9))

    def near(q, k, size, radius):
        return abs(k - np.clip(q, radius, size - 1 - radius)) <= radius

    def plane(b, h, q, k):  # rows of 64 pixels, neighbourhoods of 13 x 13
        return near(q // 64, k // 64, n // 64, 6) & near(q % 64, k % 64, 64, 6)

    def volume(b, h, q, k):  # layers of 16 x 16, neighbourhoods of 5 x 5 x 5
        layers = near(q // 256, k // 256, n // 256, 2)
        return layers & near(q // 16 % 16, k // 16 % 16, 16, 2) & near(q % 16, k % 16, 16, 2)

    return {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k < wide),
        "sinks_and_window": lambda b, h, q, k: (q >= k) & ((k < 4) | (q - k < wide)),
        "prefix_lm": lambda b, h, q, k: (k < prefix[b]) | (q >= k),
        "documents": lambda b, h, q, k: (document[q] == document[k]) & (q >= k),
        "dilated": lambda b, h, q, k: (q >= k) & (q - k < 4 * wide) & ((q - k) % 4 == 0),
        "plane": plane,
        "volume": volume,
        "tree": lambda b, h, q, k: (k <= q) & (q < end[k]),
        "chunked": lambda b, h, q, k: (q // (2 * wide) == k // (2 * wide)) & (q >= k),
        "jagged": lambda b, h, q, k: (q < length[b]) & (k < length[b]),
        "block_sparse": lambda b, h, q, k: listed[q // 128, k // 128],
    }


def ends_of_tree(np, levels):
    """For each node of a complete binary tree in preorder, the number of the first node behind its descendants."""
    if levels == 0:
        return np.zeros(0, int)
    half = ends_of_tree(np, levels - 1)
    return np.concatenate([[2 * len(half) + 1], 1 + half, 1 + len(half) + half])


def dense_of(np, mask, n):
    """bool [n, n], some rows at a time."""
    rows, keys = np.arange(n)[:, None], np.arange(n)
    strips = (np.broadcast_to(mask(0, 0, rows[i : i + 256], keys), (256, n)) for i in range(0, n, 256))
    return np.concatenate([*strips])


def measured(torch, np, onepass, ours, mask, options):
    device, n = options.device, options.seq
    generator = torch.Generator().manual_seed(0)
    shape, dtype = (1, options.heads, n, options.dim), getattr(torch, options.dtype)
    q, k, v = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3))
    begin = time.perf_counter()
    tiles = onepass.block_mask(mask, n, n)
    make = time.perf_counter() - begin
    seen = dense_of(np, mask, n)
    there = torch.from_numpy(seen).to(device)
    runs = {
        "block mask": lambda: ours.attention(q, k, v, block_mask=tiles),
        "bool_mask": lambda: ours.attention(q, k, v, bool_mask=there),
        "no mask": lambda: ours.attention(q, k, v),
    }
    a, b = (runs[name]() for name in CONTENDERS[:2])
    far = float((a - b).abs().max())
    if far > (1e-5 if dtype == torch.float32 else 4e-2):
        raise SystemExit(f"the results by block mask and by bool_mask differ by {far:.3g}")
    timer = CpuTimer(torch.get_num_threads()) if device == "cpu" else Timer(torch, device)
    clocks = {x: lambda run=run: [timer.answer(run, options.seconds)["median_s"]] for x, run in runs.items()}
    times = in_turn(clocks, options.rounds, options.pause)
    first = times[CONTENDERS[0]]
    return {
        "visible": float(seen.mean()),
        "empty_tiles": float(tiles.sparsity),
        "make_s": make,
        "seconds": {name: statistics.median(times[name]) for name in CONTENDERS},
        "times_block_mask": {
            name: statistics.median(y / x for x, y in zip(first, times[name], strict=True)) for name in CONTENDERS[1:]
        },
    }


def arguments(parser):
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seq", type=int, default=16384, help="a multiple of 1024")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a contender's turn")
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of PyTorch and onepass")
    parser.add_argument("--masks", nargs="*", help="names; all by default")


def rows(torch, np, onepass, ours, options):
    if options.seq % 1024 or options.seq < 1024:
        raise SystemExit(f"--seq must be a multiple of 1024 (got {options.seq})")
    if options.threads:
        torch.set_num_threads(options.threads)
    for name, mask in gallery(np, options.seq).items():
        if not options.masks or name in options.masks:
            yield name, measured(torch, np, onepass, ours, mask, options)


def said(row):
    name, found = row
    ratios = ", ".join(f"{what} {x:.2f}x" for what, x in found["times_block_mask"].items())
    return f"{name}: {1e3 * found['seconds']['block mask']:.3f} ms by block mask, {ratios}"


def document(rows, torch, np, onepass, ours, options):
    about = {key: getattr(options, key) for key in ("seq", "heads", "dim", "dtype", "rounds")}
    cpu = options.device == "cpu"
    name = cpu_name() if cpu else torch.cuda.get_device_name(options.device)
    threads = {"threads": torch.get_num_threads()} if cpu else {}
    return {"device": name, "torch": torch.__version__, **threads, **about, "masks": dict(rows)}


def cpu_name():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def table(document):
    from bench.tables.cells import markdown, three  # which imports this folder

    lines = []
    for name, found in document["masks"].items():
        shares = (f"{100 * found[x]:.1f} %" for x in ("visible", "empty_tiles"))
        ratios = (f"{found['times_block_mask'][x]:.2f}x" for x in CONTENDERS[1:])
        seconds = found["seconds"]["block mask"]
        lines.append([name, *shares, three(1e3 * seconds), *ratios, three(1e3 * found["make_s"])])
    heads = ["mask", "visible", "empty tiles", "ms", "as `bool_mask`", "without a mask", "ms to make the block mask"]
    return "\n".join(markdown(heads, lines))
