"""A private copy of a commit in which every site of the product has its switch. The tests run in
this copy.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mutate.sites import Site, sources, switched

ROOT: Final = Path(__file__).resolve().parents[2]
SITES_NAME: Final = "sites.json"


class Tree:
    """`base`/zsq is the copy, and `base`/switch has the switches that it loads. All programs run
    with `base` as their working directory.
    """

    def __init__(self, base: Path, *, other: bool = False) -> None:
        self.base = base
        self.other = other
        self.product = base / "zsq"
        self.sites: list[Site] = []

    def make(self, commit: str) -> str:
        """Make the copy, and return the full hash of the commit."""
        self.product.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            # The archive contains links (in typings/). It is safe to extract them, because the
            # commit is from this repository.
            packed.extractall(self.product, filter="fully_trusted")
        # Use this program in its present state, not that of the commit.
        shutil.copytree(Path(__file__).parent, self.product / "tests/mutate", dirs_exist_ok=True)
        folder = self.base / "switch"
        folder.mkdir()
        (folder / "_switch.py").write_text((self.product / "tests/mutate/switch.py").read_text())
        head = (
            f"import sys as _sys; _sys.path.append({str(folder)!r}); import _switch; "
            f"_sys.path.remove({str(folder)!r})"
        )
        for path in sources(self.product):
            text, found = switched(
                path.read_text(),
                path.relative_to(self.product).as_posix(),
                len(self.sites),
                head,
                other=self.other,
            )
            path.write_text(text)
            self.sites += found
        (self.base / SITES_NAME).write_text(json.dumps(self.sites))
        name = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", commit],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return name.strip()

    def load(self) -> Tree:
        self.sites = [Site(*row) for row in json.loads((self.base / SITES_NAME).read_text())]
        return self

    # The cache keeps the tree in memory. A tree exists as long as the program anyway.
    @functools.cache  # noqa: B019
    def hash_of(self, path: str) -> str:
        """Return the hash of a file's content, or "" if there is no file."""
        found = self.product / path
        return hashlib.sha256(found.read_bytes()).hexdigest()[:16] if found.exists() else ""

    def pytest(self, *arguments: str, log: Path, full: bool = False) -> subprocess.Popen[bytes]:
        """Start pytest on the copy. The editable install must not be used: Python searches its
        `zsq` after all entries of `sys.path`, and PYTHONPATH adds such an entry.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ZSQ_") or name == "ZSQ_VENV"
        }
        environment |= {
            "PYTHONPATH": f"{self.base}{os.pathsep}{self.product / 'tests'}",
            "CI": "1",
        } | ({} if full else {"ZSQ_TEST_SUITE": "fast"})
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(self.product / "pyproject.toml"),
            "--rootdir",
            str(self.product),
        ]
        with log.open("ab") as out:
            return subprocess.Popen(
                [*command, "-q", "-p", "no:cacheprovider", "-p", "mutate.plugin", *arguments],
                cwd=self.base,
                env=environment,
                stdout=out,
                stderr=out,
            )

    def test_files(self, wanted: Sequence[str] = ()) -> list[str]:
        """Return all test files that may notice a removal, by their paths below tests/."""
        tests = self.product / "tests"
        found = [path.relative_to(tests).as_posix() for path in sorted(tests.rglob("test_*.py"))]
        found = [name for name in found if not name.startswith(NOT_ASKED)]
        return [name for name in found if not wanted or any(part in name for part in wanted)]


# Tests that are not run: those that check the source and not its behaviour, those that need a
# cluster, and the tests of this program.
NOT_ASKED: Final = (
    "test_tidy",
    "test_layers",
    "test_packaging",
    "mutate/",
    "spark_cluster/",
    "spark_versions/",
    "simulation/",
)
