"""Context parallelism on 8 to 1,024 GPUs by a model, whose constants are measured on two (context_parallel.py).

Causal, batch 1, 32 heads on 8, dim 128, bf16, as measured. Nodes have 8 GPUs with NVLink. Between nodes each GPU has a
ConnectX-7 of its own, 400 Gb/s InfiniBand (NDR): NVIDIA DGX H100 user guide, table "Network Modules". InfiniBand was
not measured: the model has its line rate, and the latency of NVLink.

The calls of a rank take operations / rate / fill * factor + fixed. The rate is that of one GPU at the largest length.
factor and fixed are fitted to the measured cells of two GPUs, for calls on whole rows (gather, ulysses, mesh) and for
the steps of a ring. fill is the share of the multiprocessors that tiles of 128 rows keep busy. An exchange takes the
longer of its times over NVLink and over InfiniBand. Only the steps of a ring hide it.
"""

import math
from typing import NamedTuple

from bench.tables.cells import markdown, rows_of

NEEDS, CUDA = (), False
HEADS, HEADS_KV, DIM, NODE, GROUPS = 32, 8, 128, 8, 132  # GROUPS: multiprocessors
KV = 2 * DIM  # elements of K and V of a position and head
NVLINK, INFINIBAND, LATENCY = 230e9, 50e9, 30e-6  # the first and the last as in Machine (context_parallel.hpp)
MEMORY = 141e9  # of an H200
SCHEMES = "gather", "ring", "ulysses", "mesh"
LENGTHS, RANKS = [2**17, 2**20, 2**22, 2**24], [8, 16, 64, 256, 1024]
MEASURED = {"gather": "gather zigzag", "ring": "ring zigzag", "ulysses": "ulysses contiguous"}


class Machine(NamedTuple):
    """Seconds and operations a second, each of a forward and of a backward."""

    rates: tuple[float, float]
    whole: tuple[tuple[float, float], ...]  # (factor, fixed) of calls on whole rows
    ring: tuple[tuple[float, float], ...]  # of a step


def operations(length, backward):
    return (10 if backward else 4) * HEADS * DIM * length * length / 2


def fill(rows, heads, backward):
    """The share of the multiprocessors' time that a call's tiles use. In a backward tiles are of keys, rows padded."""
    if backward:
        return rows / (64 * math.ceil(rows / 64))
    waves = math.ceil(math.ceil(rows / 128) * heads / GROUPS)
    return rows * heads / (128 * GROUPS * waves)


def call_of(scheme, length, ranks):
    """(rows, heads) of a rank's calls."""
    if scheme == "ulysses":
        return length, math.ceil(HEADS / ranks)
    if scheme == "mesh":
        return length * NODE / ranks / 2, HEADS // NODE
    return length / ranks / 2, HEADS


def sent(scheme, length, ranks, backward):
    """(seconds, link) of each exchange; of a ring, those of each step."""
    near, far = min(NODE, ranks), {"NVLink": NVLINK, "InfiniBand": INFINIBAND}

    def exchange(size, of, near):  # size: bytes of all `of` ranks that come to one, of which a node holds `near`
        seconds = {"NVLink": size * (near - 1) / of / NVLINK, "InfiniBand": size * (of - near) / of / INFINIBAND}
        link = max(seconds, key=seconds.get)
        return seconds[link], link

    keys = (2, 4) if backward else (2,)  # bytes of an element: K and V come, and their gradients go home in fp32
    if scheme == "ring":
        link = "InfiniBand" if ranks > NODE else "NVLink"
        return [(length / ranks * HEADS_KV * KV * sum(keys) / far[link], link)]
    if scheme == "gather":
        return [exchange(length * HEADS_KV * KV * each, ranks, near) for each in keys]
    rows, size = (length, ranks) if scheme == "ulysses" else (length * NODE / ranks, NODE)
    heads, heads_kv = HEADS / size, max(1, HEADS_KV / size)
    q, kv = rows * heads * DIM * 2, rows * heads_kv * KV * (4 if backward and size > HEADS_KV else 2)
    to_heads, to_rows = (q, q + kv) if backward else (q + kv, q + rows * heads * 4)  # with the LSE
    between = [] if scheme == "ulysses" else [exchange(length * heads_kv * KV * x, ranks / NODE, 1) for x in keys]
    return [exchange(to_heads, size, near), *between, exchange(to_rows, size, near)]


def kernels(scheme, length, ranks, backward, rates):
    """Seconds of a rank's calls at the rate of one GPU."""
    each = operations(length, backward) / rates[backward] / ranks
    return each / fill(*call_of(scheme, length, ranks), backward)


def spent(scheme, length, ranks, backward, machine):
    """Seconds by what they go to. "ideal" is this rank's part of the operations."""
    factor, fixed = (machine.ring if scheme == "ring" else machine.whole)[backward]
    ideal = operations(length, backward) / machine.rates[backward] / ranks
    idle = max(1, ranks / HEADS) if scheme == "ulysses" else 1  # beyond 32 there are ranks without heads
    computing = kernels(scheme, length, ranks, backward, machine.rates) * factor
    found = {"ideal": ideal, "heads": computing * (idle - 1), "kernels": computing - ideal, "host": fixed}
    found |= {"NVLink": 0.0, "InfiniBand": 0.0}
    for seconds, link in sent(scheme, length, ranks, backward):
        if scheme == "ring":
            found["host"] = ranks * fixed
            found[link] += (ranks - 1) * max(0.0, seconds + LATENCY - computing / ranks - fixed)
        else:
            found[link] += seconds
            found["host"] += LATENCY
    return found


