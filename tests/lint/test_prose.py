"""The checker of prose must reject foreign sentences, and accept plain ones."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import check_repository
import prose


def rules(path, text):
    """The kind, the line and the rule of every complaint."""
    found = []
    for kind, message in prose.found(path, text):
        place, rule = message.split(": ", 1)
        found.append((kind, int(place.rsplit(":", 1)[1]), rule.split("'")[1]))
    return found


class Prose(unittest.TestCase):
    def accepts(self, path, text):
        self.assertEqual(rules(path, text), [])

    def rejects(self, path, text, kind, line, rule):
        self.assertEqual(rules(path, text), [(kind, line, rule)])

    def test_strings_of_cxx(self):
        self.rejects("a.cpp", 'int a;\nrefuse("v is no view of k");\n', "string", 2, "is no")
        self.rejects(
            "a.cpp", 'text("heads are", " no multiple");\nf("heads are"\n  " no multiple");\n', "string", 2, "is no"
        )
        self.rejects("a.cpp", 'refuse("cuBLAS takes no size of 0");\n', "string", 1, "takes no")
        self.rejects("a.cpp", 'refuse("row_lse is given; it is of a softmax");\n', "string", 1, "is of")
        self.rejects("a.cpp", 'refuse("so many features do not fit");\n', "string", 1, "so many")
        self.rejects("a.cpp", 'help("Of all but pages: bhsd or bshd");\n', "string", 1, "opener")
        self.rejects("a.cpp", 'help("Prints O. What is left out is 0");\n', "string", 1, "opener")
        self.rejects("a.cpp", 'R"x(the caller "a" is no\nthread)x"', "string", 1, "is no")
        self.rejects("a.cpp", 'auto c = \'"\'; f("k is no view of q");', "string", 1, "is no")

    def test_comments_of_cxx(self):
        self.rejects("a.hpp", "// What a warp reads.\n", "comment", 1, "opener")
        self.rejects("a.hpp", "int a;  // the warp that\n        // is no consumer\n", "comment", 2, "is no")
        self.rejects("a.hpp", "/* The stage, for whoever counts\n   alone */\n", "comment", 1, "person")
        self.accepts("a.hpp", "// The rows of a tile. What is hidden is 0.\n#include <a>\n// See that.\n")
        self.accepts("a.hpp", '// Says "x is no multiple" `that is no code`\n'.replace('"x is no multiple" ', ""))

    def test_python(self):
        self.rejects("a.py", '"""Whether x is right."""\n', "docstring", 1, "opener")
        self.rejects("a.py", 'def f():\n    """A name.\n\n    It is no tensor.\n    """\n', "docstring", 4, "is no")
        self.rejects("a.py", 'raise ValueError(f"x = {x} is no multiple of {y}")\n', "string", 1, "is no")
        self.rejects("a.py", 'raise ValueError(\n    "that is"\n    " no tensor"\n)\n', "string", 2, "is no")
        self.rejects("a.py", "x = 1\n# Rows of\n# as many heads\n", "comment", 3, "so many")
        self.accepts("a.py", 'x = {"Of": 1, "no": 2}\n')

    def test_pages(self):
        self.rejects("docs/a.md", "# A\n\nO is 0. Of these, two are exact.\n", "page", 3, "opener")
        self.rejects("docs/a.md", "- **A.** Of each row, O is 0.\n", "page", 1, "opener")
        self.rejects("docs/a.md", "| a | as many bytes |\n", "page", 1, "so many")
        self.rejects("docs/a.md", "for whoever reads it\n", "page", 1, "person")
        self.accepts("docs/a.md", "## What it does\n\nWhat is a plan? For readers who ask. That is all.\n")
        self.accepts("docs/a.md", "```sh\n# What is it, of whom\n```\nSee `x is no y` and [a](What.md).\n")

    def test_plain_sentences(self):
        for sentence in [
            "heads_q (6) must be a multiple of heads_kv (4)",
            "there is no cuda:9; this machine has 8 CUDA devices",
            "the driver is no longer loaded, and the call is no slower",
            "q has as many heads as k, and as many rows of a page as v",
            "That: a word before a colon is a name"[5:],
            "What is a plan?",
        ]:
            self.accepts("a.cpp", f'f("{sentence}");\n')

    def test_what_is_switched_on(self):
        on = prose.SWITCHED_ON
        try:
            prose.SWITCHED_ON = {"string": (("src/",), ("src/cpu/",)), "comment": (("src/b/",), ()), "page": ((), ())}
            code = '// Of a row.\nf("it is no row");\n'
            self.assertEqual(len(prose.complaints("src/a/a.cpp", code)), 1)
            self.assertEqual(len(prose.complaints("src/b/a.cpp", code)), 2)
            self.assertEqual(prose.complaints("src/cpu/a.cpp", code), [])
            self.assertEqual(prose.complaints("docs/a.md", "It is no page.\n"), [])
            self.assertIn("src/a/a.cpp:2: ", check_repository.complaints("src/a/a.cpp", code)[0])
        finally:
            prose.SWITCHED_ON = on

    def test_all_layers_are_on(self):
        for folder in (folder for layer in check_repository.LAYERS for folder in layer):
            code = '// Of a row.\nf("it is no row");\nx = -std::numeric_limits<float>::infinity();\n'
            found = check_repository.complaints(f"{folder}/a.cpp", code)
            free = folder.startswith(check_repository.ALGEBRA_FOLDERS) or f"{folder}/".startswith(
                check_repository.ALGEBRA_FOLDERS
            )
            self.assertEqual(len(found), 2 if free else 3, found)


if __name__ == "__main__":
    unittest.main()
