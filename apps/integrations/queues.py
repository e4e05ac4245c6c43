"""Queues: the topic of a queue, and the channel that its workers share, with what tasks need.

A task may take any time, so a worker must be able to hold its message for any time. A channel that
somebody made before may have a limit. Then the broker would give the message of a long task to
another worker while the task runs, although the worker extends the lease.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final

from ...transport.client.blocking.client import Admin, Producer
from ...transport.errors import E_BAD_ARGUMENT, E_FORBIDDEN, NotFound, Refused, UsageError
from ...transport.settings import NONE, NewChannelOptions
from .naming import CHANNEL

log = logging.getLogger("zsq")

ATTEMPTS_MAX: Final = 10

# A consumer passes these too, because it creates the channel again if somebody deletes it.
# A task that kills its worker would otherwise kill workers for ever.
SETTINGS: Final[NewChannelOptions] = {
    "start": "earliest",
    "max_hold_s": NONE,
    "max_attempts": ATTEMPTS_MAX,
}


class QueueTopics:
    """The topics of queues. Each is created at its first use, and again if it was deleted."""

    def __init__(self, admin: Admin, producer: Producer) -> None:
        self._admin = admin
        self._producer = producer
        self._existing: set[str] = set()

    def make(self, topic: str, *, works: bool = False) -> None:
        """Create the topic and the channel of a queue, if they do not exist. See `make_queue`."""
        if works or topic not in self._existing:
            make_queue(self._admin, topic, works=works)
            self._existing.add(topic)

    def forget(self, topic: str) -> None:
        """Note that the topic was deleted."""
        self._existing.discard(topic)

    def publish(
        self, topic: str, body: bytes, delay_s: float | None, revoke_key: str | None = None
    ) -> None:
        """Publish a message. It is on disk when this returns."""
        self.make(topic)
        try:
            self._producer.publish(topic, body, delay=delay_s, revoke_key=revoke_key)
        except NotFound:  # it was deleted meanwhile, and begins anew as at its first use
            self.forget(topic)
            self.make(topic)
            self._producer.publish(topic, body, delay=delay_s, revoke_key=revoke_key)


def make_queue(admin: Admin, topic: str, *, works: bool) -> None:
    """Create the topic and the channel of a queue, if they do not exist.

    A user who may not do that leaves it to the first use: a publish creates the topic, and a
    consumer the channel, with the same settings.

    `works`: this process works on the queue. Then the channel must let it hold a message for any
    time. If the channel has a limit, this removes it, and logs a warning. Raises `Refused` if the
    user may not change the channel, and `UsageError` if the channel takes only some messages.
    """
    with _forbidden_is_fine():
        admin.create_topic(topic)
        admin.create_channel(topic, CHANNEL, **SETTINGS)
    for settings in _settings(admin, topic) if works else ():
        if settings["tags"]:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"channel {topic}/{CHANNEL} has tags {settings['tags']!r}, so no worker would get "
                "the tasks, which have no tag. Delete the channel, and it is created without: "
                f"zsq channel delete {topic} {CHANNEL}",
            )
        if settings["max_hold_s"] != NONE:
            _remove_limit(admin, topic, settings["max_hold_s"])


def _settings(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """Return the settings of the channel in each part of the topic that exists."""
    try:
        rows = admin.stats(topic, CHANNEL)["topics"]
    except NotFound:
        return []
    return [channel["settings"] for row in rows for channel in row["channels"]]


@contextlib.contextmanager
def _forbidden_is_fine() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        if error.code != E_FORBIDDEN:
            raise


def _remove_limit(admin: Admin, topic: str, limit_s: float) -> None:
    has = f"channel {topic}/{CHANNEL} has max_hold_s {limit_s:g}"
    try:
        admin.configure_channel(topic, CHANNEL, max_hold_s=NONE)
    except Refused as error:
        if error.code != E_FORBIDDEN:
            raise
        raise Refused(
            E_FORBIDDEN,
            f"{has}, so a task that takes longer would run twice, and this user may not change it "
            f"({error.text}). Let an administrator run: zsq channel set {topic} {CHANNEL} "
            "--max-hold none",
        ) from error
    log.warning("%s, so a longer task would run twice; it was set to no limit", has)
