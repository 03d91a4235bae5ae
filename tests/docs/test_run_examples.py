"""The driver itself: what it runs, what it refuses."""

import argparse
import pathlib
import tempfile
import unittest

import run_examples

OPTIONS = argparse.Namespace(stage="/nonexistent", cxx="c++", cc="cc", python_path="here")


def check(text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "doc.md"
        path.write_text(text)
        return run_examples.check(path, OPTIONS)


class RunExamples(unittest.TestCase):
    def test_runs_what_is_marked(self):
        self.assertEqual(check("```sh\ntrue\n```\ntext\n```python\nimport math\n```\n"), (2, []))

    def test_leaves_the_rest_alone(self):
        self.assertEqual(check("```sh no-test\nfalse\n```\n```\nfalse\n```\n```cmake\nfalse\n```\n"), (0, []))

    def test_reports_failures_with_their_line(self):
        ran, complaints = check("one\n\n```sh\nfalse\ntrue\n```\n")
        self.assertEqual(ran, 1)
        self.assertIn("doc.md:3: exit status 1", complaints[0])

    def test_compares_output(self):
        good = "```sh\necho 'took  3.5 ms'\n```\n```text output\ntook ... ms\n```\n"
        self.assertEqual(check(good), (1, []))
        self.assertEqual(len(check(good.replace("took ...", "spent ..."))[1]), 1)

    def test_output_needs_an_example(self):
        self.assertEqual(len(check("```text output\nhello\n```\n")[1]), 1)

    def test_cpp_must_compile(self):
        self.assertEqual(len(check("```cpp\nint f() { return undeclared; }\n```\n")[1]), 1)


if __name__ == "__main__":
    unittest.main()
