"""Parsing of the console's requests, and its replies as JSON.

The bytes of a message are shown as base64, and also as text if they are valid text, up to the
requested length. Messages to publish are parsed here too.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, cast

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.core.message import StoredMessage, id_of
from .....transport.client.core.peeking import Peek, Peeked
from .....transport.errors import E_BAD_ARGUMENT, UsageError
from .....transport.names import part_of
from .....transport.units import NS_PER_MS
from .....transport.wire.answers import DelayedRow, ScheduleRow
from .....transport.wire.codec import HeaderValue
from ..web.body import BodyShare, JsonObject, Parameters, share_of
from ..web.places import Limiters, Stream
from ..web.responses import ApiError, api_error

HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
JSON: Final = "application/json; charset=utf-8"
EVENTS: Final = "text/event-stream"
PIECE_BYTES: Final = 64 * 1024
OPTIONS_BYTES_MAX: Final = 128 * 1024
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def as_json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def answer(data: Any) -> Response:
    return Response(as_json(data), 200, HEADERS, media_type=JSON)


def large_answer(parts: Iterable[bytes], holder: str, limiters: Limiters) -> Response:
    """Return an answer of parts that may have the size of many messages.

    Its bytes count as those of bodies until the client has read them. It is sent in pieces, because
    the server buffers a piece for as long as the client does not read. The parts are not joined,
    because that needs their memory once more. Raises `Refused` (E_LIMIT) if the holder has too many
    answers that are not read.
    """
    with ExitStack() as held:
        whole: list[bytes] = []
        for part in parts:
            limiters.bodies.take(holder, len(part))
            held.callback(limiters.bodies.give_back, holder, len(part))
            whole.append(part)
        size = sum(map(len, whole))
        if size <= PIECE_BYTES:
            return Response(b"".join(whole), 200, HEADERS, media_type=JSON)
        headers = {**HEADERS, "content-length": str(size)}
        return Stream(held, pieces_of(whole), headers, JSON)


async def pieces_of(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        for first in range(0, len(part), PIECE_BYTES):
            yield part[first : first + PIECE_BYTES]


def event(kind: str, data: Any) -> bytes:
    """Return a server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def event_stream(request: Request, place: ExitStack, events: AsyncIterator[bytes]) -> Response:
    """Return a stream of events, which takes over `place`. HEAD gets only its head."""
    headers = {**HEADERS, "x-accel-buffering": "no"}
    if request.method == "HEAD":  # otherwise a stream without a reader would never end
        return Response(b"", 200, headers, media_type=EVENTS)
    return Stream(place, events, headers, EVENTS)


def bad(text: str) -> ApiError:
    return ApiError(400, f"E_BAD_ARGUMENT {text}")


def parameters_of(request: Request) -> Parameters:
    return Parameters(request.scope["query_string"])


def number(parameters: Parameters, name: str, otherwise: int, least: int, most: int) -> int:
    """Return a number from the query.

    A number outside the limits becomes the limit, because pages may ask for any amount.
    """
    text = parameters.get(name)
    if text is None:
        return otherwise
    if not _NUMBER.fullmatch(text):
        raise bad(f"{name} must be a number, not {text[:40]!r}")
    return min(max(int(text), least), most)


async def options_of(request: Request, limiters: Limiters) -> JsonObject:
    """Return the options in the body of an action: a JSON object, or {} for an empty body."""
    with share_of(request, limiters) as share:
        return await read_options(share, OPTIONS_BYTES_MAX)


async def read_options(share: BodyShare, max_bytes: int) -> JsonObject:
    """Return the options in a body. The body stays counted in `share` after it is read."""
    body = await share.read(max_bytes, api_error("BODY_TOO_BIG"))
    if not body:
        return {}
    try:
        options = json.loads(body)
    except (ValueError, RecursionError):
        raise bad("the body is not valid JSON") from None
    if not isinstance(options, dict):
        raise bad("the body must be a JSON object of options")
    return options


BODY_BYTES: Final = 4096
BODY_BYTES_MAX: Final = 1024 * 1024
ALL_BYTES_MAX: Final = 4 * 1024 * 1024  # the most bytes of bodies in one reply
KEY_BYTES_MAX: Final = 4096
# Control characters except tab and line ends.
_NO_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
PUBLISHED_MAX: Final = 10_000  # the most messages that one request may publish
_PUBLISHED: Final = frozenset(
    {
        "body",
        "body_base64",
        "bodies",
        "key",
        "key_base64",
        "tag",
        "headers",
        "headers_base64",
        "delay_s",
        "expires_s",
        "revoke_key",
    }
)


