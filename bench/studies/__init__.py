"""Studies: one question each, measured by a file of this folder.

A study has a docstring, NEEDS (modules to import; PyTorch's CUDA is needed too unless CUDA is False) and functions:
rows(*modules, options) yields the rows of the JSON, said(row) is the text of one, table(document) that of all. Optional
are arguments(parser), document(rows, *modules, options) for a JSON that is not the list of rows, and status(rows), the
exit status.
"""

import ast
import importlib
import json
import pathlib
import sys

import bench

FILES = sorted(path for path in pathlib.Path(__file__).parent.glob("*.py") if path.stem != "__init__")
NAMES = [path.stem for path in FILES]
HELP = "python -m bench study NAME [--json FILE] [--table FILE] [ARGS]"


def listing():
    """A line for each study, without importing it."""
    first = {path.stem: ast.get_docstring(ast.parse(path.read_text())).splitlines()[0] for path in FILES}
    return "\n".join(f"  {name:<16} {line}" for name, line in first.items())


def parser_of(name, study):
    parser = bench.parser(f"study {name}", study.__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="write the results here, after each row")
    parser.add_argument("--table", type=pathlib.Path, metavar="JSON", help="only print the table of these results")
    getattr(study, "arguments", lambda _: None)(parser)
    return parser


def needed(study, options):
    """The modules that a study needs."""
    found = []
    for name in study.NEEDS:
        try:
            found.append(importlib.import_module(name))
        except ImportError as error:
            raise SystemExit(f"the study needs {name}: {error}") from None
    on_cuda = getattr(study, "CUDA", True) and getattr(options, "device", "cuda").startswith("cuda")
    if on_cuda and not found[0].cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here")
    return found


def run(study, options):
    rows, modules = [], needed(study, options)
    document = getattr(study, "document", lambda rows, *_: rows)
    for row in study.rows(*modules, options):
        rows.append(row)
        print(study.said(row), flush=True)
        if options.json:  # after each row, because a run may be cut short
            options.json.write_text(json.dumps(document(rows, *modules, options), indent=1) + "\n")
    if rows:
        print(study.table(document(rows, *modules, options)))
    return getattr(study, "status", lambda _: 0)(rows)


def main(argv):
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print(HELP, listing(), sep="\n")
        return 0
    if name not in NAMES:
        print(f"unknown study {name!r}; known:", listing(), sep="\n", file=sys.stderr)
        return 2
    study = importlib.import_module(f"bench.studies.{name}")
    options = parser_of(name, study).parse_args(rest)
    if options.table:
        print(study.table(json.loads(options.table.read_text())))
        return 0
    return run(study, options)
