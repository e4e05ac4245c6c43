"""History of the bucket torture: what the clients sent, what was acknowledged, and what the log and
the channels gave back. It finds every broken promise.

A *lifetime* is the life of one data directory. It ends when the directory is lost. These are the
rules:

1. An acknowledged message stays at its offset, with its body.
2. Only the loss of a disk may lose a message, and not in a topic with `--sync bucket`, and not of a
   transaction whose commit was answered.
3. The messages lost with a disk were acknowledged within the bound. Publishes wait when the oldest
   message that the bucket does not have is older than the bound. So no publish was acknowledged
   that was sent later than the bound after the acknowledgement of a lost message.
4. An offset never names two messages, and the log never has a message twice.
5. A message does not come again after its finish was confirmed. After the loss of a disk it may, if
   the finish was not much older than the newest message that the bucket has.
6. After a restored broker has acknowledged a message with `--sync bucket`, the broker before it
   acknowledges none that was sent later.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

BLOCK: Final = 64  # the most messages of a publish; its first message has a multiple as number
HEAD_BYTES: Final = 8
BODY_BYTES_MAX: Final = 800
# The client's clock and the broker's are the same. This is for the steps between two readings.
CLOCK_S: Final = 0.05
# Consumers do not wait for the bucket, so there is no exact bound for finishes.
FINISH_S: Final = 3.0


def body_of(number: int) -> bytes:
    head = number.to_bytes(HEAD_BYTES, "big")
    hashed = hashlib.shake_128(head)
    return head + hashed.digest(int.from_bytes(hashed.digest(2), "big") % BODY_BYTES_MAX)


def number_of(body: bytes) -> int:
    """Return the number of a message, or -1 if the body is not that of any number."""
    number = int.from_bytes(body[:HEAD_BYTES], "big")
    return number if body == body_of(number) else -1


@dataclass(slots=True)
class Sent:
    """A publish. `number` and `offset` are those of its first message.

    `lifetime` is the one in which it was acknowledged, or -1. A delayed message has no offset
    before it is due, and `is_delayed` is True. `producer` is the client that sent it.
    `is_shipped`: its acknowledgement says that the bucket has it.
    """

    number: int
    count: int
    sent_s: float
    is_delayed: bool = False
    producer: str = ""
    acked_s: float = 0.0
    lifetime: int = -1
    offset: int = -1
    is_lost: bool = False
    is_shipped: bool = False

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + self.count)


@dataclass
class TopicHistory:
    """The history of one topic and its channel."""

    name: str
    sync_bucket: bool
    # Offset -> number, of all acknowledgements, reads and deliveries.
    offsets: dict[int, int] = field(default_factory=dict)
    # Number -> offset, and the same in the order of the log, as far as it was read.
    stored: dict[int, int] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0
    # Acknowledged publishes that the log must have and that were not found yet, and those found.
    unchecked: list[Sent] = field(default_factory=list)
    checked: list[Sent] = field(default_factory=list)
    delayed: list[Sent] = field(default_factory=list)
    # Lifetime -> when the last acknowledged publish of it was sent.
    newest_s: dict[int, float] = field(default_factory=dict)
    # Lifetime -> when its first publish was acknowledged.
    first_s: dict[int, float] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    # Number -> (when its finish was confirmed, lifetime).
    finished: dict[int, tuple[float, int]] = field(default_factory=dict)


class BucketHistory:
    """The record that all threads of a run share. `complaints` has the broken promises."""

    def __init__(self, topics: Iterable[tuple[str, bool]], lag_s: float) -> None:
        self.lock = threading.RLock()
        self.lag_s = lag_s
        self.topics = [TopicHistory(name, sync_bucket) for name, sync_bucket in topics]
        self.sent: list[Sent] = []
        self.lost_lifetimes: set[int] = set()
        self.losses: list[tuple[TopicHistory, Sent]] = []
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()

    def complain(self, text: str) -> None:
        with self.lock:
            self.complaints.append(text)

    # Publishes

    def send(
        self, count: int, now_s: float, *, is_delayed: bool = False, producer: str = ""
    ) -> Sent:
        assert count <= BLOCK
        with self.lock:
            sent = Sent(len(self.sent) * BLOCK, count, now_s, is_delayed, producer)
            self.sent.append(sent)
            return sent

    @staticmethod
    def bodies(sent: Sent) -> list[bytes]:
        return [body_of(number) for number in sent.numbers]

    def acknowledged(
        self, topic: int, sent: Sent, offset: int, now_s: float, lifetime: int
    ) -> None:
        """Record an acknowledgement. `offset` is -1 if the broker did not say it."""
        with self.lock:
            of = self.topics[topic]
            sent.acked_s, sent.lifetime, sent.offset = now_s, lifetime, offset
            of.newest_s[lifetime] = max(of.newest_s.get(lifetime, 0.0), sent.sent_s)
            is_first = lifetime not in of.first_s
            of.first_s.setdefault(lifetime, now_s)
            self.counts["acknowledged"] += sent.count
            if offset >= 0:
                for index, number in enumerate(sent.numbers):
                    self._name(of, offset + index, number, "is acknowledged at")
            (of.delayed if sent.is_delayed else of.unchecked).append(sent)
            if of.sync_bucket:
                self._check_successors(of, lifetime)
            if of.sync_bucket and is_first:
                for before in [one for one in of.newest_s if one < lifetime]:
                    self._check_successors(of, before)

    def committed(self, topic: int, sent: Sent, offset: int, now_s: float) -> None:
        """Record that a transaction was committed. `offset` is -1 if the broker did not say it."""
        with self.lock:
            of = self.topics[topic]
            sent.acked_s, sent.offset, sent.is_shipped = now_s, offset, True
            self.counts["transactions"] += 1
            self.counts["messages of transactions"] += sent.count
            if offset >= 0:
                for index, number in enumerate(sent.numbers):
                    self._name(of, offset + index, number, "is committed at")
            of.unchecked.append(sent)

    def _check_successors(self, of: TopicHistory, lifetime: int) -> None:
        """Check that a broker acknowledges nothing after its successor has (rule 6)."""
        first_s = min((at_s for one, at_s in of.first_s.items() if one > lifetime), default=None)
        if first_s is not None and of.newest_s[lifetime] > first_s:
            self.complain(
                f"{of.name}: the data directory {lifetime} acknowledged a message that was sent "
                f"{of.newest_s[lifetime] - first_s:.3f} s after the first answer of a restored one"
            )

    def _name(self, of: TopicHistory, offset: int, number: int, who: str) -> None:
        """Record which message an offset names (rule 4)."""
        before = of.offsets.setdefault(offset, number)
        if before != number:
            self.complain(
                f"{of.name}: offset {offset} is used twice: message {number} {who} it, and before "
                f"it named message {before}"
            )

    def _known(self, of: TopicHistory, body: bytes, who: str) -> int:
        """Return the number of a message, or -1 if nobody sent it."""
        number = number_of(body)
        at = number // BLOCK
        if number < 0 or at >= len(self.sent) or number not in self.sent[at].numbers:
            self.complain(f"{of.name}: {who} with another body: {body[:40]!r}")
            return -1
        return number

    # The log

    def read(self, topic: int, offset: int, body: bytes) -> None:
        """Record a message of the log. Messages come in the order of the log."""
        with self.lock:
            of = self.topics[topic]
            number = self._known(of, body, f"the log has a message at {offset}")
            if number < 0:
                return
            self._name(of, offset, number, "is in the log at")
            if number in of.stored:
                self.complain(
                    f"{of.name}: message {number} is stored twice, at {of.stored[number]} and at "
                    f"{offset}"
                )
            of.stored[number] = offset
            of.order.append((offset, number))
            self.counts["read"] += 1

    def read_again(self, topic: int, position: int) -> None:
        """Forget what was read from this offset on, because it may be lost with a disk."""
        with self.lock:
            of = self.topics[topic]
            of.position = min(of.position, position)
            again: set[int] = set()
            while of.order and of.order[-1][0] >= position:
                number = of.order.pop()[1]
                del of.stored[number]
                again.add(number - number % BLOCK)
            of.unchecked = [sent for sent in of.checked if sent.number in again] + of.unchecked
            of.checked = [sent for sent in of.checked if sent.number not in again]

    def to_check(self, topic: int) -> list[Sent]:
        """Return the acknowledged publishes that the next read to the end must find."""
        with self.lock:
            return list(self.topics[topic].unchecked)

    def check(self, topic: int, wanted: Iterable[Sent]) -> None:
        """Check that the log has these publishes. It was read to its end after they were
        acknowledged.
        """
        with self.lock:
            of = self.topics[topic]
            done: set[int] = set()
            for sent in wanted:
                done.add(sent.number)
                offsets = [of.stored.get(number, -1) for number in sent.numbers]
                if -1 in offsets:
                    self._missing(of, sent, offsets)
                    continue
                self._check_offsets(of, sent, offsets)
                of.checked.append(sent)
                self.counts["checked"] += sent.count
            of.unchecked = [sent for sent in of.unchecked if sent.number not in done]

    def _check_offsets(self, of: TopicHistory, sent: Sent, offsets: list[int]) -> None:
        first = sent.offset if sent.offset >= 0 else offsets[0]
        if offsets != list(range(first, first + sent.count)):
            self.complain(
                f"{of.name}: the publish of {sent.count} messages from {sent.number} on was "
                f"acknowledged at {sent.offset}, and the log has it at {offsets}"
            )

    def _missing(self, of: TopicHistory, sent: Sent, offsets: list[int]) -> None:
        """Check that the messages of this publish may be lost (rules 2 and 3)."""
        what = f"{of.name}: the publish of {sent.count} messages from {sent.number} on"
        missing = offsets.count(-1)
        if missing < sent.count:
            self.complain(f"{what} is stored in part: {missing} are missing")
        acknowledged = f"was acknowledged at offset {sent.offset} and is lost"
        if sent.is_shipped:
            self.complain(f"{what} {acknowledged}, although its commit was answered")
        elif sent.lifetime not in self.lost_lifetimes:
            self.complain(f"{what} {acknowledged}, although no disk was lost since")
        elif of.sync_bucket:
            self.complain(f"{what} {acknowledged}, although the topic has --sync bucket")
        else:
            late_s = of.newest_s[sent.lifetime] - sent.acked_s
            self.counts["lost span ms"] = max(self.counts["lost span ms"], int(late_s * 1000))
            if late_s > self.lag_s + CLOCK_S:
                self.complain(
                    f"{what} {acknowledged}, and a message that was sent {late_s:.3f} s later was "
                    f"acknowledged before the disk was lost: the bound is {self.lag_s:g} s"
                )
        sent.is_lost = True
        self.losses.append((of, sent))
        self.counts["lost within the bound"] += missing

    def check_delayed(self, topic: int) -> None:
        """Check that all delayed messages are in the log. All of them were due before it was read
        to its end.
        """
        with self.lock:
            of = self.topics[topic]
            for sent in of.delayed:
                offsets = [of.stored.get(number, -1) for number in sent.numbers]
                if -1 in offsets:
                    self._missing(of, sent, offsets)
                else:
                    of.checked.append(sent)
                    self.counts["delayed checked"] += sent.count
            of.delayed = []

    def lose_disk(self, lifetime: int) -> None:
        """Record that the data directory of this lifetime is lost."""
        with self.lock:
            self.lost_lifetimes.add(lifetime)

    # The channel

    def deliver(self, topic: int, offset: int, body: bytes, lifetime: int) -> int:
        """Record a delivery (rule 5). Return the number of the message."""
        with self.lock:
            of = self.topics[topic]
            number = self._known(of, body, f"a message of offset {offset} is delivered")
            if number < 0:
                return number
            self._name(of, offset, number, "is delivered at")
            self.counts["delivered"] += 1
            if number in of.delivered:
                self.counts["delivered again"] += 1
            of.delivered.add(number)
            if number in of.finished:
                self._finished_before(of, number, lifetime)
            return number

    def _finished_before(self, of: TopicHistory, number: int, lifetime: int) -> None:
        at_s, before = of.finished.pop(number)
        self.counts["finished again"] += 1
        first_s = [at for one, at in of.first_s.items() if one > before]
        self.counts["finished at a former primary"] += at_s > min(first_s, default=at_s)
        what = f"{of.name}: message {number} is delivered after its finish was confirmed"
        if before == lifetime or before not in self.lost_lifetimes:
            self.complain(f"{what}, although no disk was lost since")
            return
        # The ticks are in order. So the bucket has what is older than an answered publish.
        newest_s = max((one.newest_s.get(before, 0.0) for one in self.topics if one.sync_bucket), default=0.0)  # fmt: skip
        late_s = newest_s - at_s
        self.counts["finish span ms"] = max(self.counts["finish span ms"], int(late_s * 1000))
        if late_s > self.lag_s + FINISH_S:
            self.complain(
                f"{what} {late_s:.3f} s before a publish that the bucket has: the bound is "
                f"{self.lag_s:g} s"
            )

    def finish(self, topic: int, numbers: Iterable[int], now_s: float, lifetime: int) -> None:
        """Record that the finishes of these messages were confirmed."""
        with self.lock:
            finished = self.topics[topic].finished
            for number in numbers:
                finished[number] = (now_s, lifetime)
                self.counts["finished"] += 1

    def check_delivered(self, topic: int) -> None:
        """Check that every message of the log was delivered. The channel is empty."""
        with self.lock:
            of = self.topics[topic]
            if missing := sorted(of.stored.keys() - of.delivered):
                self.complain(
                    f"{of.name}: the channel is empty, and {len(missing)} messages of the log were "
                    f"never delivered, such as {missing[0]} at offset {of.stored[missing[0]]}"
                )