class ShownBytes(TypedDict):
    """The first bytes of a key, header or body.

    `size` is the full size. `text` is set if the bytes are text, `cut` if some are left out.
    """

    size: int
    base64: str
    text: NotRequired[str]
    cut: NotRequired[bool]


class ShownMessage(TypedDict):
    offset: int
    id: str
    time_ms: int
    time_ns: str
    size: int
    key: ShownBytes | None
    tag: str | None
    only_channel: str | None
    headers: dict[str, HeaderValue | ShownBytes]
    body: ShownBytes


class ShownHeld(TypedDict):
    """A message that a channel has not finished. `message` is None if retention removed it."""

    offset: int
    state: str
    attempts: int
    consumer: str
    held_s: float
    left_s: float
    due_ms: int
    blocks: int
    error: str
    message: ShownMessage | None


class ShownPeek(TypedDict):
    next_offset: int
    looked_to: int
    head: int
    paused: bool
    counts: dict[str, int]
    messages: list[ShownHeld]


class ShownDelayed(TypedDict):
    key: str
    due_ms: int
    size: int
    body: ShownBytes
    tag: str | None
    message_key: ShownBytes | None


class Room:
    """The number of body bytes that fit into a reply: `each` for one body, `left` for all."""

    def __init__(self, each: int, left: int = ALL_BYTES_MAX) -> None:
        self._each = each
        self._left = left

    def take(self, size: int) -> int:
        taken = min(size, self._each, self._left)
        self._left -= taken
        return taken


def told(data: bytes, length: int) -> ShownBytes:
    """Return the first `length` bytes and the full size."""
    part = data[:length]
    shown: ShownBytes = {"size": len(data), "base64": base64.b64encode(part).decode()}
    text = text_of(part, cut=len(part) < len(data))
    if text is not None:
        shown["text"] = text
    if len(part) < len(data):
        shown["cut"] = True
    return shown


def text_of(data: bytes, *, cut: bool) -> str | None:
    """Return the bytes as text, or None if they are not text.

    If they are `cut`, an incomplete last character is left out.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not cut or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if _NO_TEXT.search(text) else text


def message(stored: StoredMessage, node: int, room: Room) -> ShownMessage:
    headers: dict[str, HeaderValue | ShownBytes] = {
        name: told(value, KEY_BYTES_MAX) if isinstance(value, bytes) else _header(value)
        for name, value in stored.headers.items()
    }
    part = part_of(stored.topic)
    return {
        "offset": stored.offset,
        "id": id_of(stored.offset, node, None if part is None else part[1]),
        "time_ms": stored.timestamp_ns // NS_PER_MS,
        "time_ns": str(stored.timestamp_ns),
        "size": len(stored.body),
        "key": None if stored.key is None else told(stored.key, KEY_BYTES_MAX),
        "tag": stored.tag,
        "only_channel": stored.only_channel,
        "headers": headers,
        "body": told(stored.body, room.take(len(stored.body))),
    }


def _header(value: HeaderValue) -> HeaderValue:
    """Return numbers that JSON or JavaScript cannot hold as text, and other values unchanged."""
    is_large = isinstance(value, int) and abs(value) >= 1 << 53
    is_no_number = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_large or is_no_number else value


def peeked(peek: Peek, node: int, room: Room) -> ShownPeek:
    return {
        "next_offset": peek.next_offset,
        "looked_to": peek.looked_to,
        "head": peek.head,
        "paused": peek.paused,
        "counts": peek.counts,
        "messages": [_held(message, node, room) for message in peek.messages],
    }


def _held(peeked: Peeked, node: int, room: Room) -> ShownHeld:
    return {
        "offset": peeked.offset,
        "state": peeked.state,
        "attempts": peeked.attempts,
        "consumer": peeked.consumer,
        "held_s": round(peeked.held_s, 3),
        "left_s": round(peeked.left_s, 3),
        "due_ms": peeked.due_ns // NS_PER_MS,
        "blocks": peeked.blocks,
        "error": peeked.error,
        "message": None if peeked.message is None else message(peeked.message, node, room),
    }


def delayed(rows: Sequence[DelayedRow]) -> list[ShownDelayed]:
    """Return delayed messages for the page. `rows` have only the beginnings of bodies."""
    return [
        {
            "key": row["delayed_key"],
            "due_ms": row["due_ns"] // NS_PER_MS,
            "size": row["size"],
            "body": _beginning(bytes(row["body"]), row["size"]),
            "tag": row["tag"].decode(errors="replace")
            if isinstance(row["tag"], bytes)
            else row["tag"],
            "message_key": None if row["key"] is None else told(bytes(row["key"]), KEY_BYTES_MAX),
        }
        for row in rows
    ]


def schedules(rows: Sequence[ScheduleRow], may: Mapping[str, str]) -> dict[str, object]:
    """Return schedules for the page. `may` has the user's letters for each topic."""
    shown_rows = []
    for row in rows:
        shown: dict[str, object] = {**row, "may": may[row["topic"]]}
        for name in ("next_due", "last_due"):
            shown[f"{name}_ms"] = cast("int", shown.pop(f"{name}_ns")) // NS_PER_MS
        shown_rows.append(shown)
    return {"schedules": shown_rows}


