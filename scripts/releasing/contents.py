"""Contents of the wheel and the sdist of ZSQ: what must be there, and what must not."""

from __future__ import annotations

import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Final

LAYERS: Final = ("actors", "aio", "apps", "inbox", "outbox", "storage", "testing", "transport")
NEEDED: Final = (
    "zsq/__init__.py",
    "zsq/__main__.py",
    "zsq/py.typed",
    "zsq/apps/console/index.html",
    "pyspark_zsq/__init__.py",
)
# The folders of the repository that users do not run.
ONLY_FOR_BUILDERS: Final = ("tests/", "scripts/", "docs/", "typings/", ".ci/")


def wrong_in_wheel(wheel: Path, version: str) -> list[str]:
    """Return what a wheel lacks, and what it should not have."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        about = f"zsq-{version}.dist-info"
        metadata = packed.read(f"{about}/METADATA").decode()
    wrong = [f"{name} is missing" for name in NEEDED if name not in names]
    wrong += [
        f"{name} does not belong into the wheel"
        for name in names
        if not name.startswith(
            (*(f"zsq/{layer}/" for layer in LAYERS), f"{about}/", "pyspark_zsq/")
        )
        and name not in NEEDED
    ]
    wrong += [
        f"{name} does not belong into the wheel"
        for name in names
        if name.endswith((".pyc", ".md", ".so")) or "__pycache__" in name
    ]
    if not any(name.startswith(f"{about}/licenses/LICENSE") for name in names):
        wrong.append("the licence is missing")
    return wrong + wrong_metadata(metadata, version)


def wrong_metadata(text: str, version: str) -> list[str]:
    """Return what the metadata lacks."""
    fields = Parser().parsestr(text)
    wanted = {"Name": "zsq", "Version": version, "License-Expression": "Apache-2.0"}
    wrong = [
        f"the metadata has {name} {fields[name]}, not {value}"
        for name, value in wanted.items()
        if fields[name] != value
    ]
    extras = fields.get_all("Provides-Extra") or []
    return wrong + [
        f"the extra {name} is missing" for name in ("http", "all") if name not in extras
    ]


def wrong_in_sdist(sdist: Path, version: str) -> list[str]:
    """Return what an sdist lacks, and what it should not have."""
    top = f"zsq-{version}/"
    with tarfile.open(sdist) as packed:
        files = [entry.name.removeprefix(top) for entry in packed if entry.isfile()]
    wrong = [
        f"{name} is missing"
        for name in ("LICENSE", "README.md", "pyproject.toml")
        if name not in files
    ]
    return wrong + [
        f"{name} does not belong into the sdist"
        for name in files
        if name.startswith(ONLY_FOR_BUILDERS) or "__pycache__" in name
    ]
