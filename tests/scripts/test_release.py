"""Tests of ./scripts/release: builds of one commit are equal, and what does not belong is named."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import zsq
from releasing import contents
from releasing.build import build, source_of

ROOT = Path(zsq.__file__).resolve().parent
FILES = (
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "__init__.py",
    "__main__.py",
    "py.typed",
    "pyproject.toml",
    "pyspark_zsq",
    "docs",
    *contents.LAYERS,
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one commit, with a file of a test and a file that git does not know."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_one.py").write_text("")
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "One")):
        subprocess.run([*git, *words], check=True)
    (folder / "apps" / "stray.py").write_text("")
    return folder


def test_two_builds_are_equal_and_hold_what_users_run(repository: Path, tmp_path: Path) -> None:
    """The second build is at another place, later, and from files with other times and modes."""
    times = [source_of(repository, tmp_path / name) for name in ("one", "another")]
    (tmp_path / "another" / "LICENSE").touch()
    files = build(tmp_path / "one", tmp_path / "out1", times[0], "sdist", "wheel")
    again = build(tmp_path / "another", tmp_path / "out2", times[1], "sdist", "wheel")
    assert [file.name for file in files] == [
        f"zsq-{zsq.__version__}-py3-none-any.whl",
        f"zsq-{zsq.__version__}.tar.gz",
    ]
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    wheel, sdist = files
    assert contents.wrong_in_wheel(wheel, zsq.__version__) == []
    assert contents.wrong_in_sdist(sdist, zsq.__version__) == []
    assert "zsq/apps/stray.py" not in zipfile.ZipFile(wheel).namelist()
    # The sdist is enough to build the same wheel.
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    [third] = build(source, tmp_path / "out3", times[0], "wheel")
    assert third.read_bytes() == wheel.read_bytes()


def test_what_does_not_belong_into_a_wheel_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "zsq-1.0.0-py3-none-any.whl"
    metadata = "Name: zsq\nVersion: 0.9.0\nLicense-Expression: Apache-2.0\nProvides-Extra: http\n"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in (*contents.NEEDED, "zsq/tests/test_one.py", "zsq/apps/notes.md"):
            packed.writestr(name, "")
        packed.writestr("zsq-1.0.0.dist-info/METADATA", metadata)
    assert contents.wrong_in_wheel(wheel, "1.0.0") == [
        "zsq/tests/test_one.py does not belong into the wheel",
        "zsq/apps/notes.md does not belong into the wheel",
        "the licence is missing",
        "the metadata has Version 0.9.0, not 1.0.0",
        "the extra all is missing",
    ]
