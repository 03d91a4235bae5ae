"""The reference of the Python package: a page for each public module, with what its `__all__` names.

mkdocstrings reads the docstrings and the signatures from the sources. Nothing is imported, so nothing must be built.
"""

import ast

from pages import ROOT

MODULES = (
    "onepass",
    "onepass.torch",
    "onepass.jax",
    "onepass.transformers",
    "onepass.flash_attn",
    "onepass.flash_attn_interface",
    "onepass.xformers",
    "onepass.context_parallel",
)


def source(module):
    """The file of a module or package."""
    path = ROOT / "python" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def names(code):
    """`__all__` of a module's text: lists of constants, joined by `+=` and by name."""
    known = {}
    for node in ast.parse(code).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name) or not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        value = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(node.value, ast.List):
            value = [element.value for element in node.value.elts if isinstance(element, ast.Constant)]
        if value is not None:
            known[target.id] = (known[target.id] if isinstance(node, ast.AugAssign) else []) + value
    return known["__all__"]


def page(module):
    """The Markdown of a module's page, for mkdocstrings."""
    code = source(module).read_text()
    done = [f"# {module}", "", ast.get_docstring(ast.parse(code)), ""]
    for name in names(code):
        if not name.startswith("__"):
            done += [f"::: {module}.{name}", ""]
    return "\n".join(done) + "\n"
