"""Storage's desk for staging: takes pushes, seals on a thread of its own, commits transactions into the log. `stages.py` decides.

Orders that must hold:

* A seal is answered after its files are synced and its row is committed.
* A commit is answered once its group is in the log and synced; its row in the state may lag, the log brings it back. Of an empty
  one only the row tells, so it is answered after that.
* A commit of many small parts is merged on the thread first. Meanwhile its stages stay, whatever is asked: words about its app, and
  aborts of its stages, are taken up when it has ended.
* The files of a stage that is gone go after the commit of what says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from ..storage.errors import Damaged, DiskFull, StoreFailed
from ..storage.group import Merged
from ..storage.state import StateBatch, Table
from ..storage.store import Store
from ..storage.transactions import TRANSACTIONS_MAX, Transaction, TransactionRow, forgettable
from ..transport import protocol as p
from ..transport.block import Block, check_block
from ..transport.errors import (
    E_BAD_BLOCK,
    E_CLOSED,
    E_CLOSING,
    E_DISK_FULL,
    E_LIMIT,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from . import options
from .closing import TO_PUBLISHERS
from .commit_queue import CommitQueue, PendingCommit, refusal
from .port import Mail, Port
from .rates import RateMeter
from .stages import SealNow, Stages
from .state_desk import StateDesk
from .worker_thread import WorkerThread

log = logging.getLogger("zsq")

STAGE_WORDS = frozenset((p.OpenStage, p.Seal, p.Commit, p.Abort, p.Beat, p.Bye))  # writers and committers
_NS_PER_S = 1_000_000_000
_FORGET_EVERY_NS = 3600 * _NS_PER_S


class StageDesk:
    """`port`: where writers' words come in; `on_committed`: called when a group is in the log; `admit`: raises where so many bytes
    would pass the topic's bound. All are given before the first word."""

    in_memory = False  # the topic is: it takes no stages
    port: Port
    on_committed: Callable[[], None]
    admit: Callable[[int], None]

    def __init__(self, store: Store, state: StateDesk, thread: WorkerThread, table: Table, stage_timeout_s: float) -> None:
        self.core = Stages()
        self.thread = thread
        self.closing = False
        self.closed = False  # to publishers: what is not committed by then is not committed
        self._log, self._staging, self._state = store.log, store.staging, state
        self._transactions: dict[str, TransactionRow] = dict(table.transactions)
        self._open_kept_s = stage_timeout_s or options.STAGE_OPEN_KEPT_S
        self._sealed_kept_s = stage_timeout_s or options.STAGE_SEALED_KEPT_S
        self.entered_bytes = 0  # into the log without the topic's hands: committed here, or delayed and due
        self._meter = RateMeter(time.monotonic_ns(), {"entered_bytes": 0})
        self._forgot_ns = 0
        self._uncommitted: set[bytes] = set()  # stages whose seal is synced, and its row not committed yet
        state.on_full.append(self._state_full)
        self._queue = CommitQueue(thread, self._commit_merged, self._again)
        for stage, facts in self._staging.stages().items():
            counts = (facts.blocks, facts.messages, facts.size_bytes, facts.checksum)
            self.core.recovered(stage, facts.transaction, counts, facts.final, time.monotonic_ns())

    # Pushes

    def take_pushes(self, port: Port) -> None:
        """What lies there, but not more than is written quickly; each stage's blocks by one write."""
        now_ns = time.monotonic_ns()
        taken: dict[bytes, list[Block]] = {}
        size = 0
        for mail in port.receive(options.DRAIN_MAX):
            if not isinstance(mail, Mail) or not isinstance(mail.word, p.Push):
                self.core.pushes_dropped += 1
                continue
            stage = mail.word.stage
            try:
                block = _one_block(mail)
                if self.core.push(stage, block.header.sequence, now_ns):
                    _check(block)
                    taken.setdefault(stage, []).append(block)
            except ZsqError as error:
                taken.pop(stage, None)
                if self.core.kill(stage, error):  # a line a stage: pushes come from anybody, as many as they like
                    log.warning("a block of stage %s is refused: %s", stage.hex(), error)
                continue
            size += block.length
            if size >= options.STAGE_TURN_BYTES:
                break
        for stage, blocks in taken.items():
            self._write(stage, blocks, now_ns)

    def _write(self, stage: bytes, blocks: list[Block], now_ns: int) -> None:
        try:
            self._staging.append(stage, blocks)
        except DiskFull as error:
            self.core.refused(stage, E_DISK_FULL, str(error), now_ns)
        except ZsqError as error:
            self.core.refused(stage, error.code, error.text, now_ns)
        else:
            self.core.arrived(stage, blocks, now_ns)

    # Writers

    def on_openstage_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.OpenStage", mail.word)
        if self.in_memory:
            raise UsageError(
                E_UNSUPPORTED, "a topic in memory takes no transactions: they are kept until they are durable; use one on disk"
            )
        transaction = _transaction(word.app, word.version, word.kind)
        committed = self._find(word.app, word.version) is not None
        if not committed or self.closing:  # what is committed nobody publishes again: a closed topic says so too
            self._check_open()
        now_ns = time.monotonic_ns()
        if committed:
            self.core.link(mail.envelope, now_ns)
            data = {"expected": 0, "sealed": 0, "credit_bytes": 0, "committed": True}
        else:
            self._make_room(word.app)  # here already, not when all of it is staged
            self.core.check_open(word.stage, transaction)
            self.core.link(mail.envelope, now_ns)
            self._staging.open(word.stage, transaction, word.partition, time.time_ns())
            data = self.core.opened(mail.envelope, word.stage, transaction, now_ns)
        port.send(mail.envelope, p.Done(word.request, data))

    def on_seal_word(self, port: Port, mail: Mail) -> None:
        self._check_open()
        self._state.check_space()
        self.core.seal(mail.envelope, cast("p.Seal", mail.word), time.monotonic_ns())

    def on_beat_word(self, port: Port, mail: Mail) -> None:
        """Also of those that only commit; a writer that was given up has been told so."""
        self.core.seen(mail.envelope, time.monotonic_ns())
        port.send(mail.envelope, p.Beat())

    def on_bye_word(self, port: Port, mail: Mail) -> None:
        self.core.bye(mail.envelope)

    def _check_open(self) -> None:
        if self.closed:
            raise Refused(E_CLOSED, TO_PUBLISHERS)
        if self.closing:
            raise Refused(E_CLOSING, "the topic is stopping or being deleted; try again in a moment")

    def turn(self) -> None:
        """Once a turn of the loop: tell what has arrived, and begin the seals that are due."""
        core = self.core
        core.turn()
        orders, core.seals = core.seals, []
        for order in orders:
            self._begin_seal(order)
        replies, core.replies = core.replies, []
        for peer, word in replies:
            if not self.port.send(peer, word):
                core.bye(peer)  # dead or stuck: what it has to know it asks for on its next link

    def tick(self) -> None:
        self.core.tick(time.monotonic_ns())

    # Seals

    def _begin_seal(self, order: SealNow) -> None:
        try:
            ticket = self._staging.begin_seal(order.stage, order.final)
        except DiskFull as error:
            self.core.unsealed(order.stage, E_DISK_FULL, str(error))
        except NotFound:
            return  # dropped in this same turn, and whoever waited was told
        else:
            self.thread.submit(ticket, ticket.run)

    def on_results(self) -> None:
        """The thread's socket is readable."""
        for ticket, value in self.thread.results():
            if isinstance(ticket, PendingCommit):
                self._queue.stepped(ticket, value, self.closing)
                continue
            if isinstance(value, Exception):
                raise StoreFailed(f"sync of a stage failed: {value}") from value
            if ticket is None:
                continue  # files were removed
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
        """Their rows cannot be committed now: who waits for that is told, and asks again. Its row may come first; that is no harm."""
        for stage in self._uncommitted:
            if self.core.is_sealing(stage):
                self.core.unsealed(stage, E_DISK_FULL, text)
        self._uncommitted.clear()

    # Transactions

    def _find(self, app: str, version: int) -> TransactionRow | None:
        """Its row, if this version or a later one is committed."""
        row = self._transactions.get(app)
        return row if row is not None and version <= row.version else None

    def on_commit_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Commit", mail.word)
        transaction = _transaction(word.app, word.version, word.kind)
        done = self._find(word.app, word.version)
        if done is not None:
            same = done.version == word.version
            answer = {"first_offset": done.first_offset if same else -1, "messages": done.messages if same else 0, "repeated": True}
            self._state.then(partial(port.send, mail.envelope, p.Done(word.request, answer)))  # an empty one's row may be on its way
            return
        if self._queue.waits(port, mail, word.app):
            return
        self._check_open()
        stages = self.core.check_parts(transaction, word.parts)
        self._make_room(word.app)
        self.admit(sum(part[3] for part in word.parts))
        merge = self._log.begin_merge([self._staging.part(stage) for stage in stages])
        if merge is None:
            self._commit(port, mail, transaction, stages, None)
            return
        self._queue.add(PendingCommit(port, mail, transaction, stages, merge))

    def _commit_merged(self, pending: PendingCommit) -> None:
        self._make_room(pending.transaction.app)
        self._commit(pending.port, pending.mail, pending.transaction, pending.stages, pending.merge.merged)

    def _again(self, port: Port, mail: Mail) -> None:
        (self.on_commit_word if isinstance(mail.word, p.Commit) else self.on_abort_word)(port, mail)

    def _commit(self, port: Port, mail: Mail, transaction: Transaction, stages: list[bytes], merged: Merged | None) -> None:
        word = cast("p.Commit", mail.word)
        try:
            group = self._log.append_group(transaction, [self._staging.part(stage) for stage in stages], time.time_ns(), merged)
        except (DiskFull, Damaged) as error:
            raise refusal(error) from error
        row = TransactionRow(word.version, word.kind, group.first_offset, group.messages, group.time_ns)
        self._transactions[word.app] = self._state.batch.transactions[word.app] = row
        self._state.cover(self._log.synced_end)
        self._drop(self.core.of(word.app, word.version, older=True), "its transaction is committed", superseded=True)
        data = {"first_offset": group.first_offset, "messages": group.messages, "repeated": False}
        answer_now = partial(port.send, mail.envelope, p.Done(word.request, data))
        if group.messages:
            self.entered_bytes += sum(part[3] for part in word.parts)
            self.on_committed()
            answer_now()
        else:
            self._state.then(answer_now)

    def on_abort_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Abort", mail.word)
        named = [stage for stage in word.stages if isinstance(stage, bytes)]
        if self._queue.waits(port, mail, word.app, named):
            return
        committed = bool(word.app) and self._find(word.app, word.version) is not None
        stages = self.core.known([*named, *(self.core.of(word.app, word.version) if word.app else ())])
        self._drop(stages, "it was aborted")
        if word.request:
            data = {"dropped": len(stages), "committed": committed}
            self._state.then(partial(port.send, mail.envelope, p.Done(word.request, data)))

    def _drop(self, stages: Iterable[bytes], text: str, *, superseded: bool = False) -> None:
        stages = list(stages)
        if stages:
            batch = self._state.batch
            self.core.forget(stages, text, superseded=superseded)
            self._staging.drop(stages, batch)
            self._state.then(partial(self._purge, batch))

    def _purge(self, batch: StateBatch) -> None:
        """On the thread: to give back the space of 256 MiB takes the system a tenth of a second."""
        files = self._staging.purged(batch)
        if files:
            self.thread.submit(None, partial(self._staging.remove, files))

    def _make_room(self, app: str) -> None:
        """For this app, if it is a new one: `Refused` E_LIMIT where as many are remembered as may be, and none of them is a job's."""
        if app in self._transactions or len(self._transactions) < TRANSACTIONS_MAX:
            return
        self._forget_transactions()
        if len(self._transactions) >= TRANSACTIONS_MAX:
            raise Refused(E_LIMIT, f"a topic remembers the transactions of {TRANSACTIONS_MAX} apps; use the same app name for each run")

    def _forget_transactions(self) -> None:
        for app in forgettable(self._transactions, time.time_ns()):
            del self._transactions[app]
            self._state.batch.transactions.pop(app, None)
            self._state.batch.transactions_gone.append(app)

    # Time

    def expire(self) -> None:
        """Stages that nobody uses any more, and transactions of old jobs."""
        now_ns = time.monotonic_ns()
        orphans = self.core.orphans(now_ns, int(self._open_kept_s * _NS_PER_S), int(self._sealed_kept_s * _NS_PER_S))
        committing = self._queue.stages()
        orphans = [stage for stage in orphans if stage not in committing]
        if orphans:
            log.info("%d stages were not used for long and are removed", len(orphans))
            self._drop(orphans, "it was not used for too long (zsq serve --stage-timeout)")
        if now_ns - self._forgot_ns > _FORGET_EVERY_NS:
            self._forgot_ns = now_ns
            self._forget_transactions()

    def stop(self) -> None:
        """Writers are told to look for a successor; seals that are on their way still end."""
        self.closing = True
        for peer in self.core.peers():
            self.port.send(peer, p.Bye())
            self.core.bye(peer)

    def is_idle(self) -> bool:
        return not self.thread.pending and not self.core.seals

    def statistics(self) -> dict[str, Any]:
        now, counts = time.monotonic_ns(), {"entered_bytes": self.entered_bytes}
        rates = self._meter.rates(now, counts)
        return {"transactions": len(self._transactions), **counts, "rates": rates, **self.core.statistics()}


def _transaction(app: str, version: int, kind: str) -> Transaction:
    p.check_transaction(app, version, kind)
    return Transaction(app, version, kind)


def _one_block(mail: Mail) -> Block:
    blocks = mail.blocks()
    if len(blocks) != 1:
        raise UsageError(E_BAD_BLOCK, f"a push carries one block, not {len(blocks)}")
    return blocks[0]


def _check(block: Block) -> None:
    header = block.header
    if header.flags or header.reserved_1 or header.reserved_2 or header.producer_id:
        raise UsageError(E_BAD_BLOCK, "a staged block has no flags and no producer")
    check_block(block)
