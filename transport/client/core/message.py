"""Messages and batches as users see them, delivered or read by offset. No I/O.

A batch is a lazy view of a delivered block, and a message is one of its rows. Both hold only the
bytes of the delivery. Keys, tags and headers are read from the columns when they are needed.

The module also converts the delay and the reason that a user gives with a requeue or a reject.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from ...block.block import Block
from ...block.block_format import ADDRESSED
from ...errors import E_BAD_ARGUMENT, E_NOT_FOUND, NotFound, UsageError
from ...names import PART_SHIFT
from ...wire.codec import HeaderValue, user_headers
from ...wire.dead_letter import addressee
from ...wire.protocol import BACKOFF, DEAD, ERROR_TEXT_MAX, TRACEBACK_TEXT_MAX
from .consumer_session import EVERY, LeasedBlock
from .deferral import Delay, as_seconds, deferral_ms, delay_ms_of

Reason = str | BaseException
_FRAMES_MAX: Final = 20


def when_again(delay: Delay, backoff: bool) -> int:
    """Return a requeue's delay in milliseconds, or BACKOFF."""
    if not backoff:
        return delay_ms_of(delay)
    if as_seconds(delay):
        raise UsageError(E_BAD_ARGUMENT, "give a delay or backoff=True to requeue, not both")
    return BACKOFF


def as_error(error: Reason) -> str:
    """Return a reason as text that can be sent: an exception as its repr.

    The text is cut to ERROR_TEXT_MAX characters. An exception whose `repr` fails does not make this
    fail, because the message must go back to the channel, whatever its handler raised.
    """
    if isinstance(error, BaseException):
        try:
            error = repr(error)
        except Exception:
            error = type(error).__name__
    if not isinstance(error, str):
        raise UsageError(
            E_BAD_ARGUMENT, f"error must be a text or an exception, not {type(error).__name__}"
        )
    if len(error) > ERROR_TEXT_MAX:
        error = error[: ERROR_TEXT_MAX - 3] + "..."
    # Lone surrogates, as in file names, cannot be sent.
    return error.encode(errors="backslashreplace").decode()[:ERROR_TEXT_MAX]


def as_traceback(error: Reason) -> str:
    """Return the traceback of an exception as text that can be sent, or "".

    It has the lines of the source, and no values of variables. The oldest frames are left out
    first.
    """
    if not isinstance(error, BaseException) or error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error, limit=-_FRAMES_MAX))
    except Exception:  # its own methods may fail, as in `as_error`
        return ""
    text = text.rstrip().encode(errors="backslashreplace").decode()
    return text if len(text) <= TRACEBACK_TEXT_MAX else "..." + text[3 - TRACEBACK_TEXT_MAX :]


ID_DIGITS: Final = 16
OFFSET_BITS: Final = 54


class Fetched(NamedTuple):
    """The result of a read.

    - `start`: The oldest offset that is kept. Retention has removed what was before.
    - `head`: The next offset that will be assigned.
    - `blocks`: Consecutive blocks. The first one contains the requested offset or, if that is lost
      or no longer kept, is the block after it. The list is empty if that block does not exist yet.
    - `next_offset`: The offset at which to continue.
    - `lost`: The damaged messages from the requested offset to `next_offset`, as (first offset,
      count).
    """

    start: int
    head: int
    blocks: list[Block]
    next_offset: int
    lost: Sequence[tuple[int, int]] = ()


DAMAGED: Final = "the broker found damage there; see its log"


class MissingRange(NamedTuple):
    """Offsets from `first` to `stop` (exclusive) that cannot be read, and the reason."""

    first: int
    stop: int
    reason: str

    def text(self, topic: str) -> str:
        """Return a sentence for people, without its full stop."""
        last = self.stop - 1
        offsets = f"offset {last}" if self.first == last else f"offsets {self.first} to {last}"
        return f"{offsets} of topic {topic} cannot be read: {self.reason}"


def removed(first: int, stop: int, start: int) -> MissingRange:
    """Return a range that was removed, usually by retention. `start`: the oldest kept offset."""
    why = f"the topic now begins at offset {start}; older messages were removed"
    return MissingRange(first, stop, why)


def missing_in(fetched: Fetched, first: int, stop: int) -> list[MissingRange]:
    """Return what is missing between two offsets that a read has passed.

    Offsets that no message ever had, because the topic was restored, are not missing. `stop` may be
    beyond `next_offset` only if the read has come to the end of the topic.
    """
    ranges = [
        removed(first, fetched.start, fetched.start),
        *(MissingRange(at, at + count, DAMAGED) for at, count in fetched.lost),
        MissingRange(fetched.next_offset, stop, f"the topic now ends at offset {fetched.head}"),
    ]
    cut = [
        missing._replace(first=max(first, missing.first), stop=min(stop, missing.stop))
        for missing in ranges
    ]
    return [missing for missing in cut if missing.first < missing.stop]


