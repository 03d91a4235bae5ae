"""The site's pages: those of docs, pages that lie elsewhere in the repository, and the references.

MkDocs calls these functions (https://www.mkdocs.org/dev-guide/plugins/#events). Pages of docs are written for GitHub.
A link to a file that is not a page leads to the repository.
"""

import logging
import pathlib
import re
import sys

import griffe
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import headers
import modules
import pages

THERE = pages.pages()
SOURCE = {uri: path for path, uri in THERE.items()}
STYLE = pathlib.Path(__file__).with_name("style.css")


def in_order(finder, module, found=griffe.ModuleFinder.submodules):
    """The files of a package by name. griffe takes them as the file system lists them, and loses a stub's overloads of
    a function that is imported from a file that it reads later: torch.py from _torch_attention.py.
    """
    return sorted(found(finder, module), key=lambda file: (len(file[0]), file[1]))


griffe.ModuleFinder.submodules = in_order


def slug(title, separator):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_config(config):
    logging.getLogger("jieba").setLevel(logging.WARNING)  # which finds the words of Chinese pages for the search
    config.mdx_configs["toc"] = {"slugify": slug, "permalink": True}
    return config


def on_files(files, config):
    """docs as MkDocs found it, without the pages that move, and with those from elsewhere and the generated ones."""
    moved = {path.removeprefix("docs/") for path, uri in THERE.items() if path != f"docs/{uri}"}
    kept = [file for file in files if file.src_uri not in moved]
    for uri, path in SOURCE.items():
        if path != f"docs/{uri}":
            kept.append(File.generated(config, uri, abs_src_path=str(pages.ROOT / path)))
    for file in headers.headers():
        kept.append(File.generated(config, f"reference/cpp/{file.name}.md", content=headers.page(file)))
    for module in modules.MODULES:
        kept.append(File.generated(config, f"reference/python/{module}.md", content=modules.page(module)))
    kept.append(File.generated(config, "style.css", abs_src_path=str(STYLE)))
    return Files(kept)


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri not in SOURCE:
        return markdown
    return pages.on_site(markdown, SOURCE[uri], uri, THERE, config.extra["repository"])


def on_page_content(html, page, config, files):
    """Docstrings name pages as files of the repository; here they are links."""
    if not page.file.src_uri.startswith("reference/python/"):
        return html
    return re.sub(r"\bdocs/([\w./]+)\.md\b", r'<a href="../../../\1/">\1.md</a>', html)


def on_post_page(output, page, config):
    if page.file.src_uri.startswith("zh/"):
        output = output.replace('<html lang="en"', '<html lang="zh"', 1)
    return output
