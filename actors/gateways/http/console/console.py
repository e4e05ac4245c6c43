"""Back end of the console in the HTTP gateway: its paths, its tasks, and its stream of changes.

Each open page reads changes from a stream of server-sent events. It uses `fetch`, because
`EventSource` cannot send the token. A stream ends after ten minutes and the page reconnects, so
that its permissions are checked again. A page that does not read loses its connection (server.py).
The gateway keeps no missed changes for it (board.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Admin, Producer, Reader
from ..api.broker import SharedStats
from ..web.authority import Handler, Rights, rights_of
from ..web.body import Parameters
from ..web.places import Limiters, holder_of
from ..web.responses import ApiError
from .action_handlers import ActionHandlers
from .answers import event, event_stream
from .board import BoardView
from .cluster import ClusterPage, OpenAdmin, no_admin
from .files import ConsoleFiles
from .read_handlers import ReadHandlers
from .redrive_jobs import RedriveJobs
from .sampler import Sampler

STREAM_S: Final = 600.0
KEEP_S: Final = 15.0


class Live:
    """The handler of /api/live. A stream ends when permissions change, and its page reconnects."""

    def __init__(self, sampler: Sampler, jobs: RedriveJobs, limiters: Limiters) -> None:
        self._sampler = sampler
        self._jobs = jobs
        self._views = limiters.live_views

    async def live(self, request: Request) -> Response:
        parameters = Parameters(request.scope["query_string"])
        topic = parameters.get("topic") or ""
        rights = rights_of(request)
        view = BoardView(rights.principal, topic, bool(topic) or parameters.flag("channels", False))
        with self._views.place(holder_of(request)) as place:
            board = await self._sampler.fresh(topic)
            if topic and topic not in board.topics:
                raise ApiError(404, f"E_NOT_FOUND topic {topic!r} does not exist")
            return event_stream(request, place, self._events(view, rights))

    async def _events(self, view: BoardView, rights: Rights) -> AsyncIterator[bytes]:
        sampler, board = self._sampler, self._sampler.board
        with sampler.watch():
            end_s = time.monotonic() + STREAM_S
            tick, jobs = board.tick, self._jobs.version
            yield event("snapshot", view.whole(board))
            silent_s = time.monotonic()
            while not sampler.closing and time.monotonic() < end_s:
                has_changed = await sampler.after(tick, KEEP_S)
                if await rights.have_changed():
                    break
                if has_changed:
                    before, tick = tick, board.tick
                    events = self._told(view, before, jobs)
                    jobs = self._jobs.version
                    for message in events:
                        yield message
                    silent_s = time.monotonic() if events else silent_s
                if time.monotonic() - silent_s >= KEEP_S:
                    yield b": keep\n\n"
                    silent_s = time.monotonic()
            yield event("again", {})

    def _told(self, view: BoardView, tick: int, jobs: int) -> list[bytes]:
        board = self._sampler.board
        changes = view.changes(board, tick)
        events = (
            []
            if changes is None
            else [event("snapshot" if changes.pop("whole", False) else "changes", changes)]
        )
        if self._sampler.alarms_tick > tick:
            events.append(event("alarms", view.alarms(self._sampler.alarms)))
        if self._jobs.version > jobs:
            events.append(event("jobs", {"jobs": self._jobs.rows(view.principal)}))
        return events


class Console:
    """The console of a gateway.

    `url` is the run directory, which redrives use. `folder` has the files of the pages. If it is
    "", only the API is served. `open_admin` makes the client of another broker of the cluster.
    """

    def __init__(
        self,
        source: Admin,
        open_reader: Callable[[str], Reader],
        open_producer: Callable[[], Producer],
        url: str,
        limiters: Limiters,
        folder: str = "",
        open_admin: OpenAdmin = no_admin,
    ) -> None:
        stats = SharedStats(source)
        self.sampler = Sampler(source)
        self.jobs = RedriveJobs(url, stats, source, limiters.redrives)
        self.files = ConsoleFiles(folder)
        self.jobs.changed = self.sampler.stir
        self.live = Live(self.sampler, self.jobs, limiters)
        self._cluster = ClusterPage(source, open_admin)
        self._reads = ReadHandlers(
            source, open_reader, stats, self.sampler, self.jobs, self.node, limiters.looks
        )
        self._actions = ActionHandlers(
            source,
            open_reader,
            open_producer,
            stats,
            self.jobs,
            limiters,
            self.sampler.stir,
            self.node,
        )
        self._task: asyncio.Task[None] | None = None

    async def node(self) -> int:
        """Return the number of the broker's node, which is part of the ids of messages."""
        return int((await self.sampler.fresh()).broker["node"])

    def paths(self) -> dict[str, dict[str, Handler]]:
        reads = self._reads
        get: dict[str, Handler] = {
            "/api/overview": reads.overview,
            "/api/live": self.live.live,
            "/api/history": reads.history,
            "/api/histories": reads.histories,
            "/api/topic": reads.topic,
            "/api/channel": reads.channel,
            "/api/chunks": reads.chunks,
            "/api/alarms": reads.alarms,
            "/api/jobs": reads.jobs,
            "/api/schedules": reads.schedules,
            "/api/cluster": self._cluster.answer,
            "/api/processes": reads.processes,
            "/api/audit": reads.audit,
            "/api/peek": reads.peek,
            "/api/messages": reads.messages,
            "/api/body": reads.body,
            "/api/dead-letters": reads.dead_letters,
            "/api/delayed": reads.delayed,
            "/api/preview": self._actions.preview,
        }
        if self.files:
            get |= {"/": self.files.index, "/console/{name:path}": self.files.named}
        table = {path: {"GET": handler} for path, handler in get.items()}
        return table | {path: {"POST": handler} for path, handler in self._actions.table().items()}

    def start(self) -> None:
        """Start the sampler in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self.sampler.run())

    async def close(self) -> None:
        """End the streams, and each redrive after its current batch."""
        self.sampler.close()
        await self.jobs.close()
        await self._cluster.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
