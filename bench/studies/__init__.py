"""Studies: one question each, measured by a program of its own."""

import importlib
import pathlib
import sys

NAMES = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def main(argv):
    if not argv or argv[0] not in NAMES:
        print(f"python -m bench study NAME; NAME is one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"bench.studies.{argv[0]}").main(argv[1:])
