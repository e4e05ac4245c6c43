"""zsq sub and zsq tail: message bodies to standard output, a line each.

`sub` takes part in a channel: a message is finished only after its line was written and flushed, so whoever is killed in between,
or finds its pipe broken, gives the rest back. `tail` reads by offset and takes nothing from anybody.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from .channel import unused
from .channel_settings import given_settings, resolved, with_attempts, with_birth
from .options import Stopping, stop_signals, with_broker
from .output import json_lines_option
from .places import Place

if TYPE_CHECKING:
    from ...transport.block import Block
    from ...transport.client import Batch, Consumer, Reader

Shown = Callable[["Block", int], list[bytes]]  # the lines of a block from an offset on

POLL_S: Final = 0.2  # how soon a signal or a broken pipe is noticed while nothing arrives
FOLLOW_S: Final = 0.1  # how often `tail` asks for more at the head
READY: Final = 2500
NEWEST_MAX: Final = 10_000  # as transport's


@click.command()
@click.argument("topic")
@click.argument("channel")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--sample", type=click.IntRange(1, 99), metavar="PERCENT", help="Take only that part of what comes; the rest is finished.")
@with_birth
@with_attempts(default=False)
@json_lines_option
@with_broker
def sub(
    topic: str, channel: str, count: int | None, sample: int | None, as_json: bool, url: str, timeout: float, start: Any, **options: Any
) -> None:
    """Write the messages of CHANNEL to standard output, a line each, and finish them.

    TOPIC and CHANNEL are made if they are missing. Without --start the first channel of a topic gets all that waits there, a later one what
    is published from then on. The other options say how a CHANNEL is made; one that is there must have the same --tags and --ordered, the
    rest changes nothing (`zsq channel set` does that).

    Ctrl-C and SIGTERM finish what was written and give back the rest.
    """
    from ...transport.client import Consumer
    from ...transport.names import check_name

    check_name(topic)
    check_name(channel, "channel")
    given = given_settings(options)
    if start is not None:
        given["start"] = resolved(url, timeout, start)
    if given:
        _warn(url, timeout, topic, channel, given)
    ready = READY if count is None else min(READY, count)
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        try:
            with stopping.interruptible():
                consumer = Consumer(url, topic, channel, ready=ready, timeout=timeout, sample_rate=sample or 0, **given)
                stack.enter_context(consumer)
        except KeyboardInterrupt:
            return  # before there was a broker
        drain(consumer, sys.stdout.buffer, count, stopping, objects_of(topic) if as_json else bodies_of)


def _warn(url: str, timeout: float, topic: str, channel: str, given: Mapping[str, Any]) -> None:
    """Where the channel is there already, what was said about a new one changes nothing."""
    from ...transport.client import Admin
    from ...transport.errors import NotFound

    settings = {name: value for name, value in given.items() if name not in ("start", "tags", "ordered")}  # those two are checked anyway
    with contextlib.suppress(NotFound), Admin(url, timeout=timeout) as admin:
        for line in unused(admin, topic, channel, settings, start="start" in given):
            click.echo(line, err=True)


def bodies_of(batch: Batch, wanted: int) -> list[bytes]:
    return batch.bodies[:wanted]


def objects_of(topic: str) -> Callable[[Batch, int], list[bytes]]:
    """As JSON, with what a consumer knows of a message besides its body."""
    from ...transport.stored import StoredMessage
    from .message import as_object

    def lines(batch: Batch, wanted: int) -> list[bytes]:
        found = []
        for one in islice(batch.messages(), wanted):
            stored = StoredMessage(topic, one.offset, one.timestamp_ns, one.body, one.key, one.tag, one.headers)
            found.append(json.dumps(as_object(stored) | {"attempts": one.attempts}).encode())
        return found

    return lines


def drain(
    consumer: Consumer, out: IO[bytes], count: int | None, stopping: threading.Event, shown: Callable[[Batch, int], list[bytes]] = bodies_of
) -> int:
    """Write and finish until `count` messages, a signal or a broken pipe; returns how many were finished. `shown`: a line each."""
    written = 0
    while not stopping.is_set() and (count is None or written < count) and not pipe_broken(out):
        batch = consumer.receive_batch(timeout=POLL_S)
        if batch is None:
            continue
        wanted = len(batch) if count is None else min(len(batch), count - written)
        try:
            write_lines(out, shown(batch, wanted))
        except BrokenPipeError:
            break  # not finished: closing gives all of it back at once
        _finish(batch, wanted)
        written += wanted
    return written


def _finish(batch: Batch, wanted: int) -> None:
    if wanted == len(batch):
        batch.finish()
        return
    for index, message in enumerate(batch.messages()):
        if index == wanted:
            break
        message.finish()


def write_lines(out: IO[bytes], bodies: list[bytes]) -> None:
    if bodies:
        out.write(b"\n".join(bodies) + b"\n")
        out.flush()


def pipe_broken(out: Any) -> bool:
    """Whether nobody can read `out` any more: noticed without writing, so that no message is taken in vain."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
        return bool(poll.poll(0))  # asked for nothing, only POLLERR and POLLHUP can come
    except (OSError, ValueError, AttributeError):
        return False


