"""zsq cluster balance and zsq cluster auto: move parts, so that all brokers have about equally
many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ....storage.cluster.balance import BrokerLoad, PartLoad, PartMove, Plan, plan
from ....storage.cluster.directory import NOBODY
from ....transport.errors import E_TIMEOUT, E_UNSUPPORTED, UsageError, ZsqError
from ....transport.names import part_of
from ..options import Stopping, confirm, stop_signals, with_admin, with_broker, yes_option
from ..output import json_option, say, tell
from ..quantities import Seconds, SizeType
from .cluster import ask_cluster, ask_with_stats, cluster, lines_of

if TYPE_CHECKING:
    from ....actors.statistics.cluster import Report
    from ....transport.client.blocking.client import Admin
    from ....transport.wire.answers import ClusterAnswer

LOOK_S: Final = 0.3  # between two looks at the moves
MIB: Final = 1 << 20


def ask_report(url: str, timeout: float) -> Report:
    """Ask the brokers of the cluster. Raises `UsageError` if the broker belongs to none."""
    report = ask_cluster(url, timeout, ask_with_stats)
    if not report["is_cluster"]:
        text = "this broker belongs to no cluster: start it with --cluster"
        raise UsageError(E_UNSUPPORTED, text)
    return report


def plan_of(report: Report, *, balances: bool, drains: int = NOBODY) -> Plan:
    """Return the moves that balance the cluster, or that drain the broker `drains`."""
    brokers = [
        BrokerLoad(
            row["number"],
            not row["draining"] and row["number"] != drains,
            bool(row["draining"]) or row["number"] == drains,
            row["state"] == "up",
            row["free_bytes"] or 0,
            row["free_bytes"] or 0,
        )
        for row in report["brokers"]
        if not row["gone"]
    ]
    known = {broker.number for broker in brokers}
    parts = [
        PartLoad(
            part["name"],
            topic["topic"],
            part["broker"],
            NOBODY if part["to"] in (None, part["broker"]) else part["to"],
            is_coming=part["to"] == part["broker"],
            bytes=part["log_bytes"] or 0,
        )
        for topic in report["topics"]
        for part in topic["parts"]
        if part["broker"] in known
    ]
    return plan(brokers, parts, balances=balances)


def size_text(count: int) -> str:
    return f"{count / MIB:,.1f} MiB"


def parts_text(count: int) -> str:
    return f"{count} part{'s' * (count != 1)}"


@cluster.command("balance")
@click.option("--dry-run", is_flag=True, help="Show the plan, and move nothing.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=1, show_default=True,
    help="Move this many parts at a time.",
)  # fmt: skip
@click.option(
    "--rate", metavar="SIZE", type=SizeType(),
    help="After each part, wait until its bytes have had their time at this many in a second.",
)  # fmt: skip
@click.option(
    "--wait", type=Seconds(), default="1h", show_default=True,
    help="Wait for the end of one move for this time. It goes on if it takes longer.",
)  # fmt: skip
@yes_option
@json_option
@with_broker
def cluster_balance(
    dry_run: bool,
    concurrency: int,
    rate: int | None,
    wait: float,
    yes: bool,
    as_json: bool,
    url: str,
    timeout: float,
) -> None:
    """Move parts until no two brokers differ by more than one part.

    The plan is shown first. It moves as few parts as possible, and of each broker the smallest.
    The clients of a part wait for a few seconds while it moves. You can stop the command at any
    time: moves that have begun go on by themselves, and the command continues when it is run again.
    """
    made = plan_of(ask_report(url, timeout), balances=True)
    if as_json and dry_run:
        tell(_told(made, 0))
        return
    if not as_json:
        _show(made)
    if dry_run or not made.moves:
        if as_json:
            tell(_told(made, 0))
        return
    confirm(f"move {parts_text(len(made.moves))} with {size_text(made.bytes)}", yes)
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin, stop_signals() as stopping:
        pace = Pace(concurrency, 0 if rate is None or rate < 0 else rate)
        moved = carry_out(admin, made.moves, pace, wait, stopping, say=_silent if as_json else say)
    if as_json:
        tell(_told(made, moved))
    if moved < len(made.moves):
        raise ZsqError(
            "E_INTERRUPTED",
            f"stopped after {moved} of {len(made.moves)} moves; those that have begun go on. Run "
            "the command again to continue",
        )


def _silent(text: str) -> None:
    """Say nothing, because the answer is JSON."""


def _told(made: Plan, moved: int) -> dict[str, object]:
    return {
        "moves": [
            {"part": move.name, "from": move.source, "to": move.target, "bytes": move.bytes}
            for move in made.moves
        ],
        "moving": list(made.moving),
        "bytes": made.bytes,
        "moved": moved,
    }


def _show(made: Plan) -> None:
    if made.moves:
        rows: list[Sequence[str]] = [("part", "from", "to", "size")]
        for move in made.moves:
            rows.append((move.name, f"{move.source}", f"{move.target}", size_text(move.bytes)))
        for line in lines_of(rows):
            say(line)
        say(f"{parts_text(len(made.moves))} to move, {size_text(made.bytes)} on disk")
    else:
        say("the cluster is balanced")
    if made.moving:
        say(f"{parts_text(len(made.moving))} being moved already: {', '.join(made.moving[:10])}")


class Pace(NamedTuple):
    """The pace of moves: how many at a time, and bytes in a second (0: no limit)."""

    concurrency: int
    rate: int


def carry_out(
    admin: Admin,
    moves: Sequence[PartMove],
    pace: Pace,
    wait_s: float,
    stopping: Stopping,
    say: Callable[[str], None],
) -> int:
    """Carry out moves, and return how many have ended.

    A part that is not where the plan has it any more is left alone. Raises `ZsqError` (E_TIMEOUT)
    if a move takes too long.
    """
    left, moving = list(moves), dict[PartMove, float]()
    ended, next_s = 0, 0.0
    while left or moving:
        seen = admin.cluster(fresh=True)
        for move in list(moving):
            if _state_of(seen, move.name) == (move.target, False):
                del moving[move]
                ended += 1
                say(f"part {move.name} is at broker {move.target} now")
            elif time.monotonic() - moving[move] > wait_s:
                text = f"part {move.name} was not moved within {wait_s:g} s; the move goes on"
                raise ZsqError(E_TIMEOUT, f"{text}: see zsq cluster, and the logs of both brokers")
        while left and len(moving) < pace.concurrency and time.monotonic() >= next_s:
            if stopping.is_set():
                break
            move = left.pop(0)
            if _state_of(seen, move.name) != (move.source, False) or not _takes(seen, move.target):
                ended += 1
                say(f"part {move.name} is left where it is: the cluster has changed")
                continue
            admin.move_part(move.name, move.target)
            moving[move] = time.monotonic()
            next_s = time.monotonic() + (move.bytes / pace.rate if pace.rate else 0.0)
        if stopping.is_set():
            return ended
        if left or moving:
            stopping.wait(LOOK_S)
    return ended


def _state_of(seen: ClusterAnswer, name: str) -> tuple[int, bool]:
    """Return the broker of a part, and whether it is being moved."""
    base, number = part_of(name) or (name, 0)
    row = next((row for row in seen["topics"] if row["topic"] == base), None)
    if row is None or number >= len(row["parts"]):
        return NOBODY, False
    return row["parts"][number], number in row["moves"]


def _takes(seen: ClusterAnswer, number: int) -> bool:
    row = seen["brokers"][number]
    return not row["draining"] and not row["gone"]


@cluster.command("auto")
@click.argument("state", type=click.Choice(("on", "off")), required=False)
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=1, show_default=True,
    help="Move this many parts at a time.",
)  # fmt: skip
@click.option(
    "--rate", metavar="SIZE", type=SizeType(),
    help="How many bytes a broker moves in a second on average. Default: any number.",
)  # fmt: skip
@click.option(
    "--gone-after", metavar="TIME", type=Seconds(),
    help="Forget a broker that is silent for this time, at least 60s, and open its parts elsewhere. Default: never.",
)  # fmt: skip
@json_option
@with_admin
def cluster_auto(
    state: str | None,
    concurrency: int,
    rate: int | None,
    gone_after: float | None,
    as_json: bool,
    admin: Admin,
) -> None:
    """Let the brokers balance their parts by themselves: on or off. Without STATE, show it.

    It is off at first. With `on`, a new broker gets its share, and parts leave no broker that is
    within one part of the others.
    """
    if state is not None:
        admin.set_auto_balance(
            state == "on",
            rate=max(0, rate or 0),
            concurrency=concurrency,
            gone_after=max(0, int(gone_after or 0)),
        )
    auto = admin.cluster(fresh=True)["auto"]
    if as_json:
        tell(auto)
    else:
        say(auto_text(auto["is_on"], auto["rate"], auto["concurrency"], auto["gone_after_s"]))


def auto_text(is_on: bool, rate: int, concurrency: int, gone_after_s: int) -> str:
    if not is_on:
        by = "zsq cluster balance, zsq broker and zsq topic move-part"
        return f"auto is off: parts move only by {by}"
    speed = f" at {size_text(rate)} a second" if rate else ""
    gone = f"forgotten after {gone_after_s:,} s of silence" if gone_after_s else "never forgotten"
    return f"auto is on: {parts_text(concurrency)} at a time{speed}; a broker is {gone}"
