"""Checks what no compiler checks: the order of the layers, where the algebra may be written, lengths, paths,
links and prose.

check_repository.py [ROOT]     prints one line per complaint; exit status 1 if there is any
check_repository.py --layers   prints the table of the layers for CONTRIBUTING.md
"""

import pathlib
import re
import sys

import prose

# The layers, from the lowest: what each folder of src holds. A folder includes only from layers below its own, and from
# itself. CONTRIBUTING.md shows this table (check_repository.py --layers prints it).
LAYERS = [
    {
        "src/algebra": "online softmax, masks, the policy for NaN and infinity, splits, Philox, rotary, rounding",
        "src/base": "text, tensors, executors, fork, workspaces, directories",
    },
    {"src/expression": "score_mod and mask_mod: their text, its evaluation and derivative"},
    {"src/problem": "problems, tensor roles, validation; one folder for each operator; `grammar`: problem lines"},
    {"src/reference": "the float64 oracle, and the base in the call's own precision that every result is judged by"},
    {
        "src/cpu": "CPU kernels",
        "src/cuda": "CUDA kernels and the host code that compiles and launches them",
        "src/ladder": "the algorithm built up from safe softmax, one runnable step a file; not part of the library",
    },
    {"src/plan": "the ordered list of implementations, `explain`, workspaces"},
    {
        "src/distributed": "context parallelism: layouts, parts, moves, sums, the model that chooses a scheme; "
        "`attention`: calls"
    },
    {
        "src/check": "the rule by which a result is right, for tests and `onepass check`; not part of the library",
        "src/interfaces": "the C interface, workspaces, the version",
    },
    {"libtorch": "PyTorch's operators without Python", "tools": "the command line tool"},
    {"python": "the Python package, which has the tool as a command"},
]

# The order inside the backends, from the lowest; files that lie in the backend's own folder come last.
INNER = {
    "src/cpu": [
        ["common", "threads"],
        ["append", "decode", "flash", "gemm", "merge", "quantize", "softmax"],
        ["backward", "jvp"],
        ["backward_jvp"],
        ["amx"],
        ["mixed"],
    ],
    "src/cuda": [
        ["device", "driver"],
        ["compile", "mma"],
        ["host"],
        ["attention"],
        [
            "append",
            "backward_plain",
            "block_mask",
            "gemm",
            "merge",
            "plain",
            "quantize",
            "rows",
            "sm80",
            "sm90",
            "softmax",
        ],
        ["backward_jvp", "decode", "jvp"],
        ["mla"],
    ],
}
MAX_FILES = 16  # in one folder of src

# exp2, log2 and infinities live in the algebra, expressions, problems, the reference and the ladder, and in the
# adapters that give the algebra a vector type: exponentials by other names too, what they are made of, and the least
# normal number, which keeps a weight from 0. src/check makes inputs of them and judges them.
ALGEBRA_FOLDERS = (
    "src/algebra/",
    "src/base/",
    "src/expression/",
    "src/problem/",
    "src/reference/",
    "src/ladder/",
    "src/check/",
)
ALGEBRA_ADAPTERS = (
    "src/cpu/common/simd-inl.h",
    "src/cpu/amx/kernels/vector-inl.h",
    "src/cpu/common/mods-inl.h",
    "src/cuda/device/arith.cuh",
    "src/cuda/device/math.cuh",
    "src/cuda/attention/fragment.cuh",
    "src/cuda/attention/backward/score.cuh",
    "src/cuda/attention/scores/curve.cuh",
    "src/cuda/attention/scores/dual.cuh",
    "src/cuda/attention/scores/mods.cuh",
)
ALGEBRA = re.compile(
    r"\b(?:exp2?f?|log2f?|ex2|lg2|infinity|INFINITY|HUGE_VALF?)\b"
    r"|\b(?:__expf|_mm\d*_(?:mask_|maskz_)?(?:scalef|getexp|exp2)\w*)\b"
    r"|\b1\.1754943\d*e-38f?\b"
)

MAX_LINES = 400
PAGE = (90, 120)  # lines and columns of a kernel's README: what was tried is in docs/notes
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|mnt|Users)/\w")

CODE = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"}
TEXT = CODE | {".py", ".pyi", ".cmake", ".txt", ".md", ".json", ".toml", ".in", ""}
SKIPPED = re.compile(
    r"(?:^|/)(?:\.git|\.venv[^/]*|build[^/]*|__pycache__|\.ruff_cache|dist|[^/]*\.egg-info|LICENSE)(?:/|$)"
)


def without_comments(code):
    """The code with comments and string literals emptied, lines kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda match: "\n" * match[0].count("\n"), code, flags=re.S)


def lines_matching(pattern, code):
    return [(number, match[0]) for number, line in enumerate(code.splitlines(), 1) for match in pattern.finditer(line)]


def height_of(path):
    """The folder and the height of a file's layer (path relative to the root), or None."""
    if path.startswith("include/"):
        return "include", -1
    for height, layer in enumerate(LAYERS):
        for folder in layer:
            if path.startswith(folder + "/"):
                return folder, height
    return None


