"""zsq redrive: send dead letters back to their topics; see transport/client/core/redrive.py."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import click

from ....transport.client.core.redrive import (
    BEHIND,
    CHANNEL,
    NO_LETTER,
    NOT_COME,
    POLL_S,
    READY,
    SETTLED,
    Redrive,
)
from ..options import Stopping, stop_signals, suggesting, with_broker
from ..output import json_option, say, tell
from ..progress import Advance, bar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....transport.client.blocking.client import Admin, Consumer, Producer, Reader
    from ....transport.client.core.message import Message, StoredMessage

    SentT = TypeVar("SentT", Message, StoredMessage)


class Run:
    """One run of the command. It sends requests and publishes.

    The plan records how many messages were sent to each place, and why others stay.
    """

    def __init__(self, admin: Admin, producer: Producer, dead_topic: str, plan: Redrive) -> None:
        self._admin = admin
        self._producer = producer
        self._dead_topic = dead_topic
        self.plan = plan

    def send(
        self, messages: Sequence[SentT], limit: int, finish: Callable[[Sequence[SentT]], None]
    ) -> int:
        """Send up to `limit` of these messages back, and return their number.

        `finish` finishes messages that are durable in their target.
        """
        from ....transport.errors import NotFound, ZsqError

        before = self.plan.total
        for route in self.plan.unknown(messages):
            try:
                self._admin.redrive_to(self._dead_topic, *route.place, route.origin, route.chosen)
            except ZsqError as error:
                if route.chosen and isinstance(error, NotFound):
                    error = suggesting(error)
                self.plan.known(route, error)
            else:
                self.plan.known(route)
        for group in self.plan.groups(messages, limit):
            self._producer.publish_many(
                group.place.topic,
                [message.body for message in group.messages],
                keys=[message.key for message in group.messages],
                tags=[message.tag for message in group.messages],
                headers=group.headers,
            )
            finish(group.messages)
            self.plan.was_sent(group)
        return self.plan.total - before

    def send_chosen(self, offsets: Sequence[int], reader: Reader) -> None:
        """Send the dead letters with these offsets back, one by one."""
        from ....transport.errors import NotFound

        for offset in offsets:
            if not self._admin.skip(self._dead_topic, CHANNEL, [offset], preview=True):
                self.plan.leave(SETTLED)
                continue
            try:
                letter = reader.message(offset)
            except NotFound as error:
                self.plan.leave(error.text)
                continue
            self.send([letter], 1, self._finish_chosen)

    def _finish_chosen(self, letters: Sequence[StoredMessage]) -> None:
        self._admin.skip(self._dead_topic, CHANNEL, [letter.offset for letter in letters])

    def waiting(self) -> int:
        return self.plan.waiting(
            self._admin.stats(self._dead_topic, CHANNEL)["topics"][0]["channels"][0]
        )

    def report(self) -> list[str]:
        found = [
            f"{count:,} to {place.topic}"
            + (f", for channel {place.channel}" if place.channel else "")
            for place, count in self.plan.sent.items()
        ]
        return found + [f"{count:,} left: {why}" for why, count in self.plan.left.items()]


@click.command()
@click.argument("dead_topic", metavar="DEAD_TOPIC")
@click.option(
    "--to",
    metavar="TOPIC",
    help=(
        "Send to this topic instead of the original one, to all its channels unless --channel "
        "names one."
    ),
)
@click.option(
    "--channel",
    metavar="CHANNEL",
    help="Send to this channel instead of the one that gave the messages up.",
)
@click.option(
    "-n", "count", type=click.IntRange(min=1), metavar="N", help="Redrive the next N dead letters."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Redrive all dead letters that exist when the command starts.",
)
@click.option(
    "--offset",
    "offsets",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="OFFSET",
    help="Redrive the dead letter with this offset in DEAD_TOPIC. Can be given up to 1,000 times.",
)
@click.option(
    "--discard",
    is_flag=True,
    help="Finish the dead letters of --offset without sending them back.",
)
@json_option
@with_broker
def redrive(
    dead_topic: str,
    to: str | None,
    channel: str | None,
    count: int | None,
    everything: bool,
    offsets: tuple[int, ...],
    discard: bool,
    as_json: bool,
    url: str,
    timeout: float,
) -> int:
    """Send the dead letters in DEAD_TOPIC back to their original topics, each for the channel that
    gave it up.

    They arrive as new messages, with attempts from 1. The headers about the failure stay as
    zsq-redriven-*. DEAD_TOPIC keeps the dead letters for its other readers. Exit code 1 if some
    could not be sent: these stay, and can be sent again. zsq tail DEAD_TOPIC --no-follow --json
    shows the offsets.
    """
    from ....transport.client.blocking.client import Admin, Consumer, Producer, Reader
    from ....transport.errors import E_PARTS, UsageError
    from ....transport.names import check_name
    from ....transport.whole_topic import whole_topic

    if (count is not None) + everything + bool(offsets) != 1:
        raise click.UsageError("give one of -n N, --all and --offset OFFSET")
    if discard and (not offsets or to or channel):
        raise click.UsageError("--discard needs --offset, and no target")
    for name, what in ((dead_topic, "topic"), (to, "topic"), (channel, "channel")):
        if name is not None:
            check_name(name, what)
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        with stopping.interruptible():
            admin = stack.enter_context(Admin(url, timeout=timeout))
            # The statistics have the offsets. A `Reader` would need the permission to read all
            # messages of the topic.
            found = whole_topic(admin.stats(dead_topic), dead_topic)
            if found.parts:
                first = found.parts[0]["topic_name"]
                text = f"topic {dead_topic} has parts: redrive each of them, such as {first}"
                raise UsageError(E_PARTS, text)
            row = found.row
            end = row["head"]
            was_there = any(one["channel_name"] == CHANNEL for one in row["channels"])
            producer = stack.enter_context(Producer(url, timeout=timeout))
            run = Run(admin, producer, dead_topic, Redrive(to, channel, end))
            # If there are no dead letters, do not create a channel. It would keep all later ones.
            if not row["kept_count"]:
                _tell(run, as_json)
                return 0
            if offsets:
                admin.create_channel(dead_topic, CHANNEL, start="earliest")
                if discard:
                    return _discard(admin, dead_topic, offsets, as_json)
                reader = stack.enter_context(Reader(dead_topic, url=url, timeout=timeout))
                try:
                    run.send_chosen(sorted({*offsets}), reader)
                finally:
                    _tell(run, as_json)
                return 1 if run.plan.left else 0
            consumer = stack.enter_context(
                Consumer(
                    dead_topic, CHANNEL, url=url, ready=READY, timeout=timeout, start="earliest"
                )
            )
        try:
            with bar("sending back", count, unit="messages") as advance:
                drive(run, consumer, count, stopping, timeout, advance)
        finally:
            _tell(run, as_json)
        consumer.flush()
        if not was_there and not run.plan.total and run.plan.left.keys() <= {NO_LETTER, BEHIND}:
            # The channel is not removed here. If it is the topic's only channel, a later channel
            # would not get its messages.
            advice = (
                f"if you do not need it, delete it: zsq channel delete {dead_topic} {CHANNEL} "
                "--force"
            )
            say(
                (
                    f"zsq: {dead_topic} has no dead letters, and its new channel {CHANNEL!r} keeps "
                    f"its messages; {advice}"
                ),
                err=True,
            )
    return 1 if run.plan.left else 0


def _discard(admin: Admin, dead_topic: str, offsets: Sequence[int], as_json: bool) -> int:
    found = admin.skip(dead_topic, CHANNEL, offsets)
    others = len({*offsets}) - len(found)
    if as_json:
        tell({"discarded": len(found), "left": others})
    else:
        say(f"{len(found):,} discarded" + (f", {others:,} left: {SETTLED}" if others else ""))
    return 1 if others else 0


def _tell(run: Run, as_json: bool) -> None:
    if as_json:
        sent = [
            {"topic": place.topic, "channel": place.channel, "messages": count}
            for place, count in run.plan.sent.items()
        ]
        tell(
            {
                "sent": sent,
                "left": [{"messages": count, "why": why} for why, count in run.plan.left.items()],
            }
        )
        return
    for line in run.report() or ["nothing to send back"]:
        say(line)


def drive(
    run: Run,
    consumer: Consumer,
    count: int | None,
    stopping: Stopping,
    timeout: float,
    advance: Advance = lambda done: None,
) -> None:
    """Send messages until `count` are sent, none waits, or a signal arrives.

    It also ends if no message arrives within the time-out.
    """
    sent = 0
    deadline = time.monotonic() + timeout
    while not stopping.is_set() and not run.plan.at_end and (count is None or sent < count):
        batch = consumer.receive_batch(timeout=POLL_S)
        if batch is None:
            consumer.flush()
            waiting = run.waiting()
            if not waiting:
                return
            if run.plan.is_blocked:
                run.plan.left[BEHIND] = waiting
                return
            if time.monotonic() > deadline:
                run.plan.left[NOT_COME] = waiting
                return
            continue
        deadline = time.monotonic() + timeout
        limit = READY if count is None else count - sent
        done = run.send(batch.messages(), limit, _finish_each)
        advance(done)
        sent += done


def _finish_each(messages: Sequence[Message]) -> None:
    for message in messages:
        message.finish()
