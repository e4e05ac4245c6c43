"""Queries and bodies of requests, read within limits and parsed.

A body whose announced length is too large is refused before any of it is read. A body without a
length is refused at the first byte above the limit.

Queries are parsed as strictly as nsqd does. A query is refused if Go's parser refuses it: `%`
without two hexadecimal digits, and `;`. If a parameter is given twice, the first value is used.
"""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.requests import Request

from .....transport.errors import UsageError
from .....transport.names import check_name
from .limits import IDLE_BODY_BYTES_MAX, Budget, Share
from .responses import ApiError, api_error

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""Any JSON value in a body, before it is checked."""
JsonObject: TypeAlias = dict[str, JsonValue]

FIELDS_MAX: Final = 64
_BROKEN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})|;")
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_INT: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def legal(name: str, what: str = "topic") -> bool:
    try:
        check_name(name, what)
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


async def read_body(
    request: Request, bytes_max: int, too_big: ApiError, body_s: float, share: Share
) -> bytes:
    """Return the complete body. Raises `too_big` if it has more than `bytes_max` bytes."""
    length = announced(request)
    if length is not None and length > bytes_max:
        raise too_big
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(body_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > bytes_max:
                    raise too_big
                share.take(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise api_error("REQUEST_TIMEOUT") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def skip_body(request: Request, body_s: float, share: Share) -> None:
    """Read and drop the body of a command that needs none."""
    if has_body(request):
        await read_body(request, IDLE_BODY_BYTES_MAX, api_error("BODY_TOO_BIG"), body_s, share)


class QueryRequest:
    """The parameters of a request that needs no body.

    If the request has a body anyway, the body is read, up to a limit, and dropped.
    """

    def __init__(self, body_s: float, budget: Budget) -> None:
        self._body_s = body_s
        self._budget = budget

    async def __call__(self, request: Request) -> Parameters:
        with self._budget.share() as share:
            await skip_body(request, self._body_s, share)
        return Parameters(request.scope["query_string"])


def announced(request: Request) -> int | None:
    """Return Content-Length, or None. The HTTP parser has checked that it is one number."""
    value = request.headers.get("content-length")
    return int(value) if value is not None else None


def has_body(request: Request) -> bool:
    return bool(announced(request)) or "transfer-encoding" in request.headers


def lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """Parse the body of a /mpub in text form: each line is a message. Empty lines are left out."""
    found = [line for line in body.split(b"\n") if line]
    if found and max(map(len, found)) > max_msg_size:
        raise api_error("MSG_TOO_BIG")
    return found


def counted(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """Parse the body of a binary /mpub: a count, then each message's size and bytes, as in MPUB.

    As in nsqd, bytes after the last message are ignored.
    """
    if len(body) < _COUNT.size:
        raise api_error("BAD_BODY")
    (count,) = _COUNT.unpack_from(body)
    if not 0 < count <= (max_body_size - 4) // 5:
        raise api_error("BAD_BODY")
    found: list[bytes] = []
    at, end = _COUNT.size, len(body)
    for _ in range(count):
        start = at + _COUNT.size
        if start > end:
            raise api_error("BAD_MESSAGE")
        (size,) = _COUNT.unpack_from(body, at)
        at = start + size
        if not 0 < size <= max_msg_size or at > end:
            raise api_error("BAD_MESSAGE")
        found.append(body[start:at])
    return found
