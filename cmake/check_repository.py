"""Checks what no compiler checks: the order of the layers, where the algebra may be written, lengths, paths, links.

check_repository.py [ROOT]     prints one line per complaint; exit status 1 if there is any
"""

import pathlib
import re
import sys

# A folder includes only from folders of a lower number, and from itself. Equal numbers never include each other.
LAYERS = {
    "core": 0,
    "reference": 1,
    "cpu": 2,
    "cuda": 2,
    "ladder": 2,
    "plan": 3,
    "check": 4,
    "interfaces": 4,
    "tools": 5,
}

# exp2, log2 and infinities live in core, the reference and the ladder, and in the adapters that give core a vector
# type: exponentials by other names too, what they are made of, and the least normal number, which keeps a
# weight from 0. src/check makes inputs of them and judges them.
ALGEBRA_FOLDERS = ("src/core/", "src/reference/", "src/ladder/", "src/check/")
ALGEBRA_ADAPTERS = (
    "src/cpu/common/simd-inl.h",
    "src/cpu/amx/vector-inl.h",
    "src/cpu/common/mods-inl.h",
    "src/cuda/device/arith.cuh",
    "src/cuda/device/math.cuh",
    "src/cuda/attention/fragment.cuh",
    "src/cuda/attention/backward_score.cuh",
    "src/cuda/attention/dual.cuh",
    "src/cuda/attention/mods.cuh",
)
ALGEBRA = re.compile(
    r"\b(?:exp2?f?|log2f?|ex2|lg2|infinity|INFINITY|HUGE_VALF?)\b"
    r"|\b(?:__expf|_mm\d*_(?:mask_|maskz_)?(?:scalef|getexp|exp2)\w*)\b"
    r"|\b1\.1754943\d*e-38f?\b"
)

MAX_LINES = 400
PAGE = (90, 120)  # lines and columns of a kernel's README: what was tried is in docs/notes
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


def layer_of(path):
    """The layer of a file (path relative to the root), or None."""
    parts = path.split("/")
    if parts[0] == "tools":
        return "tools"
    if parts[0] in ("python", "include"):
        return "interfaces" if parts[0] == "python" else "include"
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def layers(path, code):
    here = layer_of(path)
    for number, line in enumerate(code.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"/]+)/', line)
        if not match or here is None:
            continue
        there = match[1]
        if there not in LAYERS or there == here:
            continue
        if here == "include" or LAYERS[there] >= LAYERS[here]:
            yield f"{path}:{number}: {here} includes from {there}, which is not below it"


def algebra(path, code):
    if not path.startswith(("src/", "tools/", "include/", "python/")):
        return
    if path.startswith(ALGEBRA_FOLDERS) or path in ALGEBRA_ADAPTERS:
        return
    for number, word in lines_matching(ALGEBRA, without_comments(code)):
        places = f"src/core, src/reference, src/ladder or an adapter ({', '.join(ALGEBRA_ADAPTERS)})"
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


def links(file, path, text):
    """Links of a Markdown file to files that are not there; what stands in code is no link."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    for number, line in enumerate(prose.splitlines(), 1):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
            if "://" not in target and not (file.parent / target).exists():
                yield f"{path}:{number}: there is no {target}"


def machine_paths(path, code):
    for number, text in lines_matching(MACHINE_PATH, code):
        yield f"{path}:{number}: {text}... is a path of one machine"


def complaints(path, code):
    suffix = pathlib.PurePath(path).suffix
    found = [*machine_paths(path, code), *page(path, code)]
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
    print("\n".join(found + [f"{files} files checked, {len(found)} complaints"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
