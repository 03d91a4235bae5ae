"""python/wheel.py: which Pythons a wheel fits, and what is said of the wheels in dist."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import wheel  # noqa: E402

ABIS = ["cp39", "cp310", "cp311", "cp312", "cp313", "cp313t", "cp314", "cp314t"]


class Wheel(unittest.TestCase):
    def fitting(self, tag):
        made = pathlib.Path(f"onepass-1.2.3-{tag}-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl")
        return [abi for abi in ABIS if wheel.fits(made, abi)]

    def test_the_stable_abi_fits_later_pythons_with_a_gil(self):
        self.assertEqual(self.fitting("cp312-abi3"), ["cp312", "cp313", "cp314"])

    def test_another_abi_fits_itself(self):
        self.assertEqual(self.fitting("cp310-cp310"), ["cp310"])
        self.assertEqual(self.fitting("cp313-cp313t"), ["cp313t"])

    def test_the_abi_of_a_python(self):
        self.assertRegex(wheel.abi(sys.executable), rf"^cp{sys.version_info.major}{sys.version_info.minor}t?$")

    def test_each_wheel_has_its_command(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(wheel, "ROOT", pathlib.Path(name)):
            files = [pathlib.Path(name) / file for file in ("a.tar.gz", "a.whl", "b.whl")]
            for file in files:
                file.write_text("x")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                wheel.deliver(*files)
        commands = [line for line in printed.getvalue().splitlines() if line.startswith("pip")]
        self.assertEqual(commands, ["pip install dist/a.whl", "pip install dist/b.whl"])


if __name__ == "__main__":
    unittest.main()
