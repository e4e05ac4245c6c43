"""Dead letters of a channel: packed here and handed to the dead-letter topic. No I/O.

`DeadLetters` then waits until they are stored. These are its states:

    IDLE     nothing is on its way
    SENDING  a batch was handed over, and its replies are awaited
    RESTING  part of the batch was refused (a full topic or disk, a closed topic, an invalid name).
             It is sent again after a pause.

Messages that die in the meantime wait as rows. So a dead-letter topic that accepts nothing costs
the memory of one batch. If this goes on, the channel finally takes no new messages (HOLE_ROWS_MAX).
While this process lives, the stored part of a batch is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from ...transport.block.block import BLOCK_COUNT_MAX, LARGEST, Block, pack
from ...transport.client.core.producer_session import PendingBlock
from ...transport.errors import CorruptBlock, ZsqError
from ...transport.wire import dead_letter
from ...transport.wire.codec import HeaderValue
from ...transport.wire.lifetime import with_lifetime
from ..settings import options
from ..settings.channel_settings import dead_letter_topic
from .dying import Dead
from .supply import Supply

Post = Callable[[str, Sequence[Block]], list[PendingBlock]]
BLOCK_BYTES: Final = options.GATHER_BYTES_MAX


class LetterState(Enum):
    IDLE = "idle"
    SENDING = "sending"
    RESTING = "resting"


TRANSITIONS: Final[dict[LetterState, dict[str, LetterState]]] = {
    LetterState.IDLE: {
        "picked": LetterState.SENDING,
        "impossible": LetterState.RESTING,
        "cleared": LetterState.IDLE,
    },
    LetterState.SENDING: {
        "stored": LetterState.IDLE,
        "refused": LetterState.RESTING,
        "cleared": LetterState.IDLE,
    },
    LetterState.RESTING: {
        "again": LetterState.SENDING,
        "impossible": LetterState.RESTING,
        "stored": LetterState.IDLE,
        "cleared": LetterState.IDLE,
    },
}


class DeadLetters:
    """The dead letters of one channel.

    `post` hands blocks to a topic and returns at once. The pending blocks that it returns show the
    results.
    """

    def __init__(self, topic: str, uuid: str, channel: str, post: Post) -> None:
        self._topic = topic
        self._uuid = uuid
        self._channel = channel
        self._post = post
        self.state = LetterState.IDLE
        self.trouble = ""
        """The reason of the last failure, or "" if the last try succeeded."""
        self._blocks: list[Block] = []
        self._pending: list[PendingBlock] = []
        self._batch = 0
        self._tries = 0
        self._since_ns = 0  # the start of SENDING, or the end of RESTING

    def _go(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]

    def turn(self, supply: Supply, now_ns: int, wall_ns: int, more: bool = True) -> None:
        """Do one turn of the loop, and report stored messages to `supply`.

        If `more` is False, send nothing, only wait for replies.
        """
        if self._batch != supply.dying.batch:  # a seek gave up the batch, stored or not
            self._end("cleared", supply)
        if self.state is LetterState.SENDING and all(pending.done for pending in self._pending):
            self._answered(supply, now_ns)
        if not more:
            return
        if self.state is LetterState.RESTING and now_ns >= self._since_ns:
            self._send(supply, "again", now_ns)
        if self.state is LetterState.IDLE and supply.dying.waiting:
            batch = supply.next_dead()
            self._batch = supply.dying.batch
            if batch:
                try:
                    self._blocks = letters(batch, self._topic, self._uuid, self._channel, wall_ns)
                except CorruptBlock:
                    supply.take_back_dead()
                    self._batch = supply.dying.batch
                    return
                self._send(supply, "picked", now_ns)

    def _send(self, supply: Supply, event: str, now_ns: int) -> None:
        try:
            topic = dead_letter_topic(self._topic, self._channel, supply.settings)
            self._pending = self._post(topic, self._blocks)
        except ZsqError as error:
            self._rest("impossible", error, now_ns)
            return
        self._since_ns = now_ns
        self._go(event)

    def _answered(self, supply: Supply, now_ns: int) -> None:
        failed = [
            (block, pending.error)
            for block, pending in zip(self._blocks, self._pending, strict=True)
            if pending.error is not None
        ]
        if not failed:
            supply.dead()
            self._end("stored", supply)
            return
        self._blocks = [block for block, _ in failed]
        self._rest("refused", failed[0][1], now_ns)

    def _rest(self, event: str, error: ZsqError | None, now_ns: int) -> None:
        self._go(event)
        self._pending = []
        self.trouble = str(error)
        pause_s = min(options.DEAD_RETRY_S_MAX, options.DEAD_RETRY_S * 2.0 ** min(self._tries, 30))
        self._tries += 1
        self._since_ns = now_ns + int(pause_s * 1e9)

    def _end(self, event: str, supply: Supply) -> None:
        self._go(event)
        self._blocks, self._pending = [], []
        self._batch = supply.dying.batch
        self._tries = 0
        self.trouble = ""

    def try_now(self) -> None:
        """End a pause at once, because the settings have changed."""
        self._since_ns = 0 if self.state is LetterState.RESTING else self._since_ns

    def alarm(self, supply: Supply, now_ns: int, trouble: str) -> str:
        """Return the alarm for the health report, or "" if there is none.

        `trouble` is the known problem of the link.
        """
        waiting = supply.dying.messages()
        silent = (
            self.state is LetterState.SENDING
            and now_ns - self._since_ns > options.DEAD_SILENT_S * 1e9
        )
        why = self.trouble or (trouble or "no answer" if silent else "")
        return (
            f"{waiting:,} messages wait for the dead-letter topic: {why}" if waiting and why else ""
        )


Row = tuple[Any, bytes | None, bytes | None, bytes, int]  # a message: body, key, tag, headers, time


def letters(
    batch: Sequence[Dead], topic: str, uuid: str, channel: str, wall_ns: int
) -> list[Block]:
    """Return the batch as blocks for the dead-letter topic, in order.

    Each message keeps its time. If this function raises `CorruptBlock`, no block was made.
    """
    blocks: list[Block] = []
    rows: list[Row] = []
    size = 0
    for death, (block, start, stop) in batch:
        block.check_messages(((start, stop),))
        first, _, attempts = death.run
        about: dict[str, HeaderValue] = {
            dead_letter.TOPIC: topic, dead_letter.UUID: uuid, dead_letter.CHANNEL: channel, dead_letter.ATTEMPTS_MADE: attempts,
            dead_letter.REASON: death.reason, dead_letter.ERROR: death.cause.error, dead_letter.TIME: wall_ns,
        }  # fmt: skip
        if death.cause.consumer:
            about[dead_letter.CONSUMER] = death.cause.consumer
        if death.cause.traceback:
            about[dead_letter.TRACEBACK] = death.cause.traceback
        columns = block.key, block.tag, block.headers
        for index in range(start, stop):
            about[dead_letter.OFFSET] = first + index - start
            key, tag, headers = (
                None if column is None else column.value(index) for column in columns
            )
            row = (
                block.body.value(index),
                key,
                tag,
                dead_letter.pack_dead(headers, about),
                block.time_of(index),
            )
            row_size = sum(len(value) for value in row[:4] if value is not None)
            if rows and (size + row_size > BLOCK_BYTES or len(rows) >= BLOCK_COUNT_MAX):
                blocks.append(_seal(rows))
                rows, size = [], 0
            rows.append(row)
            size += row_size
    return [*blocks, _seal(rows)]


def _seal(rows: Sequence[Row]) -> Block:
    keys, tags = [row[1] for row in rows], [row[2] for row in rows]
    headers = [row[3] for row in rows]
    block = pack(
        [row[0] for row in rows],
        keys=keys if any(key is not None for key in keys) else None,
        tags=tags if any(tag is not None for tag in tags) else None,
        headers=headers,
        times=[row[4] for row in rows],
        limits=LARGEST,
    )
    return with_lifetime(block, headers)
