"""Linearizability of publishes, transactions and reads: finds what one log in one place could not
have answered.

A topic is a list to which publishes append and which reads return. These are the rules:

1. A read that begins after a publish was acknowledged has its messages.
2. A read has no message that was sent after its end.
3. What one read has at an offset, each later read of this offset has too.
4. The messages of a producer are in the order in which it sent them.
5. A publish that was sent after another one was acknowledged has the higher offset.
6. An acknowledged publish is at the offset of its acknowledgement, and in one piece.

A takeover may lose messages. They are left out before, and rule 1 and 3 do not count for them.

Transactions are publishes too. The version of their app is a register, and a takeover loses nothing
of it:

7. A look that begins after a commit was answered has its version, or a later one.
8. A look has no version whose commit was sent after its end.

Finishes are not checked here. Each message has a state of its own, and there is one consumer, so
the order of all events of a message is known (rule 5 of `bucket/history.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from support.torture.bucket.history import Sent

NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Publish:
    """A publish of `count` messages from `number` on. Without an answer, `acked_s` is `NEVER`.

    Its time and those of reads are of one clock.
    """

    producer: str
    number: int
    count: int
    sent_s: float
    acked_s: float = NEVER
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Read:
    """A read of all offsets from `start` to below `end`. `rows` has (offset, number).

    A read to the end of the log has `end` `NEVER`: a message behind it would have been there.
    `place` is the address of the broker that answered.
    """

    began_s: float
    ended_s: float
    start: int
    end: float
    rows: tuple[tuple[int, int], ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction with this version. `sent` has its times and its messages."""

    version: int
    sent: Sent


@dataclass(frozen=True, slots=True)
class Look:
    """A question for the newest version, and its answer. -1: there is none."""

    began_s: float
    ended_s: float
    version: int
    place: str = ""


def wrong_versions(commits: Sequence[Commit], looks: Iterable[Look]) -> Iterable[str]:
    """Yield what breaks rule 7 or 8. Each commit was sent after the one before was answered."""
    answered_s = [one.sent.acked_s or NEVER for one in commits]
    sent_s = [one.sent.sent_s for one in commits]
    for look in looks:
        least = bisect_left(answered_s, look.began_s)
        if least and look.version < commits[least - 1].version:
            yield (
                f"version {commits[least - 1].version} was committed "
                f"{look.began_s - answered_s[least - 1]:.3f} s before a question, and the answer "
                f"was {look.version}"
            )
        most = bisect_left(sent_s, look.ended_s)
        if look.version > (commits[most - 1].version if most else -1):
            yield f"the answer was version {look.version} before its commit was sent"


def violations(
    publishes: Sequence[Publish], reads: Sequence[Read], lost: Collection[int] = ()
) -> list[str]:
    """Return what breaks a rule. `lost` are the numbers of messages that a takeover has lost.

    Rows whose publish is not among `publishes` count only for rule 3.
    """
    of = {number: one for one in publishes for number in _numbers(one)}
    order = sorted(reads, key=lambda read: read.began_s)
    stored: dict[int, int] = {}  # number -> offset
    for read in order:
        stored.update({number: offset for offset, number in read.rows if number not in lost})
    return [
        *_invisible(publishes, order, lost),
        *_too_early(of, order),
        *_unstable(order, lost),
        *_out_of_order(publishes, stored),
        *_misplaced(publishes, stored),
    ]


def _numbers(publish: Publish) -> range:
    return range(publish.number, publish.number + publish.count)


def _invisible(
    publishes: Sequence[Publish], reads: Iterable[Read], lost: Collection[int]
) -> Iterable[str]:
    acked = sorted((one for one in publishes if one.offset >= 0), key=lambda one: one.offset)
    offsets = [one.offset for one in acked]
    for read in reads:
        found = dict(read.rows)
        at = bisect_left(offsets, read.start)
        for one in acked[at:]:
            if one.offset + one.count > read.end:
                break
            if one.acked_s >= read.began_s or one.number in lost:
                continue
            for index, number in enumerate(_numbers(one)):
                if found.get(one.offset + index) != number:
                    yield (
                        f"message {number} was acknowledged at {one.offset + index} "
                        f"{read.began_s - one.acked_s:.3f} s before a read began, which has "
                        f"{found.get(one.offset + index)} there: it took "
                        f"{read.ended_s - read.began_s:.3f} s, and has {len(found)} messages from "
                        f"{read.start} to {max(found, default=-1)}"
                    )
                    break


def _too_early(of: Mapping[int, Publish], reads: Iterable[Read]) -> Iterable[str]:
    for read in reads:
        for offset, number in read.rows:
            if number in of and of[number].sent_s > read.ended_s:
                yield f"message {number} at {offset} was read before it was sent"


def _unstable(reads: Sequence[Read], lost: Collection[int]) -> Iterable[str]:
    """Find violations of rule 3. Reads that overlap have no order."""
    ended = sorted(reads, key=lambda read: read.ended_s)
    seen: dict[int, int] = {}
    at = 0
    for read in reads:
        while at < len(ended) and ended[at].ended_s < read.began_s:
            seen.update({row[0]: row[1] for row in ended[at].rows if row[1] not in lost})
            at += 1
        found = dict(read.rows)
        low, high = read.start, min(read.end, max(seen, default=-1) + 1)
        for offset in range(low, int(high)):
            if offset in seen and found.get(offset) != seen[offset]:
                yield (
                    f"a read has {found.get(offset)} at {offset}, and an earlier one had "
                    f"{seen[offset]}"
                )
                break


def _out_of_order(publishes: Sequence[Publish], stored: Mapping[int, int]) -> Iterable[str]:
    """Find violations of the rules 4 and 5 in what was read."""
    last: dict[str, tuple[int, int]] = {}
    rows = [(one, stored[one.number]) for one in publishes if one.number in stored]
    for one, offset in sorted(rows, key=lambda row: row[0].sent_s):
        number, before = last.get(one.producer, (-1, -1))
        if before > offset:
            yield (
                f"message {one.number} is at {offset}, and message {number}, which the same "
                f"producer sent before, at {before}"
            )
        last[one.producer] = (one.number, offset)
    acked = sorted(rows, key=lambda row: row[0].acked_s)
    at, highest, number = 0, -1, -1
    for one, offset in sorted(rows, key=lambda row: row[0].sent_s):
        while at < len(acked) and acked[at][0].acked_s < one.sent_s:
            if acked[at][1] > highest:
                highest, number = acked[at][1], acked[at][0].number
            at += 1
        if highest > offset:
            yield (
                f"message {one.number} is at {offset}, and message {number}, which was "
                f"acknowledged before that one was sent, at {highest}"
            )


def _misplaced(publishes: Sequence[Publish], stored: Mapping[int, int]) -> Iterable[str]:
    for one in publishes:
        # The reads may begin or end within a publish.
        found = {
            number - one.number: stored[number] for number in _numbers(one) if number in stored
        }
        firsts = {offset - index for index, offset in found.items()}
        if len(firsts) > 1 or (one.offset >= 0 and firsts - {one.offset}):
            what = f"the publish of message {one.number}, acknowledged at {one.offset}"
            yield f"{what}, is at {list(found.values())}"
