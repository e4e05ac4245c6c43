"""Other Debian systems in folders of this machine, for the Pythons that this one does not have.

`debootstrap` fills the folder, and `chroot` runs the commands in it. Both need root.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGES: Final = "python3,python3-venv,ca-certificates"
MADE_S: Final = 600


@contextlib.contextmanager
def system(suite: str) -> Iterator[Path]:
    """Make a small system of a suite of Debian, such as "trixie". It is removed at the end.

    Raises `CalledProcessError`.
    """
    root = Path(tempfile.mkdtemp(prefix=f"zsq-{suite}-"))
    mounted = []
    try:
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root)],
            capture_output=True, text=True, timeout=MADE_S, check=True,
        )  # fmt: skip
        for name in ("resolv.conf", "hosts", "pip.conf"):
            if (file := Path("/etc", name)).is_file():
                shutil.copy(file, root / "etc")
        # This machine may trust more than Debian does.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
        for what in ("proc", "dev"):
            subprocess.run(["mount", "--rbind", f"/{what}", str(root / what)], check=True)
            subprocess.run(["mount", "--make-rslave", str(root / what)], check=True)
            mounted.append(root / what)
        yield root
    finally:
        for place in mounted:
            subprocess.run(["umount", "--recursive", str(place)], check=False)
        # A folder that is still mounted is this machine's, and must not be emptied.
        if not any(place.is_mount() for place in mounted):
            shutil.rmtree(root, ignore_errors=True)
