"""Queries and bodies of requests, read within limits and parsed.

A body whose announced length is too large is refused before any of it is read. A body without a
length is refused at the first byte above the limit. A body that comes too slowly is refused, and
while it comes, its request holds no place.

Queries are parsed as strictly as nsqd does. A query is refused if Go's parser refuses it: `%`
without two hexadecimal digits, and `;`. If a parameter is given twice, the first value is used.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.requests import Request

from .....transport.errors import UsageError
from .....transport.names import check_name
from .limits import IDLE_BODY_BYTES_MAX
from .places import Limiters, holder_of, place_of
from .responses import ApiError, api_error

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""Any JSON value in a body, before it is checked."""
JsonObject: TypeAlias = dict[str, JsonValue]

FIELDS_MAX: Final = 64
_BROKEN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})|;")
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_INT: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def legal(name: str, kind: str = "topic") -> bool:
    try:
        check_name(name, kind)
    except UsageError:
        return False
    return True


class Parameters:
    """The parameters of a query, by name. Raises `ApiError` if the query is invalid."""

    def __init__(self, query: bytes) -> None:
        if _BROKEN.search(query):
            raise api_error("INVALID_REQUEST")
        try:
            pairs = parse_qsl(
                query.decode("latin-1"),
                keep_blank_values=True,
                errors="replace",
                max_num_fields=FIELDS_MAX,
            )
        except ValueError:
            raise api_error("INVALID_REQUEST") from None
        self._values: dict[str, str] = {}
        self._names = [name for name, _ in pairs]
        for name, value in pairs:
            self._values.setdefault(name, value)

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def count(self, name: str) -> int:
        return self._names.count(name)

    def topic(self, invalid: str = "INVALID_TOPIC") -> str:
        """Return the topic. `invalid` is the error code for an invalid name."""
        return self._name("topic", "MISSING_ARG_TOPIC", invalid)

    def existing_topic(self) -> str:
        """Return the topic. An invalid name raises TOPIC_NOT_FOUND.

        This is for commands for which nsqd does not check the name.
        """
        return self._name("topic", "MISSING_ARG_TOPIC", "TOPIC_NOT_FOUND")

    def topic_and_channel(self) -> tuple[str, str]:
        return self.topic("INVALID_ARG_TOPIC"), self._name(
            "channel", "MISSING_ARG_CHANNEL", "INVALID_ARG_CHANNEL"
        )

    def _name(self, parameter: str, missing: str, invalid: str) -> str:
        value = self._values.get(parameter)
        if value is None:
            raise api_error(missing)
        if not legal(value, parameter):
            raise api_error(invalid)
        return value

    def defer_ms(self, defer_ms_max: int) -> int:
        value = self._values.get("defer")
        if value is None:
            return 0
        if not _INT.fullmatch(value) or not 0 <= int(value) <= defer_ms_max:
            raise api_error("INVALID_DEFER")
        return int(value)

    def binary(self) -> bool:
        """Return True if `binary` is given and is not false or 0.

        As in nsqd, unknown values count as true. nsqd calls them deprecated.
        """
        value = self._values.get("binary")
        return value is not None and BOOLS.get(value, True)

    def flag(self, name: str, otherwise: bool) -> bool:
        return BOOLS.get(self._values.get(name) or "", otherwise)


_COUNT: Final = struct.Struct(">i")


class BodyShare:
    """The body of a request, and the bytes that the request holds in memory because of it."""

    def __init__(self, request: Request, limiters: Limiters) -> None:
        self._request = request
        self._limits = limiters.limits
        self._bodies = limiters.bodies
        self._holder = holder_of(request)
        self._held = 0

    def take(self, size: int) -> None:
        """Count bytes. Raises `Refused` (E_LIMIT) if a bound is reached."""
        self._bodies.take(self._holder, size)
        self._held += size

    def give_back(self) -> None:
        if self._held:
            self._bodies.give_back(self._holder, self._held)

    async def read(self, max_bytes: int, too_big: ApiError) -> bytes:
        """Return the complete body. Raises `too_big` if it has more than `max_bytes` bytes."""
        length = announced(self._request)
        if length is not None and length > max_bytes:
            raise too_big
        with place_of(self._request).lent():
            try:
                chunks = await self._chunks(max_bytes, too_big)
            except TimeoutError:
                raise api_error("REQUEST_TIMEOUT") from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _chunks(self, max_bytes: int, too_big: ApiError) -> list[bytes]:
        limits, chunks, size = self._limits, list[bytes](), 0
        begun_s = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(begun_s + min(limits.body_begin_s, limits.body_s)) as timeout:
            async for chunk in self._request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_big
                self.take(len(chunk))
                chunks.append(chunk)
                time_s = min(limits.body_begin_s + size / limits.body_bytes_a_s, limits.body_s)
                timeout.reschedule(begun_s + time_s)
        return chunks


@contextmanager
def share_of(request: Request, limiters: Limiters) -> Iterator[BodyShare]:
    """Count the bytes of a request's body, so that bodies cannot fill the memory."""
    share = BodyShare(request, limiters)
    try:
        yield share
    finally:
        share.give_back()


class QueryRequest:
    """The parameters of a request that needs no body.

    If the request has a body anyway, the body is read, up to a limit, and dropped.
    """

    def __init__(self, limiters: Limiters) -> None:
        self._limiters = limiters

    async def __call__(self, request: Request) -> Parameters:
        if has_body(request):
            with share_of(request, self._limiters) as share:
                await share.read(IDLE_BODY_BYTES_MAX, api_error("BODY_TOO_BIG"))
        return Parameters(request.scope["query_string"])


def announced(request: Request) -> int | None:
    """Return Content-Length, or None. The HTTP parser has checked that it is one number."""
    value = request.headers.get("content-length")
    return int(value) if value is not None else None


def has_body(request: Request) -> bool:
    return bool(announced(request)) or "transfer-encoding" in request.headers


def lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """Parse the body of a /mpub in text form: each line is a message. Empty lines are left out."""
    messages = [line for line in body.split(b"\n") if line]
    if messages and max(map(len, messages)) > max_msg_size:
        raise api_error("MSG_TOO_BIG")
    return messages


def counted(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """Parse the body of a binary /mpub: a count, then each message's size and bytes, as in MPUB.

    As in nsqd, bytes after the last message are ignored.
    """
    if len(body) < _COUNT.size:
        raise api_error("BAD_BODY")
    (count,) = _COUNT.unpack_from(body)
    if not 0 < count <= (max_body_size - 4) // 5:
        raise api_error("BAD_BODY")
    messages: list[bytes] = []
    at, end = _COUNT.size, len(body)
    for _ in range(count):
        start = at + _COUNT.size
        if start > end:
            raise api_error("BAD_MESSAGE")
        (size,) = _COUNT.unpack_from(body, at)
        at = start + size
        if not 0 < size <= max_msg_size or at > end:
            raise api_error("BAD_MESSAGE")
        messages.append(body[start:at])
    return messages
