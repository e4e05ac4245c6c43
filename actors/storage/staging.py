"""Staging: takes pushes, seals stages in a thread, and commits transactions into the log.

`stages.py` makes the decisions. Rules that must hold:

* A seal is answered after its files are synced and its row is committed.
* A commit is answered once its group is in the log and synced. Its row in the state store may be
  committed later, because recovery rebuilds it from the log. An empty commit exists only as a row,
  so it is answered after the commit of that row.
* The parts of a commit with many small parts are merged in the thread first. Until that commit has
  ended, its stages stay. Requests about its app, and aborts of its stages, wait until then and are
  processed in order.
* The files of a removed stage are deleted after the commit that records its removal.

`CommitQueue` holds the commits that wait for a merge, and the requests that wait for these commits.
One merge runs at a time, in steps, in the thread that syncs stages. A commit that is requested
twice is answered twice. The answer to an abort that came too late says that the transaction is
committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from ...storage.directory.store import Store
from ...storage.errors import Damaged, DiskFull, StoreFailed
from ...storage.log.group import Merged
from ...storage.log.merging import Merge
from ...storage.log.transactions import (
    TRANSACTIONS_MAX,
    Transaction,
    TransactionRow,
    forgettable,
    is_foreign,
    later_of,
)
from ...storage.space import Shortage
from ...storage.state.state import StateBatch, Table
from ...transport.block.block import MESSAGE_BYTES_MAX, Block, Limits, check_block
from ...transport.block.block_format import STAGED, UNIQUE
from ...transport.errors import (
    E_BAD_BLOCK,
    E_CHECKSUM,
    E_CLOSED,
    E_CLOSING,
    E_DISK_FULL,
    E_FORBIDDEN,
    E_LIMIT,
    E_SEQUENCE,
    E_UNSUPPORTED,
    CorruptBlock,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.wire import protocol as p
from ...transport.wire.dead_letter import check_block_headers
from ...transport.wire.unique import digest_of_key
from ..primitives.rates import RateMeter
from ..runtime.port import Envelope, Mail, Port, user_of
from ..runtime.pulses import StagingPulse
from ..runtime.worker_thread import Jobs
from ..settings import options
from ..settings.closing import TO_PUBLISHERS
from .commits import StateCommits
from .extension_point import StorageExtension
from .locks import Locks
from .stages import SealNow, Stages, is_superseded

WAITING_MAX: Final = 256  # requests that wait for one commit: repeats of it and of its abort


@dataclass(eq=False, slots=True)
class PendingCommit:
    """A commit whose parts are being merged.

    `stages` are those of its stages that have blocks, in the order of the commit.
    """

    port: Port
    mail: Mail
    message: p.Commit
    transaction: Transaction
    stages: list[bytes]
    merge: Merge
    waiting: list[tuple[Port, Mail, p.Commit | p.Abort]] = field(default_factory=list)


class CommitQueue:
    """The commits that wait for their merge.

    `commit` carries out a commit that is merged, and `again` processes a request that waited. If
    one of them raises a `ZsqError`, the client gets it as the answer. While the topic's process
    stops (`is_stopping`), nothing is answered. The clients send their requests again to the topic's
    next process.
    """

    def __init__(
        self,
        thread: Jobs,
        commit: Callable[[PendingCommit], None],
        again: Callable[[Port, Mail, p.Commit | p.Abort], None],
    ) -> None:
        self._thread = thread
        self._commit = commit
        self._again = again
        self._pending: list[PendingCommit] = []
        self._merging = False  # the first commit is being merged in the thread
        self.is_stopping = False

    def stages(self) -> set[bytes]:
        """Return the stages that must stay until their commits have ended."""
        return {stage for pending in self._pending for stage in pending.stages}

    def messages(self) -> int:
        """Return the number of messages of all commits that have not ended."""
        return sum(messages_of(pending.message) for pending in self._pending)

    def waits(
        self, port: Port, mail: Mail, message: p.Commit | p.Abort, stages: Iterable[bytes] = ()
    ) -> bool:
        """Return True if this message is about a commit that has not ended. It is kept until then.

        Raises `Refused` (E_LIMIT) if too many wait.
        """
        app, named = message.app, set(stages)
        for pending in self._pending:
            if (app and pending.transaction.app == app) or not named.isdisjoint(pending.stages):
                if len(pending.waiting) >= WAITING_MAX:
                    text = (
                        f"{WAITING_MAX} requests wait for the commit of "
                        f"{pending.transaction.app!r}, which is the limit; try again later"
                    )
                    raise Refused(E_LIMIT, text)
                pending.waiting.append((port, mail, message))
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
        """Process a finished or failed step of the first commit's merge.

        Raises `StoreFailed` if the topic's process must end and recover.
        """
        assert pending is self._pending[0]
        self._merging = False
        if isinstance(value, (DiskFull, Damaged)):
            self._end_first(refusal(value))
        elif isinstance(value, Exception):
            raise StoreFailed(f"merging staged files failed: {value}") from value
        elif pending.merge.done and not closing:
            self._end_first(None)
        while self._pending and closing:
            self._end_first(Refused(E_CLOSING, "the topic is being deleted; try again in a moment"))
        self._go_on()

    def _end_first(self, error: ZsqError | None) -> None:
        """Carry out the first commit, or refuse it with `error`. Then process the waiting
        requests.
        """
        pending = self._pending.pop(0)
        if error is None:
            try:
                self._commit(pending)
            except ZsqError as caught:
                error = caught
        self._thread.submit(None, pending.merge.discard)  # it keeps a file that is now a chunk
        if self.is_stopping:
            return
        if error is not None:
            _refuse(pending.port, pending.mail, pending.message, error)
        for port, mail, message in pending.waiting:
            try:
                if error is not None and _is_same(message, pending.message):
                    raise error
                self._again(port, mail, message)
            except ZsqError as caught:
                _refuse(port, mail, message, caught)


def refusal(error: DiskFull | Damaged) -> ZsqError:
    """Return the error that answers a commit that failed."""
    if isinstance(error, DiskFull):
        return Refused(E_DISK_FULL, f"nothing was committed: {error}")
    return CorruptBlock(E_CHECKSUM, f"nothing was committed: {error}; write the batch again")


def messages_of(message: p.Commit) -> int:
    return sum(part[2] for part in message.parts)


def _is_same(message: p.Commit | p.Abort, first: p.Commit) -> bool:
    return isinstance(message, p.Commit) and replace(message, request=first.request) == first


def _refuse(port: Port, mail: Mail, message: p.Commit | p.Abort, error: ZsqError) -> None:
    if message.request:
        port.send(mail.envelope, p.Failed(message.request, error.code, error.text))


log = logging.getLogger("zsq")

_NS_PER_S = 1_000_000_000
_FORGET_EVERY_NS = 3600 * _NS_PER_S


class StageCommits:
    """Stages and transactions of one topic.

    Writers' messages arrive at `port`. `admit` raises if that many bytes would exceed the
    topic's bound. `on_committed` is called when a group is in the log. `shortage` is shared with
    the other parts that write the topic's log. A topic `in_memory` has no stages. The
    extension says when a commit may be answered.
    """

    def __init__(
        self, store: Store, state: StateCommits, thread: Jobs, table: Table, core: Stages, port: Port, admit: Callable[[int], None],
        on_committed: Callable[[], None], shortage: Shortage, *, stage_timeout_s: float = 0.0,
        max_msg_size: int = MESSAGE_BYTES_MAX, in_memory: bool = False, closed: bool = False,
        extension: StorageExtension, locks: Locks,
    ) -> None:  # fmt: skip
        self._extension = extension
        self._locks = locks
        self._limits = Limits(max_msg_size)
        self.core = core
        self.thread = thread
        self._port = port
        self.admit = admit
        self._on_committed = on_committed
        self._shortage = shortage
        self._in_memory = in_memory
        self._closing = False
        # True while the topic is closed to publishers. Transactions that are not committed yet are
        # then refused.
        self._closed = closed
        self._log, self._staging, self._state = store.log, store.staging, state
        self._transactions: dict[str, TransactionRow] = dict(table.transactions)
        self._open_kept_s = stage_timeout_s or options.STAGE_OPEN_KEPT_S
        self._sealed_kept_s = stage_timeout_s or options.STAGE_SEALED_KEPT_S
        # Bytes that came into the log from committed stages and from delayed messages.
        self._entered_bytes = 0
        self._meter = RateMeter(time.monotonic_ns(), {"entered_bytes": 0})
        self._forgot_ns = 0
        # Stages whose seal is synced and whose row is not committed yet.
        self._uncommitted: set[bytes] = set()
        state.on_full.append(self._state_full)
        self._queue = CommitQueue(thread, self._commit_merged, self._again)
        extension.count_reserved(self._queue.messages)
        for stage, facts in self._staging.stages().items():
            counts = (facts.blocks, facts.messages, facts.size_bytes, facts.checksum)
            self.core.recovered(stage, facts.transaction, counts, facts.final, time.monotonic_ns())
        self._route(port)

    # Pushes

    def take_pushes(self, port: Port) -> None:
        """Take waiting pushes, but no more than can be written quickly.

        All taken blocks of a stage are written together.
        """
        now_ns = time.monotonic_ns()
        taken: dict[bytes, list[Block]] = {}
        size = 0
        for mail in port.receive(options.DRAIN_MAX):
            if not isinstance(mail, Mail) or not isinstance(mail.message, p.Push):
                self.core.pushes_dropped += 1
                continue
            stage = mail.message.stage
            try:
                block = _one_block(mail)
                if self.core.push(stage, block.header.sequence, now_ns):
                    _check(block, self._limits)
                    taken.setdefault(stage, []).append(block)
            except ZsqError as error:
                taken.pop(stage, None)
                # Only one line is logged for each stage, because any client can send many bad
                # pushes.
                if self.core.kill(stage, error):
                    log.warning(
                        "stage %s is refused because of an invalid block: %s", stage.hex(), error
                    )
                continue
            size += block.length
            if size >= options.STAGE_TURN_BYTES:
                break
        for stage, blocks in taken.items():
            self._write(stage, blocks, now_ns)

    def _write(self, stage: bytes, blocks: list[Block], now_ns: int) -> None:
        try:
            self._extension.check_primary()
            self.admit(sum(block.length for block in blocks))
            self._staging.append(stage, blocks)
        except DiskFull as error:
            self._shortage.refused(error, len(blocks), now_ns)
            self.core.refused(stage, E_DISK_FULL, str(error), now_ns)
        except ZsqError as error:
            self.core.refused(stage, error.code, error.text, now_ns)
        else:
            self.core.arrived(stage, blocks, now_ns)

    # Writers

    def _route(self, port: Port) -> None:
        port.route(p.OpenStage, self.open)
        port.route(p.Seal, self.seal)
        port.route(p.Commit, self.commit)
        port.route(p.Abort, self.abort)
        port.route(p.Beat, self.beat)
        port.route(p.Bye, self.bye)

    def open(self, port: Port, mail: Mail, message: p.OpenStage) -> None:
        self._extension.check_primary()
        if self._in_memory:
            raise UsageError(
                E_UNSUPPORTED,
                (
                    "a topic in memory cannot take transactions, which must be durable; use one on "
                    "disk"
                ),
            )
        transaction = _transaction(
            message.app, message.version, message.kind, user_of(mail.envelope)
        )
        self._check_user(message.app, transaction.user)
        committed = self._find(message.app, message.version) is not None
        # A committed transaction publishes nothing more, so even a closed topic answers its writer.
        if not committed or self._closing:
            self._check_open()
        now_ns = time.monotonic_ns()
        if committed:
            self.core.link(mail.envelope, now_ns)
            data = {"expected": 0, "sealed": 0, "credit_bytes": 0, "committed": True}
            # A takeover may lose a commit that is not shipped. A writer that believed in it would
            # leave its part out of the next try, which goes to the new primary.
            answer_now = partial(port.send, mail.envelope, p.Done(message.request, data))
            self._state.then(partial(self._extension.when_safe, answer_now))
            return
        self._make_room(message.app)  # check now rather than when all blocks are staged
        self.core.check_open(message.stage, transaction)
        self.core.link(mail.envelope, now_ns)
        self._staging.open(message.stage, transaction, message.partition, time.time_ns())
        data = self.core.opened(mail.envelope, message.stage, transaction, now_ns)
        port.send(mail.envelope, p.Done(message.request, data))

    def seal(self, port: Port, mail: Mail, message: p.Seal) -> None:
        self._extension.check_primary()
        self._check_open()
        self._state.check_space()
        self.core.seal(mail.envelope, message, time.monotonic_ns())

    def beat(self, port: Port, mail: Mail, message: p.Beat) -> None:
        """Answer a heartbeat. Clients that only commit send heartbeats too.

        A writer whose link was given up has received Bye.
        """
        self._extension.check_primary()
        self.core.seen(mail.envelope, time.monotonic_ns())
        port.send(mail.envelope, p.Beat())

    def bye(self, port: Port, mail: Mail, message: p.Bye) -> None:
        self.core.bye(mail.envelope)

    def close(self, is_closed: bool) -> None:
        """Refuse writers while the topic is closed to publishers, or accept them again."""
        self._closed = is_closed

    def hold(self, is_held: bool) -> None:
        """Refuse writers while the topic is about to be deleted, or accept them again."""
        self._closing = is_held

    def entered(self, size_bytes: int) -> None:
        """Count bytes that came into the log from a stage or from delayed messages."""
        self._entered_bytes += size_bytes

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(E_CLOSED, TO_PUBLISHERS)
        if self._closing:
            raise Refused(
                E_CLOSING, "the topic is stopping or being deleted; try again in a moment"
            )

    def turn(self) -> None:
        """Send messages and begin the seals that are due. Called once in each turn of the loop."""
        core = self.core
        core.turn()
        orders, core.seals = core.seals, []
        for order in orders:
            self._begin_seal(order)
        replies, core.replies = core.replies, []
        for peer, message in replies:
            if is_superseded(message):  # as in `open`
                self._extension.when_safe(partial(self._reply, peer, message))
            else:
                self._reply(peer, message)

    def _reply(self, peer: Envelope, message: p.Wire) -> None:
        if not self._port.send(peer, message):
            # The writer is dead or stuck: on its next link it asks again for what it needs.
            self.core.bye(peer)

    def tick(self) -> None:
        self.core.tick(time.monotonic_ns())

    # Seals

    def _begin_seal(self, order: SealNow) -> None:
        try:
            ticket = self._staging.begin_seal(order.stage, order.final)
        except DiskFull as error:
            self._shortage.refused(error, 1, time.monotonic_ns())
            self.core.unsealed(order.stage, E_DISK_FULL, str(error))
        except NotFound:
            return  # the stage was dropped in this same turn, and its seals were answered
        else:
            self.thread.submit(ticket, ticket.run)

    def on_results(self) -> None:
        """Process the thread's results when its socket is readable."""
        for ticket, value in self.thread.results():
            if isinstance(ticket, PendingCommit):
                self._queue.stepped(ticket, value, self._closing)
                continue
            if isinstance(value, Exception):
                raise StoreFailed(f"sync of a stage failed: {value}") from value
            if ticket is None:
                continue  # this job only removed files
            try:
                row = self._staging.finish_seal(ticket)
            except NotFound:
                continue
            stage = ticket.stage.name
            self._state.batch.stage_puts[stage] = row
            self._uncommitted.add(stage)
            self._state.then(partial(self._sealed, stage, row.blocks, row.final))
            if self._state.disk_full:
                self._state_full(self._state.trouble)

    def _sealed(self, stage: bytes, blocks: int, final: bool) -> None:
        self._uncommitted.discard(stage)
        self.core.sealed(stage, blocks, final)

    def _state_full(self, text: str) -> None:
        """Refuse the seals whose rows cannot be committed now. The writers seal again later.

        A row may still be committed before that, which does no harm.
        """
        for stage in self._uncommitted:
            if self.core.is_sealing(stage):
                self.core.unsealed(stage, E_DISK_FULL, text)
        self._uncommitted.clear()

    # Transactions

    def _find(self, app: str, version: int) -> TransactionRow | None:
        """Return the app's row if this version or a later one is committed."""
        row = self._transactions.get(app)
        return row if row is not None and version <= row.version else None

    def _check_user(self, app: str, user: str) -> None:
        """Raise `Refused` (E_FORBIDDEN) if another user committed first under this app name."""
        row = self._transactions.get(app)
        if row is not None and is_foreign(row.user, user):
            raise Refused(
                E_FORBIDDEN,
                (
                    f"the transactions of app {app!r} in this topic belong to another user, not to "
                    f"{user!r}; use another app name"
                ),
            )

    def commit(self, port: Port, mail: Mail, message: p.Commit) -> None:
        transaction = _transaction(
            message.app, message.version, message.kind, user_of(mail.envelope)
        )
        self._check_user(message.app, transaction.user)
        done = self._find(message.app, message.version)
        if done is not None:
            same = done.version == message.version
            answer = {
                "first_offset": done.first_offset if same else -1,
                "messages": done.messages if same else 0,
                "repeated": True,
            }
            # The row of an empty commit may not be on disk yet.
            answer_now = partial(port.send, mail.envelope, p.Done(message.request, answer))
            self._state.then(partial(self._extension.when_safe, answer_now))
            return
        if self._queue.is_stopping or self._queue.waits(port, mail, message):
            return
        self._check_open()
        self._check_after(message)
        stages = self.core.check_parts(transaction, message.parts)
        is_held = self._is_held(message)
        if message.dry_run:
            self._make_room(message.app)
            data = {"first_offset": -1, "messages": 0, "repeated": False, "held": is_held}
            port.send(mail.envelope, p.Done(message.request, data))
            return
        if not self._is_reserved(port, mail, message):
            return
        self._make_room(message.app)
        if is_held:
            stages = []  # they are dropped as those of a commit that does not name them
        merge = self._log.begin_merge([self._staging.part(stage) for stage in stages])
        if merge is None:
            self._commit(port, mail, message, transaction, stages, None)
            return
        self._queue.add(PendingCommit(port, mail, message, transaction, stages, merge))

    def _is_held(self, message: p.Commit) -> bool:
        """Return True if an earlier message holds the key of this commit."""
        if not message.unique_key:
            return False
        digest = digest_of_key(message.unique_key)
        if self._locks.holder(digest, while_working=message.while_working) is not None:
            return True
        self._locks.check_room()
        return False

    def _check_after(self, message: p.Commit) -> None:
        """Refuse a commit that continues at another version than the app's last one."""
        row = self._transactions.get(message.app)
        last = -1 if row is None else row.version
        if message.after not in (p.AFTER_ANY, last):
            text = (
                f"the last version of app {message.app!r} in this topic is {last}, not "
                f"{message.after}: another writer has committed, or the topic is another one now"
            )
            raise Refused(E_SEQUENCE, text)

    def _is_reserved(self, port: Port, mail: Mail, message: p.Commit) -> bool:
        """Return False if the commit waits for offsets. It is then tried again."""
        again = partial(self._try_again, port, mail, message)
        return self._extension.reserve(messages_of(message), again)

    def _try_again(self, port: Port, mail: Mail, message: p.Commit) -> None:
        try:
            self.commit(port, mail, message)
        except ZsqError as error:
            _refuse(port, mail, message, error)

    def _commit_merged(self, pending: PendingCommit) -> None:
        self._make_room(pending.transaction.app)
        self._commit(
            pending.port,
            pending.mail,
            pending.message,
            pending.transaction,
            pending.stages,
            pending.merge.merged,
        )

    def _again(self, port: Port, mail: Mail, message: p.Commit | p.Abort) -> None:
        if isinstance(message, p.Commit):
            self.commit(port, mail, message)
        else:
            self.abort(port, mail, message)

    def _commit(
        self,
        port: Port,
        mail: Mail,
        message: p.Commit,
        transaction: Transaction,
        stages: list[bytes],
        merged: Merged | None,
    ) -> None:
        try:
            group = self._log.append_group(
                transaction, [self._staging.part(stage) for stage in stages], time.time_ns(), merged
            )
        except (DiskFull, Damaged) as error:
            if isinstance(error, DiskFull):
                self._shortage.refused(error, 1, time.monotonic_ns())
            raise refusal(error) from error
        if message.unique_key and group.messages:
            self._locks.add(digest_of_key(message.unique_key), group.first_offset)
        row = TransactionRow(
            message.version,
            message.kind,
            group.first_offset,
            group.messages,
            group.time_ns,
            transaction.user,
        )
        row = later_of(self._transactions.get(message.app), row)
        self._transactions[message.app] = self._state.batch.transactions[message.app] = row
        self._state.cover(self._log.synced_end)
        self._drop(
            self.core.of(message.app, message.version, transaction.user, older=True),
            "its transaction is committed",
            superseded=True,
        )
        data = {"first_offset": group.first_offset, "messages": group.messages, "repeated": False}
        answer_now = partial(port.send, mail.envelope, p.Done(message.request, data))
        if group.messages:
            self.entered(sum(part[3] for part in message.parts))
            self._on_committed()
            self._extension.when_safe(answer_now)
        else:
            self._state.then(partial(self._extension.when_safe, answer_now))

    def abort(self, port: Port, mail: Mail, message: p.Abort) -> None:
        user = user_of(mail.envelope)
        self._check_user(message.app, user)
        named = [stage for stage in message.stages if isinstance(stage, bytes)]
        if self._queue.waits(port, mail, message, named):
            return
        self.core.check_user(named, user)
        row = self._transactions.get(message.app)  # no app has the name ""
        version = -1 if row is None else row.version
        stages = self.core.known(
            [*named, *(self.core.of(message.app, message.version, user) if message.app else ())]
        )
        self._drop(stages, "the stage was aborted")
        if message.request:
            committed = row is not None and message.version <= version
            data = {"dropped": len(stages), "committed": committed, "version": version}
            answer: Callable[[], object]
            answer = partial(port.send, mail.envelope, p.Done(message.request, data))
            if committed or message.version == p.VERSION_ASKED:
                answer = partial(self._extension.when_safe, answer)
            self._state.then(answer)

    def _drop(self, stages: Iterable[bytes], text: str, *, superseded: bool = False) -> None:
        stages = list(stages)
        if stages:
            batch = self._state.batch
            self.core.forget(stages, text, superseded=superseded)
            self._staging.drop(stages, batch)
            self._state.then(partial(self._purge, batch))

    def _purge(self, batch: StateBatch) -> None:
        """Delete the stages' files in the thread: freeing 256 MiB takes a tenth of a second."""
        files = self._staging.purged(batch)
        if files:
            self.thread.submit(None, partial(self._staging.remove, files))

    def _make_room(self, app: str) -> None:
        """Make room for the row of a new app.

        Raises `Refused` (E_LIMIT) if the topic remembers TRANSACTIONS_MAX apps and can forget
        none.
        """
        if app in self._transactions or len(self._transactions) < TRANSACTIONS_MAX:
            return
        self._forget_transactions()
        if len(self._transactions) >= TRANSACTIONS_MAX:
            text = (
                f"the topic remembers the transactions of {TRANSACTIONS_MAX} apps, which is the "
                "limit"
            )
            raise Refused(E_LIMIT, f"{text}; use the same app name for each run")

    def _forget_transactions(self) -> None:
        for app in forgettable(self._transactions, time.time_ns()):
            del self._transactions[app]
            self._state.batch.transactions.pop(app, None)
            self._state.batch.transactions_gone.append(app)

    # Expiry

    def expire(self) -> None:
        """Remove stages that were not used for long, and forget transactions of old jobs."""
        now_ns = time.monotonic_ns()
        orphans = self.core.orphans(
            now_ns, int(self._open_kept_s * _NS_PER_S), int(self._sealed_kept_s * _NS_PER_S)
        )
        committing = self._queue.stages()
        orphans = [stage for stage in orphans if stage not in committing]
        if orphans:
            log.info(
                "%d stages were not used for too long and are removed (zsq serve --stage-timeout)",
                len(orphans),
            )
            self._drop(
                orphans,
                "the stage expired: it was not used for too long (zsq serve --stage-timeout)",
            )
        if now_ns - self._forgot_ns > _FORGET_EVERY_NS:
            self._forgot_ns = now_ns
            self._forget_transactions()

    def stop(self) -> None:
        """End all links, so that writers connect to the topic's next process.

        Seals that have begun are still completed.
        """
        self._closing = self._queue.is_stopping = True
        for peer in self.core.peers():
            self._port.send(peer, p.Bye())
            self.core.bye(peer)

    def is_idle(self) -> bool:
        return not self.thread.pending and not self.core.seals

    def statistics(self) -> StagingPulse:
        entered = self._entered_bytes
        rates = self._meter.rates(time.monotonic_ns(), {"entered_bytes": entered})
        return {
            "transactions": len(self._transactions),
            "entered_bytes": entered,
            "rates": rates,
            **self.core.statistics(),
        }


def _transaction(app: str, version: int, kind: str, user: str) -> Transaction:
    p.check_transaction(app, version, kind)
    return Transaction(app, version, kind, user)


def _one_block(mail: Mail) -> Block:
    blocks = mail.blocks()
    if len(blocks) != 1:
        raise UsageError(E_BAD_BLOCK, f"a push must have one block, not {len(blocks)}")
    return blocks[0]


def _check(block: Block, limits: Limits) -> None:
    header = block.header
    others = header.flags & ~(STAGED | UNIQUE)
    if others or header.reserved_1 or header.reserved_2 or header.producer_id:
        raise UsageError(
            E_BAD_BLOCK,
            "a staged block must have no flags but those of lifetimes (so no message for one "
            "channel or with an id), no producer id and empty reserved fields",
        )
    if header.flags & UNIQUE and header.count != 1:
        # The message of a schedule. Its commit names the key.
        text = "a staged block with a unique key must have one message"
        raise UsageError(E_BAD_BLOCK, text)
    check_block(block, limits)
    check_block_headers(block)
