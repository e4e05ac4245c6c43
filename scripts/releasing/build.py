"""Build the wheel and the sdist of a commit, so that each build of it gives the same bytes.

The source is what git has, and nothing else that lies in the folder. setuptools writes a wheel with
the time in SOURCE_DATE_EPOCH. It has no such thing for the sdist: that is written again here, with
sorted names, one time, and without the builder's user and umask.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

UMASK: Final = 0o022
MODE_FILE: Final = 0o644
MODE_PROGRAM: Final = 0o755


def git(root: Path, *arguments: str) -> str:
    """Return what git prints. Raises `CalledProcessError`."""
    ended = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def source_of(root: Path, folder: Path) -> int:
    """Unpack the checked-out commit into `folder`. Return the commit's time in seconds."""
    packed = subprocess.run(
        ["git", "-C", str(root), "archive", "--format=tar", "HEAD"], capture_output=True, check=True
    ).stdout
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return int(git(root, "log", "-1", "--format=%ct", "HEAD"))


def build(source: Path, out: Path, time_s: int, *kinds: str) -> list[Path]:
    """Build the `kinds` ("sdist", "wheel") of a source folder into `out`. Return the files.

    The backend of this environment is used, with one umask, because a wheel has the modes of files.
    Raises `CalledProcessError` with its output.
    """
    out.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out)]
        + [f"--{kind}" for kind in kinds]
        + [str(source)],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time_s), "PYTHONPATH": ""},
        umask=UMASK,
        capture_output=True,
        text=True,
        check=True,
    )
    for sdist in out.glob("*.tar.gz"):
        sdist.write_bytes(same_bytes(sdist.read_bytes(), time_s))
    return sorted(out.iterdir())


def same_bytes(sdist: bytes, time_s: int) -> bytes:
    """Return an sdist with the same files, without what differs from one build to the next."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda one: one.name):
            entry.mtime = time_s
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.pax_headers = {}
            runs = entry.isdir() or entry.mode & 0o100
            entry.mode = MODE_PROGRAM if runs else MODE_FILE
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=time_s) as out:
        out.write(plain.getvalue())
    return packed.getvalue()
