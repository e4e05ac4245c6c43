"""Versions of the files of a topic, which a start reads before it changes anything.

A reader refuses a version that it does not know. But some files are read late in a start, when the
state store has been committed already, and some are caches or evidence, which a start makes again.
So all heads that a few bytes prove are read first. Damaged heads are left to the readers. So are
the state store, its snapshot and the delayed messages, which only their own recovery may read. Of
the chunks only the last one is read: a topic may have thousands, and a version that writes new
chunks writes the last one, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..dedupe import id_format
from ..errors import Damaged, NewerVersion
from ..files import Files
from ..log.damage import BAD_HEAD_BYTES, decode_bad_head
from ..log.log_format import (
    CHUNK_HEADER_BYTES,
    PART_SUFFIX,
    STAGING_NAME,
    decode_chunk_header,
    parse_bad_name,
    parse_chunk_name,
)

Check = Callable[[bytes], object]


def refuse_newer(files: Files, directory: str) -> None:
    """Raise `NewerVersion`, with the path, if a newer version has written one of the files."""
    for name, size, check in _heads(files, directory):
        path = f"{directory}/{name}"
        try:
            with contextlib.suppress(Damaged, OSError):
                check(files.read_file(path, size))
        except NewerVersion as error:
            raise error.at(path) from None


def _heads(files: Files, directory: str) -> Iterator[tuple[str, int, Check]]:
    """Yield the name of each file, the size of its head, and the function that reads it."""
    names = files.list(directory)
    yield from ((one, BAD_HEAD_BYTES, decode_bad_head) for one in names if parse_bad_name(one))
    chunks = sorted(one for one in names if parse_chunk_name(one) is not None)
    yield from ((one, CHUNK_HEADER_BYTES, decode_chunk_header) for one in chunks[-1:])
    if STAGING_NAME in names:
        for one in files.list(f"{directory}/{STAGING_NAME}"):
            if one.endswith(PART_SUFFIX):
                yield f"{STAGING_NAME}/{one}", CHUNK_HEADER_BYTES, decode_chunk_header
    if id_format.FOLDER_NAME in names:
        for one in files.list(f"{directory}/{id_format.FOLDER_NAME}"):
            if id_format.parse_name(one) is not None:
                yield (
                    f"{id_format.FOLDER_NAME}/{one}",
                    id_format.ENTRY_BYTES,
                    id_format.check_version,
                )
