"""The ledger of the soak: a record of what happened to every message. It is kept outside of the
broker, and does no input or output.

Each message has a number, which its body carries. For each number the ledger knows when the message
was sent, answered, due and cancelled, and at which offset it is stored. For each channel and each
offset it knows whether the message was delivered, finished, dead-lettered or passed over. `removed`
and `unexplained` compare the messages with the offsets. If they find a message without an
explanation, the broker has broken a promise.

Clients record a request before they send it, and its answer after they receive it. If a process is
killed between these two moments, the ledger knows less, but it never claims anything false.

If an operator moves a channel with `seek` while its consumers continue, a delivery may be from
before the move or from after it. Such a channel is *turbulent* until all of its consumers have
subscribed again. Deliveries of a turbulent channel are not compared.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

# The most complaints that are kept, for a run in which everything fails. The first ones already
# show what is wrong.
COMPLAINTS_MAX: Final = 200
SHOWN: Final = 5  # the most numbers listed in one complaint

# States of a message in a channel, by its offset. A confirmed finish is FINISHED plus the number of
# the consumer.
AWAITED, TOLD, PASSED, EITHER, DEAD, FINISHED = range(6)
# No run has so many messages, so a larger step in the offsets is an error.
STEP_MAX: Final = 50_000_000
# State before a seek -> state of an offset that the seek passes over.
LEFT_OUT: Final = bytes(
    PASSED if state in (AWAITED, TOLD, EITHER) else state for state in range(256)
)
NOT_ASKED, ASKED, CANCELLED = range(3)  # states of the cancellation of a delayed message


def body_of(number: int, size: int) -> bytes:
    """Return a body of about `size` bytes that carries its number and a checksum of the whole
    body.
    """
    text = b"%012d:" % number + b"z" * size
    return text + b"%08x" % zlib.crc32(text)


def number_of(body: bytes) -> int:
    """Return the number of a body, or -1 if the body was altered or was not made by `body_of`."""
    if len(body) < 21 or not body[:12].isdigit() or body[-8:] != b"%08x" % zlib.crc32(body[:-8]):
        return -1
    return int(body[:12])


@dataclass
class Topic:
    """One life of a topic, from its creation to its deletion. A topic that is made again under the
    same name is another `Topic`.
    """

    name: str
    first: int = 0  # the first offset of this life
    at: dict[int, int] = field(default_factory=dict)  # offset -> number
    start: int = 0  # the oldest offset of the log in the last comparison
    read_to: int = 0  # the offset up to which the log was read
    deleted: bool = False
    removed: int = 0
    channels: list[Channel] = field(default_factory=list)


class Table:
    """A table with one byte for each offset from `first` on. A topic that is made again may begin
    at an offset of 2^32 or more.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._bytes = bytearray()

    @property
    def end(self) -> int:
        """Return the offset after the last one that has a byte."""
        return self._first + len(self._bytes)

    def extend(self, count: int) -> None:
        self._bytes.extend(bytes(count))

    def _part(self, begin: int, end: int) -> slice:
        return slice(max(0, begin - self._first), max(0, end - self._first))

    def of(self, begin: int, end: int) -> bytearray:
        """Return the bytes of the offsets from `begin` up to `end`."""
        return self._bytes[self._part(begin, end)]

    def fill(self, begin: int, end: int, value: int) -> None:
        part = self._part(begin, end)
        self._bytes[part] = bytes([value]) * len(self._bytes[part])

    def leave_out(self, end: int) -> None:
        """Translate the bytes before `end` by the table LEFT_OUT."""
        part = self._part(self._first, end)
        self._bytes[part] = self._bytes[part].translate(LEFT_OUT)

    def __getitem__(self, offset: int) -> int:
        if offset < self._first:
            raise IndexError(f"offset {offset} is before the topic's first one, {self._first}")
        return self._bytes[offset - self._first]

    def __setitem__(self, offset: int, value: int) -> None:
        if offset < self._first:
            raise IndexError(f"offset {offset} is before the topic's first one, {self._first}")
        self._bytes[offset - self._first] = value

    def __iter__(self) -> Iterator[int]:
        return iter(self._bytes)


