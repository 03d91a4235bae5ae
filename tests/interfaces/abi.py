"""abi.py CC INCLUDE RECORD [--write]: the C interface still has everything that compiled programs rely on.

Each line of RECORD is a version and what came with it: a function with its types, a field with its offset and size, the
size of a struct that may not grow, or a value of an enum. A line that no longer holds breaks programs that were built
against that version. What is new must be recorded: --write adds it under the version of onepass/version.h.
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def type_of(parameter):
    """A parameter without its name."""
    parameter = " ".join(parameter.replace("*", " * ").split())
    return re.sub(r"(?<=[\w*]) \w+$", "", parameter) if parameter != "void" else parameter


def read(header):
    """(functions with their types, fields by struct, names of values) that a header declares."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|^ *#[^\n]*", "", header, flags=re.S | re.M)
    functions = [
        f"{' '.join(result.replace('*', ' * ').split())} {name}({', '.join(type_of(p) for p in parameters.split(','))})"
        for result, name, parameters in re.findall(r"ONEPASS_API ([^;(]*?)(\w+)\(([^)]*)\)", code)
    ]
    structs = {
        name: [re.sub(r"\[.*", "", field).split()[-1].strip("*") for field in re.split("[;,]", body) if field.strip()]
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", code, re.S)
    }
    values = re.findall(r"\bONEPASS_\w+(?= *[=,}])", "".join(re.findall(r"enum \w* ?\{.*?\}", code, re.S)))
    return functions, structs, values


def measured(cc, include, structs, values):
    """Lines that the compiler knows: offsets and sizes of fields, sizes of structs, values."""
    prints = []
    for struct, fields in structs.items():
        for field in fields:
            where, size = f"offsetof({struct}, {field})", f"sizeof((({struct}*)0)->{field})"
            prints.append(f'printf("{struct}.{field} at %zu, %zu bytes\\n", {where}, {size});')
        if fields[0] != "size":
            prints.append(f'printf("{struct} has %zu bytes\\n", sizeof({struct}));')
    prints += [f'printf("{value} is %d\\n", (int){value});' for value in values]
    program = "#include <stdio.h>\n#include <onepass/onepass.h>\nint main(void) {\n" + "\n".join(prints) + "\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        binary = pathlib.Path(folder) / "abi"
        subprocess.run([cc, "-std=c99", "-I", include, "-xc", "-", "-o", binary], input=program, text=True, check=True)
        return subprocess.run([binary], capture_output=True, text=True, check=True).stdout.splitlines()


def main(cc, include, record, *words):
    folder, record = pathlib.Path(include) / "onepass", pathlib.Path(record)
    functions, structs, values = read((folder / "onepass.h").read_text())
    now = functions + measured(cc, include, structs, values)
    recorded = [line.split(" ", 1) for line in record.read_text().splitlines()]
    gone = [(version, line) for version, line in recorded if line not in set(now)]
    new = [line for line in now if line not in {line for _, line in recorded}]
    if "--write" in words:
        version = re.search(r'ONEPASS_VERSION "(.+)"', (folder / "version.h").read_text())[1]
        with record.open("a") as file:
            file.writelines(f"{version} {line}\n" for line in new)
        new = []
    for version, line in gone:
        print(f"programs built against {version} rely on: {line}")
    for line in new:
        print(f"not recorded (run abi.py with --write): {line}")
    print(f"{len(functions)} functions, {len(structs)} structs, {len(values)} values; {len(recorded)} lines recorded")
    return 1 if gone or new or not (functions and structs and values) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
