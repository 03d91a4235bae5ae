"""README.zh.md and the pages docs/**/*.zh.md say what the English pages say: the same sections, examples, tables,
formulas and links, in the same order. What is shown but not run may have comments of its own."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]")


def pages():
    """(English, translation) of every page that has one."""
    found = [*ROOT.glob("*.zh.md"), *ROOT.glob("docs/**/*.zh.md")]
    return [(file.with_name(file.name.replace(".zh.md", ".md")), file) for file in found]


def parts(text):
    """By name, what a translation keeps."""
    code = re.compile(r"^```(.*?)^```", re.M | re.S)
    prose = code.sub("", text)
    lines = prose.splitlines()
    return {
        "examples": [block for block in code.findall(text) if "no-test" not in block.partition("\n")[0]],
        "shown": [len(block.splitlines()) for block in code.findall(text)],
        "sections": [line.partition(" ")[0] for line in lines if line.startswith("#")],
        "numbered": re.findall(r"^## (\d+)\.", prose, re.M),
        "measured": re.findall(r"<!-- table: .*?<!-- end -->", prose, re.S),
        "rows": sum(line.startswith("|") for line in lines),
        "points": sum(line.startswith("- ") for line in lines),
        "formulas": [
            line.partition("  ")[0] for line in lines if re.match(r" {4}\S", line) and not CHINESE.search(line)
        ],
        "links": sorted(re.sub(r"\.zh\.md", ".md", link) for link in re.findall(r"\]\(([^)#]+)[^)]*\)", prose)),
    }


class Translations(unittest.TestCase):
    def test_are_these(self):
        found = sorted(zh.relative_to(ROOT).as_posix() for _, zh in pages())
        wanted = [
            "README.zh.md",
            "docs/derivation.zh.md",
            "docs/features/context_parallel.zh.md",
            "docs/guides/install.zh.md",
            "docs/how_it_works.zh.md",
            "docs/index.zh.md",
            "docs/tutorials/embed.zh.md",
            "docs/tutorials/learn.zh.md",
            "docs/tutorials/serve.zh.md",
            "docs/tutorials/train.zh.md",
        ]
        self.assertEqual(found, wanted)

    def test_they_keep_everything(self):
        for english, chinese in pages():
            wanted, given = parts(english.read_text()), parts(chinese.read_text())
            for name in wanted:
                with self.subTest(page=chinese.name, part=name):
                    if name == "formulas":
                        self.assertLessEqual(set(given[name]), set(wanted[name]))
                    else:
                        self.assertEqual(given[name], wanted[name])

    def test_each_names_the_other_at_its_top(self):
        for english, chinese in pages():
            self.assertIn(f"]({chinese.name})", english.read_text()[:200])
            self.assertIn(f"]({english.name})", chinese.read_text()[:200])

    def test_numbers_are_the_same(self):
        """Every number with a point in it, such as 12.6 MB, stands on both pages."""
        for english, chinese in pages():
            numbers = [set(re.findall(r"\d+\.\d+", file.read_text())) for file in (english, chinese)]
            self.assertEqual(numbers[0], numbers[1], chinese.name)


if __name__ == "__main__":
    unittest.main()