@click.command()
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--from", "start", type=Place(), metavar="WHERE", help="A place as of zsq seek; default: latest, with --no-follow earliest.")
@click.option("--last", type=click.IntRange(1, NEWEST_MAX), metavar="N", help="Begin with the newest N messages that are there.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more at the end, or end there.")
@json_lines_option
@with_broker
def tail(topic: str, count: int | None, start: Any, last: int | None, follow: bool, as_json: bool, url: str, timeout: float) -> None:
    """Write TOPIC's messages from an offset or a time on; no channel takes part, nothing is finished."""
    if start is not None and last:
        raise UsageError(E_BAD_ARGUMENT, "--from and --last each say where to begin; give one of them")
    from ...transport.client import Reader
    from ...transport.names import check_name

    check_name(topic)
    where = ("latest" if follow else "earliest") if start is None else resolved(url, timeout, start)
    with stop_signals() as stopping, Reader(url, topic, timeout=timeout) as reader:
        if last is not None:
            where = reader.newest(last)
        elif isinstance(where, datetime):
            where = reader.offset_at(int(where.timestamp() * 1e6) * 1000)
        follow_topic(reader, sys.stdout.buffer, str(where), count, stopping, follow, objects_from(topic) if as_json else bodies_from)


def follow_topic(
    reader: Reader, out: IO[bytes], where: str, count: int | None, stopping: Stopping, follow: bool, shown: Shown | None = None
) -> None:
    """Write until `count` messages, a signal, a broken pipe, or (without `follow`) the end."""
    # A signal ends at once what waits for the broker, but never cuts a line.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _follow(reader, out, where, count, stopping, follow, shown or bodies_from)


def _follow(reader: Reader, out: IO[bytes], where: str, count: int | None, stopping: Stopping, follow: bool, shown: Shown) -> None:
    with stopping.interruptible():
        fetched = reader.read(0, 1)
    offset: int = {"earliest": fetched.start, "latest": fetched.head}.get(where, -1)
    offset = int(where) if offset < 0 else offset
    end: int = fetched.head
    written = 0
    while not stopping.is_set() and (count is None or written < count) and not pipe_broken(out):
        if not follow and offset >= end:
            break
        with stopping.interruptible():
            fetched = reader.read(offset)
        before = offset
        for block in fetched.blocks:
            bodies = shown(block, offset)
            if not follow:
                bodies = bodies[: max(0, end - offset)]
            if count is not None:
                bodies = bodies[: count - written]
            write_lines(out, bodies)
            written += len(bodies)
            offset = max(offset, block.next_offset)
        if count is None or written < count:
            offset = max(offset, fetched.next_offset)  # what lies between is lost
        if offset == before:
            if offset < fetched.start:
                offset = fetched.start  # older ones are gone
            elif not follow:
                break
            else:
                stopping.wait(FOLLOW_S)


def bodies_from(block: Block, offset: int) -> list[bytes]:
    """The bodies of a block from `offset` on."""
    return [body or b"" for body in block.body.values()[max(0, offset - block.first_offset) :]]


def objects_from(topic: str) -> Shown:
    """The same as JSON, with all that is stored."""
    from ...transport.stored import message_at
    from .message import as_object

    def lines(block: Block, offset: int) -> list[bytes]:
        first = max(0, offset - block.first_offset)
        return [json.dumps(as_object(message_at(topic, block, index))).encode() for index in range(first, block.count)]

    return lines
