"""The ledger of the torture: a record of what was promised and what happened. It is a mapped file,
so it survives when the clients that write to it are killed.

The ledger is one file in a memory file system, mapped by the run and by every client process. Each
message has a number: a block has a *slot* (a number in the ledger), and its messages have the
numbers `slot * SLOT + index`. A *lane* is a range of slots that one producer uses. Time is counted
in *epochs*: a new epoch begins after each kill. A client records that a block is sent before it
sends it, and that it is acknowledged after it receives the answer. It does the same with finishes.
So if a killed client did not record something, the ledger knows less, but it never claims anything
false.

The rules are those of `support/history.py`, for many clients at once and ten million messages. With
several consumers, a stopped client may hold a delivery while another client gets and finishes the
same messages. That is an error only if the broker *accepts* the late answer. So the stopped client
finishes such messages and waits for the confirmation, and the broker must refuse it.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from support.history import body_of, number_of

SLOT: Final = 512  # the most messages (numbers) of a block
# Number of keys that a lane uses in turn. An ordered channel delivers one message of a key at a
# time, so with few keys it would be slow.
KEYS: Final = 160
WORDS: Final = 4096
ROW: Final = 16  # words (8-byte numbers) of a client's row
ROWS_AT: Final = 64

# States of a slot; FAILED: the client got an error, and the block may be stored or not.
UNUSED, SENT, ACKED, FAILED = range(4)
BLOCK, DELAYED, STAGED = range(3)  # kinds of slots

# Words for all clients. A word is an 8-byte number in the file.
EPOCH, PRESSURE, PAUSE, STOP = range(4)
# Words of a producer's row. From EPOCHS on, there is one word for each topic.
SENT_BLOCKS, DONE_BLOCKS, ACKED_MESSAGES, IDLE, EPOCHS = (
    0,
    1,
    2,
    3,
    8,
)
# Words of a consumer's row. The consumer's epoch is at EPOCHS.
TOLD, SETTLED, CONFIRMED, DELIVERED, REDELIVERED, STALE, DOUBTED = range(7)

# States of a message in a channel. A confirmed finish is FINISH_CONFIRMED plus the number of the
# consumer.
NOT_FINISHED, FINISH_TOLD, FINISH_CONFIRMED = range(3)


@dataclass(frozen=True)
class Shape:
    """The participants of a run. `channels` has (index of the topic, name). Each consumer process
    has one consumer for each channel.
    """

    slots: int  # number of slots of a lane
    lanes: int
    topics: tuple[str, ...]
    channels: tuple[tuple[int, str], ...]
    consumers: int
    ordered: int = -1  # index of the ordered channel; the blocks of its topic have keys

    @property
    def numbers(self) -> int:
        return self.slots * self.lanes * SLOT

    def row_of_lane(self, lane: int) -> int:
        return ROWS_AT + lane * ROW

    def row_of_consumer(self, channel: int, consumer: int) -> int:
        return ROWS_AT + (self.lanes + channel * self.consumers + consumer) * ROW

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Shape:
        channels = tuple((topic, name) for topic, name in found["channels"])
        return Shape(
            found["slots"],
            found["lanes"],
            tuple(found["topics"]),
            channels,
            found["consumers"],
            found["ordered"],
        )


class Ledger:
    """The mapped tables, and methods that record in them."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self.shape = shape
        self.complaints = path.with_suffix(".complaints")
        slots, numbers = shape.slots * shape.lanes, shape.numbers
        sizes: list[tuple[str, Any, int]] = [
            ("words", "q", WORDS),
            ("due_ns", "q", slots),
            ("group", "I", slots),
            ("count", "H", slots),
        ]
        sizes += [(name, "B", slots) for name in ("state", "kind", "topic", "life")]
        sizes += [("stored", "B", numbers)]
        sizes += [(f"offsets{topic}", "I", numbers) for topic in range(len(shape.topics))]
        for channel in range(len(shape.channels)):
            sizes += [(f"finished{channel}", "B", numbers)]
            sizes += [
                (f"attempts{channel}.{consumer}", "B", numbers)
                for consumer in range(shape.consumers)
            ]
        total = sum(array(code).itemsize * count + 8 for _, code, count in sizes)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        # The file is sparse: only the part that is used takes memory.
        os.ftruncate(descriptor, total)
        self._map: Any = memoryview(mmap.mmap(descriptor, total))
        os.close(descriptor)
        self._tables: dict[str, Any] = {}
        at = 0
        for name, code, count in sizes:
            length = array(code).itemsize * count
            self._tables[name] = self._map[at : at + length].cast(code)
            at += (length + 7) // 8 * 8
        self.words: Any = self._tables["words"]
        self.state: Any = self._tables["state"]
        self.kind: Any = self._tables["kind"]
        self.topic: Any = self._tables["topic"]
        self.life: Any = self._tables["life"]
        self.count: Any = self._tables["count"]
        self.group: Any = self._tables["group"]
        self.due_ns: Any = self._tables["due_ns"]
        self.stored: Any = self._tables["stored"]
        self.offsets = [self._tables[f"offsets{topic}"] for topic in range(len(shape.topics))]
        self.finished = [
            self._tables[f"finished{channel}"] for channel in range(len(shape.channels))
        ]
        self.attempts = [
            [self._tables[f"attempts{channel}.{consumer}"] for consumer in range(shape.consumers)]
            for channel in range(len(shape.channels))
        ]

    def complain(self, text: str) -> None:
        """Record a violation as one line. Any process may call this."""
        with self.complaints.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}".replace("\n", " | ") + "\n")

    def complained(self) -> list[str]:
        return self.complaints.read_text().splitlines() if self.complaints.exists() else []

    # What producers record

    def open_slot(
        self, slot: int, kind: int, topic: int, count: int, due_ns: int = 0, group: int = 0
    ) -> list[bytes]:
        """Record that this block is about to be sent, and return its bodies."""
        assert self.state[slot] == UNUSED
        self.kind[slot], self.topic[slot], self.count[slot] = kind, topic, count
        self.due_ns[slot], self.group[slot] = due_ns, group
        # This is written last: a process that sees SENT can rely on the other fields.
        self.state[slot] = SENT
        first = slot * SLOT
        return [body_of(number) for number in range(first, first + count)]

    def keys(self, slot: int) -> list[str] | None:
        """Return the keys of the block's messages, or None if their topic has no ordered
        channel.
        """
        shape = self.shape
        if (
            self.kind[slot] != BLOCK
            or shape.ordered < 0
            or self.topic[slot] != shape.channels[shape.ordered][0]
        ):
            return None
        return [f"{slot // shape.slots}-{index % KEYS}" for index in range(self.count[slot])]

    def acknowledged(self, slot: int, offset: int) -> None:
        """Record that the block was acknowledged. `offset` is its first offset, or -1 if that is
        not known.
        """
        if offset >= 0:
            for index in range(self.count[slot]):
                self.at(self.topic[slot], offset + index, slot * SLOT + index, "the receipt says")
        self.state[slot] = ACKED

    # What producers, consumers and the audit record

    def at(self, topic: int, offset: int, number: int, who: str) -> None:
        """Record which message an offset belongs to. Complain if it belonged to another one."""
        offsets = self.offsets[topic]
        known = offsets[offset] - 1
        if known == number:
            return
        if known < 0:
            offsets[offset] = number + 1
        else:
            self.complain(
                f"{self.shape.topics[topic]}: offset {offset} named {known}, and now {who} {number}"
            )

    def known(self, topic: int, number: int, who: str) -> bool:
        """Return True if the message was sent to this topic. Complain if it was not, or if it came
        before it was due.
        """
        slot, index = divmod(number, SLOT)
        if not (
            0 <= slot < len(self.state)
            and self.state[slot] != UNUSED
            and self.topic[slot] == topic
            and index < self.count[slot]
        ):
            self.complain(f"{self.shape.topics[topic]}: {who} {number}, which was never sent there")
            return False
        if self.due_ns[slot] > time.time_ns():
            self.complain(
                f"{self.shape.topics[topic]}: {who} {number}, "
                f"{self.due_ns[slot] - time.time_ns()} ns before it is due"
            )
        return True

    def number(self, body: bytes, who: str) -> int:
        """Return the number of a body, or complain and return -1 if the body was altered."""
        try:
            return number_of(body)
        except (AssertionError, ValueError) as error:
            self.complain(f"{who}: {error!r}")
            return -1

    # What consumers record

    def got(
        self,
        channel: int,
        consumer: int,
        runs: Sequence[tuple[int, int, int]],
        bodies: Sequence[bytes],
    ) -> tuple[list[int], list[int]]:
        """Record a delivery before any of it is answered. Return the numbers, and the indexes of
        the messages whose finish the broker must refuse.

        The broker must refuse in two cases. Another consumer's finish of the message was confirmed.
        Or the channel is ordered, and the predecessor (of the same key and block) is not finished
        and was never delivered to this consumer.
        """
        topic, name = self.shape.channels[channel]
        who = f"{name} gets"
        finished, mine = self.finished[channel], self.attempts[channel][consumer]
        others = [row for number, row in enumerate(self.attempts[channel]) if number != consumer]
        numbers = [self.number(body, who) for body in bodies]
        ordered = channel == self.shape.ordered
        gone: list[int] = []
        redelivered = index = 0
        for first, count, attempts in runs:
            for offset in range(first, first + count):
                number = numbers[index]
                index += 1
                if number < 0 or not self.known(topic, number, who):
                    continue
                self.at(topic, offset, number, who)
                seen, state = mine[number], finished[number]
                if attempts < seen:
                    self.complain(
                        f"{name}: attempts of {number} fell from {seen} to {attempts} with "
                        f"consumer {consumer}"
                    )
                redelivered += attempts > 1
                mine[number] = min(attempts, 255)
                if state == FINISH_CONFIRMED + consumer:
                    self.complain(
                        f"{name}: {number} came again (attempt {attempts}) to consumer "
                        f"{consumer}, which had finished it"
                    )
                elif state >= FINISH_CONFIRMED or (
                    ordered and self._overtakes(number, finished, mine)
                ):
                    gone.append(index - 1)
                elif state == FINISH_TOLD and all(row[number] < attempts for row in others):
                    # The finish did not take effect, because the message is delivered again.
                    finished[number] = NOT_FINISHED
        row = self.shape.row_of_consumer(channel, consumer)
        self.words[row + DELIVERED] += index
        self.words[row + REDELIVERED] += redelivered
        return numbers, gone

    def _overtakes(self, number: int, finished: Any, mine: Any) -> bool:
        slot, index = divmod(number, SLOT)
        before = number - KEYS
        return (
            index >= KEYS
            and self.kind[slot] == BLOCK
            and finished[before] == NOT_FINISHED
            and not mine[before]
        )

    def told(self, channel: int, numbers: Sequence[int]) -> None:
        """Record that these messages are about to be finished."""
        finished = self.finished[channel]
        for number in numbers:
            if finished[number] == NOT_FINISHED:
                finished[number] = FINISH_TOLD

    def confirmed(self, channel: int, consumer: int, numbers: Sequence[int]) -> None:
        name = self.shape.channels[channel][1]
        finished, mine = self.finished[channel], self.attempts[channel][consumer]
        others = [row for number, row in enumerate(self.attempts[channel]) if number != consumer]
        for number in numbers:
            if finished[number] >= FINISH_CONFIRMED:
                who = finished[number] - FINISH_CONFIRMED
                self.complain(
                    f"{name}: the finish of {number} was confirmed to consumer {who} and again "
                    f"to {consumer}"
                )
            if any(row[number] > mine[number] for row in others):
                self.complain(
                    f"{name}: the finish of {number} (attempt {mine[number]}) was confirmed, "
                    "and another has a later attempt"
                )
            finished[number] = FINISH_CONFIRMED + consumer
