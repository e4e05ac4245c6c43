"""Commits that wait until their small parts are merged, one at a time, and what is asked about them meanwhile.

A merge goes on in steps on the thread that syncs stages. Until its commit has ended, the stages stay as they are: words about its
app, and aborts of its stages, are kept and taken up then, in order. So a commit that is asked twice is answered twice, and an
abort that came too late hears that the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..storage.errors import Damaged, DiskFull, StoreFailed
from ..storage.merging import Merge
from ..storage.transactions import Transaction
from ..transport import protocol as p
from ..transport.errors import E_CHECKSUM, E_CLOSING, E_DISK_FULL, E_LIMIT, CorruptBlock, Refused, ZsqError
from .port import Mail, Port
from .worker_thread import WorkerThread

WAITING_MAX: Final = 256  # words that wait for one commit: it and its abort, asked again and again


@dataclass(eq=False, slots=True)
class PendingCommit:
    """`stages`: those with blocks, in the order of the commit."""

    port: Port
    mail: Mail
    transaction: Transaction
    stages: list[bytes]
    merge: Merge
    waiting: list[tuple[Port, Mail]] = field(default_factory=list)


class CommitQueue:
    """`commit` commits what is merged, `again` takes up a word that waited; both may raise `ZsqError`, which is told to who asked."""

    def __init__(self, thread: WorkerThread, commit: Callable[[PendingCommit], None], again: Callable[[Port, Mail], None]) -> None:
        self._thread = thread
        self._commit = commit
        self._again = again
        self._pending: list[PendingCommit] = []
        self._merging = False  # the first one, on the thread

    def stages(self) -> set[bytes]:
        """What must stay."""
        return {stage for pending in self._pending for stage in pending.stages}

    def waits(self, port: Port, mail: Mail, app: str, stages: Iterable[bytes] = ()) -> bool:
        """Whether this word is about a commit that is under way: then it is kept until that has ended."""
        named = set(stages)
        for pending in self._pending:
            if (app and pending.transaction.app == app) or not named.isdisjoint(pending.stages):
                if len(pending.waiting) >= WAITING_MAX:
                    raise Refused(E_LIMIT, f"{WAITING_MAX} requests wait for the commit of {pending.transaction.app!r} already")
                pending.waiting.append((port, mail))
                return True
        return False

    def add(self, pending: PendingCommit) -> None:
        self._pending.append(pending)
        self._go_on()

    def _go_on(self) -> None:
        if self._pending and not self._merging:
            self._merging = True
            self._thread.submit(self._pending[0], self._pending[0].merge.step)

    def stepped(self, pending: PendingCommit, value: Any, closing: bool) -> None:
        """The thread has done a step of the first one's merge, or failed in it. `StoreFailed`: end and recover."""
        assert pending is self._pending[0]
        self._merging = False
        if isinstance(value, (DiskFull, Damaged)):
            self._end_first(refusal(value))
        elif isinstance(value, Exception):
            raise StoreFailed(f"merging staged files failed: {value}") from value
        elif pending.merge.done and not closing:
            self._end_first(None)
        while self._pending and closing:
            self._end_first(Refused(E_CLOSING, "the topic is stopping or being deleted; try again in a moment"))
        self._go_on()

    def _end_first(self, error: ZsqError | None) -> None:
        """Commit it now, or not at all; then take up what waits for that."""
        pending = self._pending.pop(0)
        if error is None:
            try:
                self._commit(pending)
            except ZsqError as caught:
                error = caught
        self._thread.submit(None, pending.merge.discard)  # but for what is a chunk now
        if error is not None:
            _refuse(pending.port, pending.mail, error)
        for port, mail in pending.waiting:
            try:
                if error is not None and _is_same(mail.word, pending.mail.word):
                    raise error
                self._again(port, mail)
            except ZsqError as caught:
                _refuse(port, mail, caught)


def refusal(error: DiskFull | Damaged) -> ZsqError:
    """What is told of a commit that cannot be."""
    if isinstance(error, DiskFull):
        return Refused(E_DISK_FULL, f"nothing was committed: {error}")
    return CorruptBlock(E_CHECKSUM, f"nothing was committed: {error}; write the batch again")


def _is_same(word: Any, first: Any) -> bool:
    return isinstance(word, p.Commit) and replace(word, request=first.request) == first


def _refuse(port: Port, mail: Mail, error: ZsqError) -> None:
    request = getattr(mail.word, "request", 0)
    if request:
        port.send(mail.envelope, p.Failed(request, error.code, error.text))
