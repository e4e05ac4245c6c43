"""Range reader: reads a range of offsets at full speed, with one request always sent ahead."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from ...block.block import Block
from ...errors import E_BAD_ARGUMENT, E_DATA_LOSS, DataLoss, UsageError
from ...names import check_name
from ...wire.address import Target
from ...wire.addresses import Url
from ...wire.credentials import KeyFile
from ..core.message import Fetched, missing_in
from ..core.reading import OnDataLoss, check_loss_option, fetch, fetched, whole
from ..core.requester import Request
from .asker import Asker
from .producer import TIMEOUT_S

log = logging.getLogger("zsq")

GAPS_LOGGED: Final = 20
GAPS_MAX: Final = 1000  # the most gaps that are listed; `lost` counts the offsets of all gaps


class RangeReader(Asker):
    """Iterate over the blocks of a topic that overlap [start, end), in order.

    The first block may begin below `start`, and the last one may end above `end`. The caller must
    leave out the messages outside of the range. Without `bodies`, all bodies are empty, and the
    broker does not send them. At most two replies of about `max_bytes` bytes are in memory. The
    same range always gives the same messages, also if you iterate again.

    Offsets that do not exist (removed by retention, damaged, or beyond the end) raise `DataLoss`
    when the iteration reaches them. With `on_data_loss` "warn" or "ignore" they are left
    out, listed in `gaps` as (first offset, count), and counted in `lost`. With "warn", the log
    (`zsq`) gets a warning at the end. Offsets that a topic skips because it
    was restored from a bucket are left out without an error. With `uuid` (see `Reader.uuid`), a
    topic that was created again under the same name always raises `DataLoss`. Raises `NotFound` if
    the topic does not exist, and, if one reply takes longer than `timeout` seconds,
    `BrokerUnreachable`, or `Refused` if the broker gave the reason.
    """

    def __init__(
        self,
        topic: str,
        start: int,
        end: int,
        *,
        url: Url = None,
        max_bytes: int = 1 << 20,
        bodies: bool = True,
        timeout: float | None = TIMEOUT_S,
        on_data_loss: OnDataLoss = "fail",
        uuid: str = "",
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        super().__init__(
            url,
            Target("reader", check_name(topic), create=False),
            timeout,
            patient=True,
            key_file=key_file,
            transport=transport,
        )
        check_loss_option(on_data_loss)
        start, end = whole("start", start), whole("end", end)
        max_bytes = whole("max_bytes", max_bytes)
        if not 0 <= start <= end or max_bytes < 1:
            text = "a range must have 0 <= start <= end and max_bytes of at least 1"
            raise UsageError(
                E_BAD_ARGUMENT, f"{text}, not start {start}, end {end} and max_bytes {max_bytes}"
            )
        self.topic = topic
        self.start = start
        self.end = end
        self.gaps: list[tuple[int, int]] = []
        self.lost = 0
        self._bytes_max = max_bytes
        self._bodies = bodies
        self._on_data_loss = on_data_loss
        self._uuid = uuid

    def __iter__(self) -> Iterator[Block]:
        if self.start == self.end:
            return
        self.gaps.clear()
        self.lost = 0
        offset = self.start
        ahead: Request | None = self._fetch(offset)
        try:
            while ahead is not None:
                batch = fetched(self._reply(ahead))
                self._check_topic()
                reached = batch.next_offset
                # A reply with no higher offset means the end of the topic.
                ahead = self._fetch(reached) if offset < reached < self.end else None
                for block in batch.blocks:
                    if block.first_offset >= self.end:
                        break
                    self._note(offset, block.first_offset, batch)
                    yield block
                    offset = block.next_offset
                if ahead is None:
                    reached = self.end
                self._note(offset, min(reached, self.end), batch)
                offset = max(offset, reached)
        finally:
            if ahead is not None:
                self._give_up(ahead)
        if self.lost and self._on_data_loss == "warn":
            log.warning(
                "%d messages of topic %s do not exist and were left out; first offset and count "
                "of each gap: %s",
                self.lost,
                self.topic,
                self.gaps[:GAPS_LOGGED],
            )

    def _fetch(self, offset: int) -> Request:
        return self._send(fetch(offset, self._bytes_max, bodies=self._bodies))

    def _check_topic(self) -> None:
        if not self._uuid or self._made is None:
            return
        uuid = self._made.engine.uuid
        if uuid != self._uuid:
            text = (
                f"topic {self.topic} was deleted and created again (uuid {uuid}, not "
                f"{self._uuid}); its old messages no longer exist"
            )
            raise DataLoss(E_DATA_LOSS, text)

    def _note(self, first: int, stop: int, batch: Fetched) -> None:
        for missing in missing_in(batch, first, stop):
            if self._on_data_loss == "fail":
                advice = (
                    'To leave them out, set on_data_loss="warn" (Spark: failOnDataLoss=false, '
                    "zsq export: --skip-lost)"
                )
                raise DataLoss(E_DATA_LOSS, f"{missing.text(self.topic)}. {advice}")
            count = missing.stop - missing.first
            self.lost += count
            if len(self.gaps) < GAPS_MAX:
                self.gaps.append((missing.first, count))
