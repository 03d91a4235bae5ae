"""The reference of the public headers: a page for each, its comments as prose and its declarations as code.

The headers are written to be read from the top. A page keeps their order: the comment at the head, then each group of
declarations under a heading of its names, behind its comment.
"""

import re
import sys

from pages import ROOT

FOLDER = ROOT / "include" / "onepass"
SKIPPED = re.compile(r"#|namespace |inline namespace|extern \"C\"|\}  // namespace")
BAR = re.compile(r"(?://|/\*) -{8,} ?(.*?)(?: \*/)?$")
NAMES = re.compile(
    r"\b(?:struct|class|enum class|enum|union)\s+(?:ONEPASS_API\s+)?(\w+)|\busing\s+(\w+)\s*=|\bconcept\s+(\w+)"
    r"|\bconstexpr\s[^=!]*?(\w+)\s*(?:<[^=]*>)?\s*(?:=|$)|#define\s+(\w+)"
)
FUNCTION = re.compile(r"(\w+)\s*!")
WORD = re.compile(r"`[^`]*`|\w+<[\w:, ]+>|\w+(?:::\w+)+(?:\(\))?|\b\w+\(\)|\b(?!\d)\w*_\w+\b|[<*[]")
ESCAPED = {"<": "&lt;", "*": "\\*", "[": "\\["}
PAGE = re.compile(r"\bdocs/([\w./]+\.md)\b")


def headers():
    """The headers, in the order of their names."""
    return sorted(file for file in FOLDER.iterdir() if file.name not in ("export.h", "onepass.hpp", "version.h"))


def depth_of(code):
    """How many braces and brackets are open behind this code."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", "", code, flags=re.S)
    return sum(code.count(c) for c in "{(") - sum(code.count(c) for c in "})")


def groups(text):
    """Yields (comment, code) of each group of declarations, ("", name) of a section, (comment, "") of prose."""
    comment, code, block = [], [], False

    def flush():
        if comment or code:
            yield "\n".join(comment), "\n".join(code)
        comment.clear()
        code.clear()

    for line in text.splitlines():
        inside = bool(code) and (depth_of("\n".join(code)) > 0 or not re.search(r"[;}]\s*(?://.*|/\*.*)?$", code[-1]))
        if block:
            block = "*/" not in line
            comment.append(re.sub(r"^ \* ?| ?\*/$", "", line))
        elif inside:
            code.append(line)
        elif bar := BAR.match(line):
            yield from flush()
            yield "", bar[1]
        elif line.startswith("//"):
            if code:
                yield from flush()
            comment.append(re.sub(r"^// ?", "", line))
        elif line.startswith("/*"):
            if code:
                yield from flush()
            block = "*/" not in line
            comment.append(re.sub(r"^/\* ?| ?\*/$", "", line))
        elif not line.strip() or SKIPPED.match(line) or line == "}":
            yield from flush()
        else:
            code.append(line)
    yield from flush()


def names(code):
    """The names that a group declares, in order."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|\[\[.*?\]\]", "", code, flags=re.S)
    code = re.sub(r"template <(?:[^<>]|<[^<>]*>)*>", "", code)
    code = re.sub(r"^(typedef .*?)\(\*(\w+)\)\(", r"\1 \2(", code, flags=re.M)
    inner = re.compile(r"\{[^{}()]*\}|\([^{}()]*\)")
    while inner.search(code):
        code = inner.sub(lambda match: "@" if match[0][0] == "{" else "!", code)
    found = []
    for statement in re.split(r"[;@]", code):
        match = NAMES.search(statement) or FUNCTION.search(statement)
        name = match and next(x for x in match.groups() if x)
        if name and name not in found:
            found.append(name)
    return found


def prose(comment):
    """A comment as Markdown: names are code, indented lines are blocks of code."""
    done, example = [], []
    for line in [*comment.splitlines(), ""]:
        if re.match(r" {2,}\S", line) and not (done and re.match(r"\s*- ", done[-1])):
            example.append(line[2:])
            continue
        if example:
            done += ["", "```cpp", *example, "```", ""]
            example.clear()
        done.append(PAGE.sub(r"[\1](../../\1)", WORD.sub(marked, line)))
    return "\n".join(done).strip()


def marked(match):
    if match[0] in ESCAPED:
        return ESCAPED[match[0]]
    return match[0] if match[0].startswith("`") else f"`{match[0]}`"


def page(file):
    """The Markdown of a header's page."""
    done, first = [f"# {file.name}", "", f"`#include <onepass/{file.name}>`", ""], True
    for comment, code in groups(file.read_text()):
        if code and not comment and not re.search(r"[;}]", code):
            done += [f"## {code.upper() if len(code) < 4 else code[:1].upper() + code[1:]}", ""]
        elif code:
            title = ", ".join(names(code))
            code = re.sub(r"\n\n? private:\n.*?(?=\n\};)", "", code, flags=re.S)
            done += [f"### {title}" if title else "", "", prose(comment), "", "```cpp", code, "```", ""]
        elif first or comment:
            done += [prose(comment), ""]
        first = False
    return "\n".join(done) + "\n"


if __name__ == "__main__":
    print(page(FOLDER / sys.argv[1]))
