"""A disk that loses its power: a real file system in an image, of which the power cut keeps only
what the kernel had written.

    memory/outer.img   XFS, which can clone a file at one moment (FICLONE)
      outer/disk.img   the disk: ext4, XFS or Btrfs, mounted at the broker's folder

The broker's processes are killed, which leaves what they have not synced in the page cache of the
inner file system. At that moment the image is cloned. Then the folder is unmounted, the clone takes
the place of the image, and it is mounted again, which replays the file system's journal. Whatever
was only in the page cache is gone.

The kernel's writes are kept in their order, as a disk without a volatile cache does. A disk that
loses some of them is what `scripts/prove crash-states` is about, without a real file system.

This needs root, loop devices, and xfsprogs (and btrfs-progs for Btrfs).
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

FILE_SYSTEMS: Final = ("ext4", "xfs", "btrfs")
_MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
OUTER_BYTES: Final = 16 << 30  # sparse
DISK_BYTES: Final = 2 << 30
FICLONE: Final = 0x40049409
UNMOUNT_S: Final = 20.0


def missing(file_system: str) -> str:
    """Return what is missing here for such a disk, or ""."""
    if os.geteuid():
        return "only root can mount an image"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    for program in ("mount", "umount", "mkfs.xfs", _MAKE[file_system][0]):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


class ImageDisk:
    """A disk whose file system is mounted at `folder`. The images lie in `memory`."""

    def __init__(self, memory: Path, folder: Path, file_system: str) -> None:
        self.file_system = file_system
        self.folder = folder
        self._image = memory / "outer.img"
        self._outer = memory / "outer"
        self._disk = self._outer / "disk.img"
        self._mounted: list[Path] = []

    def begin(self) -> None:
        """Make the file system, and mount it."""
        self._outer.mkdir()
        self._make(self._image, OUTER_BYTES, "xfs")
        self._mount(self._image, self._outer)
        self._make(self._disk, DISK_BYTES, self.file_system)
        self._mount(self._disk, self.folder)

    def cut_power(self) -> None:
        """Lose what the kernel has not written. No process may have a file of the disk open."""
        clone = self._outer / "clone.img"
        with self._disk.open("rb") as source, clone.open("wb") as target:
            fcntl.ioctl(target, FICLONE, source.fileno())
        self._unmount(self.folder)
        clone.replace(self._disk)
        self._mount(self._disk, self.folder)

    def end(self) -> None:
        """Unmount everything, and remove the images."""
        for place in reversed(self._mounted[:]):
            self._unmount(place)
        self._image.unlink(missing_ok=True)

    def _make(self, image: Path, size: int, file_system: str) -> None:
        with image.open("wb") as file:
            file.truncate(size)
        _run(*_MAKE[file_system], str(image))

    def _mount(self, image: Path, place: Path) -> None:
        _run("mount", "-o", "loop", str(image), str(place))
        self._mounted.append(place)

    def _unmount(self, place: Path) -> None:
        """Unmount a file system. A process that was killed may have it open for some moments."""
        deadline = time.monotonic() + UNMOUNT_S
        while True:
            done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
            if done.returncode == 0:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"umount {place}: {done.stderr.decode()}")
            select.select([], [], [], 0.05)
        self._mounted.remove(place)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
