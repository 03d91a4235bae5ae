"""Which files of the repository are pages of the site, and where a link between two files leads on it."""

import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Pages that lie elsewhere on the site than in the repository. The others of docs keep their place.
MOVED = {
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "demo/README.md": "project/demos.md",
    "bench/results/README.md": "project/measurements.md",
}
CODE = re.compile(r"^```.*?^```|`[^`]*`|(?<=\n\n)(?: {4,}[^\n]*\n)+", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?\)")
CHINESE = "[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]"
BREAK = re.compile(rf"^(?![#|])(.*{CHINESE})\n *(?=\[?{CHINESE})", re.M)  # shown as a blank, which Chinese has not
LIST = re.compile(r"(?:[-*]|1\.) ")  # begins a list for GitHub, also directly under a paragraph


def pages(root=ROOT):
    """{path in the repository: path on the site} of every page that is a file. A translation is the same under zh."""
    found = {file.relative_to(root).as_posix() for file in root.glob("docs/**/*.md")}
    there = {path: path.removeprefix("docs/") for path in found}
    for file in root.glob("src/c*/**/README.md"):
        folder = file.parent.relative_to(root / "src").as_posix()
        there[f"src/{folder}/README.md"] = f"kernels/{folder}.md"
    there |= MOVED
    chinese = {path for path in found if path.endswith(".zh.md")} | {"README.zh.md"}
    return there | {path: f"zh/{there[path.replace('.zh.md', '.md')]}" for path in chinese}


def resolved(target, path, uri, there, repository):
    """The address on the site's page `uri` of what the file `path` calls `target`."""
    if not target or "://" in target or target.startswith("mailto:"):
        return target
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if wanted in there or (wanted.startswith("docs/") and (ROOT / wanted).is_file()):
        return posixpath.relpath(there.get(wanted, wanted.removeprefix("docs/")), posixpath.dirname(uri) or ".")
    if not (ROOT / wanted).exists():
        return target  # MkDocs complains
    return f"{repository}/{'tree' if (ROOT / wanted).is_dir() else 'blob'}/main/{wanted}"


def outside_code(change, text):
    """The text with `change` applied to what is between its code."""
    done, last = [], 0
    for match in CODE.finditer(text):
        done += [change(text[last : match.start()]), match[0]]
        last = match.end()
    return "".join([*done, change(text[last:])])


def with_blank_lines(text):
    """The text with blank lines before lists and tables and inner lists by four blanks: Python-Markdown's form."""
    lines, code = [""], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        before = lines[-1]
        paragraph = re.match(r"[^\s#<|]", before) and not LIST.match(before) and not re.match(r"\d+\. ", before)
        begins = LIST.match(line) or (line.startswith("|") and not before.startswith("|"))
        if not code and before and begins and (paragraph or line.startswith("|")):
            lines.append("")
        lines.append(re.sub(r"^ {2,3}(?=[-*] |\d+\. )", "    ", line) if not code else line)
    return "\n".join(lines[1:]) + "\n"


def on_site(text, path, uri, there, repository):
    """The Markdown of a file of the repository as that of the site's page `uri`."""

    def link(match):
        return f"{match[1]}{resolved(match[2], path, uri, there, repository)}{match[3] or ''})"

    text = outside_code(lambda prose: LINK.sub(link, prose).replace("][", "]\\["), text)  # no [text][reference]
    text = outside_code(lambda prose: BREAK.sub(r"\1", prose), text)
    text = re.sub(r"^```text output$", '```text title="output"', text, flags=re.M)
    return with_blank_lines(re.sub(r"^```(\w+) no-test.*$", r"```\1", text, flags=re.M))
