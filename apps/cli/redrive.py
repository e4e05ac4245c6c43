"""zsq redrive: dead letters go back to where they died.

A dead letter is read by the channel `redrive` of its topic, published, and finished only after it is durable where it went; so whoever is
killed in between has sent it twice, never lost it. It is addressed to the channel that gave it up: the topic's other channels have had it.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from .options import Stopping, stop_signals, with_broker

if TYPE_CHECKING:
    from ...transport.client import Admin, Batch, Consumer, Message, Producer

CHANNEL: Final = "redrive"
POLL_S: Final = 0.5  # how long nothing must come until nothing more waits
READY: Final = 1_000
NOT_COME: Final = f"they did not come within the time-out: another consumer of channel {CHANNEL} holds them, or it is paused; try again"


class Place(NamedTuple):
    topic: str
    channel: str | None
    """The only one that gets it; None: all of that topic."""


class Redrive:
    """One run: what went where, and what stays with which reason. `end`: dead letters from there on came later, and are left alone."""

    def __init__(self, admin: Admin, producer: Producer, dead_topic: str, to: str | None, channel: str | None, end: int) -> None:
        self._admin = admin
        self._dead_topic = dead_topic
        self._producer = producer
        self._to = to
        self._channel = channel
        self._end = end
        self._known: dict[Place, str] = {}
        self.sent: dict[Place, int] = {}
        self.left: dict[str, int] = {}
        self.at_end = False

    def place(self, topic: object, channel: object) -> tuple[Place | None, str]:
        """Where it goes that died there, or None and why not."""
        if self._to is not None:
            return self._checked(Place(self._to, self._channel))
        if not isinstance(topic, str) or not isinstance(channel, str):
            return None, "no dead letters of a channel (they name no topic); --to says where to send them"
        return self._checked(Place(topic, self._channel or channel))

    def _checked(self, place: Place) -> tuple[Place | None, str]:
        """A publish would make the topic, and a message for a channel that is not there would be for nobody."""
        why = self._known.get(place)
        if why is None:
            why = self._known[place] = self._missing(place)
        return (None, why) if why else (place, "")

    def _missing(self, place: Place) -> str:
        from ...transport.errors import NotFound

        try:
            channels = [row["channel_name"] for row in self._admin.stats(place.topic)["topics"][0]["channels"]]
        except NotFound:
            return f"for topic {place.topic!r}, which does not exist; --to and --channel name others"
        if place.channel is None or place.channel in channels:
            return ""
        return f"for channel {place.channel!r} of topic {place.topic!r}, which does not exist; --to and --channel name others"

    def batch(self, batch: Batch, limit: int) -> int:
        """Send up to `limit` of these back; how many that were. What is left is not answered: it goes back when the consumer closes."""
        from ...transport import dead_letter

        groups: dict[Place, tuple[list[Message], list[dict[str, Any]]]] = {}
        taken = 0
        for message in batch.messages():
            if message.offset >= self._end:
                self.at_end = True
                break
            if taken == limit:
                break
            headers = message.headers
            place, why = self.place(headers.get(dead_letter.TOPIC), headers.get(dead_letter.CHANNEL))
            if place is None:
                self.left[why] = self.left.get(why, 0) + 1
                continue
            messages, sent = groups.setdefault(place, ([], []))
            messages.append(message)
            sent.append(dead_letter.redriven(headers, place.channel))
            taken += 1
        for place, (messages, sent) in groups.items():
            self._producer.publish_many(
                place.topic,
                [message.body for message in messages],
                keys=[message.key for message in messages],
                tags=[message.tag for message in messages],
                headers=sent,
            )
            for message in messages:
                message.finish()
            self.sent[place] = self.sent.get(place, 0) + len(messages)
        return taken

    def waiting(self) -> int:
        """Dead letters that are neither finished nor here: they wait, or another consumer holds them; who was killed does for a while."""
        row = self._admin.stats(self._dead_topic, CHANNEL)["topics"][0]["channels"][0]
        return int(row["depth"] + row["deferred_count"] + row["in_flight_count"]) - sum(self.left.values())

    def report(self) -> list[str]:
        found = [
            f"{count:,} to {place.topic}" + (f", for channel {place.channel}" if place.channel else "")
            for place, count in self.sent.items()
        ]
        return found + [f"{count:,} left: {why}" for why, count in self.left.items()]


@click.command()
@click.argument("dead_topic", metavar="DEAD_TOPIC")
@click.option("--to", metavar="TOPIC", help="To this topic in place of their own; then to all its channels, unless --channel names one.")
@click.option("--channel", metavar="CHANNEL", help="For this channel in place of the one that gave them up.")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="The next N dead letters.")
@click.option("--all", "everything", is_flag=True, help="All that are there when it begins.")
@with_broker
@click.pass_context
def redrive(
    context: click.Context,
    dead_topic: str,
    to: str | None,
    channel: str | None,
    count: int | None,
    everything: bool,
    url: str,
    timeout: float,
) -> None:
    """Send the dead letters in DEAD_TOPIC back to the topics where they died, each for the channel that gave it up.

    They come as new messages, with attempts from 1; what the headers told of the death stays in them as zsq-redriven-*. DEAD_TOPIC
    keeps them for its other readers. Exit code 1 if some could not go anywhere: those stay, and can be sent again.
    """
    from ...transport.client import Admin, Consumer, Producer, Reader
    from ...transport.names import check_name

    if (count is None) != everything:
        raise click.UsageError("say how many: -n N, or --all")
    for name, what in ((dead_topic, "topic"), (to, "topic"), (channel, "channel")):
        if name is not None:
            check_name(name, what)
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        with stopping.interruptible():
            end = stack.enter_context(Reader(url, dead_topic, timeout=timeout)).head()[1]
            admin = stack.enter_context(Admin(url, timeout=timeout))
            producer = stack.enter_context(Producer(url, timeout=timeout))
            consumer = stack.enter_context(Consumer(url, dead_topic, CHANNEL, ready=READY, timeout=timeout, start="earliest"))
        run = Redrive(admin, producer, dead_topic, to, channel, end)
        try:
            drive(run, consumer, count, stopping, timeout)
        finally:
            for line in run.report() or ["nothing to send back"]:
                click.echo(line)
        consumer.flush()
    if run.left:
        context.exit(1)


def drive(run: Redrive, consumer: Consumer, count: int | None, stopping: Stopping, timeout: float) -> None:
    """Until `count` are sent, nothing more waits, nothing more came within the time-out, or a signal."""
    sent = 0
    deadline = time.monotonic() + timeout
    while not stopping.is_set() and not run.at_end and (count is None or sent < count):
        batch = consumer.receive_batch(timeout=POLL_S)
        if batch is None:
            consumer.flush()
            waiting = run.waiting()
            if not waiting:
                return
            if time.monotonic() > deadline:
                run.left[NOT_COME] = waiting
                return
            continue
        deadline = time.monotonic() + timeout
        sent += run.batch(batch, READY if count is None else count - sent)
