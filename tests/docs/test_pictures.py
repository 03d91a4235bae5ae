"""The pictures of docs/images show the numbers of bench/results: digests, lengths of bars, points of lines, labels."""

import json
import math
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import plot  # noqa: E402

PATH = re.compile(r'<path d="([^"]*)" clip-path="[^"]*" style="([^"]*)"')


def points(path):
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", path)]
    return list(zip(numbers[::2], numbers[1::2]))


def panels(svg):
    """The text of each panel."""
    return re.split(r'<g id="axes_\d+">', svg)[1:]


def bars(svg):
    """(width, height) of the bars, in the order of the file."""
    colours = {f"fill: {colour}" for colour in plot.COLOURS.values()}
    boxes = [tuple(zip(*points(path))) for path, style in PATH.findall(svg) if style in colours]
    return [(max(x) - min(x), max(y) - min(y)) for x, y in boxes]


def labels(svg):
    """The ratios beside the bars."""
    return re.findall(r"<!-- (\d+\.\d\dx?) -->", svg)


def shown(name):
    source, others = plot.PICTURES[name]
    rows = json.loads((plot.RESULTS / f"{source}.json").read_text())
    return plot.shown(rows, others), (plot.IMAGES / f"{name}.svg").read_text()


def expected_cells(rows):
    """(TFLOP/s of each bar, ratios beside onepass's bars) by panel, full above causal."""
    speeds, ratios = [], []
    for _, group in sorted(plot.cells(rows).items(), key=lambda item: (item[0][1], item[0][0])):
        for name in plot.COLOURS:
            if any(name in plot.seconds(row) for _, row in group):
                speeds += [plot.tflops(row, name) if name in plot.seconds(row) else 0 for _, row in group]
        ratios += [f"{row['times_best_peer']:.2f}x" for _, row in group]
    return speeds, ratios


def expected_rows(rows):
    """(speed relative to the best peer for each bar, onepass's speeds), from the lowest row upwards."""
    speeds, ratios = [], []
    for row in reversed([row for row in rows if "median_s" in row and len(plot.seconds(row)) > 1]):
        taken = plot.seconds(row)
        best = min(seconds for name, seconds in taken.items() if name != "onepass")
        speeds += [best / taken[name] for name in plot.COLOURS if name in taken]
        ratios.append(f"{best / taken['onepass']:.2f}")
    return speeds, ratios


def expected_lines(rows):
    """For each panel of fa1: the values of each line."""
    for dim in (64, 128):
        for _, keys, unit, model in plot.FA1_PANELS:
            lines = []
            for name in plot.FA1:
                wanted = [(causal, keys) for causal in (False, True)] + ([(False, (model,))] if model else [])
                lines += [plot.fa1_line(rows, dim, causal, name, which, unit)[1] for causal, which in wanted]
            yield [line for line in lines if line]


class Pictures(unittest.TestCase):
    def test_show_the_results(self):
        self.assertEqual(plot.stale(), [])

    def test_every_number_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder)
            for source in {source for source, _ in plot.PICTURES.values()}:
                shutil.copy(plot.RESULTS / f"{source}.json", results)
            rows = json.loads((results / "h200_backward.json").read_text())
            other = next(row for row in rows if "d192 " in row["problem"])
            other["peers"]["flash-attn-4"]["median_s"] *= 1.01
            (results / "h200_backward.json").write_text(json.dumps(rows))
            found = plot.stale(results=results)
            self.assertEqual([line.split()[0] for line in found], ["h200_backward_others.svg"])

    def test_a_missing_picture_is_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(len(plot.stale(images=pathlib.Path(folder))), len(plot.PICTURES))

    def test_every_picture_is_checked_and_used(self):
        files = {file.name for file in plot.IMAGES.iterdir()}
        self.assertEqual({x for x in files if x.endswith(".svg")}, {f"{name}.svg" for name in plot.PICTURES})
        pages = "".join(page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
        self.assertEqual([file for file in sorted(files) if f"images/{file})" not in pages], [])
        drawings = [file.name for file in sorted((ROOT / "docs/drawings").iterdir())]
        self.assertEqual([file for file in drawings if f"drawings/{file})" not in pages], [])

    def test_bars_are_as_long_as_the_numbers(self):
        for name in plot.PICTURES:
            if name in ("fa1", "context_parallel"):  # lines
                continue
            rows, svg = shown(name)
            upright = bool(plot.cells(rows))
            speeds, ratios = expected_cells(rows) if upright else expected_rows(rows)
            lengths = [box[upright] for box in bars(svg)]
            self.assertEqual(len(lengths), len(speeds), name)
            scale = max(lengths) / max(speeds)
            for length, speed in zip(lengths, speeds):
                self.assertAlmostEqual(length, scale * speed, delta=0.01, msg=name)
            self.assertEqual(labels(svg), ratios, name)

    def check_lines(self, svg, lines_of_panels, colours, scale):
        """The lines of each panel go through the values. scale: what the axis is even in."""
        self.assertEqual(len(panels(svg)), len(lines_of_panels))
        for panel, lines in zip(panels(svg), lines_of_panels):
            drawn = [points(path) for path, style in PATH.findall(panel) if any(colour in style for colour in colours)]
            self.assertEqual([len(line) for line in drawn], [len(line) for line in lines])
            pairs = sorted(
                (scale(value), y) for line, values in zip(drawn, lines) for (_, y), value in zip(line, values)
            )
            (low, bottom), (high, top) = pairs[0], pairs[-1]
            for value, y in pairs:
                self.assertAlmostEqual(y, bottom + (top - bottom) * (value - low) / (high - low), delta=0.01)

    def test_lines_go_through_the_numbers(self):
        rows, svg = shown("fa1")
        colours = [f"stroke: {colour}" for _, colour in plot.FA1.values()]
        self.check_lines(svg, list(expected_lines(rows)), colours, math.log10)

    def test_lines_go_through_the_shares(self):
        rows, svg = shown("context_parallel")
        colours = [f"stroke: {colour}" for _, colour in plot.SHARES.values()]
        lines = [[plot.share_line(rows, name, i)[1] for name in plot.SHARES] for i in range(len(plot.SHARE_PANELS))]
        self.assertEqual({len(line) for panel in lines for line in panel}, {3})
        self.check_lines(svg, lines, colours, float)


if __name__ == "__main__":
    unittest.main()
