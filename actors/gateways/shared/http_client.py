"""HTTP client for requests to auth servers and nsqlookupd.

Requests are limited in time and replies in bytes. The client uses only the standard library,
because these requests need no connection pool, redirects or cookies. Each request opens a
connection, sends `Connection: close`, and accepts only status 200. Errors never show the address,
because it may contain a secret.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.nsq.tls import client_context
from ....transport.resolver import NotResolved, first_connection
from ...runtime.listening import join_place

CONNECT_S: Final = 2.0
REQUEST_S: Final = 5.0
BODY_MAX: Final = 1_048_576

_HEAD_MAX: Final = 65_536
_EARLY_MAX: Final = 5  # the most replies with status 1xx before the final one
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}")


class NotAnswered(Exception):
    """Raised if no usable reply came. The text gives the reason but not the address."""


class Url(NamedTuple):
    secure: bool
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{join_place(self.host, self.port)}"


def parse_url(text: str) -> Url:
    """Parse an address. Raises `UsageError` if it is not a plain http or https address."""
    try:
        parts = urlsplit(text)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    except ValueError as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"{text[:200]!r} is not a valid address: {error}"
        ) from None
    path = parts.path or "/"
    if (
        parts.scheme not in {"http", "https"}
        or not _HOST.fullmatch(host)
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{text[:200]!r} is not a valid address; use http://HOST:PORT/PATH or "
                "https://HOST:PORT/PATH"
            ),
        )
    if not path.isascii() or not path.isprintable() or " " in path:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{text[:200]!r} is not a valid address: write spaces and special characters of "
                "the "
                "path as %XX"
            ),
        )
    return Url(secure, host, port, path)


class Way(NamedTuple):
    """The settings of a request.

    With `post`, the parameters are sent as a form, otherwise in the query. The time limits apply to
    one request.
    """

    post: bool = False
    # Only for https; with None, the system's authorities are trusted.
    context: ssl.SSLContext | None = None
    connect_s: float = CONNECT_S
    request_s: float = REQUEST_S


async def ask(url: Url, parameters: dict[str, str], way: Way = Way()) -> bytes:  # noqa: B008 (a NamedTuple cannot change)
    """Send a request and return the body of the reply. Raises `NotAnswered` if that fails."""
    reader, writer = await _connected(url, way)
    try:
        async with asyncio.timeout(way.request_s):
            writer.write(_request(url, parameters, way.post))
            return await _answer(reader)
    except TimeoutError:
        raise NotAnswered(f"no answer within {way.request_s:g} s") from None
    except (EOFError, asyncio.LimitOverrunError, OSError, ValueError) as error:
        raise NotAnswered(f"incomplete or invalid answer: {type(error).__name__}") from None
    finally:
        writer.transport.abort()  # nothing more is read from this connection


async def _connected(url: Url, way: Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secure = (way.context or _system()) if url.secure else None
    try:
        async with asyncio.timeout(way.connect_s):
            return await first_connection(
                url.host,
                way.connect_s,
                lambda address: asyncio.open_connection(
                    address,
                    url.port,
                    ssl=secure,
                    server_hostname=url.host if secure else None,
                    limit=_HEAD_MAX,
                ),
            )
    except NotResolved as error:
        raise NotAnswered(
            f"no connection: DNS does not resolve its name ({error.reason})"
        ) from None
    except TimeoutError:
        raise NotAnswered(f"no connection within {way.connect_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise NotAnswered(f"no connection: {getattr(error, 'strerror', None) or error}") from None


@cache
def _system() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities.

    It is cached because loading the authorities blocks the event loop for 0.1 s.
    """
    return client_context()


def _request(url: Url, parameters: dict[str, str], post: bool) -> bytes:
    form = urlencode(parameters, errors="surrogateescape")
    target = url.path if post or not form else f"{url.path}?{form}"
    lines = [
        f"{'POST' if post else 'GET'} {target} HTTP/1.1",
        f"Host: {join_place(url.host, url.port)}",
        "Connection: close",
    ]
    lines += ["User-Agent: zsq", "Accept: application/vnd.nsq; version=1.0"]
    if post:
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}"]
    return "\r\n".join([*lines, "", form if post else ""]).encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> bytes:
    for _ in range(_EARLY_MAX):
        head = await reader.readuntil(b"\r\n\r\n")
        status = _STATUS.match(head)
        if not status:
            raise NotAnswered("its answer is not valid HTTP")
        if not status[1].startswith(b"1"):
            break
    else:
        raise NotAnswered(f"it sent {_EARLY_MAX} interim answers (1xx) and no final one")
    if status[1] != b"200":
        raise NotAnswered(f"it answered with status {status[1].decode()}")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    coding = headers.get(b"transfer-encoding", b"").lower()
    if coding == b"chunked":
        return await _chunks(reader)
    packing = headers.get(b"content-encoding", b"identity").lower()
    if coding or packing != b"identity":
        raise NotAnswered(
            f"it answered in the encoding {repr(coding or packing)[1:100]}, which was not requested"
        )
    if b"content-length" in headers:
        return await reader.readexactly(_size(headers[b"content-length"], 10, 0))
    body = await reader.read(BODY_MAX + 1)
    while not reader.at_eof() and len(body) <= BODY_MAX:
        body += await reader.read(BODY_MAX + 1 - len(body))
    _check(len(body))
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _size(line.partition(b";")[0].strip(), 16, len(body))
        if not size:
            return bytes(body)  # trailers are not needed
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise NotAnswered("its answer is not valid HTTP")


def _size(digits: bytes, base: int, so_far: int) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", digits):
        raise NotAnswered("its answer is not valid HTTP")
    size = int(digits, base)
    _check(so_far + size)
    return size


def _check(size: int) -> None:
    if size > BODY_MAX:
        raise NotAnswered(f"its answer is over the limit of {BODY_MAX} bytes")
