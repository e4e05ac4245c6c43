"""Audit of the torture (see `run.py`): it reads each message of the log once, before retention
removes it, and compares it with the ledger.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from support.torture import ledger as l
from support.torture.ledger import SLOT, Ledger

import zsq

TIMEOUT_S = 90.0


@dataclass
class TopicAudit:
    """The position up to which a topic's log was read."""

    offset: int = 0
    # (lane, life of its producer) -> the last block of that producer in the log.
    newest: dict[tuple[int, int], int] = field(default_factory=dict)


class Audit:
    def __init__(self, ledger: Ledger, url: str) -> None:
        self.ledger = ledger
        self.url = url
        self.topics = [TopicAudit() for _ in ledger.shape.topics]
        self.messages = 0

    def read(self) -> None:
        """Read from the position at which the last call stopped to the present end."""
        for number, name in enumerate(self.ledger.shape.topics):
            with zsq.Reader(name, url=self.url, timeout=TIMEOUT_S, patient=True) as reader:
                self._read(number, self.topics[number], reader)

    def _read(self, number: int, topic: TopicAudit, reader: zsq.Reader) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                found = reader.read(topic.offset, 1 << 20)
            except zsq.Refused:
                continue
            for block in found.blocks:
                skip = topic.offset - block.first_offset
                if not 0 <= skip < block.count:
                    self.ledger.complain(
                        f"{reader.topic}: at {topic.offset} comes a block of "
                        f"{block.first_offset}, {block.count} messages"
                    )
                for index, body in enumerate(block.body.values()):
                    if index >= skip:
                        self._message(number, topic, block.first_offset + index, body or b"")
                topic.offset = block.first_offset + block.count
            if topic.offset >= found.head:
                return
        self.ledger.complain(f"{reader.topic}: its log could not be read within {TIMEOUT_S:g} s")

    def _message(self, number: int, topic: TopicAudit, offset: int, body: bytes) -> None:
        ledger = self.ledger
        who = "the log holds"
        message = ledger.number(body, who)
        if message < 0 or not ledger.known(number, message, who):
            return
        ledger.at(number, offset, message, who)
        if ledger.stored[message]:
            ledger.complain(
                f"{ledger.shape.topics[number]}: {message} is stored twice, again at {offset}"
            )
        ledger.stored[message] = 1
        self.messages += 1
        slot, index = divmod(message, SLOT)
        # The blocks of a producer must be stored in the order in which it published them.
        if not index and ledger.kind[slot] == l.BLOCK:
            producer = (slot // ledger.shape.slots, ledger.life[slot])
            if topic.newest.get(producer, -1) > slot:
                ledger.complain(
                    f"{ledger.shape.topics[number]}: block {slot} of a producer comes after its "
                    f"block {topic.newest[producer]}"
                )
            topic.newest[producer] = slot

    def settled(self) -> dict[str, int]:
        """Check at a time without traffic that every acknowledged message is stored, that every
        channel got and finished it, and that blocks and transactions are complete.
        """
        ledger, shape = self.ledger, self.ledger.shape
        totals = dict.fromkeys(
            ("acknowledged", "unanswered_stored", "unanswered_absent", "lost"), 0
        )
        groups: dict[int, tuple[int, int]] = {}
        for slot in range(shape.slots * shape.lanes):
            state, count = ledger.state[slot], ledger.count[slot]
            if state == l.UNUSED:
                continue
            first = slot * SLOT
            stored = bytes(ledger.stored[first : first + count]).count(1)
            if stored not in (0, count):
                ledger.complain(f"block {slot} is stored in part: {stored} of {count}")
            if ledger.group[slot]:
                whole, all_of = groups.get(ledger.group[slot], (0, 0))
                groups[ledger.group[slot]] = (whole + (stored == count), all_of + 1)
            if state == l.ACKED:
                totals["acknowledged"] += count
                totals["lost"] += count - stored
                if stored < count:
                    ledger.complain(
                        f"block {slot} of {count} messages was acknowledged and is lost"
                    )
            else:
                totals["unanswered_stored" if stored else "unanswered_absent"] += count
            if stored:
                self._finished_everywhere(slot, first, count)
        for group, (whole, all_of) in groups.items():
            if whole not in (0, all_of):
                ledger.complain(
                    f"transaction {group} is stored in part: {whole} of {all_of} blocks"
                )
        return totals

    def _finished_everywhere(self, slot: int, first: int, count: int) -> None:
        ledger, shape = self.ledger, self.ledger.shape
        for channel, (topic, name) in enumerate(shape.channels):
            if topic != ledger.topic[slot]:
                continue
            left = bytes(ledger.finished[channel][first : first + count]).count(l.NOT_FINISHED)
            if left:
                seen = sum(
                    any(row[n] for row in ledger.attempts[channel])
                    for n in range(first, first + count)
                )
                ledger.complain(
                    f"{name} is empty, and {left} of block {slot} ({count} messages, {seen} "
                    "delivered) were never finished"
                )
