"""Checker of a history: the answers that the clients got, and the messages that they received. The
tests that kill processes use it.

Bodies are unique numbers. The rules are those that can be checked from outside of the broker:

1. Every acknowledged publish is delivered to every channel that existed.
2. Nothing is delivered that was not sent, and bodies agree to the byte.
3. Nothing is delivered after its finish was confirmed.
4. The log has each acknowledged message exactly once, and an unacknowledged one at most once.
5. The attempts of a message never decrease.
6. An offset always names the same message.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import zsq


def body_of(number: int) -> bytes:
    return b"%012d:%s" % (number, b"x" * (number % 97))


def number_of(body: bytes) -> int:
    number = int(body[:12])
    assert body == body_of(number), f"a body was changed: {body!r}"
    return number


@dataclass
class ChannelHistory:
    # Number of a message -> how often it was delivered.
    delivered: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    # Finishes whose answer was lost: they may have taken effect or not.
    doubtful: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


class History:
    """The record that all threads of a test share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        self.offsets: dict[int, int] = {}  # offset -> number
        self.channels: dict[str, ChannelHistory] = {}

    def _at(self, offset: int, number: int, errors: list[str]) -> None:
        known = self.offsets.setdefault(offset, number)
        if known != number:
            errors.append(f"offset {offset} named {known} and then {number}")

    def got(self, channel: str, message: zsq.Message) -> int:
        number = number_of(message.body)
        with self.lock:
            row = self.channels.setdefault(channel, ChannelHistory())
            if number not in self.sent:
                row.errors.append(f"{number} was never sent")
            if number in row.confirmed:
                row.errors.append(
                    f"{number} came again (attempt {message.attempts}) after its finish was "
                    "confirmed"
                )
            if message.attempts < row.attempts.get(number, 0):
                row.errors.append(
                    f"attempts of {number} fell from {row.attempts[number]} to {message.attempts}"
                )
            row.attempts[number] = message.attempts
            row.doubtful.discard(number)
            row.delivered[number] = row.delivered.get(number, 0) + 1
            self._at(message.offset, number, row.errors)
        return number

    def confirm(self, channel: str, numbers: set[int]) -> None:
        with self.lock:
            self.channels[channel].confirmed |= numbers

    def doubt(self, channel: str, number: int) -> None:
        with self.lock:
            self.channels[channel].doubtful.add(number)

    def all_finished(self, channel: str) -> bool:
        """Return True if all messages are finished, as far as clients can know it. The caller also
        compares the channel's depth.
        """
        with self.lock:
            row = self.channels.get(channel)
            return row is not None and self.acknowledged <= row.confirmed | row.doubtful

    def check(self, url: str, topic: str) -> None:
        """Compare everything with the log and the channels, at the end of the test."""
        stored: dict[int, int] = {}
        errors: list[str] = []
        with zsq.Reader(topic, url=url) as reader:
            offset = 0
            while True:
                found = reader.read(offset, 1 << 20)
                for block in found.blocks:
                    for i, body in enumerate(block.body.values()):
                        assert body is not None
                        number = number_of(body)
                        stored[number] = stored.get(number, 0) + 1
                        self._at(block.first_offset + i, number, errors)
                if not found.blocks or found.blocks[-1].next_offset >= found.head:
                    break
                offset = found.blocks[-1].next_offset
        doubled = [number for number, times in stored.items() if times > 1]
        assert not doubled, f"stored more than once: {doubled[:10]}"
        assert not self.acknowledged - stored.keys(), (
            f"acknowledged and lost: {sorted(self.acknowledged - stored.keys())[:10]}"
        )
        assert not stored.keys() - self.sent, "stored and never sent"
        for name, row in self.channels.items():
            missing = self.acknowledged - row.delivered.keys()
            assert not missing, f"channel {name} never got {len(missing)}: {sorted(missing)[:10]}"
            errors += row.errors
        assert not errors, errors[:10]
