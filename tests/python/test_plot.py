"""bench/plot.py reads what onepass bench writes and draws a picture of it."""

import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import plot  # noqa: E402

CAUSAL = " causal_bottom_right"


def row(problem, ours=1e-3, **peers):
    entries = {name: {"median_s": s} if s else {"missing": "refused: no"} for name, s in peers.items()}
    best = min((s for s in peers.values() if s), default=None)
    return {"problem": problem, "median_s": ours, "flops": 5e11, "matmul_flops_per_s": 8e14, "peers": entries} | (
        {"times_best_peer": best / ours} if best else {}
    )


def suite():
    lines = (ROOT / "bench" / "suites" / "h200.txt").read_text().splitlines()
    return [row(f"{line}:0", **{"torch-cudnn": 2e-3, "torch-flash": 3e-3}) for line in lines if line[0] != "#"]


def fa1():
    entry = {"median_s": 1e-3, "read_bytes": 2e8, "written_bytes": 1e8, "extra_bytes": 3e6}
    entry |= {"model_bytes": 3e8, "model_extra_bytes": 2e6}
    refused = {"refused": "out of device memory", "model_bytes": 1e12, "model_extra_bytes": 5e11}
    lines = [f"fwd b{8 // n} h4 s{1024 * n} d64 bf16{m} layout=bshd cuda:0" for n in (4, 1) for m in ("", CAUSAL)]
    return [{"problem": p, "contenders": {"onepass": entry, "math": refused, "math-bf16": entry}} for p in lines]


def shares():
    rows = [{"length": n, "ranks": 2, "name": name, "share": [0.6, n / 2**16]}
            for n in (2**15, 2**14) for name in plot.SHARES]  # fmt: skip
    return [*rows, {"length": 2**14, "ranks": 2, "name": "ring zigzag", "error": "OutOfMemoryError"}]


def test_the_18_cells_are_known():
    found = plot.cells(suite())
    assert sorted(found) == [(d, m) for d in (64, 128, 256) for m in (False, True)]
    assert all([seq for seq, _ in group] == [1024, 4096, 16384] for group in found.values())
    assert plot.cells([*suite(), row("fwd b1 h1 s8 d96 fp32 cuda:0")]) == found
    assert plot.cells([row("bwd b4 h16 s4096 d128 bf16 deterministic layout=bshd cuda:0")]) == {}
    backward = (ROOT / "bench" / "suites" / "h200_backward.txt").read_text().splitlines()
    assert sum(map(len, plot.cells([row(f"{line}:0") for line in backward]).values())) == 18


def test_numbers():
    r = row("fwd b4 h16 s4096 d128 bf16 cuda:0", **{"torch-cudnn": 2e-3, "torch-flash": None})
    assert plot.seconds(r) == {"onepass": 1e-3, "torch-cudnn": 2e-3}
    assert plot.tflops(r, "torch-cudnn") == 250
    assert plot.seconds({"problem": "x", "refused": "no"}) == {}
    assert plot.label("fwd h16 d128 bf16 causal_bottom_right varlen=3,4x2 cuda:0") == "h16 d128 bf16 causal varlen"


def test_lines_of_the_fa1_claim():
    found = plot.fa1_line(fa1(), 64, True, "onepass", ("read_bytes", "written_bytes"), 1e9)
    assert found == ((1024, 4096), pytest.approx((0.3, 0.3)))
    assert plot.fa1_line(fa1(), 64, False, "math", ("median_s",), 1) == ((), ())
    assert plot.fa1_line(fa1(), 128, False, "onepass", ("median_s",), 1) == ((), ())


def test_lines_of_context_parallelism():
    rows = plot.shown(shares(), False)
    assert len(rows) == 2 * len(plot.SHARES)
    assert plot.share_line(rows, "ring zigzag", 1) == ((2**14, 2**15), (25, 50))
    assert plot.share_line(rows, "one GPU", 1) == ((), ())
    assert plot.digest(rows) != plot.digest([row | {"name": "ring zigzag"} for row in rows])


Box = collections.namedtuple("Box", "left top right bottom")


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def around(points):
    xs, ys = zip(*points)
    return Box(min(xs), min(ys), max(xs), max(ys))


def pairs(path):
    flat = numbers(path)
    return list(zip(flat[::2], flat[1::2]))


def moved(transform, points):
    """Through translate and scale, in the order in which they are applied."""
    for name, values in reversed(re.findall(r"(\w+)\(([^)]*)\)", transform)):
        a = numbers(values)
        x, y = a[0], a[1] if len(a) > 1 else (0 if name == "translate" else a[0])
        assert name in ("translate", "scale")
        points = [(px + x, py + y) if name == "translate" else (px * x, py * y) for px, py in points]
    return points


