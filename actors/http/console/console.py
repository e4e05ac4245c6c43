"""The console's back end as one part of the HTTP gateway: its paths, its tasks, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from ..limits import HttpLimits
from ..sharing import SharedStats
from .doing import Doing
from .files import Files
from .jobs import Jobs
from .live import Live
from .reading import Reading
from .sampler import Sampler
from .source import Open, Source

Handler = Callable[[Request], Awaitable[Response]]


class Console:
    """`url`: of the run directory, for redrives; `folder`: of the pages, "" for none (the API is there all the same)."""

    def __init__(self, source: Source, open_reader: Open, url: str, limits: HttpLimits, folder: str = "") -> None:
        stats = SharedStats(source)
        self.sampler = Sampler(source)
        self.jobs = Jobs(url, stats)
        self.files = Files(folder)
        self.jobs.changed = self.sampler.stir
        self.live = Live(self.sampler, self.jobs)
        self._reading = Reading(source, open_reader, stats, self.sampler, self.jobs)
        self._doing = Doing(source, open_reader, stats, self.jobs, limits, self.sampler.stir)
        self._task: asyncio.Task[None] | None = None

    def paths(self) -> dict[str, dict[str, Handler]]:
        reading = self._reading
        get: dict[str, Handler] = {
            "/api/overview": reading.overview,
            "/api/live": self.live.live,
            "/api/history": reading.history,
            "/api/histories": reading.histories,
            "/api/topic": reading.topic,
            "/api/channel": reading.channel,
            "/api/chunks": reading.chunks,
            "/api/alarms": reading.alarms,
            "/api/jobs": reading.jobs,
            "/api/processes": reading.processes,
            "/api/audit": reading.audit,
            "/api/peek": reading.peek,
            "/api/messages": reading.messages,
            "/api/body": reading.body,
            "/api/delayed": reading.delayed,
            "/api/preview": self._doing.preview,
        }
        if self.files:
            get |= {"/": self.files.index, "/console/{name:path}": self.files.named}
        table = {path: {"GET": handler} for path, handler in get.items()}
        return table | {path: {"POST": handler} for path, handler in self._doing.table().items()}

    def start(self) -> None:
        """In the running loop."""
        self._task = asyncio.get_running_loop().create_task(self.sampler.run())

    async def close(self) -> None:
        """Streams end, redrives with their batch."""
        self.sampler.close()
        await self.jobs.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
