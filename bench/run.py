"""`onepass bench` with this folder's peers: `python -m bench run [ARGS]`; ARGS are those of `onepass bench`.

Without ARGS it runs bench/suites/cpu.txt beside PyTorch and ONNX Runtime. $ONEPASS_TOOL names the tool; the default is
the release build of this tree, or else `onepass` on PATH.
"""

import os
import pathlib
import shlex
import shutil
import sys

BENCH = pathlib.Path(__file__).resolve().parent
DEFAULT = ["--suite", str(BENCH / "suites" / "cpu.txt"), "--peers", "torch", "onnxruntime"]


def tool():
    """The path of the command-line tool, or None."""
    built = BENCH.parent / "build/release/tools/onepass/onepass"
    return os.environ.get("ONEPASS_TOOL") or (str(built) if built.exists() else shutil.which("onepass"))


def command(arguments):
    """The command line of `onepass bench`."""
    words = list(arguments) or list(DEFAULT)
    if not any(word.split("=")[0] == "--peers-command" for word in words):
        words = ["--peers-command", shlex.join([sys.executable, str(BENCH), "peers"]), *words]
    return [tool(), "bench", *words]


def main(argv):
    if argv in (["-h"], ["--help"]):
        print(__doc__.strip(), end="\n\n", flush=True)
    words = command(argv)
    if words[0] is None:
        print("onepass was not found: build it (./dev build onepass_cli) or set $ONEPASS_TOOL", file=sys.stderr)
        return 2
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"cannot start {words[0]}: {error.strerror}", file=sys.stderr)
        return 2
