"""Benchmarks of onepass: run them, and write their tables and pictures.

    python -m bench run [ARGS]         `onepass bench` with this folder's peers; ARGS go to it
    python -m bench study NAME [ARGS]  one question, measured by a program of its own; without NAME: their list
    python -m bench tables [--check]   writes the tables of README.md, docs and src from bench/results
    python -m bench plot [--check]     draws the pictures of docs/images from bench/results
    python -m bench peers              answers the questions of `onepass bench --peers-command`

Run it in the root of the repository, or elsewhere by its path: python PATH/bench. Each command has its own --help.
"""

import importlib
import pathlib
import sys

if not __package__:  # started by its path, which puts this folder on sys.path, and not the one that holds it
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

COMMANDS = {
    "run": "bench.run",
    "study": "bench.studies",
    "tables": "bench.tables",
    "plot": "bench.plot",
    "peers": "bench.peers.server",
}


def main(argv):
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if command not in COMMANDS:
        print(f"unknown command {command!r}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(COMMANDS[command]).main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
