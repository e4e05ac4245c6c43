"""zsq redrive: send dead letters back to their topics; see transport/client/core/redrive.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ....transport.client.core.redrive import (
    CHANNEL,
    HOLD_S,
    NO_LETTER,
    NOT_COME,
    POLL_S,
    READY,
    SETTLED,
    Pace,
    Redrive,
    still_held,
)
from ..options import Stopping, stop_signals, suggesting, with_broker
from ..output import json_option, say, tell
from ..progress import Advance, bar
from ..quantities import PositiveRate
from .letter_selection import Select, selection, with_selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....transport.client.blocking.client import Admin, Batch, Consumer, Producer, Reader
    from ....transport.client.core.message import Message, StoredMessage

    SentT = TypeVar("SentT", Message, StoredMessage)


# A run that leaves letters holds them until it ends. So it may hold more than it sends at a time.
HELD_MAX: Final = 10_000


class RedriveRun:
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

    def select(self, batch: Batch) -> frozenset[int] | None:
        """Return the offsets of the selected messages of a batch, or None for all of them."""
        if self._select is None:
            return None
        offsets = batch.offsets
        return frozenset(offsets[index] for index in self._select(batch.block))

    def send(
        self, messages: Sequence[SentT], limit: int, finish: Callable[[Sequence[SentT]], None],
        selected: frozenset[int] | None = None,
    ) -> int:  # fmt: skip
        """Send up to `limit` of these messages back, and return their number.

        `finish` finishes messages that are durable in their target. Only those with the offsets
        `selected` are sent, unless it is None.
        """
        from ....transport.errors import NotFound, ZsqError

        before = self.plan.total
        chosen = [letter for letter in messages if selected is None or letter.offset in selected]
        for route in self.plan.unknown(chosen):
            if self.dry_run:
                self.plan.known(route)
                continue
            try:
                self._admin.redrive_to(
                    self._dead_topic, *route.place, route.origin, chosen=route.chosen
                )
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
            finish(group.messages)
            self.plan.was_sent(group)
        return self.plan.total - before

    def send_chosen(self, offsets: Sequence[int], reader: Reader, stopping: Stopping) -> None:
        """Send the dead letters with these offsets back, one by one, until a signal comes."""
        from ....transport.errors import NotFound

        for offset in offsets:
            if stopping.is_set():
                return
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
        texts = [
            f"{count:,} to {place.topic}"
            + (f", for channel {place.channel}" if place.channel else "")
            for place, count in self.plan.sent.items()
        ]
        texts += [f"{count:,} left: {why}" for why, count in self.plan.left.items()]
        if self.plan.passed:
            texts.append(f"{self.plan.passed:,} not selected")
        return [f"{line} (dry run)" if self.dry_run else line for line in texts]


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
@with_selection
@click.option(
    "--rate",
    type=PositiveRate(no_bound=()),
    metavar="RATE",
    help="Send at most so many a second (50/s), a minute (10/m) or an hour (100/h).",
)
@click.option("--dry-run", is_flag=True, help="Send nothing. Count what would be sent.")
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
    rate: float | None,
    dry_run: bool,
    offsets: tuple[int, ...],
    discard: bool,
    as_json: bool,
    url: str,
    timeout: float,
    **conditions: Any,
) -> int:
    """Send the dead letters in DEAD_TOPIC back to their original topics, each for the channel that
    gave it up.

    They arrive as new messages, with attempts from 1. The headers about the failure stay as
    zsq-redriven-*. DEAD_TOPIC keeps the dead letters for its other readers. Exit code 1 if some
    could not be sent: these stay, and can be sent again. So can those that are not selected. zsq
    tail DEAD_TOPIC --no-follow --json shows the offsets.
    """
    from ....transport.client.blocking.client import Admin, Consumer, Producer, Reader
    from ....transport.errors import E_PARTS, UsageError
    from ....transport.names import check_name
    from ....transport.whole_topic import whole_topic

    if (count is not None) + everything + bool(offsets) != 1:
        raise click.UsageError("give one of -n N, --all and --offset OFFSET")
    if discard and (not offsets or to or channel):
        raise click.UsageError("--discard needs --offset, and no target")
    for name, kind in ((dead_topic, "topic"), (to, "topic"), (channel, "channel")):
        if name is not None:
            check_name(name, kind)
    select = selection(**conditions)
    if offsets and (select is not None or dry_run):
        raise click.UsageError("--offset names the dead letters: give no other condition")
    if offsets and rate is not None:
        raise click.UsageError("--offset names the dead letters: give no --rate")
    ready = READY if select is None and not dry_run else HELD_MAX
    with stop_signals() as stopping, contextlib.ExitStack() as stack:
        with stopping.interruptible():
            admin = stack.enter_context(Admin(url, timeout=timeout))
            # The statistics have the offsets. A `Reader` would need the permission to read all
            # messages of the topic.
            combined = whole_topic(admin.stats(dead_topic), dead_topic)
            if combined.parts:
                first = combined.parts[0]["topic_name"]
                text = f"topic {dead_topic} has parts: redrive each of them, such as {first}"
                raise UsageError(E_PARTS, text)
            row = combined.row
            end = row["head"]
            was_there = any(
                channel_row["channel_name"] == CHANNEL for channel_row in row["channels"]
            )
            producer = stack.enter_context(Producer(url, timeout=timeout))
            plan = Redrive(to, channel, end, ready=ready, dry_run=dry_run)
            run = RedriveRun(admin, producer, dead_topic, plan, select, dry_run)
            # If there are no dead letters, do not create a channel. It would keep all later ones.
            if not row["kept_count"]:
                _tell(run, as_json)
                return 0
            reader: Reader | None = None
            if offsets:
                admin.create_channel(dead_topic, CHANNEL, start="earliest")
                if discard:
                    return _discard(admin, dead_topic, offsets, as_json)
                reader = stack.enter_context(Reader(dead_topic, url=url, timeout=timeout))
        if reader is not None:
            try:
                run.send_chosen(sorted({*offsets}), reader, stopping)
            finally:
                _tell(run, as_json)
            return 1 if run.plan.left else 0
        with stopping.interruptible():
            consumer = stack.enter_context(
                Consumer(
                    dead_topic,
                    CHANNEL,
                    url=url,
                    ready=ready,
                    message_timeout=HOLD_S,
                    timeout=timeout,
                    start="earliest",
                )
            )
        try:
            with bar("sending back", count, unit="messages") as advance:
                drive(
                    run, consumer, count, stopping, timeout, advance, Pace(rate, time.monotonic())
                )
        finally:
            _tell(run, as_json)
        consumer.flush()
        others = run.plan.left.keys() - {NO_LETTER, plan.behind}
        if not was_there and not (plan.total or plan.passed or others):
            _say_unused(dead_topic)
    return 1 if run.plan.left else 0


def _say_unused(dead_topic: str) -> None:
    """Say that the run has created its channel for nothing.

    The channel is not removed. If it is the topic's only channel, a later channel would not get its
    messages.
    """
    say(
        f"zsq: {dead_topic} has no dead letters, and its new channel {CHANNEL!r} keeps its "
        f"messages; if you do not need it, delete it: zsq channel delete {dead_topic} {CHANNEL} "
        "--force",
        err=True,
    )


def _discard(admin: Admin, dead_topic: str, offsets: Sequence[int], as_json: bool) -> int:
    skipped = admin.skip(dead_topic, CHANNEL, offsets)
    others = len({*offsets}) - len(skipped)
    if as_json:
        tell({"discarded": len(skipped), "left": others})
    else:
        say(f"{len(skipped):,} discarded" + (f", {others:,} left: {SETTLED}" if others else ""))
    return 1 if others else 0


def _tell(run: RedriveRun, as_json: bool) -> None:
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
    run: RedriveRun,
    consumer: Consumer,
    count: int | None,
    stopping: Stopping,
    timeout: float,
    advance: Advance = lambda done: None,
    pace: Pace | None = None,
) -> None:
    """Send messages until `count` are sent, none waits, or a signal arrives.

    It also ends if no message arrives within the time-out.
    """
    sent = 0
    pace = pace or Pace(None, 0.0)
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
        messages, selected = batch.messages(), run.select(batch)
        for at in range(0, len(messages), pace.size):
            limit = READY if count is None else count - sent
            if limit and not run.plan.at_end:
                stopping.wait(pace.wait_s(time.monotonic()))
            if stopping.is_set() or run.plan.at_end or not limit:
                break
            done = run.send(
                still_held(messages[at : at + pace.size]), limit, _finish_each, selected
            )
            advance(done)
            sent += done
            pace.sent(done, time.monotonic())
        deadline = time.monotonic() + timeout


def _finish_each(messages: Sequence[Message]) -> None:
    for message in messages:
        message.finish()
