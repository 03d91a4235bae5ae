"""Builds and tries the conda packages of this checkout by rattler-build, and prints where they are.

    python packaging/conda/build.py FOLDER

Debian's compiler, CMake, Ninja, Python and libraries take the places of conda-forge's, for which a channel in FOLDER
has stand-ins. Debian's Python must run this program.
"""

import pathlib
import sys

from rattler_build import Package, Stage0Recipe, VariantConfig

HERE = pathlib.Path(__file__).parent


def built(recipe, out, channels):
    """The packages of a recipe. The contents that it names are looked for while it is built."""
    python = ".".join(map(str, sys.version_info[:2]))
    variants = VariantConfig({"cxx_compiler": ["gxx"], "cxx_compiler_version": ["12"], "python": [python]})
    results = Stage0Recipe.from_file(recipe).run_build(variants, output_dir=out, channels=channels, no_build_id=True)
    return [package for result in results for package in result.packages]


def main(folder):
    channel = folder / "channel"
    built(HERE / "debian/recipe.yaml", channel, [])
    for package in built(HERE / "recipe.yaml", folder / "out", [str(channel)]):
        tests = Package.from_file(package).run_tests(channel=[str(channel)])
        if not tests or not all(test.success for test in tests):
            said = [line for test in tests for line in test.output]
            raise SystemExit("\n".join([*said, f"{package} fails its tests"]))
        print(package)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
