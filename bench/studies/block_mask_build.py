"""The time to build a block mask, on a CUDA device and on one core of the CPU: causal, a window, packed documents.

    python3 -m bench study block_mask_build --json results.json        # on a GPU
    python3 -m bench study block_mask_build --device cpu

`call` is the wall time of a call of onepass.block_mask until its tiles are complete. `device` is the time of the same
work replayed from a CUDA graph, without the host's part. `cpu` is the wall time of the builder for the CPU, which has
one thread. Times are medians. Every build is compared with that of the CPU.
"""

import statistics
import time

from bench.timing import Timer, wall

NEEDS = ("torch", "numpy", "onepass")


def masks(np, n):
    """(text, buffers) by name, for n queries and keys."""
    cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, n), n // 2048 - 1, False))
    document = np.repeat(np.arange(n // 2048, dtype=np.int32), np.diff([0, *cuts, n]))
    return {
        "causal": ("q_index >= k_index", {}),
        "window": ("q_index >= k_index && q_index - k_index < 4096", {}),
        "documents": ("doc[q_index] == doc[k_index] && q_index >= k_index", {"doc": document}),
    }


def median_of(run, seconds, wait=None):
    run()
    times, until = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        times.append(wall(run, wait=wait))
    return statistics.median(times)


def measured(torch, onepass, text, buffers, n, options):
    def on_cpu():
        return onepass.block_mask(text, n, n, mod_buffers=buffers, exact=options.exact)

    expected = on_cpu()
    lists = (expected.mixed, expected.full, expected.mixed_rows, expected.full_rows)
    found = {
        "empty_tiles": float(expected.sparsity),
        "cpu_s": median_of(on_cpu, options.seconds),
        "cpu_bytes": sum(x.begin.nbytes + x.tiles.nbytes for x in lists),
    }
    if options.device == "cpu":
        return found
    like = torch.empty(0, device=options.device)
    there = {name: torch.from_numpy(x).to(options.device) for name, x in buffers.items()}

    def build():
        made = onepass.block_mask(text, n, n, mod_buffers=there, exact=options.exact, device=options.device)
        return made.states_like(like)

    states = build()
    if not (states.cpu().numpy() == expected.states()).all():
        raise SystemExit(f"the tiles that the device and the CPU make of {text} differ")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        build()
    return found | {
        "call_s": median_of(build, options.seconds, wait=lambda _: torch.cuda.synchronize()),
        "device_s": Timer(torch, options.device).answer(graph.replay, options.seconds)["median_s"],
        "states_bytes": states.numel() * 4,
    }


def arguments(parser):
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seq", type=int, nargs="*", default=[16384, 131072], help="multiples of 2048")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    parser.add_argument("--exact", action="store_true", help="look at the elements of tiles that bounds leave open")


def rows(torch, np, onepass, options):
    for n in options.seq:
        for name, (text, buffers) in masks(np, n).items():
            yield {"mask": name, "seq": n} | measured(torch, onepass, text, buffers, n, options)


def said(row):
    times = ", ".join(
        f"{what} {1e3 * row[what + '_s']:.3f} ms" for what in ("call", "device", "cpu") if what + "_s" in row
    )
    return f"{row['mask']} {row['seq']}: {times}"


def document(rows, torch, np, onepass, options):
    device = options.device if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    return {"device": device, "torch": torch.__version__, "exact": options.exact, "rows": rows}


def table(document):
    from bench.tables.cells import markdown, three  # which imports this folder

    columns = [x for x in ("call_s", "device_s", "cpu_s") if x in document["rows"][0]]
    lines = [
        [
            row["mask"],
            f"{row['seq'] // 1024}k",
            f"{100 * row['empty_tiles']:.1f} %",
            *(three(1e3 * row[x]) for x in columns),
        ]
        for row in document["rows"]
    ]
    heads = {"call_s": "ms of a call", "device_s": "ms on the device", "cpu_s": "ms on the CPU"}
    return "\n".join(markdown(["mask", "rows and keys", "empty tiles", *(heads[x] for x in columns)], lines))
