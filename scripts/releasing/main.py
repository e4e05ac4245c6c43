"""Command line of the release: build, compare, check, install, and print the sums."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zsq

from . import contents, debian, installs
from .build import build, git, source_of

ROOT: Final = Path(zsq.__file__).resolve().parent


def main() -> None:
    """Run the command. Ends with the exit code 1 if anything does not hold."""
    parser = argparse.ArgumentParser(prog="release", description="Build and check a release.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder of the files (dist)"
    )
    parser.add_argument("--untagged", action="store_true", help="build a commit without its tag")
    parser.add_argument("--extras", default="http,all", help="extras to install (http,all)")
    text = "also try the Pythons of these suites of Debian, as root: trixie,sid"
    parser.add_argument("--debian", default="", help=text)
    parser.add_argument("--no-installs", action="store_true", help="only build and compare")
    given = parser.parse_args()
    version = zsq.__version__
    wrong = unfit(version, given.untagged)
    if wrong:
        sys.exit(f"release: {wrong}")
    with tempfile.TemporaryDirectory(prefix="zsq-release-") as name:
        try:
            files = built_twice(Path(name))
        except subprocess.CalledProcessError as error:
            sys.exit(f"release: {error}\n{error.stdout}{error.stderr}")
        given.out.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.copy(one, given.out)) for one in files]
    problems = checked(files, version)
    if not given.no_installs and not problems:
        [wheel] = [one for one in files if one.suffix == ".whl"]
        extras, suites = (filter(None, text.split(",")) for text in (given.extras, given.debian))
        problems = installed(wheel, ["", *extras], [*suites])
    sums = "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)
    (given.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    for problem in problems:
        print(f"WRONG: {problem}")
    print(
        f"{len(problems)} problems" if problems else f"zsq {version} is fit; nothing was published"
    )
    sys.exit(bool(problems))


def unfit(version: str, untagged: bool) -> str:
    """Return why this checkout cannot be released, or "" if it can."""
    if git(ROOT, "status", "--porcelain", "--untracked-files=no"):
        return "the checkout has changes that are not committed"
    tags = git(ROOT, "tag", "--points-at", "HEAD").split()
    if not untagged and f"v{version}" not in tags:
        return f"the commit has no tag v{version} (--untagged builds it all the same)"
    return ""


def built_twice(folder: Path) -> list[Path]:
    """Build in two places, and the wheel from the sdist too. Return the files.

    Ends the program if the bytes differ.
    """
    first, second = folder / "one", folder / "a longer name" / "two"
    time_s = source_of(ROOT, first)
    source_of(ROOT, second)
    files = build(first, folder / "out1", time_s, "sdist", "wheel")
    again = build(second, folder / "out2", time_s, "sdist", "wheel")
    for one, other in zip(files, again, strict=True):
        if one.read_bytes() != other.read_bytes():
            sys.exit(f"release: two builds of {one.name} differ")
    [sdist] = [one for one in files if one.name.endswith(".tar.gz")]
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(unpacked)], check=True)
    [source] = unpacked.iterdir()
    [wheel] = build(source, folder / "out3", time_s, "wheel")
    if wheel.read_bytes() != (folder / "out1" / wheel.name).read_bytes():
        sys.exit("release: the sdist builds another wheel than the repository")
    print("two builds are the same byte for byte, and the sdist builds the same wheel")
    return files


def checked(files: Sequence[Path], version: str) -> list[str]:
    """Return what is wrong with the contents and the metadata of these files."""
    problems: list[str] = []
    for one in files:
        look = contents.wrong_in_wheel if one.suffix == ".whl" else contents.wrong_in_sdist
        problems += [f"{one.name}: {text}" for text in look(one, version)]
    command = [sys.executable, "-P", "-m", "twine", "check", "--strict", *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        problems.append(f"the metadata: {ended.stdout}{ended.stderr}")
    return problems


def installed(wheel: Path, extras: Sequence[str], suites: Sequence[str]) -> list[str]:
    """Install the wheel with each of these extras, for each Python. Return what failed.

    `suites` are suites of Debian whose Python is tried too.
    """
    problems = []
    here = installs.interpreters()
    for python in here:
        problems += in_each(python, wheel, extras)
    tried = {python.version for python in here}
    for suite in suites:
        with debian.system(suite) as root:
            other = installs.version_of("/usr/bin/python3", root)
            if other is None:
                problems.append(f"{suite} has no Python that ZSQ supports")
                continue
            problems += in_each(other, wheel, extras)
            tried.add(other.version)
    for version in sorted({*installs.PYTHONS} - tried):
        print(f"Python {version}: not tried, there is none here")
    return problems


def in_each(python: installs.Interpreter, wheel: Path, extras: Sequence[str]) -> list[str]:
    """Install the wheel with each of these extras for one Python. Return what failed."""
    problems = []
    for extra in extras:
        what = f"Python {python.version}, zsq{f'[{extra}]' if extra else ''}"
        try:
            print(f"{what}: {installs.try_in(python, wheel, extra)}", flush=True)
        except (installs.Broken, subprocess.TimeoutExpired) as error:
            problems.append(f"{what}: {error}")
    return problems
