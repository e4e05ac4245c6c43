"""zsq broker: drain a broker of a cluster, or forget one that is gone for good."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_TIMEOUT,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ....transport.names import is_ephemeral, part_of
from ....transport.wire.answers import ClusterAnswer
from ..options import confirm, stop_signals, with_broker, yes_option
from ..output import json_option, say, tell
from ..quantities import Seconds
from .balance import ask_report, parts_text, plan_of, size_text

if TYPE_CHECKING:
    from ....actors.statistics.cluster import BrokerRow, Report
    from ....transport.client.blocking.client import Admin

LOOK_S: Final = 0.5
SAY_S: Final = 10.0
NAMED_MAX: Final = 20  # topics that are named


@click.group()
def broker() -> None:
    """Drain a broker of the cluster, or forget one that is gone for good."""


def broker_row(report: Report, name: str) -> BrokerRow:
    """Return the broker with this number, address, or beginning of its uuid.

    A new broker may have the address of one that was forgotten. The address then means the new one.
    """
    rows = report["brokers"]
    address = name if "://" in name else f"tcp://{name}"
    fits = [row for row in rows if name == str(row["number"])]
    fits = fits or [row for row in rows if address in row["addresses"]]
    fits = fits or [row for row in rows if len(name) >= 4 and row["uuid"].startswith(name)]
    fits = [row for row in fits if not row["gone"]] or fits
    if len(fits) == 1:
        return fits[0]
    known = ", ".join(f"{row['number']} ({', '.join(row['addresses'])})" for row in fits or rows)
    if fits:
        raise UsageError(E_BAD_ARGUMENT, f"{name!r} may be several brokers, give a number: {known}")
    raise NotFound(E_NOT_FOUND, f"the cluster has no broker {name!r}, but {known}")


@broker.command("drain")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let the broker keep its parts, and take new ones.")
@click.option("--dry-run", is_flag=True, help="Show which parts would move where.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=1, show_default=True,
    help="Move this many parts at a time.",
)  # fmt: skip
@click.option(
    "--wait", type=Seconds(),
    help="Wait until the broker has no parts for at most this time. 0 does not wait. Default: any time.",
)  # fmt: skip
@json_option
@with_broker
def broker_drain(
    name: str,
    undo: bool,
    dry_run: bool,
    concurrency: int,
    wait: float | None,
    as_json: bool,
    url: str,
    timeout: float,
) -> None:
    """Move all parts away from the broker NAME: its number, an address, or its uuid.

    Clients go on meanwhile. The broker moves its parts by itself, also after a restart, so the
    command may be stopped, and run again to see the rest. The broker takes no new parts until
    --undo. At the end the command says whether the broker may go: exit code 1 if topics without
    parts would be lost with it.
    """
    from ....transport.client.blocking.client import Admin

    report = ask_report(url, timeout)
    row = broker_row(report, name)
    number = row["number"]
    with Admin(url, timeout=timeout) as admin:
        if undo:
            admin.drain_broker(number, undo=True)
            say(f"broker {number} keeps its parts, and takes new ones")
            return
        made = plan_of(report, balances=False, drains=number)
        if made.stuck:
            which, why = made.stuck[0]
            raise Refused(E_NOT_EMPTY, f"part {which} cannot leave broker {number}: {why}")
        own = [move for move in made.moves if move.source == number]
        if dry_run:
            if as_json:
                tell({"moves": [move._asdict() for move in own]})
            for move in () if as_json else own:
                say(f"part {move.name} to broker {move.target}, {size_text(move.bytes)}")
            return
        admin.drain_broker(number, concurrency=concurrency)
        if not as_json:
            size = size_text(sum(move.bytes for move in own))
            say(f"broker {number} gives {parts_text(len(own))} with {size} to others")
        _watch(admin, number, wait, partial(_trouble_of, url, timeout, name), as_json=as_json)
        _tell_rest(admin, row, timeout, as_json=as_json)


def parts_left(seen: ClusterAnswer, number: int) -> list[str]:
    """Return the parts that a broker has, or whose files others still need from it."""
    return [
        f"{topic['topic']}#{part}"
        for topic in seen["topics"]
        for part, at in enumerate(topic["parts"])
        if number in (at, topic["moves"].get(part), topic["origins"].get(part))
    ]


def _trouble_of(url: str, timeout: float, name: str) -> str:
    """Return why a drain may not go on, as text that follows its state."""
    row = broker_row(ask_report(url, timeout), name)
    if row["state"] != "up":
        return f"; it is {row['role']}: {row['why']}"
    return f"; {row['health']}" if row["health"] not in ("", "OK") else ""


def _watch(
    admin: Admin, number: int, wait: float | None, trouble_of: Callable[[], str], *, as_json: bool
) -> None:
    """Wait until the broker has no part left, and say how many it has."""
    until = None if wait is None or wait < 0 else time.monotonic() + wait
    shown, said_s = -1, 0.0
    with stop_signals() as stopping:
        while True:
            seen = admin.cluster(fresh=True)
            row = seen["brokers"][number]
            left = parts_left(seen, number)
            if not left:
                return
            if not row["draining"]:
                raise Refused(E_NOT_EMPTY, f"the drain of broker {number} was ended by somebody")
            now = time.monotonic()
            if not as_json and (len(left) != shown or now - said_s > SAY_S):
                trouble = trouble_of() if len(left) == shown else ""
                shown, said_s = len(left), now
                say(f"{parts_text(len(left))} left at broker {number}{trouble}", err=True)
            if until is not None and now >= until:
                text = f"{parts_text(len(left))} left at broker {number}; the drain goes on"
                raise ZsqError(E_TIMEOUT, f"{text}. Run the command again to see the rest")
            if stopping.wait(LOOK_S):
                text = f"stopped; broker {number} goes on giving its parts away"
                raise ZsqError("E_INTERRUPTED", f"{text}. To end this, use --undo")


def _tell_rest(admin: Admin, row: BrokerRow, timeout: float, *, as_json: bool) -> None:
    """Say whether the broker may go, and which topics would be lost with it."""
    from ....transport.client.blocking.asker import named_by
    from ....transport.client.blocking.client import Admin

    number, kept = row["number"], dict[str, int]()
    try:
        with Admin(named_by(admin, row["addresses"]), timeout=timeout) as at:
            kept = {
                topic["topic_name"]: topic["kept_count"]
                for topic in at.stats()["topics"]
                if topic["kept_count"]
                and part_of(topic["topic_name"]) is None
                and not is_ephemeral(topic["topic_name"])
            }
    except ZsqError as error:
        text = f"broker {number} has no parts any more, but does not say which topics it has"
        raise type(error)(error.code, f"{text}: {error.text}") from error
    if as_json:
        tell({"broker": number, "parts": 0, "topics": kept, "may_go": not kept})
    elif not kept:
        say(f"broker {number} has no parts and no messages of topics without parts: it may go")
        say(f"  stop it, and then: zsq broker forget {number}")
    if kept:
        names = [
            f"{name} ({count:,} message{'s' * (count != 1)})"
            for name, count in sorted(kept.items())
        ]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        raise Refused(
            E_NOT_EMPTY,
            f"broker {number} has no parts any more, but these topics without parts would be lost "
            f"with it: {', '.join(names[:NAMED_MAX])}{more}. Retire them (zsq topic retire), send "
            "them to another broker (zsq forward, zsq redrive), or keep the broker",
        )


@broker.command("forget")
@click.argument("name")
@click.option(
    "--force", is_flag=True,
    help="Do it also if the broker or a standby of it answers, or it still ships. It stops then.",
)  # fmt: skip
@click.option(
    "--wait", type=Seconds(), default="10m", show_default=True,
    help="Wait until others have its parts for this time. They go on if it takes longer.",
)  # fmt: skip
@yes_option
@json_option
@with_broker
def broker_forget(
    name: str, force: bool, wait: float, yes: bool, as_json: bool, url: str, timeout: float
) -> None:
    """Forget the broker NAME, which is gone for good: its number, an address, or its uuid.

    The other brokers open its parts from its bucket. What it had acknowledged and not shipped is
    lost, at most that of the last --bucket-lag, and nothing of topics with --sync bucket. It can
    never come back with its data directory. A broker that was drained is only left out of the
    cluster from then on.
    """
    from ....transport.client.blocking.client import Admin

    report = ask_report(url, timeout)
    row = broker_row(report, name)
    number = row["number"]
    if row["role"] in ("primary", "standby") and row["parts"] and not force:
        what = "it answers" if row["role"] == "primary" else "a standby of it answers"
        do = f"drain it (zsq broker drain {number})" if row["role"] == "primary" else "wait for it"
        text = f"broker {number} is not gone: {what}. {do.capitalize()}, or give --force"
        raise UsageError(E_BAD_ARGUMENT, text)
    if row["parts"]:
        confirm(
            f"forget broker {number}, and open its {parts_text(row['parts'])} at other brokers. "
            "What it had acknowledged and not shipped, and its topics without parts, are lost",
            yes,
        )
    with Admin(url, timeout=timeout) as admin:
        admin.forget_broker(number, force=force)
        until = time.monotonic() + wait
        while left := parts_left(admin.cluster(fresh=True), number):
            if time.monotonic() >= until:
                text = f"{parts_text(len(left))} of broker {number} not opened elsewhere yet"
                raise ZsqError(E_TIMEOUT, f"{text}; this goes on: see zsq cluster")
            time.sleep(LOOK_S)
    if as_json:
        tell({"broker": number, "parts": row["parts"]})
        return
    moved = f", and its {parts_text(row['parts'])} are at others" if row["parts"] else ""
    say(f"broker {number} is forgotten{moved}. Its bucket is not needed any more")
