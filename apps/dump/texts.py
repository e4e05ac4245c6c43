"""The small files of text: a topic's identity, the registry, and other JSON of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from crc32c import crc32c

from ...actors.registry_format import CHECKSUM, checksum
from ...storage import documents
from ...storage.files import Files
from .record import Record, damaged, record

TEXT_BYTES_MAX: Final = 64 * 1024 * 1024


def dump_identity(files: Files, path: str) -> Iterator[Record]:
    """One line of JSON and its checksum."""
    line, _, rest = files.read_file(path, TEXT_BYTES_MAX).partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        yield damaged("the checksum of this file does not agree; it is written anew when the topic is opened")
    yield from _json(line, "topic identity")


def dump_registry(files: Files, path: str) -> Iterator[Record]:
    """What stands for all topics, then one record a topic, an ended name, an import."""
    try:
        found = documents.loads(files.read_file(path, TEXT_BYTES_MAX))
        if found.get(CHECKSUM, "") not in ("", checksum(found)):
            yield damaged("the checksum of this file does not agree with what it says")
        parts = {name: dict(found.pop(name, {})) for name in ("topics", "ended", "imports")}
        yield record("registry", **found, **{name: len(part) for name, part in parts.items()})
        for name, row in parts["topics"].items():
            yield record("topic", name=name, **row)
        for name, offset in parts["ended"].items():
            yield record("ended topic", name=name, next_offset=offset)
        for digest, row in parts["imports"].items():
            yield record("import", digest=digest, **row)
    except (ValueError, TypeError, AttributeError) as error:
        yield damaged(f"not what zsq writes: {error}")


def dump_json(files: Files, path: str) -> Iterator[Record]:
    yield from _json(files.read_file(path, TEXT_BYTES_MAX), "json")


def _json(data: bytes, kind: str) -> Iterator[Record]:
    try:
        found: Any = documents.loads(data)
        yield record(kind, **found) if isinstance(found, dict) and "kind" not in found else record(kind, value=found)
    except ValueError as error:
        yield damaged(f"not JSON: {error}")
