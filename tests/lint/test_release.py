"""cmake/release.py: what a tag must have, and what its folder gets. A stand-in takes the place of the wheel."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {
    "include/onepass/version.h": '#define ONEPASS_VERSION "1.2.3"\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    "packaging/conda/recipe.yaml": 'context:\n  version: "1.2.3"\n',
    "packaging/vcpkg/ports/onepass/vcpkg.json": '{"version-semver": "1.2.3"}\n',
    "packaging/debian/changelog": "onepass (1.2.3) unstable; urgency=medium\n",
    "packaging/spack/packages/onepass/package.py": 'class Onepass:\n    version("1.2.3")\n',
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n- later\n\n## 1.2.3\n### Added\n- this\n\n## 1.2.2\n- before\n",
    "dev": '#!/bin/sh\nmkdir -p dist && echo "$@" >dist/onepass-1.2.3${2:+-$2}.whl\n',
}


class Release(unittest.TestCase):
    repository = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def release(self, changes=(), tag="v1.2.3", *words):
        """(exit status, output, folder) in a repository of FILES."""
        for name, text in {**FILES, **dict(changes)}.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.root / "dev").chmod(0o755)
        (self.root / "cmake").mkdir(exist_ok=True)
        shutil.copy(ROOT / "cmake" / "release.py", self.root / "cmake")
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"], ["tag", "v1.2.3"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)
        (self.root / "CHANGELOG.md").write_text("not committed")  # the tag counts
        command = [sys.executable, self.root / "cmake" / "release.py", tag, "--out", self.root / "out", *words]
        env = {**os.environ, "ONEPASS_REPOSITORY": self.repository}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr, self.root / "out"

    def test_a_release(self):
        status, printed, out = self.release()
        self.assertEqual(status, 0, printed)
        wheels = {"onepass-1.2.3.whl": "wheel\n", "onepass-1.2.3-2_28.whl": "wheel 2_28\n"}
        files = {"onepass-1.2.3-source.tar.gz", *wheels, "NOTES.md", "SHA256SUMS"}
        self.assertEqual({path.name for path in out.iterdir()}, files)
        self.assertEqual((out / "NOTES.md").read_text(), "### Added\n- this\n")
        self.assertEqual({name: (out / name).read_text() for name in wheels}, wheels)
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
        listed = subprocess.run(["tar", "-tzf", out / "onepass-1.2.3-source.tar.gz"], capture_output=True, text=True)
        self.assertIn("onepass-1.2.3/include/onepass/version.h\n", listed.stdout)

    def test_the_source_alone(self):
        status, _, out = self.release((), "v1.2.3", "--artifacts", "source")
        self.assertEqual((status, (out / "onepass-1.2.3.whl").exists()), (0, False))

    def test_the_wheels_of_pythons(self):
        words = "--artifacts", "wheel_2_28", "aarch64", "--python", "python3.10", "python3.12"
        status, printed, out = self.release((), "v1.2.3", *words)
        self.assertEqual(status, 0, printed)
        self.assertEqual((out / "onepass-1.2.3-2_28.whl").read_text(), "wheel 2_28 python3.10 python3.12\n")
        self.assertEqual((out / "onepass-1.2.3-aarch64.whl").read_text(), "wheel aarch64\n")
        shutil.rmtree(self.root)
        words = "--artifacts", "aarch64_2_28", "--python", "python3.10"
        _, _, out = self.release((), "v1.2.3", *words)
        self.assertEqual((out / "onepass-1.2.3-2_28.whl").read_text(), "wheel 2_28 aarch64\n")

    def test_links_of_the_notes(self):
        links = "[a](docs/a.md#b) [c](https://d.example/e) [f](#g)"
        changelog = {"CHANGELOG.md": f"## 1.2.3\n{links}\n"}
        _, _, out = self.release(changelog, "v1.2.3", "--artifacts", "source")
        self.assertEqual((out / "NOTES.md").read_text(), links + "\n")
        self.repository = "https://r.example/o"
        shutil.rmtree(self.root)
        _, _, out = self.release(changelog, "v1.2.3", "--artifacts", "source")
        self.assertIn(
            "[a](https://r.example/o/blob/v1.2.3/docs/a.md#b) [c](https://d.example/e) [f](#g)",
            (out / "NOTES.md").read_text(),
        )

    def refused(self, sentence, *arguments):
        status, printed, _ = self.release(*arguments)
        self.assertNotEqual(status, 0)
        self.assertIn(sentence, printed)

    def test_another_version(self):
        changes = {"include/onepass/version.h": '#define ONEPASS_VERSION "1.2.2"\n'}
        self.refused("include/onepass/version.h must have version 1.2.3 (got 1.2.2)", changes)

    def test_another_citation(self):
        self.refused("CITATION.cff must have version 1.2.3 (got 1.2.0)", {"CITATION.cff": "version: 1.2.0\n"})

    def test_no_section(self):
        changes = {"CHANGELOG.md": "# Changelog\n\n## Unreleased\n- all\n"}
        self.refused("CHANGELOG.md must have the section '## 1.2.3' (got Unreleased)", changes)

    def test_an_empty_section(self):
        changes = {"CHANGELOG.md": "## 1.2.3\n\n## 1.2.2\n- before\n"}
        self.refused("the section '## 1.2.3' of CHANGELOG.md must not be empty", changes)

    def test_a_build_that_fails(self):
        self.refused("./dev wheel failed", {"dev": "#!/bin/sh\nexit 1\n"})

    def test_a_build_that_makes_nothing(self):
        self.refused("./dev wheel left nothing in dist", {"dev": "#!/bin/sh\n"})

    def test_no_tag(self):
        self.refused("the tag v9.9.9 must exist in this clone", {}, "v9.9.9")

    def test_no_version(self):
        self.refused("the tag must be vMAJOR.MINOR.PATCH (got main)", {}, "main")


if __name__ == "__main__":
    unittest.main()
