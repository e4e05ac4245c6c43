"""zsq tail: write the messages of a topic to standard output, one per line.

It reads by offset, which does not affect any consumer. A topic with parts is read as one stream: in
each round, each part is read on. If the broker of a part is away, the others go on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_PARTS,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
)
from ....transport.message_object import as_object
from ..exit_codes import DATA_LOST, DONE
from ..manage.settings import resolved
from ..options import Stopping, followed, stop_signals, with_broker_followed
from ..output import json_lines_option, say
from ..quantities import TopicPosition
from .consume import pipe_broken, write_lines

if TYPE_CHECKING:
    from ....transport.block.block import Block
    from ....transport.client.blocking.client import Reader
    from ....transport.client.core.message import Fetched

# Returns the lines of a block from an offset on. None stands for a message that is not shown.
Shown = Callable[["Block", int], Sequence[bytes | None]]
# Returns where to begin in a topic or a part.
Begin = Callable[["Reader"], int]

FOLLOW_S: Final = 0.1  # seconds between requests at the end of the topic
PART_S: Final = 2.0  # seconds until a part does not delay the others any more
AWAY_S: Final = 5.0  # seconds until a part that did not answer is asked again
RANGES_SHOWN: Final = 100  # ranges of missing messages that are printed for a topic or a part
_ENDS: Final = ("earliest", "latest")
NEWEST_MAX: Final = 10_000  # repeats a constant of transport, whose import would delay help


@click.command()
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--from",
    "start",
    type=TopicPosition(),
    metavar="WHERE",
    help=(
        "Start here: a place as in zsq seek. Default: latest, or earliest with --no-follow. An "
        "offset or id is not possible for all parts of a topic."
    ),
)
@click.option(
    "--last",
    type=click.IntRange(1, NEWEST_MAX),
    metavar="N",
    help="Start with the newest N messages of the topic, or of each of its parts.",
)
@click.option(
    "--grep",
    "pattern",
    metavar="PATTERN",
    help="Print only messages whose body matches this regular expression. (?i) ignores case.",
)
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="At the end of the topic, wait for more messages, or stop.",
)
@click.option(
    "--addresses",
    is_flag=True,
    help=(
        "With --json, also print only_channel for messages that only one channel gets, such as "
        "redriven ones. zsq pub --json-lines then addresses the copies too."
    ),
)
@json_lines_option
@with_broker_followed
def tail(
    topic: str,
    count: int | None,
    start: Any,
    last: int | None,
    pattern: str | None,
    follow: bool,
    addresses: bool,
    as_json: bool,
    url: str,
    timeout: float,
) -> int:
    """Write the messages of TOPIC from an offset or a time. No channel takes part, and nothing is
    finished.

    Messages that are damaged, or that retention removes before they are read, are left out. Their
    offsets are printed on stderr, and the exit code is then 4.
    """
    if start is not None and last:
        raise UsageError(E_BAD_ARGUMENT, "--from and --last exclude each other; give one of them")
    from ....transport.client.blocking.client import Admin, Reader
    from ....transport.names import check_name

    check_name(topic)
    try:
        wanted = None if pattern is None else re.compile(os.fsencode(pattern))
    except re.error as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"--grep {pattern!r} is not a regular expression: {error}"
        ) from None
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        try:
            with stopping.interruptible():
                parts = _parts(topic, url, timeout)
        except KeyboardInterrupt:
            return DONE  # no broker was reached
        where = "latest" if follow else "earliest"
        if start is not None:
            if parts and not isinstance(start, datetime) and str(start) not in _ENDS:
                text = f"topic {topic} has {len(parts)} parts, and each has its own offsets"
                raise UsageError(
                    E_PARTS, f"{text}: give a time, or name a part, such as {parts[0]}"
                )
            with Admin(url, timeout=timeout) as admin:
                where = resolved(admin, topic, start)
        if follow:
            timeout = PART_S if parts else followed(timeout)
        logs = []
        for name in parts or (topic,):
            reader = Reader(name, url=url, timeout=timeout, patient=follow, on_data_loss="ignore")
            shown = matching(wanted, objects_from(name, addresses) if as_json else bodies_from)
            begin = beginning(where, last)
            logs.append(
                TailedLog(name, stack.enter_context(reader), begin, shown, is_part=bool(parts))
            )
        follow_logs(logs, sys.stdout.buffer, count, stopping, follow)
    lost = sum(log.lost for log in logs)
    if not lost:
        return DONE
    say(f"zsq: {lost:,} messages could not be read and were left out", err=True)
    return DATA_LOST


def _parts(topic: str, url: str, timeout: float) -> list[str]:
    """Return the names of the topic's parts, or [] if it has none. Raises an error if the topic
    does not exist.
    """
    from ....transport.client.blocking.client import Reader
    from ....transport.names import part_name
    from ....transport.wire.spread import HasParts

    try:
        with Reader(topic, url=url, timeout=timeout) as met:
            met.bounds()
    except HasParts as error:
        return [part_name(topic, number) for number, _ in sorted(error.spread.parts)]
    return []


def beginning(where: Any, last: int | None = None) -> Begin:
    """Return the function that finds where to begin.

    `where`: "earliest", "latest", an offset, or a time. `last`: how many of the newest messages,
    instead of `where`.
    """

    def begin(reader: Reader) -> int:
        if last is not None:
            return reader.newest(last)
        if isinstance(where, datetime):
            return reader.offset_at(int(where.timestamp() * 1e6) * 1000)
        if str(where) in _ENDS:
            start, head = reader.bounds()
            return start if str(where) == "earliest" else head
        return int(where)

    return begin


@dataclass(slots=True)
class TailedLog:
    """A topic or a part, and where it is read on.

    `offset` is -1, and `end` is not known, before its broker has answered. `end`: the head at that
    time. `away_s`: when a part whose broker is away is asked again (monotonic), or 0. `lost`: the
    number of messages that could not be read, in `ranges` ranges. `is_begun` is True after a read.
    """

    name: str
    reader: Reader
    begin: Begin
    shown: Shown
    is_part: bool = False
    offset: int = -1
    end: int = 0
    away_s: float = 0.0
    lost: int = 0
    is_begun: bool = False
    ranges: int = 0

    def is_at_end(self) -> bool:
        return 0 <= self.end <= self.offset

    def fetch(self) -> Fetched:
        """Read on. The first call finds where to begin."""
        if self.offset < 0:
            offset = self.begin(self.reader)
            self.end = self.reader.bounds()[1]
            self.offset = offset
        return self.reader.read(self.offset)

    def lines(self, block: Block, follow: bool) -> list[bytes]:
        """Return the lines of a block, without `follow` only those before the end."""
        rows = self.shown(block, self.offset)[: None if follow else max(0, self.end - self.offset)]
        return [line for line in rows if line is not None]

    def step_over(self, fetched: Fetched, stop: int, follow: bool) -> None:
        """Continue at `stop`, and print which messages before it are missing.

        Messages that retention had removed before the command began are not counted as lost.
        """
        from ....transport.client.core.message import missing_in

        end = stop if follow else min(stop, self.end)
        for missing in missing_in(fetched, self.offset or fetched.start, end):
            self.ranges += 1
            if self.ranges <= RANGES_SHOWN:
                say(f"zsq: {missing.text(self.name)}", err=True)
            if self.is_begun or missing.first >= fetched.start:
                self.lost += missing.stop - missing.first
        self.offset = max(self.offset, stop)


def follow_logs(
    logs: Sequence[TailedLog], out: IO[bytes], count: int | None, stopping: Stopping, follow: bool
) -> None:
    """Write messages until `count`, a signal, a broken pipe, or (without `follow`) the end."""
    # A signal interrupts a wait for the broker at once, but never the writing of a line.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _follow(logs, out, count, stopping, follow)


def _follow(
    logs: Sequence[TailedLog], out: IO[bytes], count: int | None, stopping: Stopping, follow: bool
) -> None:
    left = sys.maxsize if count is None else count
    while left and not stopping.is_set() and not pipe_broken(out):
        has_moved = False
        for log in logs:
            if not left or (not follow and log.is_at_end()):
                continue
            fetched = _fetched(log, stopping, follow)
            if fetched is None:
                continue
            before = log.offset
            for block in fetched.blocks:
                if not left:
                    break
                log.step_over(fetched, block.first_offset, follow)
                lines = log.lines(block, follow)[:left]
                write_lines(out, lines)
                left -= len(lines)
                log.offset = max(log.offset, block.next_offset)
            if left:
                log.step_over(fetched, fetched.next_offset, follow)
            log.is_begun = True
            has_moved = has_moved or log.offset != before
        if not has_moved:
            if not follow:
                break
            stopping.wait(FOLLOW_S)


def _fetched(log: TailedLog, stopping: Stopping, follow: bool) -> Fetched | None:
    """Read on. Return None for a part whose broker is away, or that was removed, if the others are
    followed.
    """
    if log.away_s > time.monotonic():
        return None
    try:
        with stopping.interruptible():
            fetched = log.fetch()
    except NotFound as error:
        if not log.is_part or not follow:
            raise
        say(f"zsq: {log.name} is not read any more: {error.text}", err=True)
        log.away_s = math.inf
        return None
    except (BrokerUnreachable, Refused) as error:
        if not log.is_part or not follow:
            raise
        if not log.away_s:
            say(f"zsq: {log.name} is not read for now: {error.text}", err=True)
        log.away_s = time.monotonic() + AWAY_S
        return None
    if log.away_s:
        say(f"zsq: {log.name} is read again", err=True)
        log.away_s = 0.0
    return fetched


def bodies_from(block: Block, offset: int) -> list[bytes]:
    """Return the bodies of a block from `offset` on."""
    return [body or b"" for body in block.body.values()[max(0, offset - block.first_offset) :]]


def matching(wanted: re.Pattern[bytes] | None, shown: Shown) -> Shown:
    """Restrict `shown` to messages whose body matches the pattern."""
    if wanted is None:
        return shown

    def lines(block: Block, offset: int) -> Sequence[bytes | None]:
        pairs = zip(shown(block, offset), bodies_from(block, offset), strict=True)
        return [line if wanted.search(body) else None for line, body in pairs]

    return lines


def objects_from(topic: str, addresses: bool = False) -> Shown:
    """Return a function that writes messages as JSON, with all stored data.

    Which messages are for one channel only is written with `addresses`.
    """
    from ....transport.client.core.message import message_at

    def lines(block: Block, offset: int) -> list[bytes]:
        first = max(0, offset - block.first_offset)
        messages = [message_at(topic, block, index) for index in range(first, block.count)]
        return [
            json.dumps(as_object(message, message.only_channel if addresses else None)).encode()
            for message in messages
        ]

    return lines
