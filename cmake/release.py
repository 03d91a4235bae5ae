"""Builds and checks the artifacts of a tag, and writes the notes: `./dev release v0.2.0`. It uploads nothing.

release.py TAG [--artifacts source wheel wheel_2_28 aarch64 aarch64_2_28] [--python PYTHON...] [--out FOLDER]

The tag's files alone are used, in a folder of their own. The version of the tag must be that of version.h, and
CHANGELOG must have its section. The folder gets the source archive, what the commands of BUILDS have built and tried,
NOTES.md and SHA256SUMS. Each PYTHON gets a wheel: one of its own, or that of the stable ABI. With ONEPASS_REPOSITORY,
the address of the repository, links of the notes lead to the tag's files there.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILDS = {
    "source": None,
    "wheel": ["./dev", "wheel"],
    "wheel_2_28": ["./dev", "wheel", "2_28"],
    "aarch64": ["./dev", "wheel", "aarch64"],
    "aarch64_2_28": ["./dev", "wheel", "2_28", "aarch64"],
}
FOR_PYTHONS = "wheel", "wheel_2_28"  # their commands are told for which


def fail(sentence):
    sys.exit(f"release: {sentence}")


def notes(changelog, version):
    """The section of CHANGELOG, without its heading."""
    sections = re.split(r"^## (.+)$", changelog, flags=re.M)[1:]
    found = {title.split()[0]: text.strip() for title, text in zip(sections[::2], sections[1::2])}
    if version not in found:
        fail(f"CHANGELOG.md must have the section '## {version}' (got {', '.join(found) or 'none'})")
    if not found[version]:
        fail(f"the section '## {version}' of CHANGELOG.md must not be empty")
    return found[version] + "\n"


def absolute(text, address):
    """Links to files of the repository, as the notes of a release need them: relative ones lead nowhere there."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({address}/\1)", text)


def check_versions(tree, version):
    """Every file of the tag that names a version names this one."""
    for name, pattern in {
        "include/onepass/version.h": r'define ONEPASS_VERSION "([^"]+)"',
        "CITATION.cff": r"^version: *\"?([0-9.]+)",
        "packaging/conda/recipe.yaml": r"^  version: \"([^\"]+)\"",
        "packaging/vcpkg/ports/onepass/vcpkg.json": r'"version-semver": "([^"]+)"',
        "packaging/debian/changelog": r"^onepass \(([^)]+)\)",
        "packaging/spack/packages/onepass/package.py": r'^    version\("([^"]+)"\)',
    }.items():
        found = re.search(pattern, (tree / name).read_text(), re.M)
        if found is None or found[1] != version:
            fail(f"{name} must have version {version} (got {found[1] if found else 'none'})")


def git(*words, root=ROOT):
    """The output, or None."""
    done = subprocess.run(["git", "-C", root, *words], capture_output=True)
    return done.stdout if done.returncode == 0 else None


def build(tree, artifact, pythons, out):
    """The files that a command of the tag's own tree has left in dist."""
    command = [*BUILDS[artifact], *(pythons if artifact in FOR_PYTHONS else [])]
    if subprocess.run(command, cwd=tree).returncode:
        fail(f"{' '.join(command)} failed")
    files = [path for path in (tree / "dist").glob("onepass-*") if not (out / path.name).exists()]
    if not files:
        fail(f"{' '.join(command)} left nothing in dist")
    for path in files:
        shutil.copy2(path, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("--artifacts", nargs="+", choices=BUILDS, default=["source", "wheel", "wheel_2_28"])
    parser.add_argument("--python", nargs="+", default=[])
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    version = given.tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", given.tag):
        fail(f"the tag must be vMAJOR.MINOR.PATCH (got {given.tag})")
    found = git("rev-parse", "--verify", f"refs/tags/{given.tag}^{{commit}}")
    if not found:
        fail(f"the tag {given.tag} must exist in this clone")
    commit = found.decode().strip()
    out = (given.out or ROOT / "build" / "releases" / version).resolve()
    shutil.rmtree(out, ignore_errors=True)
    tree = out / "tree"
    tree.mkdir(parents=True)
    archive = out / f"onepass-{version}-source.tar.gz"
    archive.write_bytes(git("archive", "--format=tar.gz", f"--prefix=onepass-{version}/", commit))
    subprocess.run(["tar", "-xzf", archive, "--strip-components=1", "-C", tree], check=True)
    check_versions(tree, version)
    said = notes((tree / "CHANGELOG.md").read_text(), version)
    if repository := os.environ.get("ONEPASS_REPOSITORY"):
        said = absolute(said, f"{repository}/blob/{given.tag}")
    (out / "NOTES.md").write_text(said)
    for artifact in given.artifacts:
        if BUILDS[artifact]:
            build(tree, artifact, given.python, out)
    shutil.rmtree(tree)
    files = sorted(path for path in out.iterdir() if path.name != "NOTES.md")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join([f"{given.tag} is {commit[:12]}; nothing was uploaded. {out} has", *sums, "NOTES.md"]))


if __name__ == "__main__":
    main()