def count_missing(fetched: Fetched, first: int, stop: int) -> int:
    """Return how many messages are missing between two offsets that a read has passed."""
    return sum(missing.stop - missing.first for missing in missing_in(fetched, first, stop))


class StoredMessage(NamedTuple):
    """One message as it is stored in the log.

    - `timestamp_ns`: When it was stored, or the time that it was published with.
    - `headers`: What is not valid is shown as bytes under the name `zsq-unreadable`.
    - `only_channel`: The only channel that gets the message, for example after a redrive. A copy of
      the message goes to all channels.
    """

    topic: str
    offset: int
    timestamp_ns: int
    body: bytes
    key: bytes | None
    tag: str | None
    headers: dict[str, HeaderValue]
    only_channel: str | None = None


def stored(topic: str, offset: int, fetched: Fetched) -> StoredMessage:
    """Return the message with this offset from the result of a read at the offset.

    Raises `NotFound` with the reason if the result does not contain it.
    """
    block = fetched.blocks[0] if fetched.blocks else None
    if block is None or not block.first_offset <= offset < block.next_offset:
        following = fetched.next_offset if block is None else block.first_offset
        why = f"no message has this offset; the next one has {following}"
        if any(first <= offset < first + count for first, count in fetched.lost):
            why = (
                "it was damaged, and the broker moved it aside; the next message has offset "
                f"{following}"
            )
        elif offset < fetched.start:
            why = f"the topic begins at offset {fetched.start}; older messages were removed"
        elif offset >= fetched.head:
            why = f"the topic ends at offset {fetched.head}"
        raise NotFound(E_NOT_FOUND, f"topic {topic} has no message {offset}: {why}")
    return message_at(topic, block, offset - block.first_offset)


def message_at(topic: str, block: Block, index: int) -> StoredMessage:
    key, tag, headers = (
        None if column is None else column.value(index)
        for column in (block.key, block.tag, block.headers)
    )
    return StoredMessage(
        topic,
        block.first_offset + index,
        block.time_of(index),
        block.body.value(index) or b"",
        key,
        None if tag is None else tag.decode(errors="replace"),
        user_headers(headers),
        addressee(headers) if block.header.flags & ADDRESSED else None,
    )


def id_of(offset: int, node: int, part: int | None) -> str:
    """Return the id of a message: 16 hex digits.

    If the topic has no parts, the id begins with the number of the broker's node, in 10 bits. Then
    comes the offset. If the topic has parts, the id begins with the number of the part, in 8 bits,
    because a part keeps its number and its offsets when it moves to another broker. NSQ's clients
    get the same id.
    """
    place = node << OFFSET_BITS if part is None else part << PART_SHIFT
    return f"{place | offset:0{ID_DIGITS}x}"


def part_in_id(text: str) -> int:
    """Return the number of the part in the id of a message of a topic with parts."""
    return int(text, 16) >> PART_SHIFT


def parse_id(text: str) -> tuple[int | None, int]:
    """Return (node, offset) of a message id, or (None, offset) of a decimal offset.

    An id is 16 hex digits: 10 bits for the node and 54 bits for the offset. If the topic has parts,
    the node means nothing, and `part_in_id` returns the part.
    """
    if (
        len(text) == ID_DIGITS
        and text.isascii()
        and all(digit in "0123456789abcdefABCDEF" for digit in text)
    ):
        number = int(text, 16)
        return number >> OFFSET_BITS, number & ((1 << OFFSET_BITS) - 1)
    if text.isascii() and text.isdigit() and len(text) < ID_DIGITS:
        return None, int(text)
    raise UsageError(
        E_BAD_ARGUMENT,
        (
            f"{text!r} is neither an offset (at most 15 digits) nor a message id ({ID_DIGITS} hex "
            "digits)"
        ),
    )


