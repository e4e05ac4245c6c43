"""Peek: look at the next and the held messages of a channel, or at the newest of a topic. No I/O.

Messages that move during the peek may be shown in their earlier state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...block.block import Block
from ...block.block_format import EXPIRES, REVOCABLE
from ...errors import E_BAD_ARGUMENT, UsageError
from ...names import check_name
from ...units import NS_PER_MS
from ...wire.admin_requests import PeekRequest
from ...wire.answers import ChannelLook, HeldRow
from ...wire.dead_letter import addressees
from ...wire.lifetime import lifetimes_ms, revoke_keys
from . import reading
from .asking import Asking, ask_admin
from .message import Fetched, StoredMessage, count_missing, message_at

PEEK_MAX: Final = 1_000  # the most messages of each state
PEEK_COUNT: Final = 10
# A limit in bytes that reads one block, because a read always returns at least one block.
ONE_BLOCK: Final = 1
READ_BYTES: Final = 1024 * 1024
# The most bytes that one peek reads. This limits the search in a channel whose tags are rare.
LOOK_BYTES_MAX: Final = 16 * 1024 * 1024
STATES: Final = ("requeued", "parked", "new", "in flight", "held", "deferred", "dying")
_NS_PER_S: Final = 1_000_000_000


class Peeked(NamedTuple):
    """One message and its state.

    - `state`: In the order in which they are shown: "requeued" (delivered next, again), "parked"
      (read ahead, and held back for its key or its level), "new" (delivered next), "in flight"
      (begun by a handler), "held" (with a consumer, and no handler has begun it), "deferred",
      "dying" (on its way to the dead letters). For a topic: "stored".
    - `message`: None if it is lost or removed.
    - `attempts`: The number of its attempt, or how many it has used if no consumer has it.
    - `consumer`, `held_s`, `left_s`: The consumer that has it, for how long, and the time until its
      timeout, which runs only in flight.
    - `due_ns`: When a deferred message is due, in ns since 1970.
    - `blocks`: How many messages of its key wait for this one, in an ordered channel.
    - `error`: Why its last delivery failed. The broker remembers the last 200 failures of a
      channel, until it is restarted.
    """

    offset: int
    state: str
    message: StoredMessage | None
    attempts: int = 0
    consumer: str = ""
    held_s: float = 0.0
    left_s: float = 0.0
    due_ns: int = 0
    blocks: int = 0
    error: str = ""

    @property
    def is_blocker(self) -> bool:
        """True if the message has failed, and others wait for it."""
        return bool(self.blocks and self.error)


class Peek(NamedTuple):
    """The result of a peek.

    - `next_offset`: The channel's cursor.
    - `head`: The offset up to which the channel may deliver messages (exclusive).
    - `looked_to`: How far the peek searched. It is below `head` if enough messages were found, or
      if many were left out (by tags or age).
    - `counts`: The number of messages in each state, except "new".
    - `missing`: How many messages that the search has passed cannot be read.
    """

    messages: list[Peeked]
    next_offset: int
    looked_to: int
    head: int
    paused: bool
    counts: dict[str, int]
    missing: int = 0


def check_count(count: int) -> int:
    if type(count) is not int or not 1 <= count <= PEEK_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"the count of a peek must be 1 to {PEEK_MAX} messages of each state, not "
                f"{count!r:.40}"
            ),
        )
    return count


def place_of(topic: str, channel: str | None, count: int) -> Asking[ChannelLook | None]:
    """Ask the supervisor for the position of the channel and the messages that it holds.

    Return None for a topic.
    """
    if channel is None:
        return None
    check_name(topic)
    check_name(channel, "channel")
    return (yield from ask_admin(PeekRequest(topic, channel, limit=check_count(count))))


def look(topic: str, channel: str | None, data: ChannelLook | None, count: int) -> Asking[Peek]:
    """Read the messages of the peek. `data`: the reply to `place_of`."""
    if channel is not None and data is not None:
        return (yield from look_at_channel(topic, channel, data, count))
    first = yield from reading.newest(check_count(count))
    _, head = yield from reading.bounds()
    return (yield from look_at_newest(topic, first, head, count))


def look_at_newest(topic: str, first: int, head: int, count: int) -> Asking[Peek]:
    """Read at most `count` messages of a topic from `first` up to `head`, the newest last."""
    peeked: list[Peeked] = []
    at, missing = first, 0
    while at < head and len(peeked) < count:
        fetched = yield from reading.read(at, READ_BYTES)
        for block in fetched.blocks:
            start = max(0, at - block.first_offset)
            stop = min(block.count, head - block.first_offset, start + count - len(peeked))
            messages = (message_at(topic, block, index) for index in range(start, stop))
            peeked += (Peeked(message.offset, "stored", message) for message in messages)
        missing += count_missing(fetched, at, min(fetched.next_offset, head))
        if fetched.next_offset <= at:
            break  # nothing more exists
        at = fetched.next_offset
    return Peek(peeked, first, min(max(at, first), head), head, False, {}, missing)


def look_at_channel(topic: str, channel: str, data: ChannelLook, count: int) -> Asking[Peek]:
    """Read the messages that belong to the broker's reply about a channel."""
    held = yield from _held(topic, data["held"])
    new, looked_to, missing = yield from _new(topic, channel, data, count)
    peeked = sorted(
        (*held, *new),
        key=lambda message: (
            not message.is_blocker,
            -message.blocks if message.is_blocker else 0,
            STATES.index(message.state) if message.state in STATES else len(STATES),
        ),
    )
    counts = dict(data["counts"])
    place = (data["next_offset"], looked_to, data["head"])
    return Peek(peeked, *place, data["paused"], counts, missing)


