"""The verdict at the end of a run: the content of the topic's log and the work of its channels are
compared with the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zsq
from zsq.transport import errors

from .ledger import Ledger
from .world import MS, S, the_world

BUCKET_S = 5  # after all faults, the bucket is found again within this time
SHIPPED_S = 2  # and what is new is shipped within this time, which is twice the longest bound


def read(reader: zsq.Reader, offset: int) -> Any:
    """Read a page. It is refused as long as the broker does not know that the bucket is back."""
    world = the_world()
    until_ns = world.now_ns + BUCKET_S * S
    while True:
        try:
            return reader.read(offset, 1 << 20)
        except errors.Refused as error:
            if error.code != errors.E_BUCKET or world.now_ns > until_ns:
                raise
        world.pause(10 * MS, 50 * MS)


def depths(stats: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of unfinished messages, by channel. By rule 10 (see `ledger.py`) the
    result must be empty at the end.
    """
    left: dict[str, int] = {}
    for topic in stats["topics"]:
        if topic["health"].startswith(("starting", "failed", "clearing")):
            left[f"{topic['topic_name']} is not up"] = 0
        if topic["delayed_count"]:
            left[f"{topic['topic_name']} delayed"] = topic["delayed_count"]
        for channel in topic["channels"]:
            waits = sum(
                channel.get(name, 0)
                for name in ("depth", "in_flight_count", "deferred_count", "dying_count")
            )
            # A channel that is not up reports no useful numbers, so it counts as unfinished.
            if waits or channel["health"] in (
                "starting",
                "failed",
            ):
                left[f"{topic['topic_name']}/{channel['channel_name']}"] = waits
    return left


@dataclass
class Stored:
    """What a reader has received of a topic: how often each message, and its last offset. `end` is
    where the reader goes on.
    """

    times: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    end: int = 0
    head: int = 0

    def read_on(self, ledger: Ledger, topic: str, reader: zsq.Reader) -> None:
        """Read up to the present head, and check rules 2 and 8."""
        is_cut = ledger.losses.modes.get(topic) == "never" and ledger.losses.cuts
        while True:
            page = read(reader, self.end)
            if page.head < self.head:
                ledger.broken(f"{topic}: its head was {self.head}, and is {page.head}")
            self.head = page.head
            self.end = max(self.end, page.start)
            for block in page.blocks:
                first = block.first_offset
                is_gap = (self.end, first) in ledger.disasters.gaps.get(topic, ())
                if first != self.end and not is_gap and not is_cut:
                    ledger.broken(f"{topic}: after offset {self.end} comes {first}")
                for index, body in enumerate(block.body.values()):
                    number = ledger.number(topic, bytes(body or b""))
                    ledger.place(topic, first + index, number)
                    self.times[number] = self.times.get(number, 0) + 1
                    self.offsets[number] = first + index
                self.end = first + block.count
            if self.end >= page.head or not page.blocks:
                return


def check_stored(ledger: Ledger, url: str, topic: str) -> None:
    """Check rules 1, 2, 8, 10 and 11 against the log itself."""
    found = Stored()
    with zsq.Reader(topic, url=url, timeout=60) as reader:
        found.read_on(ledger, topic, reader)
        _check_seen(ledger, topic, found, reader)
    stored = found.times
    removed = ledger.gone(topic)
    for number, times in stored.items():
        if times > 1:
            ledger.broken(f"{number} is stored {times} times in {topic}")
    _check_batches(
        ledger,
        topic,
        stored,
        ledger.losses.judge(topic, found.offsets, removed)
        if topic in ledger.losses.modes
        else ledger.disasters.excused.get(topic, set()),
        removed,
    )
    for row in ledger.channels.values():
        if row.topic == topic:
            _check_channel(
                ledger, row, stored, _dead_letters(ledger, url, row) if row.attempts_max else set()
            )


