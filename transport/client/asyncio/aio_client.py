"""The asyncio Admin and Reader."""

from __future__ import annotations

from ...reports import BrokerStats
from ..blocking.client import AdminBase, ReaderBase
from ..core import peeking, reading
from ..core.asking import ask_stats
from ..core.message import Fetched, StoredMessage
from ..core.peeking import PEEK_COUNT, Peek
from ..core.reading import Archive, Measured
from ..core.requester import RequestEngine
from .aio_admin_calls import AdminCalls
from .aio_asker import Asker, Turner


class Admin(AdminBase[Turner[RequestEngine]], AdminCalls):
    """Manage topics and channels. See `zsq.Admin`."""

    async def peek(
        self, topic: str, channel: str | None = None, *, count: int = PEEK_COUNT
    ) -> Peek:
        async with Reader(topic, timeout=self._timeout, **self._same_place()) as reader:
            held = await self._carry_out(peeking.place_of(topic, channel, count))
            return await reader._carry_out(peeking.look(topic, channel, held, count))

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> BrokerStats:
        """Return current statistics of everything, of one topic, or of one channel.

        A topic with parts has a row in "topics" for each part. If the broker of a part does not
        answer, this raises its error. With `partial`, the rows of such parts are missing instead,
        and "unanswered" has their names, each with the reason. Each part then has at most 2 s to
        answer.
        """
        stats: BrokerStats = await self._carry_out(ask_stats(topic, channel, partial=partial))
        return stats


class Reader(ReaderBase[Turner[RequestEngine]], Asker):
    """Read a topic by offset. See `zsq.Reader`."""

    async def read(self, offset: int, max_bytes: int = 1 << 20) -> Fetched:
        request = reading.read_on(self.topic, offset, max_bytes, self._on_data_loss)
        return await self._carry_out(request)

    async def bounds(self) -> tuple[int, int]:
        return await self._carry_out(reading.bounds())

    async def offset_at(self, time_ns: int) -> int:
        return await self._carry_out(reading.offset_at(time_ns))

    async def archive(self) -> Archive | None:
        return await self._carry_out(reading.archive())

    async def newest(self, count: int) -> int:
        return await self._carry_out(reading.newest(count))

    async def message(self, offset: int) -> StoredMessage:
        return await self._carry_out(reading.message(self.topic, offset))

    async def measure(
        self, start: int, end: int | None = None, *, max_bytes: int | None = None
    ) -> Measured:
        return await self._carry_out(reading.measure(start, end, max_bytes))

    async def uuid(self) -> str:
        await self.bounds()
        assert self._made is not None
        return self._made.engine.uuid
