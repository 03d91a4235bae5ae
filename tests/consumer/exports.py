"""exports.py LIBRARY INCLUDE: the library exports every function that ONEPASS_API marks in the headers, and nothing
else but members, vtables and type information of the classes that it marks."""

import pathlib
import re
import subprocess
import sys


def declared(folder):
    """Functions and classes that the public headers mark; C++ ones in the namespace of the version."""
    functions, classes = set(), set()
    for header in sorted(pathlib.Path(folder).glob("onepass/*")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*|#[^\n]*", "", header.read_text(), flags=re.S)
        inner = re.search(r"namespace onepass::inline v0::(\w+)", code)
        prefix = "onepass::v0::" + (inner[1] + "::" if inner else "") if header.suffix == ".hpp" else ""
        classes.update(prefix + name for name in re.findall(r"(?:class|struct) ONEPASS_API (\w+)", code))
        functions.update(
            prefix + name for name in re.findall(r"(?<!class )(?<!struct )ONEPASS_API [^;(]*?(\w+)\(", code)
        )
    return functions, classes


def exported(library):
    """Demangled names without parameters: onepass::v0::merge, vtable for onepass::v0::Error."""
    symbols = subprocess.run(
        ["nm", "-D", "-C", "--defined-only", "--format=posix", library], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = (re.sub(r" \w( [0-9a-f]+){0,2} *$", "", symbol) for symbol in symbols)
    return {re.split(r"[(\[]", name.split("@")[0])[0] for name in names}


def owners(name):
    """The classes that a name may be, or be a member of."""
    plain = re.sub(r"^(?:vtable|typeinfo|typeinfo name) for |<[\w ]+>", "", name)
    return {plain, plain.rpartition("::")[0]}


def main(library, include):
    functions, classes = declared(include)
    found = exported(library)
    strange = sorted(name for name in found - functions if not owners(name) & classes)
    missing = sorted((functions | {"typeinfo for onepass::v0::Error"}) - found)  # what is thrown is caught by its type
    for name in strange:
        print(f"exported, but not marked ONEPASS_API: {name}")
    for name in missing:
        print(f"marked ONEPASS_API, but not exported: {name}")
    print(f"{len(functions)} functions and {len(classes)} classes are public, {len(found)} names exported")
    return 1 if strange or missing or not functions or not classes else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