def _check_seen(ledger: Ledger, topic: str, found: Stored, reader: zsq.Reader) -> None:
    """Check that a reader sees everything that was acknowledged, without waiting.

    In the mode `bucket`, consumers get a message before readers see it, and a delayed message
    comes to the log after it was acknowledged. Readers see both when the bucket has them.
    """
    if topic in ledger.losses.modes:
        return  # see `Losses.judge`
    world = the_world()
    is_late = world.broker.options.sync == "bucket"
    excused = ledger.disasters.excused.get(topic, set()) | ledger.gone(topic)
    acked = {
        sent.number
        for sent in ledger.sent.values()
        if sent.topic == topic and sent.acked and sent.number not in excused
    }
    at_once = {number for number in acked if not (is_late and ledger.sent[number].delayed)}
    if missing := at_once - found.times.keys():
        ledger.broken(
            f"{sorted(missing)[:10]} of {topic} are acknowledged, and a reader at its head "
            f"{found.head} did not get them"
        )
    # A disaster may have taken what was seen at other offsets.
    known = max((sent.offset for sent in ledger.sent.values() if sent.topic == topic), default=-1)
    until_ns = world.now_ns + (SHIPPED_S * S if is_late else 0)
    while found.end <= known or acked - found.times.keys():
        if world.now_ns >= until_ns:
            ledger.broken(
                f"a reader of {topic} ends at {found.end} and misses "
                f"{sorted(acked - found.times.keys())[:10]}; offset {known} is known"
            )
        world.pause(10 * MS, 50 * MS)
        found.read_on(ledger, topic, reader)


def _check_batches(
    ledger: Ledger, topic: str, stored: dict[int, int], taken: set[int], removed: set[int]
) -> None:
    for numbers in ledger.batches:
        if ledger.sent[numbers[0]].topic != topic:
            continue
        there = [number for number in numbers if number in stored or number in removed]
        if (
            ledger.sent[numbers[0]].acked
            and len(there) < len(numbers)
            and not taken.issuperset(set(numbers) - set(there))
        ):
            ledger.broken(f"acknowledged and not in {topic}: {sorted(set(numbers) - set(there))}")
        if there and len(there) < len(numbers):
            ledger.broken(f"of one block {there} are stored in {topic}, the others are not")


def _dead_letters(ledger: Ledger, url: str, row: Any) -> set[int]:
    """Return the messages in the dead-letter topic. That topic does not exist if there was no dead
    letter. A disaster may have taken some.
    """
    found = set(ledger.disasters.excused.get(f"{row.topic}.{row.name}.dead", ()))
    offset = 0
    with zsq.Reader(f"{row.topic}.{row.name}.dead", url=url, timeout=60) as reader:
        while True:
            try:
                page = read(reader, offset)
            except zsq.NotFound:
                return found
            for block in page.blocks:
                found |= {
                    ledger.number(row.topic, bytes(body or b"")) for body in block.body.values()
                }
                offset = block.first_offset + block.count
            if offset >= page.head or not page.blocks:
                return found


def _check_channel(ledger: Ledger, row: Any, stored: dict[int, int], dead: set[int]) -> None:
    wanted = {
        number for number in stored if row.tags is None or ledger.sent[number].tag in row.tags
    }
    _check_moves(ledger, row, wanted - dead)
    # The highest position to which a seek has moved. The seek may have had no effect.
    passed = max((move.place for move in row.moves), default=0)
    wanted = {number for number in wanted if ledger.sent[number].offset >= passed}
    missing = wanted - row.seen - dead  # the deliveries of dead letters may have been lost
    if row.is_new:
        return  # a disaster took the channel, and it was made again at another place
    if missing:
        ledger.broken(
            f"{row.name} of {row.topic} is empty and never gave out {sorted(missing)[:10]}"
        )
    lost = wanted - row.finished - dead
    if lost:
        ledger.broken(
            f"{row.name} of {row.topic} is empty, and {sorted(lost)[:10]} were neither finished "
            "nor are they dead letters"
        )


def _check_moves(ledger: Ledger, row: Any, wanted: set[int]) -> None:
    """Check that every message was delivered again after the last seek that is certainly in effect,
    except for messages that a later seek may have passed.
    """
    certain = [index for index, move in enumerate(row.moves) if move.in_effect]
    if not certain or row.topic in ledger.losses.modes:
        return
    last = row.moves[certain[-1]]
    begin = max([last.place, *(move.place for move in row.moves[certain[-1] + 1 :])])
    behind = {number for number in wanted if ledger.sent[number].offset >= begin}
    never = [
        number
        for number in behind
        if number not in row.latest or row.latest[number][0] <= last.boundary
    ]
    if never:
        ledger.broken(
            f"{row.name} of {row.topic} was moved to {last.place} behind {last.boundary}, and "
            f"never gave out {sorted(never)[:10]} since"
        )
