"""Dump of the objects of a bucket: index objects, manifests, boundaries, the broker's claim, and
entries of a cluster's directory.

Chunk objects are the same as chunk files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...storage import documents
from ...storage.bucket.archive.archive_format import (
    BROKER_NAME,
    CHUNKS,
    MANIFESTS,
    SEGMENT_BYTES,
    decode_segment_index,
)
from ...storage.bucket.bucket_url import parse_bucket_url
from ...storage.bucket.object_store import open_bucket
from ...storage.bucket.shipping.tick_format import BOUNDARIES, LOG, STATES
from ...storage.cluster.directory import FOLDER as DIRECTORY
from ...storage.cluster.directory import KIND
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.log.chunk import ArchivedChunk
from ...transport.checksum import crc32c
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from .record import TEXT_BYTES_MAX, Record, damaged, record


@contextmanager
def fetched(text: str) -> Iterator[Path]:
    """Yield the path of a temporary copy of the object with this URL.

    Raises `UsageError` if the URL does not name an object of ZSQ, or `BucketError`.
    """
    url = parse_bucket_url(text)
    parts = url.prefix.split("/")
    if parts[-1] == BROKER_NAME:
        count = 1
    elif len(parts) >= 3 and parts[-3] in (CHUNKS, MANIFESTS, STATES):
        count = 3
    elif len(parts) >= 2 and parts[-2] in (LOG, BOUNDARIES, DIRECTORY):
        count = 2
    else:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{text} does not name an object of zsq: it must end with {BROKER_NAME}, "
            f"{CHUNKS}/UUID/NAME, {MANIFESTS}/UUID/NAME, {STATES}/UUID/NAME, {LOG}/NUMBER, "
            f"{BOUNDARIES}/NUMBER or {DIRECTORY}/NUMBER",
        )
    bucket = open_bucket(replace(url, prefix="/".join(parts[:-count])))
    data = bucket.read("/".join(parts[-count:]))
    with tempfile.TemporaryDirectory(prefix="zsq-dump-") as folder:
        path = Path(folder) / parts[-1]
        path.write_bytes(data)
        yield path


def dump_index_object(files: Files, path: str) -> Iterator[Record]:
    """Yield the index object of a chunk: its segments with their checksums."""
    try:
        index = decode_segment_index(files.read_file(path, TEXT_BYTES_MAX))
    except (Damaged, ForeignDirectory) as error:
        yield damaged(error)
        return
    count, size = len(index.sums), len(index.entries)
    yield record("index object", segments=count, segment_bytes=SEGMENT_BYTES, index_bytes=size)
    for number, crc in enumerate(index.sums):
        yield record("segment", number=number, crc=f"{crc:08x}")


def dump_document(files: Files, path: str) -> Iterator[Record]:
    """Yield a manifest with a record for each chunk, a boundary, the broker's claim, or an
    entry of a cluster's directory.
    """
    line, _, rest = files.read_file(path, TEXT_BYTES_MAX).partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        yield damaged("the checksum of this object does not match")
    try:
        document = documents.loads(line)
        kind, chunks = str(document.pop("zsq")), document.pop("chunks", [])
        if kind == KIND:
            document = {"entry": document.pop("kind"), **document}
        yield record(kind, **document, **({"chunks": len(chunks)} if kind == "manifest" else {}))
        for chunk in chunks:
            yield record("chunk", **ArchivedChunk(*chunk)._asdict())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        yield damaged(f"not in the format of zsq: {error!r}")