def _beginning(data: bytes, size: int) -> ShownBytes:
    beginning = told(data, len(data))
    beginning["size"] = size
    if len(data) < size:
        beginning["cut"] = True
        if (text := text_of(data, cut=True)) is not None:
            beginning["text"] = text
    return beginning


# To be published


class Published(NamedTuple):
    """Messages that a page publishes. All have the same `key`, `tag`, `headers` and `delay_s`."""

    bodies: list[bytes]
    key: bytes | None
    tag: str | None
    headers: dict[str, HeaderValue] | None
    delay_s: float | None
    expires_s: float | None
    revoke_key: str | None


def _check_seconds(name: str, value: object, bound: str) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 43
    if value is not None and not good:
        raise _no_message(f"{name} must be a number of seconds, {bound}, not {repr(value)[:40]}")


def published(options: JsonObject) -> Published:
    """Parse the messages of a request. Raises `UsageError` if they are invalid.

    The client library checks lengths and header values.
    """
    unknown = options.keys() - _PUBLISHED
    if unknown:
        raise _no_message(
            f"unknown field {min(unknown)[:80]!r}; the fields are {', '.join(sorted(_PUBLISHED))}"
        )
    try:
        bodies = _bodies(options)
        tag, delay_s = options.get("tag"), options.get("delay_s")
        headers, encoded = options.get("headers") or {}, options.get("headers_base64") or {}
        if tag is not None and not isinstance(tag, str):
            raise _no_message("tag must be a string")
        if (
            not isinstance(headers, dict)
            or not isinstance(encoded, dict)
            or headers.keys() & encoded.keys()
        ):
            raise _no_message(
                "headers and headers_base64 must be objects, and a name may be in only one of them"
            )
        if not all(
            value is None or isinstance(value, str | int | float) for value in headers.values()
        ):
            raise _no_message("a header must be a string, a number, true, false or null")
        _check_seconds("delay_s", delay_s, "at most 366 days")
        expires_s, revoke_key = options.get("expires_s"), options.get("revoke_key")
        _check_seconds("expires_s", expires_s, "above 0")
        if revoke_key is not None and not isinstance(revoke_key, str):
            raise _no_message("revoke_key must be a string")
        for text in (
            tag or "",
            revoke_key or "",
            *headers,
            *encoded,
            *(value for value in headers.values() if isinstance(value, str)),
        ):
            text.encode()
        all_headers = headers | {
            name: _unpacked(value, "a value of headers_base64") for name, value in encoded.items()
        }
        return Published(
            bodies,
            _bytes_of(options, "key"),
            tag,
            cast("dict[str, HeaderValue]", all_headers) or None,
            cast("float | None", delay_s),
            cast("float | None", expires_s),
            revoke_key,
        )
    except UnicodeEncodeError:  # JSON permits a lone surrogate
        raise _no_message(
            "it has a string that is not valid Unicode; send bytes as base64"
        ) from None


def _bodies(options: JsonObject) -> list[bytes]:
    texts = options.get("bodies")
    body = _bytes_of(options, "body")
    if (texts is None) == (body is None):
        raise _no_message("give exactly one of body, body_base64 and bodies")
    if body is not None:
        return [body]
    if (
        not isinstance(texts, list)
        or not 0 < len(texts) <= PUBLISHED_MAX
        or not all(isinstance(text, str) for text in texts)
    ):
        raise _no_message(f"bodies must be a list of 1 to {PUBLISHED_MAX} strings")
    return [text.encode() for text in cast("list[str]", texts)]


def _bytes_of(options: JsonObject, name: str) -> bytes | None:
    text, encoded = options.get(name), options.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise _no_message(f"give only one of {name} and {name}_base64")
    if encoded is not None:
        return _unpacked(encoded, f"{name}_base64")
    if text is not None and not isinstance(text, str):
        raise _no_message(f"{name} must be a string; send bytes as {name}_base64")
    return None if text is None else text.encode()


def _unpacked(encoded: Any, caption: str) -> bytes:
    try:
        if isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True)
    except ValueError:
        pass
    raise _no_message(f"{caption} is not valid base64")


def _no_message(why: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"cannot publish: {why}")
