"""Checks the prose of strings, comments and pages by those rules of CONTRIBUTING.md that a machine can check.

prose.py [PATH...]   prints every complaint about these files and folders (default: all), switched on or not

check_repository.py calls complaints(), which looks only at what is switched on below.
"""

import ast
import io
import pathlib
import re
import sys
import tokenize

# A path is checked if it begins with an entry of the first tuple and with none of the second.
SWITCHED_ON = {
    "string": (
        ("bench/", "include/", "libtorch/", "python/", "src/", "tools/"),
        (
            "bench/studies/fp8_model.py",  # the texts that its model reads
        ),
    ),
    "comment": (("bench/", "cmake/", "include/", "libtorch/", "python/", "src/", "tests/", "tools/", "website/"), ()),
    "page": (
        ("CHANGELOG", "README", "SECURITY", "bench/", "docs/", "src/"),
        ("docs/reference/support.md",),  # sentences of the library, checked as strings
    ),
}

PYTHON = {".py", ".pyi"}
CXX = {".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}

# A rule is a name, a pattern and advice. A question may begin with "What". A page may use `who` for people, and begin
# with the pronoun `That`.
OPENER = (
    "opener",
    re.compile(r"(?<![\w`'\"(-])(?:Of|What|Whether|That)\b(?!['`-])"),
    "begin with the noun or the subject",
)
WORDS = [
    ("person", re.compile(r"\b(?:who|whoever|whom|his|nobody)\b", re.I), "threads, warps and callers are 'it'"),
    (
        "is no",
        re.compile(
            r"(?<!\bthere\s)\b(?:is|are|was|were)\s+no\b(?!\s(?:longer|more|less|worse|slower|faster|larger)\b)", re.I
        ),
        "write 'is not a'",
    ),
    ("takes no", re.compile(r"\btakes?\s+no\b", re.I), "write 'does not support' or 'does not accept'"),
    ("so many", re.compile(r"\bso\s+many\b|\bas\s+many\b(?!(?:\s[\w-]+){0,5}\sas\b)", re.I), "give the number a noun"),
]
WORDS_OF_STRINGS = [
    ("is of", re.compile(r"\b(?:it|they|which)\s(?:is|are)\s+of\b"), "write 'belongs to' or name the relation"),
]

CXX_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?:\bR"(?P<tag>\w*)\((?P<raw>.*?)\)(?P=tag)")|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'',
    re.S,
)
ESCAPE = re.compile(r"\\(?:n|t|.)")
CODE_OF_A_PAGE = re.compile(r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^)\s]*\)", re.M | re.S)
HEADING = re.compile(r"^#+ .*$", re.M)


def blank(text, pattern, by="`"):
    """The text with what the pattern finds replaced by one mark; lines are kept."""
    return pattern.sub(lambda match: by + "\n" * match[0].count("\n"), text)


def cxx_pieces(code):
    """The strings and comments of C++: kind, line, text. Literals and `//` lines that follow each other are one."""
    last = None  # kind, line, text, end
    for token in CXX_TOKEN.finditer(code):
        kind, text = "string", token["raw"] if token["raw"] is not None else token["text"]
        if token[0].startswith(("//", "/*")):
            kind, text = "comment", re.sub(r"^[ \t]*(?://+|/?\*+/?)[ \t]?", "", token[0], flags=re.M)
        elif text is None:
            continue  # a character
        elif token["raw"] is None:
            text = ESCAPE.sub(lambda match: "\n"[: match[0] == r"\n"] or match[0][1:], text)
        gap = code[last[3] : token.start()] if last else None
        if last and last[0] == kind and not gap.strip() and (kind == "string" or gap.count("\n") < 2 and gap):
            last = (kind, last[1], last[2] + ("\n" if kind == "comment" else "") + text, token.end())
            continue
        if last:
            yield last[:3]
        last = (kind, code.count("\n", 0, token.start()) + 1, text, token.end())
    if last:
        yield last[:3]


def python_pieces(code):
    """The strings, docstrings and comments of Python: kind, line, text."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return  # another check's complaint
    nodes = list(ast.walk(tree))
    docs = {
        id(n.body[0].value) for n in nodes if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)
    }
    inner = {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "string", node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield "docstring" if id(node) in docs else "string", node.lineno, node.value
    block = None  # first line, last line, text
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#: ")
        if block and block[1] == line - 1:
            block = (block[0], line, block[2] + "\n" + text)
            continue
        if block:
            yield "comment", block[0], block[2]
        block = (line, line, text)
    if block:
        yield "comment", block[0], block[2]


def page_pieces(text):
    """The prose of a Markdown page, without code, links and (for the rule about openers) headings."""
    prose = blank(text, CODE_OF_A_PAGE)
    yield "page", 1, HEADING.sub(lambda match: "`" + match[0], prose)


def pieces(path, text):
    suffix = pathlib.PurePath(path).suffix
    if suffix in CXX:
        yield from cxx_pieces(text)
    elif suffix in PYTHON:
        yield from python_pieces(text)
    elif suffix == ".md":
        yield from page_pieces(text)


def openers(kind, prose):
    """Where banned words begin a sentence. In comments and docstrings only the first sentence counts."""
    for match in OPENER[1].finditer(prose):
        before = prose[: match.start()]
        first = not before.strip(" \t\n*_>|-+")
        later = re.search(r"(?:[.!?:|)][\s*_>|+-]*|\n[\s*_>|+-]*)$", before)
        question = re.match(r"[^.!]*?\?", prose[match.end() :])
        if not question and (first or (later and kind in ("string", "page"))):
            yield match


def found(path, text):
    """Every complaint about a file: (kind, message)."""
    for kind, line, raw in pieces(path, text):
        prose = raw if kind == "page" else blank(raw, re.compile(r"`[^`]*`"))
        if kind == "string" and not re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", prose):
            continue  # a name, a key or a piece of code
        hits = [(match, OPENER) for match in openers(kind, prose)]
        words = WORDS + (WORDS_OF_STRINGS if kind == "string" else [])
        hits += [(match, rule) for rule in words for match in rule[1].finditer(prose)]
        hits = [hit for hit in hits if kind != "page" or hit[0][0].lower() not in ("that", "who")]
        for match, (name, _, advice) in sorted(hits, key=lambda hit: hit[0].start()):
            at = line + (prose.count("\n", 0, match.start()) if kind != "string" else 0)
            yield kind, f"{path}:{at}: {kind}, rule '{name}': '{match[0]}'; {advice}"


def is_on(kind, path):
    on, off = SWITCHED_ON["comment" if kind == "docstring" else kind]
    return path.startswith(on) and not (off and path.startswith(off))


def complaints(path, text):
    kinds = [kind for kind in SWITCHED_ON if is_on(kind, path)]
    return [message for kind, message in found(path, text) if is_on(kind, path)] if kinds else []


def main(paths):
    count = 0
    for path in map(pathlib.Path, paths or ["README.md", "docs", "include", "libtorch", "python", "src", "tools"]):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix in CXX | PYTHON | {".md"} and not file.name.endswith(".zh.md"):
                for _, message in found(file.as_posix(), file.read_text(errors="replace")):
                    print(message)
                    count += 1
    print(f"{count} complaints")
    return bool(count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
