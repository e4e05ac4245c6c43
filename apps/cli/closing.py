"""zsq topic close, open, retire: to take a topic out of use without losing what is in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from ...transport.draining import remaining
from ...transport.errors import E_TIMEOUT, ZsqError
from .manage import topic as topic_group
from .options import Stopping, stop_signals, with_broker
from .quantities import Seconds

if TYPE_CHECKING:
    from ...transport.client import Admin

LOOK_S: Final = 0.5
SAY_S: Final = 10.0  # even if nothing has changed
AGAIN_S: Final = 2.0  # after it was not empty in the end


@topic_group.command("close")
@click.argument("topic")
@click.option("--consumers", is_flag=True, help="To consumers too: those that are there end with E_CLOSED.")
@with_broker
def topic_close(topic: str, consumers: bool, url: str, timeout: float) -> None:
    """Close TOPIC to publishers: they are refused with E_CLOSED, consumers go on and drain it.

    It stays closed over restarts, until zsq topic open. Delayed messages that were taken before still become due.
    """
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.close_topic(topic, to="consumers" if consumers else "publishers")


@topic_group.command("open")
@click.argument("topic")
@click.option("--consumers", is_flag=True, help="To consumers only, to go on draining it.")
@with_broker
def topic_open(topic: str, consumers: bool, url: str, timeout: float) -> None:
    """Open TOPIC again, to publishers and consumers."""
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.open_topic(topic, to="consumers" if consumers else "publishers")


@topic_group.command("retire")
@click.argument("topic")
@click.option("--wait", type=Seconds(), metavar="TIME", help="Give up after so long (as 90s, 2h); it stays closed to publishers then.")
@with_broker
def topic_retire(topic: str, wait: float | None, url: str, timeout: float) -> None:
    """Take TOPIC out of use: close it to publishers, wait until it is drained, close it to consumers, delete it.

    Says on stderr what it waits for. Nothing is lost: stop it at any time, and open the topic again with zsq topic open.
    """
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin, stop_signals() as stopping:
        admin.close_topic(topic)
        _say(f"{topic} is closed to publishers")
        deadline = None if wait is None or wait < 0 else time.monotonic() + wait
        while True:
            _drain(admin, topic, stopping, deadline)
            if _removed(admin, topic):
                _say(f"{topic} was empty, and is deleted")
                return
            stopping.wait(AGAIN_S)


def _drain(admin: Admin, topic: str, stopping: Stopping, deadline: float | None) -> None:
    """Wait until nothing is left."""
    said, said_at = "", 0.0
    while left := remaining(admin.stats(topic)["topics"][0]):
        now = time.monotonic()
        text = "; ".join(left)
        if text != said or now - said_at > SAY_S:
            _say(f"waiting for {text}")
            said, said_at = text, now
        if deadline is not None and now >= deadline:
            raise ZsqError(
                E_TIMEOUT, f"{topic} is not drained: {text}. It stays closed to publishers; zsq topic open {topic} opens it again"
            )
        if stopping.wait(LOOK_S):
            raise ZsqError(
                "E_INTERRUPTED", f"stopped; {topic} stays closed to publishers: go on with zsq topic retire, or open it: zsq topic open"
            )


def _removed(admin: Admin, topic: str) -> bool:
    """Closed to consumers and deleted; False if something came up meanwhile (a seek back, a message that was given back)."""
    from ...transport.errors import E_CLOSING, E_NOT_EMPTY, Refused

    admin.close_topic(topic, to="consumers")
    _say(f"{topic} is drained, and closed to consumers")
    try:
        admin.delete_topic(topic)
    except Refused as error:
        if error.code not in (E_NOT_EMPTY, E_CLOSING):
            raise
        admin.open_topic(topic, to="consumers")
        _say(f"{error.text}: open to consumers again")
        return False
    return True


def _say(text: str) -> None:
    click.echo(f"zsq: {text}", err=True)
