"""Bytes moved to and from a GPU's memory by functions of a Python program, counted by NVIDIA's ncu.

The program runs itself once more under ncu, where count() prints the name of each range and counted() reads the counts.
"""

import csv
import json
import shlex
import shutil
import subprocess
import sys

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
# The range from cudaProfilerStart to Stop is counted as a whole, in one pass, with caches and clocks as they are.
OPTIONS = ("--replay-mode", "app-range", "--clock-control", "none", "--cache-control", "none", "--metrics",
           f"{READ},{WRITTEN}", "--csv", "--print-units", "base")  # fmt: skip


def count(torch, name, run, flush):
    """One range around run(), after a warm-up, L2 full of other data; `name` (a dict) is printed as a line of JSON.

    L2 holds written data back: the data that run() leaves there is not counted, but an equal amount from flush is.
    """
    run()
    flush.zero_()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(json.dumps(name), flush=True)


def counts(output):
    """[(name, {"read_bytes", "written_bytes"})] from the joint output of ncu and the program under it."""
    lines = output.splitlines()
    names = [json.loads(line) for line in lines if line.startswith("{")]
    ranges = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if row["Metric Name"] in (READ, WRITTEN):
            if row["Metric Unit"] != "byte":
                raise ValueError(f"ncu must count {row['Metric Name']} in byte (got {row['Metric Unit']})")
            ranges.setdefault(int(row["ID"]), {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    if len(ranges) != len(names) or not names:
        said = next((line for line in reversed(lines) if line.startswith("==ERROR==")), "it printed no error")
        raise ValueError(f"ncu counted {len(ranges)} of {len(names)} ranges: {said}")
    in_order = [ranges[i] for i in sorted(ranges)]
    return [(name, {"read_bytes": r[READ], "written_bytes": r[WRITTEN]}) for name, r in zip(names, in_order)]


def counted(ncu, program):
    """counts() of a Python program (its file and arguments), run by the command `ncu`; [] if that fails."""
    command = shlex.split(ncu)
    if not command or not shutil.which(command[0]):
        print(f"{ncu or 'ncu'} was not found: the bytes moved are left out", file=sys.stderr)
        return []
    done = subprocess.run([*command, *OPTIONS, sys.executable, *program], capture_output=True, text=True)
    try:
        return counts(done.stdout)
    except ValueError as error:
        print(f"the bytes moved are left out: {error}", done.stderr[-2000:], sep="\n", file=sys.stderr)
        return []
