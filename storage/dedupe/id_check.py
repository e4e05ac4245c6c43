"""Check of the files with ids, for `zsq fsck`, and their content for `zsq dump`."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Damaged
from ..files import Files
from .id_format import (
    ENTRY_BYTES,
    FOLDER_NAME,
    Batch,
    decode_batches,
    decode_file_head,
    file_name,
    parse_name,
)
from .id_index import FILE_BYTES_MAX


def batches_of(files: Files, path: str) -> Iterator[Batch]:
    """Yield the good batches of a file with ids, up to the first damaged one."""
    data = files.read_file(path, FILE_BYTES_MAX)
    yield from decode_batches(data[ENTRY_BYTES:])


def good_bytes(files: Files, path: str) -> tuple[int, int]:
    """Return how many bytes of a file are good, and its size."""
    end = ENTRY_BYTES
    for batch in batches_of(files, path):
        end = (batch.place + len(batch.entries)) * ENTRY_BYTES
    return end, files.size_of(path)


def check_ids(files: Files, directory: str, uuid: bytes) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, what is wrong, True if a crash may leave it) of the files with ids."""
    folder = f"{directory}/{FOLDER_NAME}"
    names = files.list(folder) if files.exists(folder) else []
    numbers = sorted(number for name in names if (number := parse_name(name)) is not None)
    for number in numbers:
        name = f"{FOLDER_NAME}/{file_name(number)}"
        path = f"{directory}/{name}"
        try:
            head = files.read_file(path, ENTRY_BYTES)
            decode_file_head(head, uuid, number)
        except Damaged as error:
            yield name, str(error), False
            continue
        good, size = good_bytes(files, path)
        if good != size:
            yield name, f"only {good} of {size} bytes are good", number == numbers[-1]
