"""Recognition of a file's kind, first by its content, then by its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from ...storage.bucket.archive.archive_format import INDEX_OBJECT_MAGIC
from ...storage.bucket.shipping.tick_format import TICK_MAGIC
from ...storage.dedupe.id_format import FILE_MAGIC as IDS_MAGIC
from ...storage.errors import Damaged
from ...storage.log.log_format import (
    CHUNK_COPY_BYTES,
    CHUNK_MAGIC,
    CHUNK_SUFFIX,
    IDENTITY_NAME,
    INDEX_MAGIC,
    INDEX_SUFFIX,
    PART_SUFFIX,
)
from ...storage.nsq.disk_queue_format import (
    LENGTH_BYTES,
    NSQ_HEAD_BYTES,
    decode_length,
    decode_meta,
    looks_like_message,
    parse_data_name,
)
from ...storage.nsq.disk_queue_format import parse_meta_name as parse_nsqd_meta_name

HEAD_BYTES: Final = 64 * 1024
CHUNK: Final = "chunk"  # the file of a stage has the same format
INDEX: Final = "index"
IDS: Final = "ids"
BAD: Final = "bad"
BAD_ROW: Final = "bad row"
IDENTITY: Final = "identity"
REGISTRY: Final = "registry"
SNAPSHOT: Final = "snapshot"
ENVIRONMENT: Final = "environment"
NSQD_DATA: Final = "nsqd data"
NSQD_META: Final = "nsqd metadata"
NSQD_LIST: Final = "nsqd list"
INDEX_OBJECT: Final = "index object"
DOCUMENT: Final = "document of a bucket"
TICK: Final = "tick"
FRAMES: Final = "frames of rows"
JSON: Final = "json"
# LMDB's magic number, which is in each meta page after the page's head.
_LMDB_MAGIC: Final = (0xBEEFC0DE).to_bytes(4, "little")
_LMDB_AT: Final = 16
_RECORD_MAX: Final = 2**31 - 1
_DOCUMENTS: Final = (
    b'{"zsq": "manifest"',
    b'{"zsq": "broker"',
    b'{"zsq": "boundary"',
    b'{"zsq": "shipping"',
    b'{"zsq": "directory"',
)
_FRAMES_NAME: Final = re.compile(r"[0-9a-f]{16}\.[0-9a-f]{8}")


def _is_meta(head: bytes) -> bool:
    try:
        decode_meta(head)
    except Damaged:
        return False
    return True


def _starts_with_records(head: bytes) -> bool:
    """Return True for two consecutive messages of nsqd, or for one that fills the file."""
    if not looks_like_message(head, 0, _RECORD_MAX):
        return False
    end = LENGTH_BYTES + decode_length(head)
    return end + LENGTH_BYTES + NSQ_HEAD_BYTES > len(head) or looks_like_message(
        head, end, _RECORD_MAX
    )


_BY_CONTENT: Final[tuple[tuple[str, Callable[[bytes], bool]], ...]] = (
    (
        CHUNK,
        lambda head: (
            head[:4] == CHUNK_MAGIC or head[CHUNK_COPY_BYTES : CHUNK_COPY_BYTES + 4] == CHUNK_MAGIC
        ),
    ),
    (INDEX, lambda head: head[:4] == INDEX_MAGIC),
    (IDS, lambda head: head[:4] == IDS_MAGIC),
    (ENVIRONMENT, lambda head: head[_LMDB_AT : _LMDB_AT + 4] == _LMDB_MAGIC),
    (BAD, lambda head: head.startswith(b'{"zsq": "bad"')),
    (BAD_ROW, lambda head: head.startswith(b'{"zsq": "delayed row"')),
    (SNAPSHOT, lambda head: head.startswith(b'{"zsq": "state snapshot"')),
    (IDENTITY, lambda head: head.startswith(b'{"zsq": "topic"')),
    (INDEX_OBJECT, lambda head: head[:4] == INDEX_OBJECT_MAGIC),
    (TICK, lambda head: head[:4] == TICK_MAGIC),
    (DOCUMENT, lambda head: head.startswith(_DOCUMENTS)),
    (REGISTRY, lambda head: head[:1] == b"{" and b'"next_number"' in head[:200]),
    (NSQD_LIST, lambda head: head[:1] == b"{" and b'"topics":' in head[:200]),
    (NSQD_META, _is_meta),
    (NSQD_DATA, _starts_with_records),
)
_BY_NAME: Final[tuple[tuple[str, Callable[[str], object]], ...]] = (
    (CHUNK, lambda name: name.endswith((CHUNK_SUFFIX, PART_SUFFIX, f"{CHUNK_SUFFIX}.bad"))),
    (INDEX, lambda name: name.endswith(INDEX_SUFFIX)),
    (ENVIRONMENT, lambda name: name == "data.mdb"),
    (SNAPSHOT, lambda name: name.endswith(".snapshot")),
    (IDENTITY, lambda name: name == IDENTITY_NAME),
    (REGISTRY, lambda name: name == "registry.json"),
    (NSQD_LIST, lambda name: name == "nsqd.dat"),
    (NSQD_META, lambda name: parse_nsqd_meta_name(name) is not None),
    (NSQD_DATA, lambda name: parse_data_name(name.partition(".bad")[0]) is not None),
    (BAD, lambda name: name.endswith(".bad")),
    (FRAMES, _FRAMES_NAME.fullmatch),
    (TICK, re.compile(r"[0-9]{20}").fullmatch),
    (JSON, lambda name: name.endswith(".json")),
)


def kind_of(head: bytes, name: str) -> str:
    """Return the kind of a file, or "" if it is not known. `head` is its first HEAD_BYTES bytes."""
    for kind, fits in _BY_CONTENT:
        if fits(head):
            return kind
    return next((kind for kind, fits_name in _BY_NAME if fits_name(name)), "")
