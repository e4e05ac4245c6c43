"""Data copy: which copy of a broker a data directory is, by the file that shipping keeps there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...storage.bucket.shipping.tick_format import COPY_NAME, STANDBY_NAME, decode_copy
from ...storage.errors import StorageError
from ...storage.files import Files

_COPY_BYTES_MAX: Final = 64 * 1024
DIRECTORIES: Final = {
    STANDBY_NAME: "is the directory of a standby: start it with `zsq standby`",
}


def copy_of(files: Files, data_dir: Path) -> str:
    """Return which copy of a broker this data directory is, or "" if it has shipped nothing.

    A broker and its standby have the same uuid. They may run on one machine, because the log of
    ticks in the bucket shows which one is primary.
    """
    path = str(data_dir / COPY_NAME)
    if not files.exists(path):
        return ""
    try:
        return decode_copy(files.read_file(path, _COPY_BYTES_MAX)).copy
    except StorageError:
        return ""  # the archive actor says what is wrong
