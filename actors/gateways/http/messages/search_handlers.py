"""Handlers of search and download: messages of a topic by time and content.

A search is many requests. Each one searches for at most STEP_S, and its answer says at which offset
the next one continues. So a search holds no state in the gateway, it stops when nobody asks, and
its permissions are checked again at each step. One long request with a stream of progress was
rejected, because it needs all three.

A download is one request, because a browser saves one answer. It is bounded in messages, bytes and
time. If it is cut, its last line says so, and where to continue. It is also cut at offsets that do
not exist, because lines that only leave them out look like a complete copy.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Reader
from .....transport.client.core.message import id_of, removed
from .....transport.client.core.message_search import TEXT_CHARS_MAX, SearchConditions, named
from .....transport.errors import ZsqError
from .....transport.message_object import as_object
from .....transport.names import part_of
from ..console.answers import (
    BODY_BYTES_MAX,
    HEADERS,
    Room,
    ShownMessage,
    answer,
    bad,
    message,
    number,
    parameters_of,
)
from ..web.authority import Rights, rights_of
from ..web.body import Parameters
from ..web.places import Limiters, Stream, WorkTurns, holder_of
from .scan import MessageScan

FOUND_MAX: Final = 200
SEARCHES_MAX: Final = 4  # the most steps of searches that run at the same time; others wait
STEP_S: Final = 1.0
STEP_BYTES: Final = 256 * 1024 * 1024
SHOWN_BYTES: Final = 4096  # of each body in an answer

DOWNLOAD_MESSAGES: Final = 10_000
DOWNLOAD_MESSAGES_MAX: Final = 100_000
DOWNLOAD_BYTES_MAX: Final = 64 * 1024 * 1024  # of lines
DOWNLOAD_S: Final = 300.0
PIECE_BYTES: Final = 64 * 1024
NDJSON: Final = "application/x-ndjson"
OFFSET_MAX: Final = (1 << 62) - 1
_TIME_MS_MAX: Final = 1 << 43

Node = Callable[[], Awaitable[int]]


class SearchAnswer(TypedDict):
    """One step of a search.

    `from`, `next_offset`, `end`: where it began, where the next step continues, and where the
    search ends. `searched_to_ms`: the time of the last block that was searched, or None.
    `undecoded`: the messages that were too large to be decoded for `field`. `missing`: the
    messages of the range that cannot be read, because retention removed them or they are damaged.
    """

    start: int
    head: int
    first: int
    next_offset: int
    end: int
    done: bool
    searched_to_ms: int | None
    undecoded: int
    missing: int
    messages: list[ShownMessage]


class SearchRange(NamedTuple):
    """The offsets to search. `missing` are those before `first` that were asked for, and that
    retention has removed.
    """

    first: int
    end: int
    missing: int


class Search(NamedTuple):
    """The parameters of a search. Without `offset` it begins at `from_ns`, or at the oldest."""

    topic: str
    wanted: SearchConditions
    offset: int | None
    end: int | None
    from_ns: int | None
    to_ns: int | None

    async def range(self, reader: Reader, start: int, head: int) -> SearchRange:
        """Return the offsets from which and up to which to search."""
        first, end = self.offset, head if self.end is None else min(head, self.end)
        if first is None:
            first = start if self.from_ns is None else await reader.offset_at(self.from_ns)
        if self.to_ns is not None:
            end = min(end, await reader.offset_at(self.to_ns))
        missing = 0 if self.offset is None else max(0, min(start, end) - first)
        first = max(first, start)
        return SearchRange(first, max(first, end), missing)


def search_of(parameters: Parameters) -> Search:
    """Parse the parameters that search and download share. Raises `ApiError`."""
    texts: dict[str, str | None] = {}
    for name in ("text", "key", "tag", "header", "field"):
        text = parameters.get(name)
        if text is not None and len(text) > TEXT_CHARS_MAX:
            raise bad(f"{name} must have at most {TEXT_CHARS_MAX} characters, not {len(text)}")
        texts[name] = text or None
    try:
        header = None if texts["header"] is None else named(texts["header"], "header")
        field = None if texts["field"] is None else named(texts["field"], "field", "PATH")
        key, tag = (
            None if text is None else text.encode() for text in (texts["key"], texts["tag"])
        )
    except ValueError as error:
        raise bad(str(error)) from None
    wanted = SearchConditions(
        texts["text"], parameters.flag("ignore_case", False), key, tag, header, field
    )
    search = Search(
        parameters.get("topic") or "",
        wanted,
        _offset(parameters, "offset"),
        _offset(parameters, "end"),
        _time_ns(parameters, "from_ms"),
        _time_ns(parameters, "to_ms"),
    )
    if search.from_ns is not None and search.to_ns is not None and search.from_ns > search.to_ns:
        raise bad("from_ms must not be later than to_ms")
    return search


def _offset(parameters: Parameters, name: str) -> int | None:
    if parameters.get(name) is None:
        return None
    return number(parameters, name, 0, 0, OFFSET_MAX)


def _time_ns(parameters: Parameters, name: str) -> int | None:
    if parameters.get(name) is None:
        return None
    return number(parameters, name, 0, -_TIME_MS_MAX, _TIME_MS_MAX) * 1_000_000


class SearchHandlers:
    """The handlers of /api/search and /api/download."""

    def __init__(
        self, open_reader: Callable[[str], Reader], node: Node, limiters: Limiters
    ) -> None:
        self._open = open_reader
        self._node = node
        self._searches = WorkTurns(limiters.searches, SEARCHES_MAX)
        self._downloads = limiters.downloads

    async def search(self, request: Request) -> Response:
        parameters = parameters_of(request)
        search = search_of(parameters)
        count = number(parameters, "count", FOUND_MAX, 1, FOUND_MAX)
        room = Room(number(parameters, "body_max", SHOWN_BYTES, 0, BODY_BYTES_MAX))
        node = await self._node()
        async with self._searches.turn(holder_of(request)), self._open(search.topic) as reader:
            start, head = await reader.bounds()
            first, end, missing = await search.range(reader, start, head)
            scan = MessageScan(reader, search.topic, first, end, search.wanted)
            shown: list[ShownMessage] = []
            async with aclosing(scan.found(STEP_BYTES, time.monotonic() + STEP_S)) as matches:
                async for match in matches:
                    shown.append(message(match, node, room))
                    if len(shown) >= count:
                        break
        reply: SearchAnswer = {
            "start": start,
            "head": head,
            "first": first,
            "next_offset": scan.at,
            "end": end,
            "done": scan.done,
            "searched_to_ms": scan.time_ns // 1_000_000 if scan.time_ns else None,
            "undecoded": scan.undecoded,
            "missing": missing + scan.missing,
            "messages": shown,
        }
        return answer(reply)

    async def download(self, request: Request) -> Response:
        parameters = parameters_of(request)
        search = search_of(parameters)
        count = number(parameters, "count", DOWNLOAD_MESSAGES, 1, DOWNLOAD_MESSAGES_MAX)
        name = search.topic.replace("#", "-")
        headers = {
            **HEADERS,
            "content-disposition": f'attachment; filename="{name}.jsonl"',
            "content-security-policy": "sandbox; default-src 'none'",
        }
        with self._downloads.place(holder_of(request)) as place:
            node = await self._node()
            # Errors are answered as such only before the first line. The stream opens a reader of
            # its own, because a stream that is never read would not close this one.
            async with self._open(search.topic) as reader:
                await search.range(reader, *await reader.bounds())
            if request.method == "HEAD":
                return Response(b"", 200, headers, media_type=NDJSON)
            lines = self._pieces(self._lines(search, count, node, rights_of(request)))
            return Stream(place, lines, headers, NDJSON)

    async def _pieces(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Join lines to pieces, so that small messages do not each become one write."""
        held: list[bytes] = []
        size = 0
        async for line in lines:
            held.append(line)
            size += len(line)
            if size >= PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
        yield b"".join(held)

    async def _lines(
        self, search: Search, count: int, node: int, rights: Rights
    ) -> AsyncIterator[bytes]:
        """Yield a line for each message, and a last line if the download is cut."""
        at = search.offset or 0
        try:
            async with self._open(search.topic) as reader:
                first, end, missing = await search.range(reader, *await reader.bounds())
                if missing:
                    gap = removed(at, at + missing, first)
                    yield cut_line(gap.text(search.topic), gap.stop)
                    return
                scan = MessageScan(reader, search.topic, first, end, search.wanted, whole=True)
                why = ""
                async with aclosing(
                    self._bounded(scan, search.topic, count, node, rights)
                ) as matches:
                    async for line, next_offset, cut in matches:
                        at, why = next_offset, cut
                        if line:
                            yield line
                if why:
                    yield cut_line(why, at)
                elif scan.gap is not None:
                    yield cut_line(scan.gap.text(search.topic), scan.gap.stop)
                elif not scan.done:
                    yield cut_line("it was not read to its end in time", scan.at)
        except ZsqError as error:
            yield cut_line(f"{error.code} {error.text}", at)

    async def _bounded(
        self, scan: MessageScan, topic: str, count: int, node: int, rights: Rights
    ) -> AsyncGenerator[tuple[bytes, int, str], None]:
        """Yield lines within the limits.

        With each line come the offset after it, and the reason why it is the last one, or "". If
        permissions have changed, the last line is empty.
        """
        part = part_of(topic)
        messages = size = 0
        async with aclosing(scan.found(1 << 62, time.monotonic() + DOWNLOAD_S)) as matches:
            async for match in matches:
                if await rights.have_changed():
                    yield b"", match.offset, "the permissions have changed; ask again"
                    return
                own_id = id_of(match.offset, node, None if part is None else part[1])
                line = json.dumps({**as_object(match), "id": own_id}).encode() + b"\n"
                messages, size = messages + 1, size + len(line)
                why = ""
                if messages >= count:
                    why = f"the limit of {count} messages is reached"
                elif size >= DOWNLOAD_BYTES_MAX:
                    why = f"the limit of {DOWNLOAD_BYTES_MAX} bytes is reached"
                yield line, scan.at, "" if scan.done else why
                if why:
                    return


def cut_line(why: str, next_offset: int) -> bytes:
    """Return the last line of a download that is not complete."""
    row: dict[str, Any] = {"cut": why, "next_offset": next_offset}
    return json.dumps(row).encode() + b"\n"