@dataclass
class Channel:
    """One life of a channel, from its creation to its deletion."""

    topic: Topic
    name: str
    consumers: int = 1
    turbulent: bool = False
    # Offsets whose finish was sent since the seek began.
    told_since: set[int] = field(default_factory=set)
    sought_ns: int = 0  # when the last seek was answered
    deleted: bool = False

    def __post_init__(self) -> None:
        self.state = Table(self.topic.first)
        # By offset: the attempt whose finish was confirmed.
        self.finished_attempt = Table(self.topic.first)
        # For each consumer, by offset: the last attempt that it received.
        self.attempts = [Table(self.topic.first) for _ in range(self.consumers)]

    @property
    def tables(self) -> list[Table]:
        return [self.state, self.finished_attempt, *self.attempts]

    def reach(self, offset: int) -> None:
        """Make the tables long enough for this offset."""
        more = offset + 1 - self.state.end
        if more > STEP_MAX:
            raise ValueError(
                f"channel {self.name}: offset {offset} came, and the largest before it was "
                f"below {self.state.end}"
            )
        if more > 0:
            for table in self.tables:
                table.extend(more + 4096)


class Ledger:
    """The record of everything that was promised and everything that was seen. Any thread may call
    any method.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.RLock()
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()
        self.topics: list[Topic] = []
        self._topic = array("H")  # by the number of the message
        self._answered = bytearray()
        self._cancel = bytearray()
        self._due_ns = array("q")
        self._offset = array("q")

    def complain(self, text: str) -> None:
        with self._lock:
            self.counts["complaints"] += 1
            if len(self.complaints) < COMPLAINTS_MAX:
                self.complaints.append(text)

    @property
    def messages(self) -> int:
        return len(self._offset)

    # What the operator and the producers record

    def add_topic(self, name: str, first: int = 0) -> Topic:
        with self._lock:
            topic = Topic(name, first, start=first, read_to=first)
            self.topics.append(topic)
            return topic

    def add_channel(
        self, topic: Topic, name: str, floor: tuple[int, int], consumers: int = 1
    ) -> Channel:
        """Add a channel. `floor` gives the offset at which it began, as (at least, at most)."""
        with self._lock:
            channel = Channel(topic, name, consumers)
            if floor[1]:
                channel.reach(floor[1])
                channel.state.fill(topic.first, floor[0], PASSED)
                channel.state.fill(floor[0], floor[1], EITHER)
            topic.channels.append(channel)
            return channel

    def delete_topic(self, topic: Topic) -> None:
        """Record that an operator asked to delete the topic: none of its messages is expected any
        more.
        """
        with self._lock:
            topic.deleted = True
            self.counts["topics deleted"] += 1

    def delete_channel(self, channel: Channel) -> None:
        with self._lock:
            channel.deleted = True
            channel.topic.channels.remove(channel)
            self.counts["channels deleted"] += 1

    def sent(self, topic: Topic, count: int, due_ns: int = 0) -> range:
        """Give numbers to messages that are about to be published."""
        with self._lock:
            first = len(self._offset)
            self._topic.extend([self.topics.index(topic)] * count)
            self._answered.extend(bytes(count))
            self._cancel.extend(bytes(count))
            self._due_ns.extend([due_ns] * count)
            self._offset.extend([-1] * count)
            return range(first, first + count)

    def acknowledged(self, numbers: Sequence[int], offset: int = -1) -> None:
        """Record that the publish was answered, and its first offset if that is known."""
        with self._lock:
            for index, number in enumerate(numbers):
                self._answered[number] = 1
                if offset >= 0:
                    self._place(
                        self.topics[self._topic[number]], offset + index, number, "the receipt says"
                    )

    def cancelling(self, numbers: Iterable[int]) -> None:
        """Record that these delayed messages are about to be cancelled."""
        with self._lock:
            for number in numbers:
                self._cancel[number] = ASKED

    def cancelled(self, numbers: Sequence[int], outcome: Sequence[bool]) -> None:
        """Record the broker's answers. True: the message will never be delivered. False: it is
        already in the topic.
        """
        with self._lock:
            for number, done in zip(numbers, outcome, strict=True):
                self._cancel[number] = CANCELLED if done else NOT_ASKED
                if done and self._offset[number] >= 0:
                    self.complain(
                        f"{number} was cancelled, and stands in the log at {self._offset[number]}"
                    )
            self.counts["cancelled"] += sum(outcome)

    # What is seen of a message, from any source

    def _place(self, topic: Topic, offset: int, number: int, who: str) -> None:
        """Record that this offset belongs to this message. Complain if the offset belonged to
        another message, or the message to another offset.
        """
        known = topic.at.setdefault(offset, number)
        if known != number:
            self.complain(f"{topic.name}: offset {offset} named {known}, and now {who} {number}")
        elif self._offset[number] < 0:
            self._offset[number] = offset
        elif self._offset[number] != offset:
            self.complain(
                f"{topic.name}: {number} is stored twice: at {self._offset[number]}, and {who} "
                f"{offset}"
            )

    def _seen(self, topic: Topic, offset: int, body: bytes, who: str) -> int:
        """Return the number of a body that came from the broker, or complain and return -1."""
        number = number_of(body)
        if number < 0:
            self.complain(
                f"{topic.name}: {who} {offset}, whose body is altered or none of ours: "
                f"{body[:40]!r}"
            )
            return -1
        if number >= len(self._offset) or self.topics[self._topic[number]] is not topic:
            self.complain(f"{topic.name}: {who} {number} at {offset}, which was never sent there")
            return -1
        if self._due_ns[number] > (now := self._now_ns()):
            self.complain(
                f"{topic.name}: {who} {number}, {self._due_ns[number] - now} ns before it is due"
            )
        if self._cancel[number] == CANCELLED:
            self.complain(f"{topic.name}: {who} {number} at {offset}, which was cancelled")
        self._place(topic, offset, number, who)
        return number

    def logged(self, topic: Topic, offset: int, body: bytes) -> None:
        """Record that the log contains this message. The log must be read in order of offsets,
        without a gap.
        """
        with self._lock:
            if offset != topic.read_to:
                self.complain(
                    f"{topic.name}: after offset {topic.read_to} the log goes on with {offset}"
                )
            topic.read_to = offset + 1
            self._seen(topic, offset, body, "the log holds")

    def finished(self, channel: Channel) -> int:
        """Return how many messages of the channel were finished. This includes messages whose
        confirmation was lost, if they were not delivered again.
        """
        with self._lock:
            return sum(state == TOLD or state >= FINISHED for state in channel.state)

    # What consumers record

    def got(self, channel: Channel, consumer: int, offset: int, attempts: int, body: bytes) -> bool:
        """Record a delivery before it is answered. Return False if the broker must refuse this
        consumer's finish, because another consumer's finish was confirmed.
        """
        with self._lock:
            topic, name = channel.topic, channel.name
            who = f"{name} gets"
            if self._seen(topic, offset, body, who) < 0:
                return True
            channel.reach(offset)
            self.counts["deliveries"] += 1
            self.counts["redeliveries"] += attempts > 1
            if channel.turbulent:
                return True
            state, mine = channel.state[offset], channel.attempts[consumer]
            text = f"{topic.name}/{name}: offset {offset} (attempt {attempts})"
            if attempts < mine[offset]:
                self.complain(
                    f"{text} came to consumer {consumer}, which had it at attempt {mine[offset]}"
                )
            mine[offset] = min(attempts, 255)
            if state == PASSED:
                self.complain(f"{text} was delivered, and the channel begins behind it")
            elif state == FINISHED + consumer:
                self.complain(
                    f"{text} came again to consumer {consumer}, whose finish was confirmed"
                )
            elif state >= FINISHED:
                if attempts > channel.finished_attempt[offset]:
                    self.complain(
                        f"{text} came again after the finish of attempt "
                        f"{channel.finished_attempt[offset]} was confirmed"
                    )
                return False
            else:
                self.counts["told and come again"] += state == TOLD
                self.counts["dead and come again"] += state == DEAD
                channel.state[offset] = AWAITED
            return True

    def told(self, channel: Channel, offsets: Iterable[int]) -> None:
        """Record that these messages are about to be finished."""
        with self._lock:
            for offset in offsets:
                channel.reach(offset)
                if channel.state[offset] in (AWAITED, EITHER):
                    channel.state[offset] = TOLD
                if channel.turbulent:
                    channel.told_since.add(offset)

    def confirmed(self, channel: Channel, consumer: int, offsets: Iterable[int]) -> None:
        """Record that the broker confirmed the finish of these messages."""
        with self._lock:
            if channel.turbulent:
                return
            for offset in offsets:
                text = f"{channel.topic.name}/{channel.name}: the finish of offset {offset}"
                state, attempts = channel.state[offset], channel.attempts[consumer][offset]
                if state >= FINISHED:
                    self.complain(
                        f"{text} was confirmed to consumer {state - FINISHED} and again to "
                        f"{consumer}"
                    )
                if any(row[offset] > attempts for row in channel.attempts):
                    self.complain(
                        f"{text} (attempt {attempts}) was confirmed to consumer {consumer}, and "
                        "another has a later attempt"
                    )
                channel.state[offset] = FINISHED + consumer
                channel.finished_attempt[offset] = attempts
                self.counts["finishes confirmed"] += 1

    def dead(self, channel: Channel, offset: int, body: bytes, at_ns: int) -> None:
        """Record that the dead-letter topic has contained this message of the channel since
        `at_ns`.
        """
        with self._lock:
            number = self._seen(
                channel.topic, offset, body, f"the dead letters of {channel.name} hold"
            )
            if number < 0 or at_ns <= channel.sought_ns or channel.turbulent:
                return
            channel.reach(offset)
            if channel.state[offset] >= FINISHED:
                self.complain(
                    f"{channel.topic.name}/{channel.name}: offset {offset} is a dead letter "
                    "after its finish was confirmed"
                )
            self.counts["dead letters"] += 1
            self.counts["dead letters that came twice"] += channel.state[offset] == DEAD
            channel.state[offset] = DEAD

    # Seeks

    def seek_begins(self, channel: Channel, turbulent: bool) -> None:
        """Record that a seek is about to be requested. `turbulent`: the channel's consumers
        continue meanwhile.
        """
        with self._lock:
            channel.turbulent, channel.told_since = turbulent, set()

    def seek_answered(self, channel: Channel, place: int) -> None:
        """Record that the channel is now at `place`. Messages from there on are delivered (again),
        earlier ones are not.

        Before this call, and after the answer, the log was read to its end. So every message before
        `place` is known.
        """
        with self._lock:
            channel.sought_ns = self._now_ns()
            channel.reach(place)
            channel.state.leave_out(place)
            channel.state.fill(place, channel.state.end, 0)
            for table in (channel.finished_attempt, *channel.attempts):
                table.fill(channel.topic.first, table.end, 0)
            # It is unknown whether these messages were finished before the seek or after it.
            for offset in channel.told_since:
                if offset >= place:
                    channel.state[offset] = TOLD
                elif channel.state[offset] == PASSED:
                    channel.state[offset] = EITHER
            self.counts["seeks"] += 1

    def seek_settled(self, channel: Channel) -> None:
        """Record that all consumers of the channel have subscribed again after the answer to the
        seek.
        """
        with self._lock:
            channel.turbulent, channel.told_since = False, set()

    # Comparing

    def removed(self, topic: Topic, start: int) -> None:
        """Compare after the log's start has moved to `start`: every channel must have finished all
        messages before it, or not need them. Before this call, and after the new start was noticed,
        the caller must read the dead letters.
        """
        with self._lock:
            if topic.deleted or any(channel.turbulent for channel in topic.channels):
                return
            for offset in range(topic.start, start):
                if offset not in topic.at:
                    self.complain(
                        f"{topic.name}: offset {offset} was removed, and nobody has ever seen it"
                    )
                for channel in topic.channels:
                    if self._open(channel, offset):
                        self.complain(
                            f"{topic.name}: offset {offset} was removed, and {channel.name} had "
                            "not finished it"
                        )
            if start > topic.start:
                topic.removed += start - topic.start
                topic.start = start

    def _open(self, channel: Channel, offset: int) -> bool:
        return offset >= channel.state.end or channel.state[offset] == AWAITED

    def now_ns(self) -> int:
        """Return the time by which the ledger judges what is due."""
        return self._now_ns()

    def missing(self, due_ns: int | None = None) -> list[int]:
        """Return the numbers that were acknowledged and were due at `due_ns` (default: now), but
        are not in the log.
        """
        with self._lock:
            now = self._now_ns() if due_ns is None else due_ns
            return [
                number
                for number, offset in enumerate(self._offset)
                if offset < 0
                and self._answered[number]
                and self._cancel[number] == NOT_ASKED
                and self._due_ns[number] <= now
                and not self.topics[self._topic[number]].deleted
            ]

    def waiting(self, topic: Topic) -> list[int]:
        """Return the delayed messages that are acknowledged, not due yet and not cancelled."""
        with self._lock:
            now, which = self._now_ns(), self.topics.index(topic)
            return [
                number
                for number, due in enumerate(self._due_ns)
                if due > now
                and self._answered[number]
                and self._cancel[number] == NOT_ASKED
                and self._topic[number] == which
            ]

    def overdue(self, topic: Topic) -> list[int]:
        """Return the delayed messages that are acknowledged and due, and not seen in the log."""
        with self._lock:
            which = self.topics.index(topic)
            return [
                number
                for number in self.missing()
                if self._due_ns[number] and self._topic[number] == which
            ]

    def not_due(self, numbers: Sequence[int]) -> list[int]:
        """Return those of the messages that are not due yet."""
        with self._lock:
            now = self._now_ns()
            return [number for number in numbers if self._due_ns[number] > now]

    def in_doubt(self, topic: Topic) -> int:
        """Return the number of delayed messages that may still wait or not, because their publish
        or their cancellation was not answered.
        """
        with self._lock:
            now, which = self._now_ns(), self.topics.index(topic)
            return sum(
                due > now
                and self._topic[number] == which
                and (not self._answered[number] or self._cancel[number] == ASKED)
                for number, due in enumerate(self._due_ns)
            )

    def unexplained(self, due_ns: int | None = None) -> Counter[str]:
        """Return the number of messages by what became of them, in the log and in each channel.
        Complain about each message without an explanation.

        Call this only while nothing is published and all channels are empty. `due_ns`: when the log
        was last read to its end (default: now). Messages that became due later may not be in the
        log yet.
        """
        with self._lock:
            found: Counter[str] = Counter()
            due_ns = self._now_ns() if due_ns is None else due_ns
            missing = self.missing(due_ns)
            self._complain_of_some(
                "acknowledged, and neither in the log nor cancelled nor removed", missing
            )
            found["unexplained"] = len(missing)
            for number, offset in enumerate(self._offset):
                topic = self.topics[self._topic[number]]
                found["messages"] += 1
                if topic.deleted:
                    found["deleted with their topic"] += 1
                elif offset >= 0:
                    found[
                        "in the log"
                        if offset >= topic.start
                        else "removed by retention after all had finished"
                    ] += 1
                elif self._cancel[number] == CANCELLED:
                    found["cancelled"] += 1
                elif not self._answered[number]:
                    found["not answered and not stored"] += 1
                elif self._cancel[number] == ASKED:
                    found["cancelled without an answer"] += 1
                elif self._due_ns[number] > due_ns:
                    found["delayed and not due yet"] += 1
            for topic in self.topics:
                if not topic.deleted:
                    self._gaps(topic, found)
                    for channel in topic.channels:
                        self._channel(channel, found)
            return found

    def _gaps(self, topic: Topic, found: Counter[str]) -> None:
        gaps = [offset for offset in range(topic.first, topic.read_to) if offset not in topic.at]
        found["unexplained"] += len(gaps)
        self._complain_of_some(f"{topic.name}: offsets that nobody has ever seen", gaps)

    def _channel(self, channel: Channel, found: Counter[str]) -> None:
        channel.reach(channel.topic.read_to)
        open_ones = [
            offset
            for offset in range(channel.topic.first, channel.topic.read_to)
            if self._open(channel, offset)
        ]
        found["unexplained"] += len(open_ones)
        self._complain_of_some(
            f"{channel.topic.name}/{channel.name} is empty, and never finished offsets", open_ones
        )
        names = {
            TOLD: "finished, not confirmed",
            PASSED: "passed by a start or a seek",
            EITHER: "passed or not",
            DEAD: "dead-lettered",
        }
        for state, count in Counter(
            channel.state.of(channel.topic.first, channel.topic.read_to)
        ).items():
            if state != AWAITED:
                found["in channels: " + names.get(state, "finished")] += count

    def _complain_of_some(self, text: str, numbers: Sequence[int]) -> None:
        if numbers:
            more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
            self.complain(f"{text}: {', '.join(map(str, numbers[:SHOWN]))}{more}")
