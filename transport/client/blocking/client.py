"""The blocking Admin and Reader. Their base classes are shared with asyncio (`aio.py`).

A client sends requests to one target: one request at a time for each thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...names import check_name, part_name
from ...wire.address import Target
from ...wire.addresses import Url
from ...wire.credentials import KeyFile
from ..core import peeking, reading
from ..core.asking import ask_stats
from ..core.message import Batch, Fetched, Message, StoredMessage
from ..core.peeking import PEEK_COUNT, Peek, Peeked
from ..core.reading import Archive, Measured, OnDataLoss
from ..core.requester import RequestEngine
from .admin_calls import AdminCalls
from .arrow_reader import ARROW_BYTES, record_batches
from .asker import Asker, AskerBase
from .consumer import Consumer
from .drive import Drive
from .producer import TIMEOUT_S, Producer, Receipt
from .range_reader import RangeReader

if TYPE_CHECKING:
    import pyarrow

_DriveT = TypeVar("_DriveT")

__all__ = [
    "Admin",
    "Archive",
    "Batch",
    "Consumer",
    "Fetched",
    "Measured",
    "Message",
    "Peek",
    "Peeked",
    "Producer",
    "Reader",
    "Receipt",
]


class AdminBase(AskerBase[_DriveT]):
    """The base of the blocking and the asyncio Admin."""

    def __init__(
        self,
        url: Url = None,
        *,
        timeout: float | None = TIMEOUT_S,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        super().__init__(url, Target("supervisor"), timeout, key_file=key_file, transport=transport)


class ReaderBase(AskerBase[_DriveT]):
    """The base of the blocking and the asyncio Reader."""

    def __init__(
        self, topic: str, *, part: int | None = None, url: Url = None, timeout: float | None = TIMEOUT_S, patient: bool = False,
        on_data_loss: OnDataLoss = "warn", key_file: KeyFile = None, transport: str | None = None,
    ) -> None:  # fmt: skip
        reading.check_loss_option(on_data_loss)
        topic = topic if part is None else part_name(topic, part)
        target = Target("reader", check_name(topic), create=False)
        super().__init__(
            url, target, timeout, patient=patient, key_file=key_file, transport=transport
        )
        self.topic = topic
        self._on_data_loss: OnDataLoss = on_data_loss


class Admin(AdminBase[Drive[RequestEngine]], AdminCalls):
    """Manage topics and channels. What a call changes is durable when it returns.

    `timeout`: the seconds for each call. `url`, `key_file`, `transport`: see `Producer`. If the
    link is lost during a call, it raises `BrokerUnreachable`, and it is not known whether the call
    took effect. The audit log has all calls that change something.
    """

    def peek(self, topic: str, channel: str | None = None, *, count: int = PEEK_COUNT) -> Peek:
        """Look at up to `count` messages of each state (at most 1,000) without receiving them.

        For a channel, these are the messages that it would deliver next, and those in flight (with
        their consumer), requeued, and deferred. For a topic, the newest messages.
        """
        with Reader(topic, timeout=self._timeout, **self._same_place()) as reader:
            held = self._carry_out(peeking.place_of(topic, channel, count))
            return reader._carry_out(peeking.look(topic, channel, held, count))

    def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> dict[str, Any]:
        """Return current statistics of everything, of one topic, or of one channel.

        A topic with parts has a row in "topics" for each part. If the broker of a part does not
        answer, this raises its error. With `partial`, each part has at most 2 s, such rows are
        missing, and "unanswered" has their names, each with the reason.
        """
        stats: dict[str, Any] = self._carry_out(ask_stats(topic, channel, partial=partial))
        return stats


class Reader(ReaderBase[Drive[RequestEngine]], Asker):
    """Read a topic by offset. No channel takes part, and nothing is finished.

    Raises `NotFound` if the topic does not exist, and `UsageError` (E_PARTS) if it has parts and no
    `part` is named: each part has offsets of its own.

    - `url`, `key_file`, `transport`: see `Producer`.
    - `patient`: Also wait, up to `timeout`, for a topic that failed and is being started again, and
      for a bucket that does not return the messages. Otherwise this raises `Refused` at once.
    - `on_data_loss`: What `read` does when it passes messages that are damaged, or that retention
      removed before it reached them. "warn" logs their offsets and the reason, and goes on. "fail"
      raises `DataLoss`. "ignore" does neither. The damaged ones are always in `Fetched.lost`.
    """

    def read(self, offset: int, max_bytes: int = 1 << 20) -> Fetched:
        """Return consecutive blocks of about `max_bytes` bytes, beginning at `offset`, see
        `Fetched`.

        At least one block is returned if any exists. A read at offset 0 begins at the oldest
        message that is kept.
        """
        request = reading.read_on(self.topic, offset, max_bytes, self._on_data_loss)
        return self._carry_out(request)

    def bounds(self) -> tuple[int, int]:
        """Return (oldest kept offset, next offset of the topic): the range that can be read now."""
        return self._carry_out(reading.bounds())

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset that was stored at this time (nanoseconds since 1970) or later.

        If no such message exists, return the end of the topic.
        """
        return self._carry_out(reading.offset_at(time_ns))

    def archive(self) -> Archive | None:
        """Return where the broker has archived full log files of the topic (see `Archive`).

        Returns None if the broker has no bucket.
        """
        return self._carry_out(reading.archive())

    def newest(self, count: int) -> int:
        """Return the offset at which the newest `count` messages begin (at most 10,000; fewer if
        the topic has fewer).
        """
        return self._carry_out(reading.newest(count))

    def message(self, offset: int) -> StoredMessage:
        """Return one message.

        Raises `NotFound` if it was removed, is damaged, or is not published yet.
        """
        return self._carry_out(reading.message(self.topic, offset))

    def measure(
        self, start: int, end: int | None = None, *, max_bytes: int | None = None
    ) -> Measured:
        """Return the size of the messages from `start` to `end` (None: the durable end).

        The messages from `start` to the returned offset have about `max_bytes` bytes. This offset
        is at most `end`, and above `start` if there is any message. This uses the index and reads
        no messages.
        """
        return self._carry_out(reading.measure(start, end, max_bytes))

    def uuid(self) -> str:
        """Return the uuid of the topic.

        A topic that was deleted and created again has another uuid.
        """
        self.bounds()
        assert self._made is not None
        return self._made.engine.uuid

    def arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_bytes: int = ARROW_BYTES,
        on_data_loss: OnDataLoss = "fail",
    ) -> pyarrow.RecordBatchReader:
        """Return the messages from `start` to `end` (exclusive) as a stream of Arrow batches.

        The default is everything that the topic holds now. The batches are made while the caller
        reads, and the stream can be read once, by Polars, DuckDB, pandas or PyArrow. See
        docs/dataframes.md.

        - `columns`: The columns, in this order. All are `offset`, `timestamp`, `timestampType`,
          `topic`, `partition`, `key`, `tag`, `value` (the body), and `headers`. The default leaves
          out `timestampType`, `topic` and `partition`.
        - `on_data_loss`: As in `RangeReader`, whose errors the stream raises when it reaches the
          place. With "warn", the log (`zsq`) gets a warning.

        Raises `UsageError` if pyarrow is not installed (`pip install 'zsq[arrow]'`).
        """
        if start is None or end is None:
            oldest, head = self.bounds()
            start = oldest if start is None else start
            end = max(reading.whole("start", start), head) if end is None else end
        place = self._same_place()
        blocks = RangeReader(
            self.topic,
            start,
            end,
            url=place["url"],
            max_bytes=max_bytes,
            bodies=columns is None or "value" in columns,
            timeout=self._timeout,
            on_data_loss=on_data_loss,
            uuid=self.uuid(),
            key_file=place["key_file"],
            transport=place["transport"],
        )
        return record_batches(blocks, columns)
