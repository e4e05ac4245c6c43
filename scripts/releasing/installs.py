"""Install a wheel in empty environments, without a compiler, and use it there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
INSTALL_S: Final = 900
USE_S: Final = 120
# PySpark has never had a wheel. It has nothing to compile.
WHEELS_ONLY: Final = ("--only-binary=:all:", "--no-binary=pyspark")

# A broker, a message in, and the same message out.
USED: Final = """
from zsq.testing import LocalBroker
with LocalBroker(".") as broker, broker.producer() as producer:
    assert producer.publish("orders", b"one").offset == 0
    with broker.consumer("orders", "billing") as consumer:
        message = consumer.receive(30)
        assert message.body == b"one"
        message.finish()
print("works")
"""


class Broken(Exception):
    """A step failed. The text has its command and its output."""


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine, or of another system in the folder `root`."""

    version: str
    path: str
    root: Path = Path("/")

    def run(self, *command: object, folder: Path, limit_s: float = USE_S) -> str:
        """Return what a command prints. `folder` is a path of its system. Raises `Broken`."""
        words = [str(one) for one in command]
        # Nothing of this environment is on its path, and there is no compiler.
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", "CC": "/bin/false"}  # fmt: skip
        clean |= {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name.lower().endswith("_proxy")
        }
        if self.root != Path("/"):
            change = 'cd "$0" && exec "$@"'
            words = ["/usr/sbin/chroot", str(self.root), "/bin/sh", "-c", change, str(folder), *words]  # fmt: skip
        ended = subprocess.run(
            words,
            cwd=self.root / folder.relative_to("/"),
            env=clean,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if ended.returncode:
            text = f"{' '.join(map(str, command))} ended with {ended.returncode}:"
            raise Broken(f"{text}\n{ended.stdout}{ended.stderr}")
        return ended.stdout


def version_of(path: str, root: Path = Path("/")) -> Interpreter | None:
    """Return the interpreter at this path of its system, or None without one that ZSQ supports."""
    try:
        said = Interpreter("", path, root).run(
            path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", folder=Path("/tmp")
        )
    except Broken:
        return None
    return Interpreter(said.strip(), path, root) if said.strip() in PYTHONS else None


def interpreters() -> list[Interpreter]:
    """Return this machine's interpreters, one of each version."""
    found: dict[str, Interpreter] = {}
    for path in (sys.executable, *filter(None, (shutil.which(f"python{v}") for v in PYTHONS))):
        if (one := version_of(path)) is not None:
            found.setdefault(one.version, one)
    return list(found.values())


def try_in(python: Interpreter, wheel: Path, extra: str) -> str:
    """Install the wheel with an extra ("" for none) in an empty environment, and use it.

    Return one line about it. Raises `Broken`.
    """
    with tempfile.TemporaryDirectory(prefix="zsq-release-", dir=python.root / "tmp") as name:
        shutil.copy(wheel, name)
        folder = Path("/", Path(name).relative_to(python.root))
        python.run(python.path, "-m", "venv", folder / "venv", folder=folder)
        inside = folder / "venv" / "bin" / "python"
        pip = (inside, "-m", "pip", "--disable-pip-version-check")
        wanted = f"{folder / wheel.name}[{extra}]" if extra else str(folder / wheel.name)
        # Without `WHEELS_ONLY` pip would build a package that has no wheel for this Python.
        python.run(*pip, "install", *WHEELS_ONLY, wanted, folder=folder, limit_s=INSTALL_S)
        python.run(*pip, "check", folder=folder)
        version = python.run(inside.parent / "zsq", "--version", folder=folder)
        if not re.fullmatch(r"zsq \d+\.\d+\.\d+\n", version):
            raise Broken(f"zsq --version printed {version!r}")
        said = python.run(inside, "-P", "-c", USED, folder=folder, limit_s=USE_S)
        if said != "works\n":
            raise Broken(f"a broker and its clients printed {said!r}")
        count = len(python.run(*pip, "list", "--format=freeze", folder=folder).splitlines())
    return f"{version.strip()}, {count} packages"
