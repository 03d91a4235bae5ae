"""The site shows every page of docs and every public name, and its links lead where they lead in the repository.

./dev docs builds the site and fails for a link that leads nowhere. These tests do not need MkDocs."""

import collections
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "website"))
import headers  # noqa: E402
import modules  # noqa: E402
import pages  # noqa: E402

THERE = pages.pages()
NAV = re.findall(r"([\w./-]+\.md)$", (ROOT / "website" / "mkdocs.yml").read_text().partition("\nnav:")[2], re.M)


class Nav(unittest.TestCase):
    def test_names_every_page_once(self):
        generated = [f"reference/cpp/{file.name}.md" for file in headers.headers()]
        generated += [f"reference/python/{module}.md" for module in modules.MODULES]
        self.assertEqual(collections.Counter(NAV), collections.Counter([*THERE.values(), *generated]))

    def test_every_folder_of_docs_has_pages(self):
        folders = {pathlib.PurePath(path).parent.as_posix() for path in THERE if path.startswith("docs/")}
        for folder in ("tutorials", "guides", "features", "coming_from", "reference", "notes"):
            self.assertIn(f"docs/{folder}", folders)


class Guides(unittest.TestCase):
    def test_the_guide_of_cpp_names_every_header(self):
        guide = (ROOT / "docs" / "guides" / "cpp.md").read_text()
        there = {file.name for file in (ROOT / "include" / "onepass").glob("*.hpp")}
        self.assertEqual(there - set(re.findall(r"[`/](\w+\.hpp)`", guide)), set())

    def test_the_guide_of_python_names_every_function(self):
        guide = (ROOT / "docs" / "guides" / "python.md").read_text()
        source = (ROOT / "python" / "onepass" / "__init__.py").read_text()
        names = re.findall(r'"(\w+)"', re.search(r"^__all__ = \[(.*?)\]", source, re.M | re.S)[1])
        self.assertIn("attention", names)
        self.assertEqual({name for name in names if name[0] != "_" and not re.search(rf"\b{name}\b", guide)}, set())


class Links(unittest.TestCase):
    def test_lead_to_pages_pictures_and_sources(self):
        for target, wanted in {
            "python.md": "python.md",
            "../index.md": "../pages.md",
            "../../README.md": "../index.md",
            "../../src/cuda/README.md": "../kernels/cuda.md",
            "../images/h200.svg": "../images/h200.svg",
            "../../README.zh.md": "../zh/index.md",
            "../derivation.zh.md": "../zh/derivation.md",
            "../features/context_parallel.zh.md": "../zh/features/context_parallel.md",
            "../../include/onepass": "X/tree/main/include/onepass",
            "../../dev": "X/blob/main/dev",
            "https://semver.org": "https://semver.org",
            "nowhere.md": "nowhere.md",
            "": "",
        }.items():
            with self.subTest(target=target):
                self.assertEqual(pages.resolved(target, "docs/guides/cpp.md", "guides/cpp.md", THERE, "X"), wanted)

    def test_no_page_has_a_link_out_of_docs(self):
        for path, uri in THERE.items():
            text = pages.on_site((ROOT / path).read_text(), path, uri, THERE, "https://X")
            prose = pages.CODE.sub("", text)
            for target in re.findall(r"\]\(([^)#\s]+)", prose):
                if "://" not in target:
                    there = (pathlib.Path("/docs") / uri).parent.joinpath(target)
                    self.assertIn("/docs/", pages.posixpath.normpath(there.as_posix()), f"{path}: {target}")


class Markdown(unittest.TestCase):
    def converted(self, text):
        return pages.on_site(text, "docs/index.md", "pages.md", THERE, "X")

    def test_code_is_left_alone(self):
        for code in ("```python\n- [a](b.md)\ntext\n- b\n```\n", "text `[a](b.md)`\n", "text\n\n    [a](b.md)\n"):
            self.assertEqual(self.converted(code), code)

    def test_words_behind_a_language(self):
        self.assertEqual(self.converted("```sh no-test\nx\n```\n"), "```sh\nx\n```\n")
        self.assertEqual(self.converted("```text output\nx\n```\n"), '```text title="output"\nx\n```\n')

    def test_lists_and_tables_begin_behind_a_blank_line(self):
        self.assertEqual(self.converted("text\n- a\n- b\n"), "text\n\n- a\n- b\n")
        self.assertEqual(self.converted("text\n| a |\n|---|\n"), "text\n\n| a |\n|---|\n")
        self.assertEqual(self.converted("1. a\n   - b\n"), "1. a\n    - b\n")
        self.assertEqual(self.converted("step\n0. The end\n"), "step\n0. The end\n")

    def test_chinese_lines_join_without_a_blank(self):
        self.assertEqual(self.converted("# 速度\n- 一行，\n  又一行\n- 二\n"), "# 速度\n- 一行，又一行\n- 二\n")


class References(unittest.TestCase):
    def test_every_public_name_has_a_heading(self):
        for file in headers.headers():
            titles = " ".join(re.findall(r"^### (.*)$", headers.page(file), re.M)).replace(",", "").split()
            code = re.sub(r"^#.*$|//[^\n]*|/\*.*?\*/", "", file.read_text(), flags=re.M | re.S)
            for name in re.findall(r"^(?:\[\[\w+\]\] )?ONEPASS_API [^;{(]*?(\w+)\(", code, re.M):
                self.assertIn(name, titles, file.name)
            for name in re.findall(r"^(?:struct|class|enum class) (?:ONEPASS_API )?(\w+)", code, re.M):
                self.assertIn(name, titles, file.name)

    def test_a_group_is_prose_and_code(self):
        code = "void f(int x = {});  // why\nstruct S {\n  int a;\n\n  int b;\n};"
        groups = list(headers.groups(f"// The head.\n#pragma once\n\n// Says a < b.\n{code}\n"))
        self.assertEqual(groups, [("The head.", ""), ("Says a < b.", code)])
        self.assertEqual(headers.names(code), ["f", "S"])
        self.assertEqual(
            headers.prose("Says a < b of x_y and g().\n\n  f(1);"),
            "Says a &lt; b of `x_y` and `g()`.\n\n\n```cpp\nf(1);\n```",
        )

    def test_names_of_a_module(self):
        self.assertEqual(
            modules.names('__all__ = ["a", "b"]\nx = ["c"]\n__all__ += x\n__all__ += ["d"]\n'), list("abcd")
        )
        for module in modules.MODULES:
            self.assertGreater(len(modules.names(modules.source(module).read_text())), 0)


if __name__ == "__main__":
    unittest.main()
