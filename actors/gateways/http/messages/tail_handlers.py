"""Handler of the live tail: new messages of a topic as server-sent events.

A tail reads the log by offset, as `zsq tail` does. It creates no channel, and takes messages from
nobody. It looks for new messages every LOOK_S, at the pace of pace.py. A page that does not read
its stream stops the stream, because the next event is made only when the last one was sent. What
comes meanwhile stays in the log.

A stream ends after ten minutes, and when permissions change, with the event `again`. The page then
connects again from that offset, and its permissions are checked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Reader
from .....transport.client.core.message_search import SearchConditions
from .....transport.errors import ZsqError
from ..console.answers import (
    Room,
    ShownMessage,
    event,
    event_stream,
    message,
    number,
    parameters_of,
)
from ..web.authority import Rights, rights_of
from ..web.places import Limiters, holder_of
from .pace import TailPace
from .scan import MessageScan
from .search_handlers import OFFSET_MAX, Node

LOOK_S: Final = 0.5
KEEP_S: Final = 15.0
STREAM_S: Final = 600.0
BACK_MAX: Final = 100
READS_MAX: Final = 4  # the most reads of tails at the same time; each may hold a block
SHOWN_BYTES: Final = 4096  # of each body, unless `body_max` says otherwise
SHOWN_BYTES_MAX: Final = 16 * 1024
EVENT_BYTES_MAX: Final = 256 * 1024  # of the bodies of one event
_ALL: Final = SearchConditions()


class TailHandlers:
    """The handler of /api/tail."""

    def __init__(
        self, open_reader: Callable[[str], Reader], node: Node, limiters: Limiters
    ) -> None:
        self._open = open_reader
        self._node = node
        self._reads = asyncio.Semaphore(READS_MAX)
        self._closing = asyncio.Event()
        self._tails = limiters.tails

    def close(self) -> None:
        self._closing.set()

    async def tail(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic = parameters.get("topic") or ""
        back = number(parameters, "last", 0, 0, BACK_MAX)
        offset = (
            None
            if parameters.get("offset") is None
            else number(parameters, "offset", 0, 0, OFFSET_MAX)
        )
        each = number(parameters, "body_max", SHOWN_BYTES, 0, SHOWN_BYTES_MAX)
        with self._tails.place(holder_of(request)) as place:
            node = await self._node()
            async with self._open(topic) as reader:
                head = (await reader.bounds())[1]
                if offset is None:
                    offset = await reader.newest(back) if back else head
            events = self._events(topic, min(offset, head), each, node, rights_of(request))
            return event_stream(request, place, events)

    async def _events(
        self, topic: str, at: int, each: int, node: int, rights: Rights
    ) -> AsyncIterator[bytes]:
        try:
            yield event("start", {"offset": at})
            async with (
                self._open(topic) as reader,
                aclosing(self._followed(reader, topic, at, each, node, rights)) as events,
            ):
                async for event_bytes in events:
                    yield event_bytes
        except ZsqError as error:
            yield event("failed", {"message": f"{error.code} {error.text}"})

    async def _followed(
        self, reader: Reader, topic: str, at: int, each: int, node: int, rights: Rights
    ) -> AsyncGenerator[bytes, None]:
        begun_s = silent_s = time.monotonic()
        pace = TailPace(begun_s)
        while not self._closing.is_set():
            now_s = time.monotonic()
            if now_s - begun_s >= STREAM_S:
                break
            _, head = await reader.bounds()
            # The topic may end earlier than `at`, for example after a restore.
            turn = pace.turn(min(at, head), head, now_s)
            shown, after, missing = await self._read(
                reader, topic, turn.first, turn.take, each, node
            )
            pace.shown(len(shown))
            if await rights.have_changed():  # also during the read, so nothing of it is shown
                break
            at = after
            if shown or turn.dropped or missing:
                left_out = {"dropped": turn.dropped, "missing": missing}
                followed = {"messages": shown, **left_out, "offset": at, "head": head}
                yield event("messages", followed)
                silent_s = time.monotonic()
            elif now_s - silent_s >= KEEP_S:
                yield b": keep\n\n"
                silent_s = now_s
            await self._pause()
        yield event("again", {"offset": at})

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _read(
        self, reader: Reader, topic: str, first: int, count: int, each: int, node: int
    ) -> tuple[list[ShownMessage], int, int]:
        """Return these messages, the offset at which to continue, and the number of messages that
        cannot be read.
        """
        if not count:
            return [], first, 0
        room = Room(each, EVENT_BYTES_MAX)
        shown: list[ShownMessage] = []
        scan = MessageScan(reader, topic, first, first + count, _ALL)
        async with (
            self._reads,
            aclosing(scan.found(1 << 62, time.monotonic() + KEEP_S)) as matches,
        ):
            async for match in matches:
                shown.append(message(match, node, room))
        return shown, scan.at, scan.missing
