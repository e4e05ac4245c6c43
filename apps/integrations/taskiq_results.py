"""Result backend of taskiq on ZSQ: `broker.with_result_backend(ZsqResultBackend(URL))`.

All results are messages of one topic. The key of a message is the id of its task, and the tag says
what the message is. A process that asks for a result reads the topic by offset, and remembers where
the newest message of each task is. It asks the broker only while it is asked itself. The values
stay in the topic.

Two limits bound the memory and the disk. The index has at most `remembered` tasks, and an older
result is searched for in the topic. The topic removes what is older than `result_ex_time`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from ... import aio
from ...transport.client.core.message import Fetched
from ...transport.errors import E_BAD_ARGUMENT, E_TOO_BIG, NotFound, UsageError, ZsqError
from ...transport.names import check_name
from ...transport.wire.addresses import Url, parse_all
from ...transport.wire.credentials import KeyFile

log = logging.getLogger("zsq")

_T = TypeVar("_T")

DAY_S: Final = 86_400
REMEMBERED: Final = 50_000
READ_BYTES: Final = 1 << 20
WINDOW: Final = 1_000  # messages that a search reads first; each following window has twice as many
WINDOW_MAX: Final = 64_000
CLOSE_S: Final = 5.0
RESULT: Final = "result"
PROGRESS: Final = "progress"
REMOVED: Final = "removed"  # a result that was read, with keep_results=False
TAGS: Final = {tag.encode(): tag for tag in (RESULT, PROGRESS, REMOVED)}
NOT_STARTED: Final = "call `await broker.startup()` before you use the result backend"

Name = tuple[bool, bytes]
"""True for the progress of a task, False for its result, and the id of the task."""


class ResultIsMissingError(ResultGetError):
    """The task has no result, or its result has expired or was removed."""

    __template__ = "There is no result of task {task_id}"
    task_id: str


class ResultPlace(NamedTuple):
    """The place of a message: its offset, and its time in nanoseconds since 1970."""

    offset: int
    time_ns: int
    removed: bool


class Known(NamedTuple):
    """The newest message of a name among the offsets below `below`. None: there is none."""

    below: int
    row: ResultPlace | None


class ResultIndex:
    """The places of the newest message of each name, for the offsets from `low` to `high`. Pure.

    Names that were searched for below `low` are remembered with the result of the search. Both
    tables have at most `rows_max` rows.
    """

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.reset(0)

    def reset(self, head: int) -> None:
        """Forget everything. The next message has the offset `head`."""
        self.low = self.high = head
        self._rows: OrderedDict[Name, ResultPlace] = OrderedDict()  # in the order of the offsets
        self._known: OrderedDict[Name, Known] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._rows) + len(self._known)

    def follow(self, rows: Iterable[tuple[Name, ResultPlace]], next_offset: int) -> None:
        """Add all messages from `high` to `next_offset`, in order."""
        for name, row in rows:
            self._rows.pop(name, None)
            self._rows[name] = row
            if len(self._rows) > self._rows_max:
                _, oldest = self._rows.popitem(last=False)
                self.low = oldest.offset + 1
        self.high = next_offset

    def extend(self, rows: dict[Name, ResultPlace], first: int, end: int) -> None:
        """Add the newest messages of the offsets from `first` to `end`, if `low` is `end` and
        there is room for all of them.
        """
        if end != self.low or len(self._rows) + len(rows) > self._rows_max:
            return
        for name, row in sorted(rows.items(), key=lambda item: -item[1].offset):
            if name not in self._rows:
                self._rows[name] = row
                self._rows.move_to_end(name, last=False)
        self.low = first

    def find(self, name: Name) -> ResultPlace | None:
        """Return the newest message of a name, as far as it is known."""
        row = self._rows.get(name)
        return row if row is not None else self.known(name).row

    def known(self, name: Name) -> Known:
        """Return what is known of a name below `low`."""
        known = self._known.get(name)
        if known is None:
            return Known(0, None)
        self._known.move_to_end(name)
        return known

    def complete(self, name: Name) -> bool:
        """Return True if `find` knows the newest message that was stored below `high`."""
        return name in self._rows or self.known(name).below >= self.low

    def note(self, name: Name, known: Known) -> None:
        """Remember what was found below an offset."""
        self._known[name] = known
        self._known.move_to_end(name)
        if len(self._known) > self._rows_max:
            self._known.popitem(last=False)


def rows_of(fetched: Fetched, first: int, end: int) -> Iterable[tuple[Name, ResultPlace]]:
    """Return name and place of the messages from `first` to `end`, in order."""
    for block in fetched.blocks:
        if block.key is None or block.tag is None:
            continue  # a message of somebody else
        for index, (key, tag) in enumerate(
            zip(block.key.values(), block.tag.values(), strict=True)
        ):
            offset, kind = block.first_offset + index, TAGS.get(tag or b"")
            if key is not None and kind is not None and first <= offset < end:
                row = ResultPlace(offset, block.time_of(index), kind == REMOVED)
                yield (kind == PROGRESS, key), row


class ZsqResultBackend(AsyncResultBackend[_T]):
    """A result backend of taskiq.

    - `url`, `key_file`, `transport`: See `zsq.Producer`.
    - `topic`: The topic of the results. `startup` creates it. Several brokers of taskiq may share
      it.
    - `result_ex_time`: The seconds after which a result expires, one day by default. All processes
      need the same value.
    - `keep_results`: With False, the first `get_result` removes the result.
    - `remembered`: How many tasks a process remembers the places of results for, 50,000 by default.
      It searches the topic for others.
    - `serializer`: A serializer of taskiq. The default is `JSONSerializer`.
    """

    def __init__(
        self,
        url: Url = None,
        *,
        topic: str = "taskiq.results",
        result_ex_time: float = DAY_S,
        keep_results: bool = True,
        remembered: int = REMEMBERED,
        serializer: TaskiqSerializer | None = None,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        if not result_ex_time >= 1:
            text = f"result_ex_time must be at least 1 second, not {result_ex_time:g}"
            raise UsageError(E_BAD_ARGUMENT, text)
        if remembered < 1:
            raise UsageError(E_BAD_ARGUMENT, f"remembered must be at least 1, not {remembered}")
        parse_all(url, key_file, transport)
        self.topic = check_name(topic)
        self.keep_results = keep_results
        self.result_ex_time = result_ex_time
        self.serializer = serializer or JSONSerializer()
        self._client: Any = {"url": url, "key_file": key_file, "transport": transport}
        self._producer: aio.Producer | None = None
        self._reader: aio.Reader | None = None
        self._index = ResultIndex(remembered)
        self._reading, self._searching = asyncio.Lock(), asyncio.Lock()
        self._begun = self._done = 0  # the number of the last read that began, and that succeeded

    async def startup(self) -> None:
        """Create the topic if it does not exist, and open the clients."""
        if self._producer is not None:
            return
        self._reading, self._searching = asyncio.Lock(), asyncio.Lock()
        async with aio.Admin(**self._client) as admin:
            # Without a channel, the messages count as unfinished, and `max_age_s` removes them. If
            # somebody adds a channel, `keep_time_s` does.
            seconds = self.result_ex_time
            await admin.create_topic(
                self.topic, keep_time_s=seconds, max_age_s=seconds, when_full="drop-oldest"
            )
        # A task is acknowledged after its result. So a worker waits for a broker that is away.
        self._producer = aio.Producer(**self._client, timeout=None)
        self._reader = aio.Reader(self.topic, **self._client, patient=True)
        _, head = await self._reader.bounds()
        self._index.reset(head)

    async def shutdown(self) -> None:
        """Close the clients."""
        producer, self._producer = self._producer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        if producer is not None:
            await producer.close(CLOSE_S)

    def sent(self, task_id: str) -> None:
        """Note that a task is being sent, so that its result is not searched for in the past."""
        for is_progress in (False, True):
            self._index.note((is_progress, task_id.encode()), Known(self._index.high, None))

    async def set_result(self, task_id: str, result: TaskiqResult[_T]) -> None:
        """Publish the result. It is on disk when this returns.

        If it cannot be stored (because the serializer refuses it, or it is over the broker's limit,
        1 MiB by default), an error is stored in its place and raised.
        """
        try:
            value = self.serializer.dumpb(result.model_dump(mode="json"))
        except Exception as error:
            await self._publish_error(task_id, result.execution_time, error)
            raise
        try:
            await self._publish(task_id, RESULT, value)
        except ZsqError as error:
            if error.code == E_TOO_BIG:
                await self._publish_error(task_id, result.execution_time, error)
            raise

    async def _publish_error(self, task_id: str, execution_time: float, error: Exception) -> None:
        text = f"the task ended, but its result could not be stored: {error}"
        instead: TaskiqResult[Any] = TaskiqResult(
            is_err=True,
            return_value=None,
            execution_time=execution_time,
            error=RuntimeError(text),
        )
        await self._publish(task_id, RESULT, self.serializer.dumpb(instead.model_dump(mode="json")))

    async def is_result_ready(self, task_id: str) -> bool:
        """Return True if the task has a result that has not expired."""
        return await self._find((False, task_id.encode())) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[_T]:
        """Return the result of a task. Raises `ResultIsMissingError` if there is none."""
        value = await self._read((False, task_id.encode()))
        if value is None:
            raise ResultIsMissingError(task_id=task_id)
        result: TaskiqResult[_T] = TaskiqResult.model_validate(self.serializer.loadb(value))
        if not with_logs:
            result.log = None
        if not self.keep_results:
            await self._publish(task_id, REMOVED, b"")
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Publish the progress of a task. It is on disk when this returns."""
        value = self.serializer.dumpb(progress.model_dump(mode="json"))
        await self._publish(task_id, PROGRESS, value)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the newest progress of a task, or None."""
        value = await self._read((True, task_id.encode()))
        if value is None:
            return None
        progress: TaskProgress[Any] = TaskProgress.model_validate(self.serializer.loadb(value))
        return progress

    async def _publish(self, task_id: str, tag: str, body: bytes) -> None:
        if self._producer is None:
            raise RuntimeError(NOT_STARTED)
        await self._producer.publish(self.topic, body, key=task_id, tag=tag)

    def _open_reader(self) -> aio.Reader:
        if self._reader is None:
            raise RuntimeError(NOT_STARTED)
        return self._reader

    async def _read(self, name: Name) -> bytes | None:
        """Return the body of the newest message of a name, or None."""
        is_progress, key = name
        while (row := await self._find(name)) is not None:
            try:
                message = await self._open_reader().message(row.offset)
            except NotFound as error:
                log.warning("%s: %s", key.decode(), error)
                return None
            if message.key == key and (message.tag == PROGRESS) is is_progress:
                return message.body
            # A broker that was restored from a backup may have given the offset to another message.
            self._index.reset(row.offset)
        return None

    async def _find(self, name: Name) -> ResultPlace | None:
        """Return the place of the newest message of a name, or None if it has expired or is
        removed.
        """
        await self._follow()
        index = self._index
        if not index.complete(name):
            async with self._searching:
                if not index.complete(name):
                    await self._search(name)
        row = index.find(name)
        if row is None or row.removed or row.time_ns < self._oldest_ns():
            return None
        return row

    def _oldest_ns(self) -> int:
        return time.time_ns() - int(self.result_ex_time * 1e9)

    async def _follow(self) -> None:
        """Add to the index what was stored since the last read. Calls of the same time share one
        read.
        """
        reader, index = self._open_reader(), self._index
        arrived = self._begun
        async with self._reading:
            if self._done > arrived:
                return  # a read that began after this call
            self._begun += 1
            while True:
                fetched = await reader.read(index.high, READ_BYTES)
                if fetched.head < index.high:  # the broker was restored from a backup
                    index.reset(fetched.head)
                    break
                following = max(index.high, fetched.next_offset)
                index.follow(rows_of(fetched, index.high, following), following)
                if not fetched.blocks or following >= fetched.head:
                    break
            self._done = self._begun

    async def _search(self, name: Name) -> None:
        """Search the messages below the index backwards, and note the result."""
        reader, index = self._open_reader(), self._index
        known, begun = index.known(name), index.low
        lowest = max(known.below, await reader.offset_at(self._oldest_ns()))
        row, end, count = known.row, begun, WINDOW
        while end > lowest:
            first = max(lowest, end - count)
            rows: dict[Name, ResultPlace] = {}
            offset = first
            while offset < end:
                fetched = await reader.read(offset, READ_BYTES)
                if not fetched.blocks or fetched.next_offset <= offset:
                    break
                rows.update(rows_of(fetched, first, end))
                offset = fetched.next_offset
            index.extend(rows, first, end)
            if name in rows:
                row = rows[name]
                break
            end, count = first, min(2 * count, WINDOW_MAX)
        index.note(name, Known(begun, row))
