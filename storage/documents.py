"""JSON documents that ZSQ wrote, from files and objects that may be damaged. Pure.

A *line* is a document as one line of JSON, for people and programs, and the checksum of that line.
"""

from __future__ import annotations

import json
from typing import Any

from ..transport.checksum import crc32c
from ..transport.wire.codec import VALUE_CONTAINERS_MAX
from .errors import Damaged, newer


def loads(data: str | bytes, **options: Any) -> Any:
    """Parse JSON like `json.loads`, but raise only `ValueError`.

    This includes JSON that is nested too deeply for Python's stack, and JSON with so many lists and
    objects that they could fill the memory: an empty one has two bytes, and 64 in memory.
    """
    begins = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    if sum(map(data.count, begins)) > VALUE_CONTAINERS_MAX:  # type: ignore[arg-type]
        raise ValueError(f"more than {VALUE_CONTAINERS_MAX} lists and objects")
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode_line(kind: str, version: int, row: dict[str, Any]) -> bytes:
    """Return a document of this kind as a line."""
    line = json.dumps({"zsq": kind, "version": version, **row}).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_line(data: bytes, kind: str, version: int) -> dict[str, Any]:
    """Return the document of a line.

    Raises `Damaged`, or `NewerVersion` for another version.
    """
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise Damaged(f"the {kind} object is damaged")
    try:
        found = loads(line)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the {kind} object is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("zsq") != kind:
        raise Damaged(f"the object is not of the kind {kind}")
    if found.get("version") != version:
        raise newer(f"the {kind} object", found.get("version"), version)
    return found
