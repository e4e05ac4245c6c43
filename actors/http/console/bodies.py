"""Messages as JSON: bytes as base64, and as text where they are text; as much of them as was asked for. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

from ....transport.peeking import Peek, Peeked
from ....transport.stored import ID_DIGITS, OFFSET_BITS, StoredMessage

BODY_BYTES: Final = 4096
BODY_BYTES_MAX: Final = 1024 * 1024
ALL_BYTES_MAX: Final = 4 * 1024 * 1024  # of one answer
KEY_BYTES_MAX: Final = 4096
_NO_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # control characters but tab and ends of lines
_MS: Final = 1_000_000


class Room:
    """How many bytes of bodies an answer still has room for; `each`: for one of them."""

    def __init__(self, each: int, left: int = ALL_BYTES_MAX) -> None:
        self._each = each
        self._left = left

    def take(self, size: int) -> int:
        taken = min(size, self._each, self._left)
        self._left -= taken
        return taken


def told(data: bytes, length: int) -> dict[str, Any]:
    """The first `length` bytes, and how many there are."""
    part = data[:length]
    found: dict[str, Any] = {"size": len(data), "base64": base64.b64encode(part).decode()}
    text = text_of(part, cut=len(part) < len(data))
    if text is not None:
        found["text"] = text
    if len(part) < len(data):
        found["cut"] = True
    return found


def text_of(data: bytes, *, cut: bool) -> str | None:
    """None where it is no text. What is `cut` may end within a character: that one is left out."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not cut or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if _NO_TEXT.search(text) else text


def message(found: StoredMessage, node: int, room: Room) -> dict[str, Any]:
    headers = {name: told(value, KEY_BYTES_MAX) if isinstance(value, bytes) else _header(value) for name, value in found.headers.items()}
    return {
        "offset": found.offset,
        "id": f"{node << OFFSET_BITS | found.offset:0{ID_DIGITS}x}",
        "time_ms": found.timestamp_ns // _MS,
        "time_ns": str(found.timestamp_ns),
        "size": len(found.body),
        "key": None if found.key is None else told(found.key, KEY_BYTES_MAX),
        "tag": found.tag,
        "headers": headers,
        "body": told(found.body, room.take(len(found.body))),
    }


def _header(value: Any) -> Any:
    """What JavaScript's numbers cannot hold goes as text."""
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 53 else value


def peeked(found: Peek, node: int, room: Room) -> dict[str, Any]:
    return {
        "next_offset": found.next_offset,
        "looked_to": found.looked_to,
        "head": found.head,
        "paused": found.paused,
        "counts": found.counts,
        "messages": [_held(one, node, room) for one in found.messages],
    }


def _held(one: Peeked, node: int, room: Room) -> dict[str, Any]:
    return {
        "offset": one.offset,
        "state": one.state,
        "attempts": one.attempts,
        "consumer": one.consumer,
        "held_s": round(one.held_s, 3),
        "left_s": round(one.left_s, 3),
        "due_ms": one.due_ns // _MS,
        "message": None if one.message is None else message(one.message, node, room),
    }


def delayed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the list of delayed messages, which has the beginnings of bodies."""
    return [
        {
            "key": row["key"],
            "due_ms": row["due_ns"] // _MS,
            "size": row["size"],
            "body": _beginning(bytes(row["body"]), row["size"]),
            "tag": row["tag"].decode(errors="replace") if isinstance(row["tag"], bytes) else row["tag"],
            "message_key": None if row["message_key"] is None else told(bytes(row["message_key"]), KEY_BYTES_MAX),
        }
        for row in rows
    ]


def _beginning(data: bytes, size: int) -> dict[str, Any]:
    found = told(data, len(data)) | {"size": size}
    if len(data) < size:
        text = text_of(data, cut=True)
        found |= {"cut": True} | ({} if text is None else {"text": text})
    return found
