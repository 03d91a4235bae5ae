"""The demo: exact attention on q, k and v of a real model that reads a real sentence.

    ./dev demo            or, in a build folder of your own:  python3 demo/run.py --build build/release

Runs `onepass run` on demo/fixture, checks the result by the float64 textbook, shows which words attend to which, draws
them into a PNG, and times a longer input beside the naive algorithm. Needs Python's standard library only; where NumPy
is installed, its fast matrix product stands in the table too.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from typing import Any

import picture
import tensors
from tensors import Verdict

HERE = pathlib.Path(__file__).resolve().parent
SHADES = " ░▒▓█"


def say(text: str = "") -> None:
    print(text, flush=True)


def title(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def command(program: pathlib.Path, *words: object) -> dict[str, Any]:
    """Runs a program that prints JSON."""
    result = subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise SystemExit(f"{program.name} failed with exit status {result.returncode}")
    return json.loads(result.stdout)


def time_text(seconds: float) -> str:
    units = ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (float("inf"), 1, "s"))
    factor, unit = next((f, u) for limit, f, u in units if seconds < limit)
    return f"{seconds * factor:.3g} {unit}"


def bytes_text(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 2**20 else f"{n / 2**10:.0f} KiB"


class Demo:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.options, self.folder = options, folder
        self.onepass, self.naive = options.build / "tools/onepass/onepass", options.build / "demo/naive"
        for program in (self.onepass, self.naive):
            if not program.exists():
                raise SystemExit(f"{program} is missing: build first (./dev build), or name the folder with --build")
        if not options.fixture.is_file():
            raise SystemExit(f"{options.fixture} is missing: demo/make_fixture.py makes it")
        self.fixture, about = tensors.read(options.fixture)
        heads = self.fixture["q"][0][1]
        if not 0 <= options.head < heads:
            raise SystemExit(f"--head must be 0 to {heads - 1} (got {options.head})")
        self.sentence, self.source, self.words = about["sentence"], about["source"], json.loads(about["tokens"])

    def attention(self, source: pathlib.Path, *more: object) -> tuple[dict[str, Any], tensors.Floats, tensors.Floats]:
        """`onepass run`: (what it reports, out, lse)."""
        to = self.folder / "onepass.safetensors"
        named = ["--implementation", self.options.implementation] if self.options.implementation else []
        report = command(self.onepass, "run", "--in", source, "--out", to, "--lse", "--json", *named, *more)
        results, _ = tensors.read(to)
        return report, results["out"][1], results["lse"][1]

    def standard(self, source: pathlib.Path) -> tuple[dict[str, Any], tensors.Floats]:
        """The naive algorithm: (what it reports, out)."""
        to = self.folder / "naive.safetensors"
        report = command(self.naive, source, to)
        return report, tensors.read(to)[0]["out"][1]

    def check(self) -> bool:
        title("Attention on real tensors")
        say(textwrap.fill(self.sentence, 100, initial_indent="  ", subsequent_indent="  "))
        say(f"  ({self.source}: {len(self.words)} tokens, q, k and v {self.fixture['q'][0]}, fp32)\n")
        report, out, self.lse = self.attention(self.options.fixture, "--threads", 1, "--repeat", 21)
        say(
            f"  {report['problem']}\n  {report['implementation']}: {report['config']}, {time_text(report['seconds'])}\n"
        )
        q, k, v = (tensors.rows(self.fixture[name]) for name in "qkv")
        self.q, self.k = q, k
        verdict = Verdict(out, self.lse, self.standard(self.options.fixture)[1], *tensors.oracle(q, k, v))
        say("  against the textbook in float64                  error       accepted")
        say(f"    largest error of the output                 {verdict.worst:9.2e}      {verdict.worst_accepted:9.2e}")
        say(f"    mean error of the output                    {verdict.mean:9.2e}      {verdict.mean_accepted:9.2e}")
        say(f"    largest error of the LSE                    {verdict.lse:9.2e}      {1e-5:9.2e}")
        say("  right" if verdict.right else "  WRONG")
        self.out = out
        return verdict.right

    def show(self) -> None:
        """Which words attend to which. The weights are exp(score - LSE): that is what the LSE is for."""
        n, heads = len(self.words), len(self.q)
        by_head = [tensors.weights(self.q[h], self.k[h], self.lse[h * n : (h + 1) * n]) for h in range(heads)]
        chosen = by_head[self.options.head]
        astray = max(abs(sum(row) - 1) for matrix in by_head for row in matrix)
        title(f"Which words attend to which: head {self.options.head}")
        say(f"  weights exp(q·k/√d − LSE) from q, k and the returned LSE; every row adds up to 1 within {astray:.1e}\n")
        for word, row in zip(self.words, chosen):
            others = [j for j in range(n) if self.words[j].isalpha() and self.words[j] != word]
            best = sorted(others, key=lambda j: -row[j])[:3]
            if word.isalpha() and row[best[0]] >= 0.08:
                say(f"  {word:>10} → " + "  ".join(f"{self.words[j]} {row[j]:.2f}" for j in best))
        say("\n  the same for every word (row) and every word it may look at (column), darker is more;")
        say("  [CLS] is where this model rests when a head finds nothing\n")
        for word, row in zip(self.words, chosen):
            say(f"  {word:>10} " + "".join(2 * SHADES[min(4, int(5 * p**0.5))] for p in row))
        self.options.png.parent.mkdir(parents=True, exist_ok=True)
        name = f"{self.source.split(' (')[0]}, head {self.options.head}"
        picture.heat_map(self.words, by_head, self.options.head, name, self.options.png)
        say(f"\n  heat map of all {heads} heads: {self.options.png}")

    def race(self) -> bool:
        """The sentence many times over: the weight of a key is shared among its copies, so every output row stays what
        it was, which checks the long run too."""
        copies = self.options.copies
        n, heads, dim = len(self.words) * copies, self.fixture["q"][0][1], self.fixture["q"][0][3]
        title(f"Longer: the sentence {copies} times over, {n} tokens")
        source = self.folder / "long.safetensors"
        tensors.write(source, {name: tensors.repeated(t, copies) for name, t in self.fixture.items()})
        times: dict[str, list[float]] = {}
        for _ in range(self.options.rounds):
            slow, _ = self.standard(source)
            one, out, _ = self.attention(source, "--threads", 1, "--repeat", 3)
            every, _, _ = self.attention(source, "--repeat", 3)
            reports = {"naive": [slow["seconds"]], "NumPy": numpy_seconds(source), "one": [one["seconds"]]}
            for name, seconds in {**reports, "every": [every["seconds"]]}.items():
                times.setdefault(name, []).extend(seconds)
        best = {name: min(seconds) for name, seconds in times.items() if seconds}
        expected = tensors.repeated((self.fixture["v"][0], self.out), copies)[1]
        error = max(abs(a - b) for a, b in zip(out, expected))
        operations = 4 * heads * n * n * dim

        def line(key: str, name: str, extra: str) -> None:
            if key in best:
                speed = f"{operations / best[key] / 1e9:7.1f} GFLOP/s"
                say(f"  {name:44} {time_text(best[key]):>9} {speed}   {extra}")

        line("naive", "naive, this machine's instructions, 1 thread", bytes_text(slow["extra_bytes"]))
        line("NumPy", "NumPy with its matrix product, 1 thread", bytes_text(4 * n * n))
        line("one", f"onepass ({one['implementation']}), 1 thread", "no score matrix")
        if every["threads"] > 1:
            line("every", f"onepass, {every['threads']} threads", "no score matrix")
        against = f", {best['NumPy'] / best['one']:.1f} times as fast as NumPy" if "NumPy" in best else ""
        say(f"\n  {best['naive'] / best['one']:.1f} times as fast as naive{against}, on one thread each; best of")
        say(f"  {self.options.rounds} rounds; the output is that of the sentence read once within {error:.1e}")
        return error <= 1e-5


def numpy_seconds(source: pathlib.Path) -> list[float]:
    """[seconds] of standard attention in NumPy with one thread, head by head; [] where NumPy is not installed."""
    code = (HERE / "standard_numpy.py").as_posix()
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    result = subprocess.run(
        [sys.executable, code, str(source)], env={**os.environ, **one}, capture_output=True, text=True
    )
    if result.returncode == 0:
        return [float(result.stdout)]
    if "No module named 'numpy'" in result.stderr:
        return []
    raise SystemExit(f"standard_numpy.py failed: {result.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"), help="the build folder")
    parser.add_argument("--fixture", type=pathlib.Path, default=HERE / "fixture" / "minilm.safetensors")
    parser.add_argument("--head", type=int, default=9)
    parser.add_argument("--png", type=pathlib.Path, help="file for the heat map (default: attention.png in --build)")
    parser.add_argument("--copies", type=int, default=40, help="copies of the sentence in the long input")
    parser.add_argument("--rounds", type=int, default=3, help="number of timed runs on the long input")
    parser.add_argument("--implementation", help="name of the implementation of onepass")
    options = parser.parse_args()
    options.png = options.png or options.build / "attention.png"
    with tempfile.TemporaryDirectory(prefix="onepass-demo-") as folder:
        demo = Demo(options, pathlib.Path(folder))
        right = demo.check()
        demo.show()
        right = demo.race() and right
    if not right:
        raise SystemExit("the demo's results are WRONG")


if __name__ == "__main__":
    main()
