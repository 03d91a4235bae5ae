"""The checker must accept what is right and reject what is wrong."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import check_repository


class CheckRepository(unittest.TestCase):
    def accepts(self, path, code):
        self.assertEqual(check_repository.complaints(path, code), [])

    def rejects(self, path, code, words):
        found = check_repository.complaints(path, code)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_layers_below(self):
        self.accepts("src/plan/plan.cpp", '#include "cpu/implementations.hpp"\n#include "algebra/mask.hpp"\n')
        self.accepts("src/cpu/a.cpp", '#include "cpu/b.hpp"\n#include "onepass/tensor.hpp"\n#include <algebra/x>\n')
        self.accepts("tools/onepass/main.cpp", '#include "check/check.hpp"\n#include "plan/plan.hpp"\n')
        self.accepts("tests/algebra/mask_test.cpp", '#include "check/check.hpp"\n')

    def test_layers_above(self):
        above = '\n#include "plan/plan.hpp"\n'
        self.rejects("src/algebra/a.hpp", above, "src/algebra/a.hpp:2: src/algebra includes from src/plan")
        self.rejects("src/algebra/a.hpp", '#include "base/text.hpp"\n', "src/algebra includes from src/base")
        self.rejects("src/ladder/a.hpp", '#  include "cpu/x.hpp"\n', "src/ladder includes from src/cpu")
        self.rejects("src/interfaces/a.cpp", '#include "check/x.hpp"\n', "src/interfaces includes from src/check")
        self.rejects("include/onepass/a.hpp", '#include "algebra/x.hpp"\n', "include includes from src/algebra")

    def test_backends_never_include_each_other(self):
        self.rejects("src/cuda/a.cpp", '#include "cpu/x.hpp"\n', "src/cuda includes from src/cpu")
        self.rejects("src/cpu/a.cpp", '#include "cuda/x.hpp"\n', "src/cpu includes from src/cuda")

    def test_order_inside_a_backend(self):
        self.accepts("src/cuda/decode/a.cuh", '#include "cuda/decode/b.cuh"\n#include "cuda/attention/scores/c.cuh"\n')
        self.accepts("src/cuda/implementations.cpp", '#include "cuda/mla/mla.hpp"\n')
        self.rejects("src/cuda/sm90/a.cuh", '#include "cuda/decode/b.cuh"\n', "src/cuda/sm90 includes from decode")
        self.rejects("src/cuda/merge/a.cpp", '#include "cuda/softmax/b.hpp"\n', "src/cuda/merge includes from softmax")
        self.rejects(
            "src/cpu/flash/a.cpp", '#include "cpu/implementations.hpp"\n', "src/cpu/flash includes from src/cpu/impl"
        )

    def test_the_table_of_the_layers(self):
        table = check_repository.layer_table()
        self.assertIn("| 0 | `src/algebra` |", table)
        self.assertLess(table.index("`src/plan`"), table.index("`src/cuda`"))
        self.assertIn("`decode`, `jvp` < `mla`", table)

    def test_crowded_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src/cpu").mkdir(parents=True)
            for number in range(16):
                (root / f"src/cpu/{number}.cpp").touch()
            self.assertEqual(list(check_repository.crowded(root)), [])
            (root / "src/cpu/16.cpp").touch()
            self.assertEqual(list(check_repository.crowded(root)), ["src/cpu: 17 files; 16 at most"])

    def test_algebra(self):
        self.rejects("src/cpu/flash/flash-inl.h", "y = hn::exp2(x);\n", "exp2 belongs to")
        self.rejects("tools/onepass/run.cpp", "std::numeric_limits<float>::infinity()\n", "infinity belongs to")
        self.accepts(
            "src/cpu/flash/flash-inl.h", '// exp2 of x\nprint("log2"); /* infinity\n INFINITY */ int myexp2x;\n'
        )
        self.accepts("src/cpu/common/simd-inl.h", "exp2(x)\n")
        self.accepts("src/algebra/online_softmax.hpp", "exp2(x)\n")
        self.accepts("tests/algebra/t.cpp", "INFINITY\n")

    def test_exponentials_by_other_names(self):
        for line, word in [
            ("y = std::exp(x - m);", "exp belongs to"),
            ("y = expf(x);", "expf belongs to"),
            ("y = __expf(x);", "__expf belongs to"),
            ("y = _mm512_scalef_ps(p, x);", "_mm512_scalef_ps belongs to"),
            ("y = _mm512_mask_scalef_ps(y, k, p, x);", "_mm512_mask_scalef_ps belongs to"),
            ("if (w == 0.0f) w = 1.17549435e-38f;", "1.17549435e-38f belongs to"),
        ]:
            self.rejects("src/cpu/flash/flash-inl.h", line + "\n", word)
        self.rejects("src/cuda/sm90/forward/forward.cuh", "w = ex2(s - m);\n", "ex2 belongs to")
        self.accepts("src/cuda/device/math.cuh", "float ex2(float x);\n")
        self.accepts("src/cpu/amx/kernels/vector-inl.h", "_mm512_scalef_ps(p, x)\n")
        self.accepts("src/cpu/flash/flash-inl.h", "expression(exponent, fexp, 1.5e-38f)\n")

    def test_markers_of_a_merge(self):
        self.rejects("docs/a.md", "x\n<" + "<<<<<< HEAD\ny\n", "a.md:2: <<<<<<< is left from a merge")
        self.rejects("src/base/a.cpp", ">" + ">>>>>> main\n", ">>>>>>> is left from a merge")
        self.accepts("docs/a.md", "Title\n=======\n x <<<<<<< y\n")

    def test_length(self):
        self.accepts("src/base/a.cpp", "\n" * 400)
        self.rejects("src/base/a.cpp", "\n" * 401, "401 lines")
        self.accepts("docs/long.md", "\n" * 2000)

    def test_pages_of_kernels(self):
        self.accepts("src/cpu/README.md", "x\n" * 89 + "x" * 120 + "\n")
        self.rejects("src/cpu/README.md", "x\n" * 91, "91 lines")
        self.rejects("src/cuda/sm90/backward/README.md", "x\n" * 91, "91 lines")
        self.rejects("src/cpu/amx/README.md", "\n" + "x" * 121 + "\n", "README.md:2: 121 columns")

    def test_links(self):
        def found(text):
            return list(check_repository.links(pathlib.Path(__file__), "a.md", text))

        self.assertEqual(found("[a](test_seeds.py#x) [b](https://example.org/) `[c](d)`\n```\nf[e](f)\n```\n"), [])
        self.assertEqual(found("x\n[a](nowhere.md)\n"), ["a.md:2: there is no nowhere.md"])
        page = "../../README.md"
        self.assertEqual(found(f"[a]({page}#two-commands)\n"), [])
        self.assertEqual(found(f"[a]({page}#three)\n"), [f"a.md:1: {page} has no heading #three"])

    def test_headings(self):
        page = "# A `b`, c\n```\n# not this\n```\n## From x: `y_z`, `w`\n"
        self.assertEqual(check_repository.headings(page), {"a-b-c", "from-x-y_z-w"})

    def test_machine_paths(self):
        self.rejects("docs/a.md", "see /ho" + "me/me/x\n", "path of one machine")
        self.accepts("docs/a.md", "see https://example.org/home/x and src/base/\n")


if __name__ == "__main__":
    unittest.main()
