"""Bodies of requests: read no further than they may be, and taken apart.

What a client announces as too large is refused before any of it is read; what it sends without a length, at the first byte too many.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from starlette.requests import Request

from .errors import ApiError, api_error
from .limits import IDLE_BODY_BYTES_MAX, Budget, Share
from .parameters import Parameters

_COUNT: Final = struct.Struct(">i")


async def read_body(request: Request, bytes_max: int, too_big: ApiError, body_s: float, share: Share) -> bytes:
    """The whole body; `too_big` is raised for more than `bytes_max`."""
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
    """Of a command that wants none."""
    if has_body(request):
        await read_body(request, IDLE_BODY_BYTES_MAX, api_error("BODY_TOO_BIG"), body_s, share)


class Asked:
    """What a request asks for by its query alone; a body that comes all the same is read, up to a bound, and dropped."""

    def __init__(self, body_s: float, budget: Budget) -> None:
        self._body_s = body_s
        self._budget = budget

    async def __call__(self, request: Request) -> Parameters:
        with self._budget.share() as share:
            await skip_body(request, self._body_s, share)
        return Parameters(request.scope["query_string"])


def announced(request: Request) -> int | None:
    """Content-Length; the HTTP parser has seen to it that it is a number, and the only one."""
    value = request.headers.get("content-length")
    return int(value) if value is not None else None


def has_body(request: Request) -> bool:
    return bool(announced(request)) or "transfer-encoding" in request.headers


def lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """/mpub as text: a message a line, empty ones dropped."""
    found = [line for line in body.split(b"\n") if line]
    if found and max(map(len, found)) > max_msg_size:
        raise api_error("MSG_TOO_BIG")
    return found


def counted(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """/mpub as binary: a count, then size and bytes of each, as MPUB has it. Like nsqd, nobody looks at what lies behind the last one."""
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
