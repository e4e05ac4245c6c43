"""zsq sub: write the bodies of a channel's messages to standard output, one per line.

It finishes a message only after its line is written and flushed. If the process is killed or its
pipe breaks, the messages that it has not finished are delivered again.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ....transport.message_object import as_object
from ....transport.names import meant
from ....transport.system import SignalFlag
from ..manage.channel import of_parts, unused
from ..manage.settings import SUBSCRIBING, given_settings, resolved, with_settings, with_start
from ..options import followed, stop_signals, with_broker_followed
from ..output import body_for, json_lines_option, say
from ..quantities import Seconds

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin, Batch, Consumer
    from ....transport.client.core.topic_choice import TopicChoice

POLL_S: Final = 0.2  # seconds until a signal or a broken pipe is noticed while no message arrives
QUIET_S: Final = 1.0  # seconds without a message until `sub` looks whether it is paused
LOOK_AGAIN_S: Final = 30.0  # seconds until `sub` looks again
PAUSED_LOOKS: Final = 8  # the most topics of which `sub` looks whether they are paused
READY: Final = 2500


@click.command()
@click.argument("topic")
@click.argument("channel")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--idle",
    type=Seconds(),
    metavar="TIME",
    help="Stop when no message has arrived for this long.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 99),
    metavar="PERCENT",
    help="Take only this percentage of the messages, and finish the others.",
)
@click.option(
    "--create",
    is_flag=True,
    help="Create a TOPIC that does not exist. Without this option it is an error.",
)
@with_start
@with_settings(SUBSCRIBING)
@json_lines_option
@with_broker_followed
def sub(
    topic: str, channel: str, count: int | None, idle: float | None, sample: int | None, create: bool, as_json: bool, url: str,
    timeout: float, start: Any, **options: Any,
) -> None:  # fmt: skip
    """Write the messages of CHANNEL to standard output, one per line, and finish them.

    TOPIC may be several names with commas between them, or a pattern such as 'orders.*', which
    follows all topics that match. --json shows the topic of each message, and its
    part if the topic has parts.

    CHANNEL is created if it is missing, TOPIC only with --create. Without --start the first channel
    of a topic gets all messages that wait there, and a later channel those published from now on.
    The other options apply to a new CHANNEL. An existing one must have the same --tags, --ordered
    and --priorities; the other options do not change it (see `zsq channel set`).

    Ctrl-C and SIGTERM finish the messages that were written and give back the rest.
    """
    from ....transport.client.blocking.client import Admin, Consumer
    from ....transport.client.core.topic_choice import topic_choice
    from ....transport.names import check_name

    choice = topic_choice(topic.split(",") if "," in topic else topic)
    check_name(channel, "channel")
    if create and choice.pattern is not None:
        raise click.UsageError(f"--create needs names of topics, and {topic} is a pattern")
    settings = given_settings(SUBSCRIBING, options)
    ready = READY if count is None else min(READY, count)
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        try:
            with stopping.interruptible():
                with Admin(url, timeout=timeout) as admin:
                    for name in () if create else choice.names:
                        channels = channels_of(admin, name, ", or use --create")
                        if channels is not None:
                            note_new(name, channel, channels)
                    if start is not None:
                        settings["start"] = _start_of(admin, choice, start)
                        for name in choice.names:
                            _say_where_it_is(admin, name, channel)
                waits = followed(timeout)
                consumer = Consumer(
                    choice.names or topic,
                    channel,
                    url=url,
                    ready=ready,
                    timeout=waits,
                    sample_rate=sample or 0,
                    **settings,
                )
                consumer.subscribe(timeout)
                stack.callback(consumer.close, timeout)
        except KeyboardInterrupt:
            return  # no broker was reached
        drain(
            consumer,
            sys.stdout.buffer,
            count,
            stopping,
            objects_of if as_json else bodies_of,
            idle,
            partial(_note_paused, url, consumer, channel),
        )


def _start_of(admin: Admin, choice: TopicChoice, start: Any) -> Any:
    """Return the place where a new channel begins, in each of the topics."""
    if len(choice.names) == 1:
        return resolved(admin, choice.names[0], start)
    if getattr(start, "text", None) is not None:
        raise click.UsageError(f"--start {start.text} is a message of one topic: name that topic")
    return start


def _note_paused(url: str, consumer: Consumer, channel: str) -> bool:
    """Print a note for each topic that is paused. If there are many, look at the first ones."""
    looks = [note_paused(url, name, channel) for name in consumer.topics[:PAUSED_LOOKS]]
    return all(looks)


def note_paused(url: str, topic: str, channel: str) -> bool:
    """Print a note if the channel or its topic is paused, or if its rate is limited.

    Return True if the caller need not ask again: the note was printed, or the broker refuses to
    answer.
    """
    from ....transport.client.blocking.client import Admin
    from ....transport.errors import BrokerUnreachable, ZsqError
    from ....transport.whole_topic import whole_topic

    try:
        with Admin(url, timeout=QUIET_S) as admin:
            topic_row = whole_topic(admin.stats(topic, channel, partial=True), topic).row
    except BrokerUnreachable:
        return False
    except ZsqError:
        return True
    is_paused = any(row.get("paused") for row in topic_row["channels"])
    if is_paused:
        say(
            f"zsq: channel {topic}/{channel} is paused and delivers nothing; zsq channel unpause "
            f"{topic} {channel} continues it",
            err=True,
        )
    if topic_row.get("paused"):
        say(
            f"zsq: topic {topic} is paused and its channels get no new messages; zsq topic unpause "
            f"{topic} continues it",
            err=True,
        )
    is_limited = any(row.get("limited_since_s") for row in topic_row["channels"])
    if is_limited:
        say(f"zsq: channel {topic}/{channel} has a max_rate, which withholds messages", err=True)
    return is_paused or is_limited or bool(topic_row.get("paused"))


def note_new(topic: str, channel: str, channels: Sequence[str]) -> None:
    """Print a note that the command creates the channel.

    A channel with a misspelt name would keep a backlog forever. `#ephemeral` channels need no note,
    because they delete themselves.
    """
    from ....transport.names import EPHEMERAL_SUFFIX

    if channel not in channels and not channel.endswith(EPHEMERAL_SUFFIX):
        say(
            (
                f"zsq: channel {channel!r} of topic {topic!r} does not exist; creating "
                f"it{meant(channel, channels)}"
            ),
            err=True,
        )


def channels_of(admin: Admin, topic: str, or_else: str = "") -> Sequence[str] | None:
    """Return the topic's channels, or None if a broker that has parts of the topic is away.

    Raises `NotFound` with advice if there is no such topic: to publish first, or `or_else`.
    """
    from ....transport.errors import E_NOT_FOUND, BrokerUnreachable, NotFound

    channels: Sequence[str] | None = admin.topics().get(topic)
    if channels is None:
        try:
            channels = of_parts(admin, topic)
        except BrokerUnreachable as error:  # the first broker has answered that there are parts
            say(f"zsq: going on with the other parts: {error.text}", err=True)
            return None
    if channels is None:
        text = f"topic {topic!r} does not exist: publish to it first{or_else}"
        raise NotFound(E_NOT_FOUND, text)
    return channels


def _say_where_it_is(admin: Admin, topic: str, channel: str) -> None:
    """Print a note that `--start` has no effect on an existing channel.

    The consumer itself warns about settings without effect.
    """
    from ....transport.errors import NotFound

    with contextlib.suppress(NotFound):
        for line in unused(admin, topic, channel, {}, start=True):
            click.echo(line, err=True)


def bodies_of(batch: Batch, wanted: int) -> list[bytes]:
    return batch.bodies[:wanted]


def objects_of(batch: Batch, wanted: int) -> list[bytes]:
    """Return messages as JSON, with the data that a consumer has."""
    from ....transport.client.core.message import StoredMessage

    rows = []
    for message in islice(batch.messages(), wanted):
        stored = StoredMessage(
            message.topic,
            message.offset,
            message.timestamp_ns,
            message.body,
            message.key,
            message.tag,
            message.headers,
        )
        shown = as_object(stored) | {"attempts": message.attempts}
        if message.part is not None:  # without it, the offset would not say which message it is
            shown["part"] = message.part
        rows.append(json.dumps(shown).encode())
    return rows


def drain(
    consumer: Consumer, out: IO[bytes], count: int | None, stopping: SignalFlag,
    shown: Callable[[Batch, int], list[bytes]] = bodies_of, idle_s: float | None = None,
    quiet: Callable[[], bool] | None = None,
) -> int:  # fmt: skip
    """Write and finish messages until `count`, a signal or a broken pipe; return their number.

    `shown` returns a line for each message. With `idle_s`, also stop when no message has arrived
    for that many seconds.
    """
    written = 0
    last_s = time.monotonic()
    look_s = last_s
    while not stopping.is_set() and (count is None or written < count) and not pipe_broken(out):
        batch = consumer.receive_batch(timeout=POLL_S if idle_s is None else min(POLL_S, idle_s))
        if batch is None:
            if idle_s is not None and time.monotonic() - last_s >= idle_s:
                break
            now_s = time.monotonic()
            if quiet is not None and now_s - last_s >= QUIET_S and now_s >= look_s:
                quiet, look_s = (None if quiet() else quiet), now_s + LOOK_AGAIN_S
            continue
        last_s = time.monotonic()
        wanted = len(batch) if count is None else min(len(batch), count - written)
        try:
            write_lines(out, shown(batch, wanted))
        except BrokenPipeError:
            break  # closing returns the unfinished messages at once
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
    """Write one line for each body.

    A file gets the bytes unchanged. For a terminal, control characters are escaped (JSON has none).
    """
    if bodies:
        out.write(b"\n".join(map(body_for(out), bodies)) + b"\n")
        out.flush()


def pipe_broken(out: Any) -> bool:
    """Return True if the reader of `out` has closed the pipe.

    This checks without writing, so no message is received that cannot be written.
    """
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
        return bool(poll.poll(0))  # no event is requested, so only POLLERR and POLLHUP can come
    except (OSError, ValueError, AttributeError):
        return False
