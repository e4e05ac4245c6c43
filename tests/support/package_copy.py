"""Copies of the package, for tests that change it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = ("__init__.py", "__main__.py", "py.typed", "actors", "apps", "storage", "transport")


def package_without(rooms: tuple[str, ...], folder: Path) -> Path:
    """Make a copy of the package that lacks these rooms. Return the folder for PYTHONPATH."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "zsq" / name)
        else:
            (folder / "zsq").mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "zsq" / name)
    for room in rooms:
        shutil.rmtree(folder / "zsq" / room)
    return folder
