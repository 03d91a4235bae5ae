"""python -m bench tables: it writes the tables, and --check finds each number that differs from the results."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import tables  # noqa: E402
from bench.tables.cells import CELL  # noqa: E402

EMPTY = "before\n<!-- table: h200 -->\n<!-- end -->\nbehind\n"


class Tables(unittest.TestCase):
    def check(self, text):
        """(exit status, output) of --check on a file with this text."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text(text)
            command = [sys.executable, str(ROOT / "bench"), "tables", "--check", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(path.read_text(), text)
            return done.returncode, done.stdout

    def test_writes_between_the_marks_only(self):
        text = tables.rendered(EMPTY)
        self.assertTrue(text.startswith("before\n<!-- table: h200 -->\n|"))
        self.assertTrue(text.endswith("|\n<!-- end -->\nbehind\n"))
        self.assertEqual(tables.rendered(text), text)
        self.assertEqual(self.check(text)[0], 0)

    def test_every_number_counts(self):
        text = tables.rendered(EMPTY)
        speed = next(word for word in text.split() if word.isdigit() and len(word) == 3)
        status, said = self.check(text.replace(speed, str(int(speed) + 1), 1))
        self.assertEqual(status, 1)
        self.assertIn("must be: |", said)
        self.assertEqual(self.check(EMPTY)[0], 1)

    def test_names_tables_it_does_not_know(self):
        status, said = self.check(EMPTY.replace("h200", "h300"))
        self.assertEqual(status, 1)
        self.assertIn("unknown table 'h300'; known: headline, h200, ", said)

    def test_marks_come_in_pairs(self):
        self.assertEqual(self.check(EMPTY.replace("<!-- end -->", ""))[0], 1)
        self.assertEqual(self.check(EMPTY + "<!-- end -->\n")[0], 1)

    def test_a_peer_of_all_cells_comes_into_the_table(self):
        rows = tables.rows_of("h200_fa3")
        cells = [row for row in rows if CELL.fullmatch(row["problem"])]
        for row in cells:
            row["peers"]["flash-attn-4"] = {"median_s": row["median_s"] / 0.8, "times_ours": 1.25}
        with unittest.mock.patch.object(tables.gpu, "rows_of", lambda _: rows):
            table = tables.gpu.h200()
            self.assertIn("onepass / FlashAttention-4 / FlashAttention-3 / cuDNN", table[0])
            self.assertIn("| FlashAttention-4 | 1.25 | 1.25 | 1.25 |", tables.gpu.h200_means())
            cells[-1]["peers"]["flash-attn-4"] = {"refused": "why"}  # no time: no column
            self.assertNotIn("FlashAttention-4", tables.gpu.h200()[0])
            self.assertEqual(tables.gpu.h200()[0], "| TFLOP/s: onepass / FlashAttention-3 / cuDNN | 1k | 4k | 16k |")

    def test_the_first_number_of_readme_is_the_tables(self):
        for page in ("README.md", "README.zh.md"):
            text = (ROOT / page).read_text()
            speed, ratio = re.search(r"H200.*?(\d+ TFLOP/s).*?(\d\.\d+x)", text, re.S).groups()
            self.assertIn(f"| H200 | bf16 d128, 4k | {speed} | FlashAttention-4 {ratio},", text)

    def test_versions_of_the_support_page_are_those_of_its_files(self):
        page = ROOT / "docs" / "reference" / "support.md"
        section = page.read_text().partition("## Versions")[2]
        rows = re.findall(r"^\| .* \| ([^|]*\d[^|]*) \| \[.*\]\((.*)\) \|$", section, re.M)
        self.assertGreater(len(rows), 10)
        for versions, target in rows:
            for version in versions.split(", "):
                self.assertIn(version.removeprefix("CUDA "), (page.parent / target).read_text(), target)

    def test_every_table_is_used(self):
        shown = "".join(file.read_text() for file in tables.marked_files())
        self.assertEqual([name for name in tables.TABLES if f"<!-- table: {name} -->" not in shown], [])


if __name__ == "__main__":
    unittest.main()
