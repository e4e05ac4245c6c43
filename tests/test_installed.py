"""Tests of the source archive and the wheel, installed into an environment that has only the
packages that they require. The broker must run there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from support.broker import wait_for

ROOT: Final = Path(__file__).resolve().parents[1]
PARTS: Final = ("__init__.py", "__main__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE")
FOLDERS: Final = (
    "actors", "aio", "apps", "inbox", "outbox", "pyspark_zsq", "storage", "testing", "transport",
)  # fmt: skip
BUILD: Final = (
    "import sys; from setuptools import build_meta as b; print(b.build_{kind}(sys.argv[1]))"
)


def build(kind: str, source: Path, target: Path) -> Path:
    line = [sys.executable, "-c", BUILD.format(kind=kind), str(target)]
    ended = subprocess.run(
        line, cwd=source, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return target / ended.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the source archive from a copy of the repository, and the wheel from the source archive
    alone.
    """
    folder = tmp_path_factory.mktemp("archives")
    (folder / "copy").mkdir()
    for name in PARTS:
        shutil.copy(ROOT / name, folder / "copy" / name)
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    sdist = build("sdist", folder / "copy", folder)
    shutil.rmtree(folder / "copy")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    return sdist, build("wheel", unpacked, folder)


def required(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield all distributions that a distribution requires without its extras, directly or through
    others.
    """
    for line in metadata.requires(name) or ():
        needed = re.split(r"[^\w.-]", line)[0]
        if "extra ==" in line or needed.lower() in seen:
            continue
        seen.add(needed.lower())
        try:
            found = metadata.distribution(needed)
        except metadata.PackageNotFoundError:
            continue  # required only for another system or Python version
        yield found
        yield from required(needed, seen)


@pytest.fixture(scope="module")
def environment(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a new virtual environment with the wheel. Its requirements are linked from this
    environment, because there may be no network.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100
    )
    [site] = folder.glob("lib/python*/site-packages")
    for distribution in required("zsq", set()):
        for file in distribution.files or ():
            top = file.parts[0]
            source = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(folder / "bin/python"),
        "install",
    ]
    subprocess.run(
        [*pip, "--quiet", "--no-deps", "--no-index", str(archives[1])], check=True, timeout=100
    )
    return folder


@pytest.mark.slow
def test_the_archive_has_all_that_the_wheel_has(archives: tuple[Path, Path]) -> None:
    sdist, wheel = archives
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO"} <= packed
    built = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.removeprefix("zsq/") for name in built} <= packed
    on_disk = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    }
    on_disk |= {
        str(path.relative_to(ROOT))
        for path in (ROOT / "apps/console").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {
        f"zsq/{name}" if not name.startswith("pyspark_zsq") else name for name in on_disk
    } <= built


@pytest.mark.slow
def test_a_broker_serves_where_only_the_wheel_is(environment: Path, tmp_path: Path) -> None:
    program = str(environment / "bin/zsq")
    clean = {
        "PATH": "/nowhere",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "ZSQ_URL": f"ipc://{tmp_path}/data/run",
    }

    def run(*arguments: str, given: str = "") -> str:
        ended = subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env=clean,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    where = subprocess.run(
        [str(environment / "bin/python"), "-c", "import zsq; print(zsq.__file__)"],
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(environment))
    assert re.fullmatch(r"zsq \d+\.\d+\.\d+\S*\n", run("--version"))
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        line = [
            program,
            "serve",
            "--data-dir",
            str(tmp_path / "data"),
            "--no-listen",
            "--no-nsq",
            "--no-http",
        ]
        broker = subprocess.Popen(
            line, cwd=tmp_path, env=clean, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(
            lambda: b" ready: " in log.read_bytes() or broker.poll() is not None, what="the broker"
        )
        assert broker.poll() is None, log.read_text()
        run("pub", "clicks", given="one\ntwo\n")
        assert run("sub", "clicks", "c", "-n", "2") == "one\ntwo\n"
        assert "clicks" in run("top", "--once")
    finally:
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.wait(40) == 0
