"""Makes the wheel that people install, and tries it: `./dev wheel`.

wheel.py [--licence NAME=FILE]... [--toolchain FOLDER] PYTHON...

The first PYTHON builds: a source distribution, from that a wheel, and from that one with the libraries that it needs
inside, under the tag that its symbols allow. CPython 3.12 and later build it for the stable ABI, so that it installs on
all of them. Each PYTHON then installs it in an empty environment and runs the tests in another folder. What is checked
is in `check`; dist/ gets the source distribution and the wheel.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "build/wheel"
TESTS = ROOT / "tests/python"
PYTEST = "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"
MAX_BYTES = 5_000_000
MAX_IMPORT = 0.060  # seconds of CPU time, which other work on the machine does not add to
BUILD_TREE = {"demo", "fa1_claim", "generate", "peers", "plot", "train"}  # tests of what is not in the wheel

IMPORT = """
import time
start, cpu = time.perf_counter(), time.process_time()
import onepass
print(time.perf_counter() - start, time.process_time() - cpu)
"""


def run(*command, cwd=None, shown=False, env=None):
    """The output of a command. If the command fails, its output is printed and the program ends."""
    command = [str(word) for word in command]
    out = None if shown else subprocess.PIPE
    env = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, text=True, env=env)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}failed: {' '.join(command)}")
    return done.stdout


def say(sentence):
    print(f"\033[1m{sentence}\033[0m", file=sys.stderr, flush=True)


def environment(python, name, *packages):
    """A new environment with packages; its bin folder."""
    run(python, "-m", "venv", "--clear", WORK / name)
    run(WORK / name / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--prefer-binary", *packages)
    return WORK / name / "bin"


def only(folder, pattern):
    found = list(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"one {pattern} was to be made; there is {', '.join(x.name for x in folder.iterdir()) or 'nothing'}")
    return found[0]


def build(python, licences, settings=(), env=None):
    """(the source distribution, the wheel). settings: of the build, env: variables of it, for another machine."""
    tools = environment(python, "tools", "-r", ROOT / "python/requirements-wheel.txt")
    say("Building the source distribution, and the wheel from it")
    run(tools / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", WORK, ROOT)
    source = only(WORK, "onepass-*.tar.gz")
    shutil.unpack_archive(source, WORK)
    unpacked = source.name.removesuffix(".tar.gz")
    settings = [*settings, f"cmake.define.ONEPASS_LICENCES={';'.join(licences)}"]
    run(
        tools / "python",
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        *(f"--config-setting={setting}" for setting in settings),
        "--outdir",
        WORK / "plain",
        WORK / unpacked,
        env=env,
    )
    repair = f'PATH="{tools}:$PATH" auditwheel repair --wheel-dir {WORK}/repaired {only(WORK / "plain", "*.whl")}'
    run("bash", "-c", repair, env=env)
    wheel = only(WORK / "repaired", "onepass-*manylinux*.whl")
    check(tools, wheel, env)
    return source, wheel


def toolchain(folder, python):
    """(settings, variables) of a build by the compiler of cmake/zig.sh for a Python."""
    headers = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip())
    if headers.parent == pathlib.Path("/usr/include"):  # Debian's, beside the headers of Debian's glibc
        multiarch = run(python, "-c", "import sysconfig; print(sysconfig.get_config_var('MULTIARCH'))").strip()
        copied = WORK / "include" / headers.name
        shutil.copytree(headers, copied)
        shutil.copytree(headers.parent / multiarch / headers.name, copied / multiarch / headers.name)
        headers = copied
    settings = [
        f"cmake.define.CMAKE_TOOLCHAIN_FILE={folder / 'toolchain.cmake'}",
        f"cmake.define.Python_INCLUDE_DIR={headers}",
    ]
    return settings, {"CCACHE_COMPILERCHECK": "content"}  # a script of zig.sh: its text counts, not its age


def check(tools, wheel, env=None):
    """The tag is auditwheel's own finding, the stable ABI is kept, and the size is within bounds."""
    shown = " ".join(run(tools / "auditwheel", "show", wheel, env=env).split())
    tag = re.search(r'consistent with the following platform tag: "(\w+)"', shown)
    if not tag or tag[1] not in wheel.name:
        sys.exit(f"{wheel.name} claims another platform than auditwheel finds: {shown}")
    if "-abi3-" in wheel.name:
        run(tools / "abi3audit", "--strict", wheel)
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        largest = max(zipfile.ZipFile(wheel).infolist(), key=lambda entry: entry.compress_size)
        sys.exit(f"{wheel.name} has {size} bytes, {MAX_BYTES} at most; most are in {largest.filename}")


def test_files():
    """The tests of what a wheel holds."""
    return [file for file in sorted(TESTS.glob("test_*.py")) if file.stem.removeprefix("test_") not in BUILD_TREE]


def try_out(python, wheel, options):
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    say(f"Trying the wheel in Python {version}")
    bare = environment(python, f"try-{version}", f"{wheel}[bf16]", "pytest")
    folder = bare.parent
    print(run(bare / "python", TESTS / "try_wheel.py", *options, cwd=folder), end="", flush=True)
    times = [run(bare / "python", "-c", IMPORT, cwd=folder).split() for _ in range(11)]
    wall, cpu = (statistics.median(map(float, column)) for column in zip(*times))
    print(
        f"import onepass: {1e3 * wall:.1f} ms, of which {1e3 * cpu:.1f} on the CPU; medians of {len(times)}", flush=True
    )
    if cpu > MAX_IMPORT:
        sys.exit(f"that is more than {1e3 * MAX_IMPORT:.0f} ms")
    run(bare / "python", *PYTEST, *test_files(), cwd=folder, shown=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--licence", action="append", default=[], help="of a library that the wheel takes in")
    parser.add_argument(
        "--toolchain", type=pathlib.Path, help="folder of cmake/zig.sh; without it, the system's compiler"
    )
    parser.add_argument("python", nargs="+")
    options = parser.parse_args()
    clear()
    compiler = toolchain(options.toolchain.resolve(), options.python[0]) if options.toolchain else ()
    made = build(options.python[0], options.licence, *compiler)
    for python in options.python:
        try_out(python, made[1], ["--linked-in"] if options.toolchain else [])
    deliver(*made)


def clear():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)


def deliver(*files):
    (ROOT / "dist").mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, ROOT / "dist")
        print(f"dist/{file.name}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
