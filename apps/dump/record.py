"""Record of a dump, with its display as JSON or as a line. Pure.

This module also reads the small text files: a topic's identity, the registry, and other JSON files
of ZSQ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from ...actors.runtime.logs import escaped
from ...actors.supervisor.topics.registry_format import CHECKSUM, checksum
from ...storage import documents
from ...storage.files import Files
from ...transport.checksum import crc32c
from ...transport.units import NS_PER_S

Record = dict[str, Any]
"""The fields of a record. `kind` is the first. Times have names that end with `_ns`."""

DAMAGED: Final = "damaged"
# The most characters of a value in a readable line; JSON has the whole value.
SHOWN_CHARACTERS_MAX: Final = 200
_TIME_MAX_NS: Final = 253_402_300_799 * 10**9  # the last second of the year 9999


def record(kind: str, **fields: Any) -> Record:
    return {"kind": kind, **fields}


def damaged(why: object, **fields: Any) -> Record:
    """Return the record of a part that cannot be read."""
    return {"kind": DAMAGED, **fields, "why": str(why)}


def with_bytes(row: Record, **values: bytes | None) -> Record:
    """Add values that are not None: UTF-8 as text, other bytes under NAME_hex."""
    for name, value in values.items():
        if value is not None:
            try:
                row[name] = value.decode()
            except UnicodeDecodeError:
                row[f"{name}_hex"] = value.hex()
    return row


def plain(value: Any) -> Any:
    """Return a value from msgpack in a form that JSON accepts."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def as_json(row: Record) -> str:
    return json.dumps(row, default=plain)


def as_line(row: Record) -> str:
    """Return `kind name=value ...`. A text that is not a single word is quoted as in JSON."""
    return escaped(
        " ".join(
            [
                str(row["kind"]),
                *(f"{name}={_shown(name, value)}" for name, value in row.items() if name != "kind"),
            ]
        )
    )


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ns") and isinstance(value, int) and 0 < value <= _TIME_MAX_NS:
        seconds, rest = divmod(value, NS_PER_S)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    if isinstance(value, str):
        text = (
            value
            if value and value.isprintable() and " " not in value and '"' not in value
            else json.dumps(value, ensure_ascii=False)
        )
    else:
        text = json.dumps(value, default=plain)
    return (
        text
        if len(text) <= SHOWN_CHARACTERS_MAX
        else f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"
    )


TEXT_BYTES_MAX: Final = 64 * 1024 * 1024


def dump_identity(files: Files, path: str) -> Iterator[Record]:
    """Yield a topic's identity, which is one line of JSON and its checksum."""
    line, _, rest = files.read_file(path, TEXT_BYTES_MAX).partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        yield damaged(
            "the checksum of this file does not match; zsq rewrites the file when it opens the "
            "topic"
        )
    yield from _json(line, "topic identity")


def dump_registry(files: Files, path: str) -> Iterator[Record]:
    """Yield the registry.

    The first record has the common data. Then there is a record for each topic, for each name of a
    deleted topic, and for each import.
    """
    try:
        document = documents.loads(files.read_file(path, TEXT_BYTES_MAX))
        if document.get(CHECKSUM, "") not in ("", checksum(document)):
            yield damaged("the checksum of this file does not match its content")
        parts = {name: dict(document.pop(name, {})) for name in ("topics", "ended", "imports")}
        yield record("registry", **document, **{name: len(part) for name, part in parts.items()})
        for name, row in parts["topics"].items():
            yield record("topic", name=name, **row)
        for name, offset in parts["ended"].items():
            yield record("ended topic", name=name, next_offset=offset)
        for digest, row in parts["imports"].items():
            yield record("import", digest=digest, **row)
    except (ValueError, TypeError, AttributeError) as error:
        yield damaged(f"not in the format of zsq: {error}")


def dump_json(files: Files, path: str) -> Iterator[Record]:
    yield from _json(files.read_file(path, TEXT_BYTES_MAX), "json")


def _json(data: bytes, kind: str) -> Iterator[Record]:
    try:
        document: Any = documents.loads(data)
        yield (
            record(kind, **document)
            if isinstance(document, dict) and "kind" not in document
            else record(kind, value=document)
        )
    except ValueError as error:
        yield damaged(f"not JSON: {error}")
