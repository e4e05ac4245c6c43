"""Calls of Reader: their requests to the storage of a topic and the meaning of the replies.

No I/O.
"""

from __future__ import annotations

import logging
import operator
from typing import Any, Final, Literal, NamedTuple, get_args

from ...errors import (
    E_BAD_ARGUMENT,
    E_BAD_COMMAND,
    E_DATA_LOSS,
    CorruptBlock,
    DataLoss,
    UsageError,
)
from ...wire.admin_requests import END
from ...wire.answers import Ends, Place, Size
from ...wire.protocol import Blocks, Fetch, Measure, OffsetAt
from .asking import Asking, Question, Reply, ask
from .message import Fetched, StoredMessage, missing_in, stored

log = logging.getLogger("zsq")

OnDataLoss = Literal["warn", "fail", "ignore"]
LOSS_OPTIONS: Final = get_args(OnDataLoss)
BYTES_ANY: Final = (1 << 63) - 1  # this value means no bound
DURABLE_END: Final = -1
NEWEST_MAX: Final = 10_000


class Measured(NamedTuple):
    """The amount of data between two offsets.

    - `bytes`: The approximate size on disk.
    - `offset`: The messages from the requested `start` to this offset have about `max_bytes` bytes.
    - `start`: The oldest offset that is kept.
    - `head`: The next offset of the topic.
    - `messages`: The number of messages that exist. An offset that was lost, or that a takeover
      skipped, has none.
    """

    bytes: int
    offset: int
    start: int
    head: int
    messages: int


class Archive(NamedTuple):
    """The archive of a topic: the URL of its bucket, and the offset up to which it is complete.

    The messages from the topic's oldest offset to `end` can be read from the bucket. Some of them
    may be on the broker's disk too.
    """

    url: str
    end: int


def whole(name: str, value: Any) -> int:
    """Return a whole number, also one of NumPy, as an int.

    Raises `UsageError` for another type. The broker does not answer a request that is not
    well-formed, so the caller would wait for its time-out.
    """
    try:
        return min(operator.index(value), BYTES_ANY)  # the protocol has 64 bits
    except TypeError:
        text = f"{name} must be a whole number, not {value!r:.60}"
        raise UsageError(E_BAD_ARGUMENT, text) from None


def fetch(offset: int, max_bytes: int, *, bodies: bool = True) -> Question:
    offset, max_bytes = whole("offset", offset), whole("max_bytes", max_bytes)
    if offset < 0 or max_bytes < 1:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"offset must be at least 0 and max_bytes at least 1, not {offset} and {max_bytes}",
        )
    return Question(lambda number: Fetch(number, offset, max_bytes, bodies))


def fetched(reply: Reply) -> Fetched:
    answer, blocks = reply
    assert isinstance(answer, Blocks)
    try:
        lost = [(whole("offset", first), whole("count", count)) for first, count in answer.lost]
    except (TypeError, ValueError):
        raise UsageError(E_BAD_COMMAND, "lost messages must be pairs of numbers") from None
    return Fetched(answer.start, answer.head, blocks, answer.next_offset, lost)


def read(offset: int, max_bytes: int) -> Asking[Fetched]:
    """Read blocks, and try once more if a block is damaged.

    If storage has found the damage at the first read, its offsets are a hole. The second read then
    returns the block after the hole.
    """
    question = fetch(offset, max_bytes)
    for attempt in (1, 2):
        try:
            return fetched((yield question))
        except CorruptBlock:
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


def check_loss_option(on_data_loss: str) -> None:
    if on_data_loss not in LOSS_OPTIONS:
        text = f"on_data_loss must be {', '.join(LOSS_OPTIONS)}, not {on_data_loss!r:.40}"
        raise UsageError(E_BAD_ARGUMENT, text)


def read_on(topic: str, offset: int, max_bytes: int, on_data_loss: OnDataLoss) -> Asking[Fetched]:
    """Read blocks, and report the messages between `offset` and `next_offset` that are missing.

    A read at offset 0 asks for the oldest message that is kept. What retention has removed before
    that one is not missing.
    """
    offset = whole("offset", offset)
    batch = yield from read(offset, max_bytes)
    if on_data_loss == "ignore":
        return batch
    for missing in missing_in(batch, offset or batch.start, batch.next_offset):
        if on_data_loss == "fail":
            advice = (
                f"To leave them out, read on from offset {missing.stop}, or choose another value "
                "for on_data_loss"
            )
            raise DataLoss(E_DATA_LOSS, f"{missing.text(topic)}. {advice}")
        log.warning("%s", missing.text(topic))
    return batch


def bounds() -> Asking[tuple[int, int]]:
    batch = fetched((yield fetch(END, 1)))
    return batch.start, batch.head


def offset_at(time_ns: int) -> Asking[int]:
    reply: Ends = yield from ask(
        Question(lambda number: OffsetAt(number, min(max(whole("time_ns", time_ns), -END), END)))
    )
    return reply["offset"]


def archive() -> Asking[Archive | None]:
    # The offset is not used. This question is the one that is answered without a search.
    place: Place = yield from ask(Question(lambda number: OffsetAt(number, 0, 1)))
    archived = place.get("archive")
    return None if archived is None else Archive(archived["url"], archived["end"])


def newest(count: int) -> Asking[int]:
    count = whole("count", count)
    if not 1 <= count <= NEWEST_MAX:
        raise UsageError(
            E_BAD_ARGUMENT, f"the number of newest messages must be 1 to {NEWEST_MAX}, not {count}"
        )
    reply: Ends = yield from ask(Question(lambda number: OffsetAt(number, 0, count)))
    return reply["offset"]


def message(topic: str, offset: int) -> Asking[StoredMessage]:
    return stored(topic, offset, (yield from read(offset, 1)))


def measure(start: int, end: int | None, max_bytes: int | None) -> Asking[Measured]:
    start = whole("start", start)
    stop = DURABLE_END if end is None else whole("end", end)
    most = BYTES_ANY if max_bytes is None else whole("max_bytes", max_bytes)
    if start < 0 or (end is not None and stop < 0) or most < 1:
        text = "start must be at least 0, end at least 0 or None, and max_bytes at least 1"
        raise UsageError(E_BAD_ARGUMENT, f"{text}, not {start}, {end} and {max_bytes}")
    size: Size = yield from ask(Question(lambda number: Measure(number, start, stop, most)))
    return Measured(size["bytes"], size["offset"], size["start"], size["head"], size["messages"])