class MessageView:
    """The contents of one message. `body` is bytes.

    `_consumer` is set when a consumer hands the message out. It keeps the consumer open until the
    message is dropped, too. A message that still waits in a consumer has no strong reference to it,
    so a consumer that is dropped is closed at once, and the message goes back to the channel.
    """

    # `_delay_ms` is set only when the message is given back.
    __slots__ = ("_answered", "_batch", "_consumer", "_delay_ms", "_index", "body")
    _consumer: Any
    _delay_ms: int

    def __init__(self, batch: Any, index: int, body: bytes) -> None:
        self._batch = batch
        self._index = index
        self._answered = False
        self.body = body

    @property
    def key(self) -> bytes | None:
        """The key as published, or None."""
        column = self._batch.block.key
        return None if column is None else column.value(self._index)

    @property
    def tag(self) -> str | None:
        """The tag as published, or None."""
        column = self._batch.block.tag
        value = None if column is None else column.value(self._index)
        return None if value is None else value.decode(errors="replace")

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers, or {}. Each call returns its own mapping."""
        column = self._batch.block.headers
        return {} if column is None else user_headers(column.value(self._index))

    @property
    def id(self) -> str:
        """The id as `zsq message` and NSQ's clients show it: 16 hex digits.

        The first 10 bits are the number of the broker's node, or in a topic with parts the first 8
        the number of the part. The last 54 bits are the offset.
        """
        session = self._batch.delivery.session
        return id_of(self._batch.delivery.offset(self._index), session.node, session.part)

    @property
    def part(self) -> int | None:
        """The part of the topic, in which the offset counts. None if the topic has no parts."""
        part: int | None = self._batch.delivery.session.part
        return part

    def json(self) -> Any:
        """Parse the body as JSON and return it as Python values.

        Raises `ValueError` if the body is not JSON.
        """
        return json.loads(self.body)

    @property
    def offset(self) -> int:
        """The offset in the topic.

        It is the same for every channel and reader, and offsets have no gaps.
        """
        return self._batch.delivery.offset(self._index)  # type: ignore[no-any-return]

    @property
    def timestamp_ns(self) -> int:
        """The time when the message was stored, or the time that it was published with, in
        nanoseconds since 1970.
        """
        return self._batch.block.time_of(self._index)  # type: ignore[no-any-return]

    @property
    def attempts(self) -> int:
        """The number of this delivery: 1 for the first one."""
        return self._batch.delivery.attempts(self._index)  # type: ignore[no-any-return]

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self._batch.delivery.session.topic  # type: ignore[no-any-return]

    @property
    def channel(self) -> str:
        """The name of the channel that delivered it."""
        return self._batch.owner.channel  # type: ignore[no-any-return]

    @property
    def answered(self) -> bool:
        """True if this object has finished, requeued, deferred, or rejected the message."""
        return self._answered

    @property
    def leased(self) -> bool:
        """True while this consumer holds the message, as far as the client knows.

        It is False after the message was answered, when its timeout has passed, and when the
        connection was lost. Check it before you begin with a message that has waited.
        """
        delivery = self._batch.delivery
        return (
            not self._answered
            and delivery.live
            and not delivery.session.over
            and not delivery.expired(self._index, time.monotonic_ns())
        )

    @property
    def cancelled(self) -> bool:
        """True if a user has cancelled the message since the program got it.

        It is not delivered again, whatever the answer is. See "Cancelling messages" in
        lifetimes.md.
        """
        return self._index in self._batch.delivery.cancelled

    def _answer(self) -> None:
        if self._answered:
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"message {self.offset} is already answered; finish, requeue, defer or "
                    "reject a message only once"
                ),
            )
        self._batch.delivery.check_open()
        self._answered = True

    def _give_back(self, delay_ms: int, error: Reason = "", *, defer: bool = False) -> None:
        texts = as_error(error), as_traceback(error)
        self._answer()
        self._delay_ms = delay_ms
        owner, delivery = self._batch.owner, self._batch.delivery
        owner._requeue(delivery, (self._index,), delay_ms, *texts, defer)

    def __repr__(self) -> str:
        return (
            f"<Message {self.topic}/{self.channel} offset {self.offset}, attempt "
            f"{self.attempts}, {len(self.body)} bytes>"
        )


class Message(MessageView):
    """One message. Its `body` is bytes.

    Answer it once: with `finish`, `requeue`, `defer`, or `reject`.
    """

    __slots__ = ()

    def finish(self, *, sync: bool = False) -> None:
        """Finish the message.

        Without `sync`, this returns at once, and the finish is sent within 20 ms. `flush` waits
        until all such finishes are confirmed. With `sync=True` this waits until the finish is
        committed. It raises `LeaseLost` if the lease ended before that, or `BrokerUnreachable`
        after the timeout.
        """
        batch = self._batch
        if self._answered or batch.delivery.session.over:
            self._answer()
        self._answered = True
        if sync:
            batch.owner._finish_sync(batch.delivery, (self._index,))
        elif batch.delivery.finish(self._index):
            batch.owner._noted()

    def requeue(self, delay: Delay = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        """Deliver the message again, to any consumer.

        `delay`: seconds or a timedelta, at most 366 days. With `backoff`, the channel's settings
        decide the delay. `error`: the reason, a text or an exception, at most 512 characters. After
        the last attempt that the channel's `max_attempts` allows, the message goes to the dead
        letters instead, with the error and its traceback.
        """
        self._give_back(when_again(delay, backoff), error)

    def defer(self, delay: Delay = 0.0, *, until: datetime | None = None) -> None:
        """Put the message off: it comes again after `delay` or at `until`, to any consumer.

        This uses no attempt and is no failure. `delay`: seconds or a timedelta, at most 366 days.
        `until`: a datetime (local time if it has no zone). Without both, it goes back to the
        channel at once.
        """
        self._give_back(deferral_ms(delay, until), defer=True)

    def reject(self, error: Reason = "") -> None:
        """Send the message to the dead letters now, even if it has attempts left.

        `error`: the reason, a text or an exception, at most 512 characters.
        """
        self._give_back(DEAD, error)

    def touch(self) -> None:
        """Restart the message timeout now, for this message and all others of its delivery.

        A message can be held for 15 minutes in all, unless the channel's `max_hold_s` allows more.
        """
        self._batch.delivery.check_open()
        self._batch.owner._touch(self._batch.delivery)


_MessageT = TypeVar("_MessageT", bound=MessageView)


class BatchView(Generic[_MessageT]):
    """A delivery: messages of one block, or of several blocks if some are redelivered."""

    __slots__ = ("_bodies", "block", "delivery", "owner")
    message: type[_MessageT]

    def __init__(self, owner: Any, delivery: LeasedBlock) -> None:
        self.owner = owner
        self.delivery = delivery
        self.block: Block = delivery.block
        self._bodies: list[bytes] | None = None

    def __len__(self) -> int:
        return self.block.count

    @property
    def topic(self) -> str:
        """The name of the topic. All messages of a delivery are from one topic."""
        return self.delivery.session.topic

    @property
    def bodies(self) -> list[bytes]:
        """All bodies. They are created at the first use and then kept."""
        if self._bodies is None:
            self._bodies = self.block.body.values()  # type: ignore[assignment]
        return self._bodies  # type: ignore[return-value]

    @property
    def offsets(self) -> list[int]:
        """The offset of each message, in order."""
        return [
            offset
            for first, count, _ in self.delivery.runs
            for offset in range(first, first + count)
        ]

    @property
    def attempts(self) -> list[int]:
        """The attempt number of each message: 1 for the first delivery."""
        return [attempts for _, count, attempts in self.delivery.runs for _ in range(count)]

    def messages(self) -> list[_MessageT]:
        """Return one object for each message. Answer each one by itself, or the batch as a
        whole.
        """
        make = self.message
        return [make(self, index, body) for index, body in enumerate(self.bodies)]

    def _give_back(self, delay_ms: int, error: Reason = "", *, defer: bool = False) -> None:
        texts = as_error(error), as_traceback(error)
        self.delivery.check_open()
        unanswered = self.delivery.unanswered()
        self.owner._requeue(self.delivery, unanswered, delay_ms, *texts, defer)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}/{self.owner.channel} from offset "
            f"{self.delivery.runs[0][0]}, {len(self)} messages>"
        )


class Batch(BatchView[Message]):
    """A delivery of a blocking consumer.

    An answer to the whole batch leaves out the messages that were already answered one by one.
    """

    __slots__ = ()
    message = Message

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def finish(self, *, sync: bool = False) -> None:
        """Finish all messages of the batch, as one range. See `Message.finish`."""
        self.delivery.check_open()
        if sync:
            self.owner._finish_sync(self.delivery, (EVERY,))
        elif self.delivery.finish(EVERY):
            self.owner._noted()

    def requeue(self, delay: Delay = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        """Requeue all messages that are not answered. See `Message.requeue`."""
        self._give_back(when_again(delay, backoff), error)

    def defer(self, delay: Delay = 0.0, *, until: datetime | None = None) -> None:
        """Put off all messages that are not answered. See `Message.defer`."""
        self._give_back(deferral_ms(delay, until), defer=True)

    def reject(self, error: Reason = "") -> None:
        """Send all messages that are not answered to the dead letters now. See `Message.reject`."""
        self._give_back(DEAD, error)

    def touch(self) -> None:
        """Restart the message timeout now.

        A message can be held for 15 minutes in all, unless the channel's `max_hold_s` allows more.
        """
        self.delivery.check_open()
        self.owner._touch(self.delivery)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        """Finish all messages, or requeue them if the `with` block raised an exception."""
        if kind is None:
            self.finish()
        else:
            self.requeue(error=error or "")