def _held(topic: str, rows: Sequence[HeldRow]) -> Asking[list[Peeked]]:
    peeked: list[Peeked] = []
    fetched: Fetched | None = None
    for row in rows:
        facts = (
            row["attempts"],
            row.get("consumer", ""),
            row.get("held_ms", 0) / 1000,
            row.get("left_ms", 0) / 1000,
            row.get("due_ns", 0),
            row.get("blocks", 0),
            row.get("error", ""),
        )
        for offset in range(row["offset"], row["offset"] + row["count"]):
            if fetched is None or not any(
                block.first_offset <= offset < block.next_offset for block in fetched.blocks
            ):
                fetched = yield from reading.read(offset, ONE_BLOCK)
            peeked.append(Peeked(offset, row["state"], _message(topic, offset, fetched), *facts))
    return peeked


def _message(topic: str, offset: int, fetched: Fetched) -> StoredMessage | None:
    for block in fetched.blocks:
        if block.first_offset <= offset < block.next_offset:
            return message_at(topic, block, offset - block.first_offset)
    return None


def _new(
    topic: str, channel: str, data: ChannelLook, count: int
) -> Asking[tuple[list[Peeked], int, int]]:
    """Return the next messages that were never delivered, the end of the search, and how many
    messages before it cannot be read.
    """
    peeked: list[Peeked] = []
    at, head, size, missing = max(data["next_offset"], data["start"]), data["head"], 0, 0
    while at < head and len(peeked) < count and size < LOOK_BYTES_MAX:
        fetched = yield from reading.read(at, READ_BYTES if size else ONE_BLOCK)
        for block in fetched.blocks:
            size += block.length
            for index in _wanted(block, channel, data):
                offset = block.first_offset + index
                if at <= offset < head and len(peeked) < count:
                    peeked.append(Peeked(offset, "new", message_at(topic, block, index)))
        end = peeked[-1].offset + 1 if len(peeked) >= count else min(fetched.next_offset, head)
        missing += count_missing(fetched, at, end)
        if fetched.next_offset <= at:
            break
        at = fetched.next_offset
    return peeked, peeked[-1].offset + 1 if len(peeked) >= count else min(at, head), missing


def _ended(block: Block, age_ns: int, data: ChannelLook) -> Iterator[int]:
    """Yield the indexes of the messages that have expired, or were cancelled by their key."""
    default_ms = int(data["expires_s"] * 1000) if data["expires_s"] > 0 else None
    if default_ms is not None or block.header.flags & EXPIRES:
        for index, own_ms in enumerate(lifetimes_ms(block)):
            lives_ms = default_ms if own_ms is None else own_ms
            if lives_ms is not None and age_ns >= lives_ms * NS_PER_MS:
                yield index
    if data["revoked"] and block.header.flags & REVOCABLE:
        for index, key in enumerate(revoke_keys(block)):
            if key is not None and block.first_offset + index < data["revoked"].get(key, 0):
                yield index


def _wanted(block: Block, channel: str, data: ChannelLook) -> list[int]:
    """Return the indexes of the messages that the channel takes according to its settings."""
    settings = data["settings"]
    tags, max_age_s = settings.get("tags"), settings.get("max_age_s")
    age_ns = data["wall_ns"] - block.header.time_ns
    if max_age_s and max_age_s > 0 and age_ns > max_age_s * _NS_PER_S:
        return []
    others = {index for index, addressee in addressees(block) if addressee != channel}
    others.update(_ended(block, age_ns, data))
    for start, stop in data["absent"]:
        low, high = start - block.first_offset, stop - block.first_offset
        others.update(range(max(0, low), min(block.count, high)))
    if not tags:
        return [index for index in range(block.count) if index not in others]
    wanted = {tag.encode() for tag in tags.split("||")}
    column = block.tag
    return (
        []
        if column is None
        else [
            index
            for index, tag in enumerate(column.values())
            if tag in wanted and index not in others
        ]
    )