def memory(scheme, length, ranks):
    """Bytes of a rank in a backward: q, out, dout and dq of its rows, K and V, and their gradients."""
    own = length / ranks * (4 * HEADS * DIM + 2 * HEADS_KV * KV) * 2
    if scheme in ("gather", "ring"):
        return own + (length if scheme == "gather" else 2 * length / ranks) * HEADS_KV * KV * 6
    size, rows = (ranks, length) if scheme == "ulysses" else (NODE, length * NODE / ranks)
    return own + rows * HEADS / size * DIM * (3 * 2 + 4) + length * max(1, HEADS_KV / size) * KV * 6


def fitted(cells, rates, schemes, backward):
    """The factor and the fixed seconds, not negative, that fit the cells of two GPUs best by their relative errors."""
    aa = ab = bb = ac = bc = 0.0
    for (scheme, length), seconds in cells.items():
        if scheme in schemes:
            hidden = scheme == "ring"
            others = 0 if hidden else sum(x + LATENCY for x, _ in sent(scheme, length, 2, backward))
            a, b = (
                kernels(scheme, length, 2, backward, rates) / seconds[backward],
                (2 if hidden else 1) / seconds[backward],
            )
            c = 1 - others / seconds[backward]
            aa, ab, bb, ac, bc = aa + a * a, ab + a * b, bb + b * b, ac + a * c, bc + b * c
    fixed = max(0.0, (bc * aa - ac * ab) / (aa * bb - ab * ab))
    return (ac - fixed * ab) / aa, fixed


def times(document):
    """{(scheme, length): seconds of a forward and of a backward}; scheme None is one GPU."""
    names = {name: scheme for scheme, name in MEASURED.items()} | {"one GPU": None}
    both = [(names[row["name"]], row) for row in document if "share" in row and row["name"] in names]
    return {(scheme, row["length"]): (row["forward_s"], row["both_s"] - row["forward_s"]) for scheme, row in both}


def machine_of(document):
    cells = times(document)
    longest = max(length for _, length in cells)
    alone = cells[None, longest]
    rates = tuple(operations(longest, b) / alone[b] / fill(longest, HEADS, b) for b in (False, True))
    whole = tuple(fitted(cells, rates, ("gather", "ulysses"), b) for b in (False, True))
    return Machine(rates, whole, tuple(fitted(cells, rates, ("ring",), b) for b in (False, True)))


def share(scheme, length, ranks, machine, backwards=(False, True)):
    """The share of linear, and the seconds beyond it by what they go to."""
    parts = [spent(scheme, length, ranks, b, machine) for b in backwards]
    lost = {name: sum(x[name] for x in parts) for name in parts[0]}
    ideal = sum(x["ideal"] / fill(length, HEADS, b) for x, b in zip(parts, backwards))
    return ideal / sum(lost.values()), {name: x for name, x in lost.items() if name != "ideal"}


def rows(options):
    machine = machine_of(rows_of("h200x2_context_parallel"))
    for length in LENGTHS:
        for ranks in RANKS:
            row = {"length": length, "ranks": ranks, "schemes": {}}
            for scheme in SCHEMES if ranks > NODE else SCHEMES[:3]:
                both, lost = share(scheme, length, ranks, machine)
                row["schemes"][scheme] = {
                    "forward": share(scheme, length, ranks, machine, (False,))[0],
                    "both": both,
                    "limit": max(lost, key=lost.get),
                    "memory": memory(scheme, length, ranks),
                }
            yield row


def said(row):
    shares = ", ".join(f"{name} {100 * x['both']:.0f} %" for name, x in row["schemes"].items())
    return f"{row['length'] / 1024:6g}k on {row['ranks']:4d}: {shares}"


def table(document):
    """The fastest scheme that fits into memory, and the shares of all."""
    lines = []
    for row in document:
        fit = {name: x for name, x in row["schemes"].items() if x["memory"] <= MEMORY}
        name = f"{row['length'] >> 10}k" if row["length"] < 2**20 else f"{row['length'] >> 20}M"
        best = max(fit, key=lambda scheme: fit[scheme]["both"], default=None)
        x = fit.get(best)
        shown = [best, f"{100 * x['forward']:.0f}, {100 * x['both']:.0f}", f"{x['memory'] / 1e9:.3g}", x["limit"]]
        others = (row["schemes"].get(scheme) for scheme in SCHEMES)
        each = ["-" if not y else f"{100 * y['both']:.0f}" if y in fit.values() else "memory" for y in others]
        lines.append([name, str(row["ranks"]), *(shown if best else ["-", "-", "-", "memory"]), *each])
    return "\n".join(markdown(["tokens", "GPUs", "fastest", "share", "GB a GPU", "limit", *SCHEMES], lines))


def errors():
    """Milliseconds of two GPUs beside those of the model: H200, whose cells it is fitted to, and H100 at its own rate.

    The package that ran on two H100 had another ring.
    """
    fit, lines = machine_of(rows_of("h200x2_context_parallel")), []
    for card, schemes in (("h200", MEASURED), ("h100", ("gather", "ulysses"))):
        document = rows_of(f"{card}x2_context_parallel")
        machine = fit._replace(rates=machine_of(document).rates)
        for (scheme, length), seconds in sorted(times(document).items(), key=str):
            if scheme in schemes:
                model = [sum(spent(scheme, length, 2, b, machine).values()) for b in (False, True)]
                ms = [f"{1e3 * s:.2f}, {1e3 * m:.2f} ({100 * (m / s - 1):+.0f} %)" for s, m in zip(seconds, model)]
                lines.append([card.upper(), scheme, f"{length >> 10}k", *ms])
    return markdown(["", "", "", "forward, by the model", "backward, by the model"], lines)
