"""Runs the code blocks of a Markdown file against an installed onepass.

    ```cpp       compiled and run; a block without main() is only compiled
    ```c         the same
    ```python    run
    ```sh        run with `onepass` on PATH, stops at the first command that fails
    ```text output   after one of these: what it must have printed; `...` stands for any text, blanks count as one
    ```cpp no-test   not run; Python is, by tests/python/test_docs.py, where its packages are
    ```python no-test part   never run: a part of a program

Every block runs alone, in an empty folder in which `demo` is the project's. Other blocks are left alone.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNNABLE = ("c", "cpp", "python", "sh")


def blocks(text):
    """Yields (first line number, language, words after it, code) of each fenced block."""
    fence = re.compile(r"^```(\S*)[ \t]*(.*?)\n(.*?)^```[ \t]*$", re.M | re.S)
    for match in fence.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2].split(), match[3]


def expected_pattern(output):
    """A regular expression for an output block: `...` is any text, runs of blanks are equal."""
    words = [".*?".join(map(re.escape, word.split("..."))) for word in output.split()]
    return re.compile(r"\s*" + r"\s+".join(words) + r"\s*", re.S)


def command_for(language, code, folder, options):
    """The shell command that runs the code, which is written into the folder."""
    source = folder / ("example." + language)
    source.write_text(code)
    if language == "sh":
        return "bash -euo pipefail example.sh"
    if language == "python":
        return f"{shlex.quote(sys.executable)} example.python"
    compiler = options.cxx + " -std=c++20 -x c++" if language == "cpp" else options.cc + " -std=c11 -x c"
    if not re.search(r"\bmain\s*\(", code):
        return f"{compiler} -fsyntax-only $(pkg-config --cflags onepass) example.{language}"
    return (
        f"{compiler} -O1 $(pkg-config --cflags onepass) example.{language} -x none "
        "$(pkg-config --libs onepass) -o example && ./example"
    )


def run(language, code, options):
    """Returns (exit status, what was printed)."""
    stage = pathlib.Path(options.stage)
    environment = dict(os.environ)
    for name, folder in [
        ("PATH", stage / "bin"),
        ("PKG_CONFIG_PATH", stage / "lib/pkgconfig"),
        ("LD_LIBRARY_PATH", stage / "lib"),
        ("PYTHONPATH", options.python_path),
    ]:
        environment[name] = os.pathsep.join(filter(None, [str(folder), environment.get(name, "")]))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if (ROOT / "demo").is_dir():
            (folder / "demo").symlink_to(ROOT / "demo")
        command = command_for(language, code, folder, options)
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return result.returncode, result.stdout


def check(path, options):
    """Runs the blocks of one file; returns (number run, list of complaints)."""
    ran, complaints, printed, skipped = 0, [], None, False
    for line, language, words, code in blocks(path.read_text()):
        where = f"{path.name}:{line}"
        if language == "text" and "output" in words:
            if skipped:
                continue
            if printed is None:
                complaints.append(f"{where}: an output block that follows no block that ran")
            elif not expected_pattern(code).fullmatch(printed):
                complaints.append(f"{where}: expected\n{code}but the example printed\n{printed}")
            continue
        printed = None
        skipped = language == "python" and not options.python_path
        if language not in RUNNABLE or "no-test" in words:
            continue
        if skipped:
            print(f"{where}: skipped, this build has no Python module")
            continue
        status, printed = run(language, code, options)
        ran += 1
        if status != 0:
            complaints.append(f"{where}: exit status {status}\n{printed}")
    return ran, complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("--stage", required=True, help="where onepass is installed")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--python-path", default="", help="where the Python package is; empty: Python is skipped")
    options = parser.parse_args()
    ran, complaints = check(options.document, options)
    print("\n".join(complaints + [f"{options.document.name}: {ran} examples run, {len(complaints)} wrong"]))
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
