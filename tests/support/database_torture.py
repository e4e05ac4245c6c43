"""Workers of the torture test of inbox and outbox: each kills itself at one of its calls.

A worker counts its calls of the database and of the broker. At call number `fatal`, it kills itself
with SIGKILL, before or after the call was carried out. So it dies between a commit in the database
and the answer of the broker, in either order, and everywhere else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

from support.databases import Database, begun

import zsq
from zsq.apps.integrations.database import inbox as inboxes
from zsq.apps.integrations.database import outbox as outboxes
from zsq.inbox import Inbox, Positions
from zsq.outbox import Outbox

LEASE_S: Final = 1.0


class Mortal:
    """Counts calls, and kills the process at one of them."""

    def __init__(self, fatal: int, *, after: bool) -> None:
        self._left = fatal
        self._after = after

    def call(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*arguments, **more)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)
        setattr(owner, name, lambda *given, **more: self.call(real, *given, **more))

    @contextlib.contextmanager
    def dies_at_commit(self, inner: Any) -> Iterator[None]:
        """Run a transaction, with its commit as a call."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(inner)
            yield
            self.call(stack.pop_all().close)

    def wrap_all(self) -> None:
        for module in (inboxes, outboxes):
            self.wrap(module, "execute")
            real = module.transaction
            setattr(module, "transaction", lambda db, real=real: self.dies_at_commit(real(db)))  # noqa: B010
        for owner, names in (
            (zsq.StageWriter, ("push", "seal")),
            (zsq.StageCommitter, ("commit",)),
            (zsq.Reader, ("read", "bounds")),
            (zsq.Message, ("finish",)),
        ):
            for name in names:
                self.wrap(owner, name)


def write_and_drain(
    database: Database, url: str, topic: str, rounds: int, fatal: int, after: bool
) -> None:
    """Write rows of work with their messages, and drain the outbox."""
    mortal = Mortal(fatal, after=after)
    mortal.wrap_all()
    outbox = Outbox()
    with contextlib.closing(database.connect()) as db:
        for _ in range(rounds):
            with mortal.dies_at_commit(begun(db)):
                cursor = db.cursor()
                cursor.execute("select coalesce(max(id), 0) from work")
                last = cursor.fetchone()[0]
                for number in range(last + 1, last + 6):
                    cursor.execute(f"insert into work (id) values ({number})")
                    outbox.put(db, topic, b"%d" % number)
            outbox.drain(db, url=url, count=3)


def consume(database: Database, url: str, topic: str, until: int, fatal: int, after: bool) -> None:
    """Handle messages of a channel through the inbox, until the channel is empty."""
    mortal = Mortal(fatal, after=after)
    mortal.wrap_all()
    inbox = Inbox()
    with (
        contextlib.closing(database.connect()) as db,
        zsq.Consumer(topic, "work", url=url, ready=8, message_timeout=LEASE_S) as consumer,
    ):
        # The messages of a worker that was killed come when their lease has ended.
        while (message := consumer.receive(4 * LEASE_S)) is not None:
            with mortal.dies_at_commit(begun(db)):
                if inbox.take(db, message):
                    db.cursor().execute(f"insert into done values ({int(message.body)})")
            message.finish()


def follow(database: Database, url: str, topic: str, until: int, fatal: int, after: bool) -> None:
    """Handle messages by position, up to offset `until`."""
    mortal = Mortal(fatal, after=after)
    mortal.wrap_all()
    positions = Positions("work")
    with contextlib.closing(database.connect()) as db, zsq.Reader(topic, url=url) as reader:
        handled = -1
        while handled < until - 1:
            with mortal.dies_at_commit(begun(db)):
                for message in positions.read(db, reader, count=7):
                    db.cursor().execute(f"insert into done values ({int(message.body)})")
                handled = (positions.position(db, topic) or 0) - 1
