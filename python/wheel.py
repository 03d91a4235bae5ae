"""Makes the wheel that people install, and tries it: `./dev wheel`.

wheel.py [--licence NAME=FILE]... [--toolchain FOLDER] PYTHON...

The first PYTHON makes a source distribution. A PYTHON that no wheel of this run fits builds one from that, with the
libraries that it needs inside, under the tag that its symbols allow. CPython 3.12 and later build it for the stable
ABI, so that it installs on all of them. Each PYTHON installs the wheel that fits in an empty environment and runs the
tests in another folder. What is checked is in `check`; dist/ gets the source distribution and the wheels.
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
MAX_IMPORT = 0.060  # seconds of CPU time in the fastest run: other work on the machine adds least to that
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


def abi(python):
    """The ABI of a Python as the tag of a wheel names it, such as cp311 or cp313t."""
    return run(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2] + sys.abiflags)").strip()


def fits(wheel, abi):
    """Can a Python of that ABI install it? The stable ABI serves all later ones that have a GIL."""
    lowest, built = wheel.name.split("-")[2:4]
    if built == "abi3":
        return not abi.endswith("t") and int(abi.removeprefix("cp3")) >= int(lowest.removeprefix("cp3"))
    return built == abi


def distribution(tools):
    """(the source distribution, the folder where it is unpacked), made once."""
    if not list(WORK.glob("onepass-*.tar.gz")):
        say("Building the source distribution")
        run(tools / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", WORK, ROOT)
        shutil.unpack_archive(only(WORK, "onepass-*.tar.gz"), WORK)
    source = only(WORK, "onepass-*.tar.gz")
    return source, WORK / source.name.removesuffix(".tar.gz")


def build(python, licences, settings=(), env=None):
    """(the source distribution, the wheel). settings: of the build, env: variables of it, for another machine."""
    tools = environment(python, "tools", "-r", ROOT / "python/requirements-wheel.txt")
    source, unpacked = distribution(tools)
    name = abi(python)
    say(f"Building the wheel of {name}")
    settings = [*settings, f"cmake.define.ONEPASS_LICENCES={';'.join(licences)}"]
    plain, repaired = (WORK / folder / name for folder in ("plain", "repaired"))
    run(
        tools / "python",
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        *(f"--config-setting={setting}" for setting in settings),
        "--outdir",
        plain,
        unpacked,
        env=env,
    )
    repair = f'PATH="{tools}:$PATH" auditwheel repair --wheel-dir {repaired} {only(plain, "*.whl")}'
    run("bash", "-c", repair, env=env)
    wheel = only(repaired, "onepass-*manylinux*.whl")
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
    wall, cpu = ([float(time) for time in column] for column in zip(*times))
    medians = f"{1e3 * statistics.median(wall):.1f} ms, of which {1e3 * statistics.median(cpu):.1f} on the CPU"
    print(f"import onepass: {medians}; medians of {len(times)}", flush=True)
    if min(cpu) > MAX_IMPORT:
        sys.exit(f"the fastest of them took {1e3 * min(cpu):.1f} ms of CPU time, {1e3 * MAX_IMPORT:.0f} at most")
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
    wheels = []
    for python in options.python:
        wheel = next((made for made in wheels if fits(made, abi(python))), None)
        if wheel is None:
            compiler = toolchain(options.toolchain.resolve(), python) if options.toolchain else ()
            source, wheel = build(python, options.licence, *compiler)
            wheels.append(wheel)
        try_out(python, wheel, ["--linked-in"] if options.toolchain else [])
    deliver(source, *wheels)


def clear():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)


def deliver(*files):
    (ROOT / "dist").mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, ROOT / "dist")
        print(f"dist/{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    print(*(f"pip install dist/{file.name}" for file in files if file.suffix == ".whl"), sep="\n")


if __name__ == "__main__":
    main()