def geometry(svg):
    """The parts of a picture by plot.py: boxes of bars and of the labels beside them, the dashed lines, the frames."""
    parser = xml.etree.ElementTree.XMLParser(target=xml.etree.ElementTree.TreeBuilder(insert_comments=True))
    root = xml.etree.ElementTree.fromstring(svg, parser)
    space, link = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
    glyphs = {
        e.get("id"): moved(e.get("transform", ""), pairs(e.get("d") or ""))
        for e in root.iter(f"{space}path")
        if e.get("id")
    }
    names = {child: group.get("id", "") for group in root.iter(f"{space}g") for child in group}
    bars, labels, lines, frames = [], [], [], []
    for group in root.iter(f"{space}g"):
        for path in group.findall(f"{space}path"):
            style, box = path.get("style") or "", around(pairs(path.get("d")))
            inside = path.get("clip-path") is not None
            if inside and any(f"fill: {colour}" in style for colour in plot.COLOURS.values()):
                bars.append(box)
            elif inside and "stroke-dasharray" in style:
                lines.append(box)
            elif group.get("id", "").startswith("patch") and "fill: #ffffff" in style:
                frames.append(box)
        comments = [e.text.strip() for e in group if e.tag is xml.etree.ElementTree.Comment]
        if comments and names.get(group, "").startswith("axes") and re.fullmatch(r"\d+\.\d\dx?", comments[0]):
            word = group.find(f"{space}g")
            points = []
            for use in word.iter(f"{space}use"):
                glyph = glyphs[use.get(link)[1:]]
                points += moved(word.get("transform"), moved(use.get("transform", ""), glyph))
            labels.append(around(points))
    return bars, labels, lines, frames


def overlap(a, b):
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


def check_labels(svg, count):
    bars, labels, lines, frames = geometry(svg)
    assert len(labels) == count and len(bars) > count
    for i, label in enumerate(labels):
        assert not any(overlap(label, bar) for bar in bars), label
        assert not any(overlap(label, other) for other in labels[:i]), label
        assert not any(overlap(label, line) for line in lines), label
        # Wholly inside a panel.
        assert any(
            f.left < label.left and label.right < f.right and f.top < label.top and label.bottom < f.bottom
            for f in frames
        )


def test_labels_of_the_picture_in_the_docs():
    check_labels((ROOT / "docs" / "images" / "h200.svg").read_text(), 18)


def crowded():
    """Bars as high as their neighbours, at, below and above the matrix product."""
    rows = suite()
    for i, r in enumerate(rows):
        r["median_s"] = r["flops"] / (r["matmul_flops_per_s"] * (0.5, 0.9, 0.95, 0.97, 0.99, 1, 1.01, 1.04, 1.2)[i % 9])
        r["peers"]["torch-cudnn"]["median_s"] = r["median_s"] * (0.9, 0.98, 1, 1.02)[i % 4]
    return rows


def crowded_rows():
    names = ("flash-attn-3", "torch-cudnn", "torch-flash")
    times = (0.5e-3, 0.95e-3, 0.99e-3, 1e-3, 1.01e-3, 1.04e-3, 3e-3)
    return [row(f"fwd b1 s{9 + i} d8 bf16 cuda:0", t, **dict.fromkeys(names, 1e-3)) for i, t in enumerate(times)]


@pytest.mark.parametrize("rows", [crowded(), crowded_rows()])
def test_labels_lie_on_nothing(tmp_path, rows):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "r.json").write_text(json.dumps(rows))
    command = [sys.executable, str(ROOT / "bench"), "plot", str(tmp_path / "r.json"), "--out"]
    subprocess.run([*command, str(tmp_path / "a.svg")], check=True)
    check_labels((tmp_path / "a.svg").read_text(), len(rows))


def test_others_are_drawn_apart(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    peers = {"flash-attn-4": 2e-3, "torch-cudnn": 3e-3}
    rows = [*suite(), row("bwd b4 h16 s4096 d96 bf16 layout=bshd cuda:0", **peers)]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    command = [sys.executable, str(ROOT / "bench"), "plot", str(tmp_path / "r.json"), "--out"]
    subprocess.run([*command, str(tmp_path / "cells.svg")], check=True)
    subprocess.run([*command, str(tmp_path / "others.svg"), "--others"], check=True)
    cells, others = ((tmp_path / f"{name}.svg").read_text() for name in ("cells", "others"))
    assert "head dim 64, causal" in cells and "d96" not in cells
    assert "s4096 d96 bf16" in others and "head dim" not in others and "FlashAttention-4" in others


@pytest.mark.parametrize(
    "rows", [suite(), fa1(), shares(), [row("fwd b1 s9 d8 bf16 cuda:0", **{"torch-math": 4e-3, "torch-cudnn": 2e-3})]]
)
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_pictures(tmp_path, rows, kind):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "r.json").write_text(json.dumps(rows))
    command = [sys.executable, str(ROOT / "bench"), "plot", str(tmp_path / "r.json"), "--out"]
    pictures = []
    for name in ("a", "b"):
        subprocess.run([*command, str(tmp_path / f"{name}.{kind}")], check=True)
        pictures.append((tmp_path / f"{name}.{kind}").read_bytes())
    assert len(pictures[0]) > 5000 and pictures[0] == pictures[1]
