"""zsq redrive: send dead letters back to their topics; see transport/client/core/redrive.py."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from ....transport.client.core.redrive import (
    CHANNEL,
    NO_LETTER,
    NOT_COME,
    POLL_S,
    READY,
    Redrive,
)
from ..options import Stopping, stop_signals, suggesting, with_broker
from ..output import json_option, say, tell
from ..progress import Advance, bar

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin, Batch, Consumer, Producer


# A run that leaves letters holds them until it ends. So it may hold more than it sends at a time.
HELD_MAX: Final = 10_000
Select = Callable[["Batch"], frozenset[int]]


def selection(
    text: str | None, error: str | None, key: str | None, tag: str | None,
    header: str | None, field: str | None,
) -> Select | None:  # fmt: skip
    """Return a function that returns the offsets of the selected messages of a batch.

    Return None if there is no condition. The conditions are those of the console's search, and the
    error.
    """
    if all(one is None for one in (text, error, key, tag, header, field)):
        return None
    from ....actors.gateways.http.messages.matching import PAUSE, Undecoded, Wanted, matches, named
    from ....transport.wire.dead_letter import ERROR

    for name, value in (("--text", text), ("--header", header), ("--field", field)):
        if value is not None and not value.isprintable():
            raise click.UsageError(f"{name} must be printable text, not {value[:40]!r}")
    try:
        wanted = Wanted(
            text=text,
            key=None if key is None else os.fsencode(key),
            tag=None if tag is None else os.fsencode(tag),
            header=None if header is None else named(header, "--header"),
            field=None if field is None else named(field, "--field", "PATH"),
        )
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None

    def select(batch: Batch) -> frozenset[int]:
        messages = batch.messages()
        found = [
            messages[index]
            for index in matches(batch.block, 0, len(batch), wanted, Undecoded())
            if index != PAUSE
        ]
        return frozenset(
            one.offset for one in found if error is None or error in str(one.headers.get(ERROR, ""))
        )

    return select


class Run:
    """One run of the command. It sends requests and publishes.

    The plan records how many messages were sent to each place, and why others stay. A dry run sends
    nothing, and asks the broker about no route.
    """

    def __init__(
        self,
        admin: Admin,
        producer: Producer,
        dead_topic: str,
        plan: Redrive,
        select: Select | None,
        dry_run: bool,
    ) -> None:
        self._admin = admin
        self._producer = producer
        self._dead_topic = dead_topic
        self._select = select
        self.dry_run = dry_run
        self.plan = plan

    def batch(self, batch: Batch, limit: int) -> int:
        """Send up to `limit` messages of the batch back, and return their number."""
        from ....transport.errors import NotFound, ZsqError

        before, messages = self.plan.total, batch.messages()
        selected = None if self._select is None else self._select(batch)
        chosen = [one for one in messages if selected is None or one.offset in selected]
        for route in self.plan.unknown(chosen):
            if self.dry_run:
                self.plan.known(route)
                continue
            try:
                self._admin.redrive_to(self._dead_topic, *route.place, route.origin, route.chosen)
            except ZsqError as error:
                if route.chosen and isinstance(error, NotFound):
                    error = suggesting(error)
                self.plan.known(route, error)
            else:
                self.plan.known(route)
        for group in self.plan.groups(messages, limit, selected):
            if self.dry_run:
                self.plan.was_sent(group)
                continue
            self._producer.publish_many(
                group.place.topic,
                [message.body for message in group.messages],
                keys=[message.key for message in group.messages],
                tags=[message.tag for message in group.messages],
                headers=group.headers,
            )
            for message in group.messages:
                message.finish()
            self.plan.was_sent(group)
        return self.plan.total - before

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
        found += [f"{count:,} left: {why}" for why, count in self.plan.left.items()]
        if self.plan.passed:
            found.append(f"{self.plan.passed:,} not selected")
        return [f"{line} (dry run)" if self.dry_run else line for line in found]


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
@click.option("--text", metavar="TEXT", help="Only dead letters whose body contains TEXT.")
@click.option(
    "--error", metavar="TEXT", help="Only those whose error (zsq-dead-error) contains TEXT."
)
@click.option("--key", metavar="KEY", help="Only those with this key.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@click.option("--header", metavar="NAME[=VALUE]", help="Only those with this header.")
@click.option(
    "--field",
    metavar="PATH[=VALUE]",
    help="Only those whose body, as JSON or msgpack, has this field, such as user.id=7.",
)
@click.option("--dry-run", is_flag=True, help="Send nothing. Count what would be sent.")
@json_option
@with_broker
def redrive(
    dead_topic: str,
    to: str | None,
    channel: str | None,
    count: int | None,
    everything: bool,
    text: str | None,
    error: str | None,
    key: str | None,
    tag: str | None,
    header: str | None,
    field: str | None,
    dry_run: bool,
    as_json: bool,
    url: str,
    timeout: float,
) -> int:
    """Send the dead letters in DEAD_TOPIC back to their original topics, each for the channel that
    gave it up.

    They arrive as new messages, with attempts from 1. The headers about the failure stay as
    zsq-redriven-*. DEAD_TOPIC keeps the dead letters for its other readers. Exit code 1 if some
    could not be sent: these stay, and can be sent again. So can those that are not selected.
    """
    from ....transport.client.blocking.client import Admin, Consumer, Producer
    from ....transport.errors import E_PARTS, UsageError
    from ....transport.names import check_name
    from ....transport.whole_topic import whole_topic

    if (count is None) != everything:
        raise click.UsageError("give either -n N or --all")
    for name, what in ((dead_topic, "topic"), (to, "topic"), (channel, "channel")):
        if name is not None:
            check_name(name, what)
    select = selection(text, error, key, tag, header, field)
    ready = READY if select is None and not dry_run else HELD_MAX
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
            plan = Redrive(to, channel, end, ready=ready, dry_run=dry_run)
            run = Run(admin, producer, dead_topic, plan, select, dry_run)
            # If there are no dead letters, do not create a channel. It would keep all later ones.
            if not row["kept_count"]:
                _tell(run, as_json)
                return 0
            consumer = stack.enter_context(
                Consumer(
                    dead_topic, CHANNEL, url=url, ready=ready, timeout=timeout, start="earliest"
                )
            )
        try:
            with bar("sending back", count, unit="messages") as advance:
                drive(run, consumer, count, stopping, timeout, advance)
        finally:
            _tell(run, as_json)
        consumer.flush()
        others = run.plan.left.keys() - {NO_LETTER, plan.behind}
        if not was_there and not (plan.total or plan.passed or others):
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
                "not_selected": run.plan.passed,
                "dry_run": run.dry_run,
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
                run.plan.left[run.plan.behind] = waiting
                return
            if time.monotonic() > deadline:
                run.plan.left[NOT_COME] = waiting
                return
            continue
        deadline = time.monotonic() + timeout
        done = run.batch(batch, READY if count is None else count - sent)
        advance(done)
        sent += done
