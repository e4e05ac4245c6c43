"""zsq handover: let the standby take over from the primary, and wait until it has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from ....transport.errors import E_TIMEOUT, ZsqError
from ..options import with_broker
from ..output import say

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin

WAIT_S: Final = 30.0
PAUSE_S: Final = 0.1


@click.command()
@with_broker
def handover(url: str, timeout: float) -> None:
    """Let the primary stop, and its standby take over at once.

    The primary ships everything first, so nothing is lost. Then it becomes a standby itself. Name
    both brokers, so that the command can wait for the new primary: --url
    tcp://one:4153,tcp://two:4153.
    """
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin:
        before = _epoch(admin)
        begun_s = time.monotonic()
        admin.handover()
        if "," not in url:
            say("the primary hands over to its standby")
            return
        while time.monotonic() - begun_s < WAIT_S:
            if _epoch(admin) > before:
                say(f"the standby is primary, {time.monotonic() - begun_s:.1f} s after the command")
                return
            time.sleep(PAUSE_S)
    raise ZsqError(E_TIMEOUT, f"no standby has taken over within {WAIT_S:g} s: see its log")


def _epoch(admin: Admin) -> int:
    """Return the epoch of the primary, which each takeover raises."""
    return int(admin.stats().get("bucket", {}).get("epoch", 0))
