"""What changes, as it happens: server-sent events, a stream for each page that is open.

A page reads them with `fetch`, as only so it can show its token. A stream ends after ten minutes, and the page comes again: what its caller
may see is looked at anew. One that takes nothing loses its connection (server.py); what it missed is not kept for it, see board.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..errors import ApiError
from ..parameters import Parameters
from ..rights import rights_of
from .answers import HEADERS
from .jobs import Jobs
from .sampler import Sampler
from .view import View

STREAMS_MAX: Final = 64
STREAM_S: Final = 600.0
KEEP_S: Final = 15.0


def event(kind: str, data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Live:
    def __init__(self, sampler: Sampler, jobs: Jobs) -> None:
        self._sampler = sampler
        self._jobs = jobs
        self.streams = 0
        self._rules = 0

    def renew(self) -> None:
        """There are new rules for who may see what: nothing more is told under the old ones, and the pages come again."""
        self._rules += 1

    async def live(self, request: Request) -> Response:
        parameters = Parameters(request.scope["query_string"])
        topic = parameters.get("topic") or ""
        view = View(rights_of(request), topic, bool(topic) or parameters.flag("channels", False))
        if self.streams >= STREAMS_MAX:
            raise ApiError(503, f"E_LIMIT {STREAMS_MAX} pages are open already; close some", hint={"retry-after": "5"})
        board = await self._sampler.fresh(topic)
        if topic and topic not in board.topics:
            raise ApiError(404, f"E_NOT_FOUND topic {topic!r} does not exist")
        headers = {**HEADERS, "x-accel-buffering": "no"}
        if request.method == "HEAD":  # its answer has no end, and nobody would hear it
            return Response(b"", 200, headers, media_type="text/event-stream")
        return StreamingResponse(self._events(view), 200, headers, media_type="text/event-stream")

    async def _events(self, view: View) -> AsyncIterator[bytes]:
        sampler, board = self._sampler, self._sampler.board
        self.streams += 1
        try:
            with sampler.watch():
                end_s = time.monotonic() + STREAM_S
                tick, jobs, rules = board.tick, self._jobs.version, self._rules
                yield event("snapshot", view.whole(board))
                silent_s = time.monotonic()
                while not sampler.closing and time.monotonic() < end_s and rules == self._rules:
                    if await sampler.after(tick, KEEP_S) and rules == self._rules:
                        before, tick = tick, board.tick
                        told = self._told(view, before, jobs)
                        jobs = self._jobs.version
                        for one in told:
                            yield one
                        silent_s = time.monotonic() if told else silent_s
                    if time.monotonic() - silent_s >= KEEP_S:
                        yield b": keep\n\n"
                        silent_s = time.monotonic()
                yield event("again", {})
        finally:
            self.streams -= 1

    def _told(self, view: View, tick: int, jobs: int) -> list[bytes]:
        board = self._sampler.board
        found = view.changes(board, tick)
        told = [] if found is None else [event("snapshot" if found.pop("whole", False) else "changes", found)]
        if self._sampler.alarms_tick > tick:
            told.append(event("alarms", view.alarms(self._sampler.alarms)))
        if self._jobs.version > jobs:
            told.append(event("jobs", {"jobs": self._jobs.rows(view.rights)}))
        return told
