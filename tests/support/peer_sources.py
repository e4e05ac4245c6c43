"""Source archives of other projects, with the tests that these projects have for their own parts.

An archive has the version that is installed. It is downloaded from the package index once, into the
user's cache.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

DOWNLOAD_S: Final = 180.0


def cache() -> Path:
    found = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(found) / "zsq-tests"


def source_of(project: str) -> Path:
    """Return the folder with the source of the installed version of `project`.

    If it cannot be downloaded, the test module is skipped. In continuous integration that is a
    failure.
    """
    name = f"{project}-{version(project)}"
    folder = cache() / "sources" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # Other test processes wait here, and then find the source.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists() and (why := _download(project, folder)):
            text = f"the source of {name} could not be downloaded: {why}"
            if "CI" in os.environ:
                pytest.fail(text, pytrace=False)
            pytest.skip(text, allow_module_level=True)
    return folder


def _download(project: str, folder: Path) -> str:
    """Make `folder`. Return why it could not be made, or an empty text."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        command = [
            sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
            "--no-build-isolation", "--no-binary", project, "--dest", made,
            f"{project}=={version(project)}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"pip download did not end within {DOWNLOAD_S:g} s"
        if done.returncode:
            return done.stderr[-500:]
        (archive,) = Path(made).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(made, filter="data")
        (root,) = (found for found in Path(made).iterdir() if found.is_dir())
        root.rename(folder)
    return ""


def package_at(folder: Path, name: str) -> None:
    """Make the modules of a folder importable as `name.MODULE`. Its `__init__.py` is not run."""
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def outcomes_in(report: Path, prefix: str) -> dict[str, str]:
    """Return `passed`, `skipped` or the error of each test in a report of pytest.

    A test is named as in the report, without `prefix`: `FILE.CLASS.TEST[PARAMETER]`.
    """
    found = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix(prefix)
        result = "passed" if case.find("skipped") is None else "skipped"
        for kind in ("failure", "error"):
            if (bad := case.find(kind)) is not None:
                result = bad.text or kind
        found[name] = result
    return found


def played(
    runs: Sequence[Callable[[], Mapping[str, str]]],
    processes: int,
    is_bad: Callable[[str, str], bool],
    again: Callable[[list[str]], Mapping[str, str]],
) -> dict[str, str]:
    """Return the outcomes of these runs of pytest. At most `processes` run at a time.

    Then the tests with a bad outcome run once more: `again` gets their names.
    """
    found: dict[str, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        for one in [pool.submit(run) for run in runs]:
            found.update(one.result())
    bad = [name for name, result in found.items() if is_bad(name, result)]
    return {**found, **again(bad)} if bad else found


def check_file(
    outcomes: Mapping[str, str], file: str, is_bad: Callable[[str, str], bool]
) -> list[str]:
    """Return the outcomes of the tests of a file. Raises `AssertionError` if one is bad."""
    mine = {name: result for name, result in outcomes.items() if name.startswith(f"{file}.")}
    bad = {name: result for name, result in mine.items() if is_bad(name, result)}
    assert not bad, "\n\n".join(f"{name}: {result}" for name, result in bad.items())
    return list(mine.values())
