"""Run where a wheel and NumPy are installed, and nothing else of onepass. Computes, runs the command-line tool, and
prints where the wheel's libraries come from. Fails if one of them, or onepass itself, comes from elsewhere.

    try_wheel.py [--linked-in] [FOLDER]

FOLDER is where it is installed, if not where this Python has its packages. A wheel that has its libraries --linked-in
brings no file of them.
"""

import argparse
import pathlib
import subprocess
import sys
import sysconfig

import numpy as np
import onepass

parser = argparse.ArgumentParser()
parser.add_argument("--linked-in", action="store_true")
parser.add_argument("folder", nargs="?", type=pathlib.Path)
given = parser.parse_args()
site = given.folder or pathlib.Path(sysconfig.get_path("platlib"))
if pathlib.Path(onepass.__file__).parent != site / "onepass":
    sys.exit(f"onepass comes from {onepass.__file__}, not from {site}")

q = np.random.default_rng(0).standard_normal((1, 4, 300, 64), dtype=np.float32)
out = onepass.attention(q, q, q, mask="causal_top_left")
if not np.allclose(out[:, :, 0], q[:, :, 0], rtol=1e-6, atol=0):
    sys.exit("the first row sees one key and must be its value")

# The command that pip made beside this Python; a cross-built wheel, whose FOLDER is given, has it under FOLDER/bin.
scripts = site / "bin" if given.folder else pathlib.Path(sysconfig.get_path("scripts"))
text = (scripts / "onepass").read_text()
if "onepass.__main__" not in text:
    sys.exit(f"{scripts / 'onepass'} does not start onepass.__main__: {text}")
command = [sys.executable] if given.folder else []
checked = subprocess.run(
    [*command, scripts / "onepass", "check", "s40 d64 fp32", "--implementation", "reference"],
    capture_output=True,
    text=True,
)
if checked.returncode != 0 or " right " not in checked.stdout:
    sys.exit(f"onepass check ended with {checked.returncode}: {checked.stdout}{checked.stderr}")

# libhwy-0123abcd.so.1.0.3 stands for every libhwy*.
brought = {path.name.split("-")[0].split(".")[0] for path in (site / "onepass.libs").glob("*.so*")}
mapped = {line.split()[-1] for line in open("/proc/self/maps")}
loaded = sorted(path for path in mapped if any(pathlib.Path(path).name.startswith(name) for name in brought))
foreign = [path for path in loaded if not path.startswith(f"{site}/")]
print(*loaded, sep="\n")
if foreign or len(loaded) < len(brought) or given.linked_in == bool(brought):
    sys.exit(f"the wheel brings {sorted(brought)}; loaded from elsewhere: {foreign or 'nothing'}")