def inner_height(folder, path):
    """The part of a backend that a file belongs to, and its height there."""
    part = path.removeprefix(folder + "/").split("/")
    for height, parts in enumerate(INNER[folder]):
        if len(part) > 1 and part[0] in parts:
            return part[0], height
    return "", len(INNER[folder])


def layers(path, code):
    here = height_of(path)
    for number, line in enumerate(code.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+/[^"]+)"', line)
        target = match and (match[1] if match[1].startswith(("libtorch/", "tools/")) else "src/" + match[1])
        there = target and height_of(target)
        if here is None or not there:
            continue
        if here[0] != there[0]:
            if there[1] >= here[1]:
                yield f"{path}:{number}: {here[0]} includes from {there[0]}, which is not below it"
        elif here[0] in INNER:
            a, b = inner_height(here[0], path), inner_height(here[0], target)
            if a[0] != b[0] and b[1] >= a[1]:
                yield f"{path}:{number}: {here[0]}/{a[0]} includes from {b[0] or target}, which is not below it"


def layer_table():
    """The table of the layers, highest first, as CONTRIBUTING.md shows it."""
    rows = ["| layer | folder | contents |", "| --- | --- | --- |"]
    for height, layer in reversed(list(enumerate(LAYERS))):
        rows += [f"| {height} | `{folder}` | {text} |" for folder, text in layer.items()]
    for folder, order in INNER.items():
        names = " < ".join(", ".join(f"`{name}`" for name in parts) for parts in order)
        rows.append(f"| | inside `{folder}` | {names} |")
    return "\n".join(rows) + "\n"


def crowded(root):
    """Folders of src that hold more files than a reader takes in at once."""
    for folder in sorted(path for path in root.glob("src/**/") if path.is_dir()):
        files = sum(file.is_file() for file in folder.iterdir())
        if files > MAX_FILES:
            yield f"{folder.relative_to(root).as_posix()}: {files} files; {MAX_FILES} at most"


def algebra(path, code):
    if not path.startswith(("src/", "libtorch/", "tools/", "include/", "python/")):
        return
    if path.startswith(ALGEBRA_FOLDERS) or path in ALGEBRA_ADAPTERS:
        return
    for number, word in lines_matching(ALGEBRA, without_comments(code)):
        places = f"src/algebra, src/reference, src/ladder or an adapter ({', '.join(ALGEBRA_ADAPTERS)})"
        yield f"{path}:{number}: {word} belongs to {places}"


def length(path, code):
    count = code.count("\n")
    if count > MAX_LINES:
        yield f"{path}: {count} lines; {MAX_LINES} at most, one idea to a file"


def page(path, text):
    if not re.fullmatch(r"src/.*\.md", path):
        return
    lines, columns = PAGE
    if text.count("\n") > lines:
        yield f"{path}: {text.count(chr(10))} lines; {lines} at most"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > columns:
            yield f"{path}:{number}: {len(line)} columns; {columns} at most"


def headings(text):
    """The anchors that a Markdown page offers: GitHub's names of its headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", prose, re.M)}


def links(file, path, text):
    """Links of a Markdown file, outside of code, to files or headings that do not exist."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    for number, line in enumerate(prose.splitlines(), 1):
        for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", line):
            page = file.parent / target if target else file
            if "://" in target:
                continue
            if not page.exists():
                yield f"{path}:{number}: there is no {target}"
            elif heading and page.suffix == ".md" and heading not in headings(page.read_text()):
                yield f"{path}:{number}: {target or path} has no heading #{heading}"


def machine_paths(path, code):
    for number, text in lines_matching(MACHINE_PATH, code):
        yield f"{path}:{number}: {text}... is a path of one machine"


def conflicts(path, text):
    for number, marker in lines_matching(CONFLICT, text):
        yield f"{path}:{number}: {marker.strip()} is left from a merge"


def complaints(path, code):
    suffix = pathlib.PurePath(path).suffix
    found = [*machine_paths(path, code), *conflicts(path, code), *page(path, code), *prose.complaints(path, code)]
    if suffix in CODE:
        found += [*layers(path, code), *algebra(path, code)]
    if suffix in CODE or suffix == ".py":
        found += length(path, code)
    return found


def main(root):
    found, files = [], 0
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if SKIPPED.search(path) or file.suffix not in TEXT or not file.is_file() or file.is_symlink():
            continue
        files += 1
        text = file.read_text(errors="replace")
        found += complaints(path, text)
        if file.suffix == ".md":
            found += links(file, path, text)
    found += crowded(root)
    contributing = root / "CONTRIBUTING.md"
    if contributing.exists() and layer_table() not in contributing.read_text():
        found.append("CONTRIBUTING.md: its table of layers must be what check_repository.py --layers prints")
    print("\n".join(found + [f"{files} files checked, {len(found)} complaints"]))
    return bool(found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--layers"]:
        print(layer_table(), end="")
        sys.exit()
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
