"""zsq handover: let the standby take over from the primary, and wait until it has."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ....transport.errors import (
    E_STANDBY,
    E_TIMEOUT,
    E_UNREACHABLE,
    BrokerUnreachable,
    Refused,
    ZsqError,
)
from ..options import with_broker
from ..output import say

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin

WAIT_S: Final = 30.0
PAUSE_S: Final = 0.1
ANSWER_S: Final = 1.0  # a standby must answer within this time
CHECK: Final = "check with `zsq cluster` that a standby answers, and see its log"


@click.command()
@click.option("--force", is_flag=True, help="Do not check first whether a standby answers.")
@with_broker
def handover(url: str, timeout: float, force: bool) -> None:
    """Let the primary stop, and its standby take over at once.

    The primary ships everything first, so nothing is lost. Then it becomes a standby itself. Name
    both brokers, so that the command can wait for the new primary: --url
    tcp://one:4153,tcp://two:4153.

    Nothing is done if no standby answers at its address within a second.
    """
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin, contextlib.ExitStack() as waiting:
        before = _look(admin)
        # From here on a broker that is away is what is awaited, or the error says why.
        waiting.enter_context(_no_warnings())
        if not force:
            _check_standbys(admin, before.standbys)
        begun_s = time.monotonic()
        admin.handover()
        if "," not in url:
            say("the primary hands over to its standby")
            return
        wait_s = max(WAIT_S, timeout)
        while time.monotonic() - begun_s < wait_s:
            now: _Seen | None
            try:
                now = _look(admin)
            except (BrokerUnreachable, Refused):  # nobody is primary yet, or it is just stopping
                now = None
            if now is None or not now.process[0]:  # it does not know its own addresses yet
                time.sleep(PAUSE_S)
                continue
            if now.process != before.process:
                say(f"the standby is primary, {time.monotonic() - begun_s:.1f} s after the command")
                return
            if now.epoch != before.epoch:
                raise ZsqError(
                    E_TIMEOUT,
                    "no standby has taken over within the patience, so the same broker is primary "
                    f"again: {CHECK}",
                )
            time.sleep(PAUSE_S)
    raise ZsqError(
        E_TIMEOUT,
        f"no broker is primary {wait_s:.0f} s after the command. If no standby takes over, the "
        f"former primary goes on after its patience: {CHECK}",
    )


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    log = logging.getLogger("zsq")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class _Seen(NamedTuple):
    """The broker that is primary. The epoch alone does not say which one it is: the former primary
    raises it too, if it goes on because no standby took over.
    """

    process: tuple[str, int]
    epoch: int
    standbys: tuple[str, ...]


def _look(admin: Admin) -> _Seen:
    stats = admin.stats()
    bucket = stats.get("bucket", {})
    process = (str(bucket.get("addresses", "")), int(stats["pid"]))
    standbys = str(bucket.get("standby_addresses", "")).split(",")
    return _Seen(process, int(bucket.get("epoch", 0)), tuple(filter(None, standbys)))


def _check_standbys(admin: Admin, standbys: Sequence[str]) -> None:
    """Raise `BrokerUnreachable` if none of the standbys that the primary knows answers.

    The primary knows a standby that was killed for half an hour more. If it handed over to this one
    alone, publishing would stop for the patience.
    """
    from ....transport.client.blocking.asker import named_by
    from ....transport.client.blocking.client import Admin

    whys = []
    for name in standbys:
        try:
            with Admin(named_by(admin, [name]), timeout=ANSWER_S) as standby:
                standby.ping()
            whys.append(f"{name} is no standby")
        except ZsqError as error:
            if error.code == E_STANDBY:
                return
            whys.append(error.text if name in error.text else f"{name}: {error.text}")
    if whys:
        raise BrokerUnreachable(
            E_UNREACHABLE,
            f"no standby answers from here, and without one publishing would stop for the "
            f"patience: {'; '.join(whys)}. Nothing was done. Start a standby, or give --force",
        )
