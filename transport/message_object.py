"""Message object: a message as JSON, for commands, downloads and `zsq pub --json-lines`. Pure.

`zsq message`, `zsq sub`, `zsq tail` and downloads of the console write this form, so what one of
them has written can be published again.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol, TypedDict

Header = str | bytes | int | float | bool | None


class MessageContents(Protocol):
    """The values that an object has: those of a `StoredMessage`."""

    @property
    def topic(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp_ns(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def tag(self) -> str | None: ...

    @property
    def headers(self) -> Mapping[str, Header]: ...


class MessageObject(TypedDict, total=False):
    """A message as JSON.

    Only deliveries have `attempts`, and `part` in a topic with parts. Only downloads and receives
    over HTTP have `id`. Receives also have the `token` of the lease.

    `only_channel` is the only channel that gets the message.
    """

    topic: str
    offset: int
    id: str
    timestamp_ns: int
    timestamp: str
    key: str
    key_base64: str
    body: str
    body_base64: str
    tag: str
    headers: Mapping[str, Header]
    headers_base64: Mapping[str, str]
    attempts: int
    only_channel: str
    token: str
    part: int


def as_object(stored: MessageContents, only_channel: str | None = None) -> MessageObject:
    """Return a message for JSON.

    `only_channel`: the only channel that gets the message. Give it only where the user has asked
    for it, because `zsq pub --json-lines` addresses the message to that channel again.

    Bytes that are UTF-8 become text. Other bytes become base64 under a name that ends in `_base64`.
    Headers that are infinite or not a number become text, because JSON does not have them.
    """
    time = datetime.fromtimestamp(stored.timestamp_ns / 1e9, UTC).isoformat()
    shown: MessageObject = {
        "topic": stored.topic,
        "offset": stored.offset,
        "timestamp_ns": stored.timestamp_ns,
        "timestamp": time,
    }
    if stored.key is not None:
        text = _text(stored.key)
        shown |= {"key_base64": _base64(stored.key)} if text is None else {"key": text}
    text = _text(stored.body)
    shown |= {"body_base64": _base64(stored.body)} if text is None else {"body": text}
    if stored.tag is not None:
        shown["tag"] = stored.tag
    texts = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in stored.headers.items()
        if not isinstance(value, bytes)
    }
    others = {
        name: _base64(value) for name, value in stored.headers.items() if isinstance(value, bytes)
    }
    if texts:
        shown["headers"] = texts
    if others:
        shown["headers_base64"] = others
    if only_channel is not None:
        shown["only_channel"] = only_channel
    return shown


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
