"""Makes a wheel for aarch64 by cross compiler, and tries it under qemu: `./dev wheel [2_28] aarch64`.

wheel_aarch64.py [--licence NAME=FILE]... [--toolchain FOLDER] PACKAGES

PACKAGES: the folder of cmake/neon_packages.sh, with Debian's arm64 Python of the version that runs this. The wheel is
for that version alone, since no other is there to try it; NumPy and pytest for aarch64 come from PyPI.
"""

import argparse
import pathlib
import sys

import wheel

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = VERSION.replace(".", "")
PLATFORMS = ["manylinux2014_aarch64"] + [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)]


def build(packages, licences, toolchain):
    settings = [
        f"cmake.define.CMAKE_TOOLCHAIN_FILE={toolchain}",
        f"cmake.define.Python_INCLUDE_DIR={packages / 'usr/include' / f'python{VERSION}'}",
    ]
    env = {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{TAG}-aarch64-linux-gnu.so",
        "CCACHE_COMPILERCHECK": "content",
        "LD_LIBRARY_PATH": str(packages / "usr/lib/aarch64-linux-gnu"),  # where auditwheel looks
    }
    return wheel.build(sys.executable, licences, settings, env)[1]


def try_out(packages, made, options):
    wheel.say(f"Trying the wheel in Python {VERSION} of aarch64")
    folder = wheel.WORK / "try-aarch64"
    site = folder / "site"
    tools = wheel.WORK / "tools/bin/python"
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    target = ["--target", site, "--python-version", VERSION, "--implementation", "cp", "--only-binary=:all:"]
    wheel.run(tools, "-m", "pip", "install", *target, *platforms, f"{made}[bf16]", "pytest")
    python = emulated(packages, site, folder / "python")
    print(wheel.run(python, wheel.TESTS / "try_wheel.py", *options, site, cwd=folder), end="", flush=True)
    wheel.run(python, *wheel.PYTEST, *wheel.test_files(), cwd=folder, shown=True)


def emulated(packages, site, path):
    """A Python at `path`, which takes that for its own name, so that tests start their other processes by it, too."""
    libraries = ":".join(str(packages / lib / "aarch64-linux-gnu") for lib in ("usr/lib", "lib"))
    variables = f"LD_LIBRARY_PATH={libraries}", f"PYTHONPATH={site}", f"PYTHONHOME={packages / 'usr'}"
    words = ["qemu-aarch64-static", "-0", '"$0"', "-L", "/usr/aarch64-linux-gnu"]
    words += [word for variable in variables for word in ("-E", f"'{variable}'")]
    path.write_text(f"#!/bin/sh\nexec {' '.join(words)} '{packages}/usr/bin/python{VERSION}' \"$@\"\n")
    path.chmod(0o755)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--licence", action="append", default=[], help="of a library that the wheel takes in")
    parser.add_argument("--toolchain", type=pathlib.Path, help="folder of cmake/zig.sh; without it, Debian's compiler")
    parser.add_argument("packages", type=pathlib.Path)
    options = parser.parse_args()
    packages = options.packages.resolve()
    wheel.clear()
    zig = options.toolchain and options.toolchain.resolve() / "toolchain.cmake"
    made = build(packages, options.licence, zig or wheel.ROOT / "cmake/neon.toolchain.cmake")
    try_out(packages, made, ["--linked-in"] if zig else [])
    wheel.deliver(made)


if __name__ == "__main__":
    main()
