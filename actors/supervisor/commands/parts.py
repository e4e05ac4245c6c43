"""Topics with parts at several brokers: requests about them, and the parts of this broker.

`cluster_view.py` decides what to answer and which parts to open and delete. This module asks the
archive actor, which has the directory of the cluster, and carries out the rest.

The archive actor sends each new entry of the directory. The supervisor opens and deletes parts at
once, so that a client that was sent here by another broker finds its part. A step that fails is
tried again every few seconds.

A request that changes the directory is answered when this broker has read its entry. The entry may
then be void, because another program was faster.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from ....storage.cluster.directory import (
    NOBODY,
    AutoEntry,
    DrainEntry,
    Entry,
    ForgetEntry,
    MoveEntry,
    RemovePartEntry,
    encode_entry,
)
from ....transport.errors import (
    E_BUCKET,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_FOUND,
    E_TIMEOUT,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import (
    ROW_OF,
    AddPartsRequest,
    AdminRequest,
    CloseRequest,
    ClusterRequest,
    CreateTopicRequest,
    DeleteRequest,
    DrainBrokerRequest,
    EndedRequest,
    ForgetBrokerRequest,
    MovePartRequest,
    OpenRequest,
    RedriveRequest,
    RemovePartRequest,
    SetAutoRequest,
)
from ...runtime.port import Envelope
from ...runtime.process_table import Child
from ...settings import options
from ...settings.channel_settings import DEAD_LETTERS
from ..cluster import local_directory
from ..cluster.cluster_view import (
    Adopt,
    ClusterView,
    Confirm,
    Delete,
    Give,
    Go,
    Join,
    Open,
    Prepare,
    Reclaim,
    Release,
    Resume,
    Step,
    Take,
    kind_of,
)
from .balancing import Balancing, Order
from .creation import create_topic
from .deletion import delete_part, drain_part
from .part_moves import ONLY_HERE, LongStep, PartMoves
from .requests import Requests
from .topic_settings import checked, retention_of

log = logging.getLogger("zsq")

_NS_PER_S: Final = 1_000_000_000
# Reads that clients cause follow each other with this pause, because each costs a request to the
# bucket.
READ_PAUSE_S: Final = 0.1
READ_S: Final = 5.0
# Requests just after a start wait so long for the first read of the directory.
EARLY_S: Final = 10.0
# An entry that was added is normally read at once.
APPLIED_S: Final = 10.0
RETRY_S: Final = 5.0  # the pause after a step that failed
STEPS_MAX: Final = 32  # steps in one turn of the supervisor's loop
# A broker that is to be forgotten must ship nothing for so long. A primary with a standby creates a
# tick every 2 s.
QUIET_S: Final = 5.0
FORGET_S: Final = 120.0
_OfCluster = (
    ClusterRequest | AddPartsRequest | MovePartRequest | DrainBrokerRequest | ForgetBrokerRequest
    | SetAutoRequest
)  # fmt: skip

_M = TypeVar("_M", p.Lookup, AdminRequest[Any], p.Stats)
_Then = Callable[[ZsqError | None], None]


class _Wait(NamedTuple):
    """A request that waits until the entry with this number was read."""

    number: int
    deadline_ns: int
    then: _Then


class Parts:
    """The handler of topics with parts.

    If the broker belongs to no cluster, the directory is in its registry, and is never read again.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._broker = requests.broker
        registry = requests.broker.registry
        self._is_shared = bool(self._broker.options.cluster)
        joining = registry.parted.topics if self._is_shared else ()
        self._view = ClusterView(registry.uuid, registry.topics, joining)
        self._moves = PartMoves(requests, self._view, self._archive, self._step_done, self._failed)
        self._balancing = Balancing(
            self._view, self._sizes, self._fixed, self._begin_move, self._forget_silently
        )
        self._deleting: set[str] = set()
        self._said: set[str] = set()  # conflicts that were logged
        self._joining: set[str] = set()
        self._is_due = not self._is_shared  # the plan may have new steps
        self._retry_ns = 0
        self._waits: list[_Wait] = []
        self._readers: list[_Then] = []  # they wait for a read that has not begun
        self._is_reading = False
        self._read_ns = 0  # no read begins before this time
        self._early_ns = 0  # until then, the first read is tried again
        if not self._is_shared:
            self._view.directory = local_directory.directory_of(registry)
            self._view.is_read = True

    def trouble(self) -> str:
        """Return what is wrong with the cluster or with the parts of this broker, or ""."""
        return self._view.trouble

    # Requests

    def lookup(self, message: p.Lookup, carry_out: Callable[[p.Lookup], None]) -> None:
        self._route(message, self._view.lookup, carry_out)

    def stats(self, message: p.Stats, carry_out: Callable[[p.Stats], None]) -> None:
        self._route(message, self._view.stats, carry_out)

    def manage(
        self,
        message: AdminRequest[Any],
        carry_out: Callable[[AdminRequest[Any]], None],
        *,
        is_fresh: bool = False,
    ) -> None:
        """Answer an order, or call `carry_out` if it is about a topic or a part of this broker.

        `is_fresh`: the directory was read since the order came, or cannot be read.
        """
        if isinstance(message, _OfCluster) or (
            isinstance(message, CreateTopicRequest) and message.parts is not None
        ):
            # A broker that lags would not know the broker, or that it has parts.
            reads = isinstance(message, DrainBrokerRequest | ForgetBrokerRequest)
            reads = reads or (isinstance(message, ClusterRequest) and message.fresh)
            if not is_fresh and (reads or not self._view.is_read):
                self._read(partial(self._manage_after_read, message, carry_out))
            else:
                self._of_cluster(message)
        elif (
            isinstance(message, DeleteRequest)
            and not message.channel
            and self._view.is_parted(message.topic)
        ):
            self._remove(message)
        elif isinstance(message, RemovePartRequest):
            self._route(message, self._view.manage, self._drain)
        elif (
            isinstance(message, EndedRequest)
            and (end := self._view.end_of(message.topic)) is not None
        ):
            self._requests.done(message.request, {"ended": end})
        elif isinstance(message, RedriveRequest) and self._view.is_parted(message.to):
            if not message.chosen or message.to_channel:
                raise self._view.refusal(message.to)
            self._requests.done(message.request, {})  # the client publishes to the parts
        elif not message.topic:
            carry_out(message)
        elif isinstance(message, CloseRequest | OpenRequest):
            self._route(message, self._view.manage, partial(self._close, carry_out))
        else:
            self._route(message, self._view.manage, carry_out)

    def _of_cluster(self, message: AdminRequest[Any]) -> None:
        if isinstance(message, ClusterRequest):
            described = self._view.describe(is_shared=self._is_shared)
            self._requests.done(message.request, {**described, **self._balancing.describe()})
        elif isinstance(message, DrainBrokerRequest | ForgetBrokerRequest | SetAutoRequest):
            self._change_cluster(message)
        elif isinstance(message, CreateTopicRequest):
            self._create(message)
        elif isinstance(message, MovePartRequest):
            self._move(message)
        else:
            assert isinstance(message, AddPartsRequest)
            self._add_parts(message)

    def _manage_after_read(
        self,
        message: AdminRequest[Any],
        carry_out: Callable[[AdminRequest[Any]], None],
        error: ZsqError | None,
    ) -> None:
        """Carry out a request that came before the directory was read for the first time.

        If it cannot be read, the request is refused, except for a look at the cluster.
        """
        del error  # the view has the reason
        with self._requests.answering(message.request):
            self.manage(message, carry_out, is_fresh=True)

    def _close(
        self, carry_out: Callable[[AdminRequest[Any]], None], message: AdminRequest[Any]
    ) -> None:
        """Tell producers first, so that they need not be refused by a part that is closed."""
        assert isinstance(message, CloseRequest | OpenRequest)
        entry = self._view.change(message, uuid.uuid4().hex)
        if entry is None:
            carry_out(message)
        else:
            self._append(message.request, iter([entry]), partial(carry_out, message))

    def _route(
        self,
        message: _M,
        decide: Callable[[_M, bool], Go | p.Spread],
        carry_out: Callable[[_M], None],
        *,
        is_fresh: bool = False,
    ) -> None:
        decision = decide(message, is_fresh)
        if isinstance(decision, p.Spread):
            if isinstance(message, p.Lookup) and message.by.get("via") == DEAD_LETTERS:
                raise self._view.refusal(decision.topic)
            self._requests.spread(message.request, decision)
        elif decision is Go.HERE:
            carry_out(message)
        else:
            self._read(partial(self._after_read, message, decide, carry_out))

    def _after_read(
        self,
        message: _M,
        decide: Callable[[_M, bool], Go | p.Spread],
        carry_out: Callable[[_M], None],
        error: ZsqError | None,
    ) -> None:
        if error is not None:
            text = f"the directory of the cluster cannot be read: {error.text}; try again later"
            self._requests.fail(message.request, Refused(E_CLOSING, text))
            return
        with self._requests.answering(message.request):
            self._route(message, decide, carry_out, is_fresh=True)

    # Reading

    def _archive(self) -> Child | None:
        children = self._broker.processes.children.values()
        return next((c for c in children if c.spec.kind == "archive" and c.state == "up"), None)

    def _read(self, then: _Then) -> None:
        """Read the directory on, and then call `then`."""
        if not self._is_shared:
            then(None)
            return
        if len(self._readers) >= options.WAITERS_MAX:
            raise Refused(E_LIMIT, "too many requests wait for the cluster's directory; try again")
        self._readers.append(then)
        self._read_next(time.monotonic_ns())

    def _read_next(self, now_ns: int) -> None:
        if self._is_reading or not self._readers or now_ns < self._read_ns:
            return
        batch, self._readers = self._readers, []
        self._is_reading = True

        def read(done: p.Done | None, error: ZsqError | None) -> None:
            self._is_reading = False
            now_ns = time.monotonic_ns()
            self._read_ns = now_ns + int(READ_PAUSE_S * _NS_PER_S)
            if error is not None and self._is_early(error, now_ns):
                self._readers = batch + self._readers  # `tick` reads again
                return
            for then in batch:
                then(error)

        if (archive := self._archive()) is None:
            read(None, _no_archive())
        else:
            self._requests.orders.send(archive, p.ReadDirectory, read, READ_S)

    def _is_early(self, error: ZsqError, now_ns: int) -> bool:
        """Return True if the archive actor is just being started, and cannot read yet."""
        if self._view.is_read or error.code != E_BUCKET:
            return False
        self._early_ns = self._early_ns or now_ns + int(EARLY_S * _NS_PER_S)
        return now_ns < self._early_ns

    def heard(
        self, envelope: Envelope, message: p.DirectoryEntries | p.DirectoryTrouble | p.BrokersSeen
    ) -> None:
        """Handle news of the directory, if the archive actor sent it."""
        archive = self._archive()
        if archive is None or archive.envelope != envelope or not self._is_shared:
            log.warning(
                "message %s ignored: its sender is not the archive actor", type(message).__name__
            )
            return
        if isinstance(message, p.DirectoryTrouble):
            self._view.unread = message.text
            return
        if isinstance(message, p.BrokersSeen):
            self._balancing.saw(message.brokers, time.monotonic_ns())
            return
        self._view.take(message.first, message.entries, message.is_all)
        self._note_joined()
        self._is_due = True
        if not self._broker.stopping:
            self._carry_out_plan()
        read, self._waits = self._waits, []
        for wait in read:
            if wait.number < self._view.directory.next:
                wait.then(None)
            else:
                self._waits.append(wait)

    def tick(self, now_ns: int) -> None:
        if self._broker.stopping:
            over = Refused(E_CLOSING, "the broker is stopping; the request may take effect")
            self._give_up([wait.then for wait in self._waits] + self._readers, over)
            self._waits, self._readers = [], []
            return
        late = [wait for wait in self._waits if wait.deadline_ns < now_ns]
        self._waits = [wait for wait in self._waits if wait.deadline_ns >= now_ns]
        text = f"the entry in the cluster's directory was not read within {APPLIED_S:g} s"
        self._give_up(
            [wait.then for wait in late], ZsqError(E_TIMEOUT, f"{text}; it may still take effect")
        )
        if self._view.is_moving and not self._readers and not self._is_reading:
            self._readers.append(lambda error: None)
        self._read_next(now_ns)
        self._moves.tick(now_ns)
        if self._is_shared:
            self._balancing.tick(now_ns)
        if self._is_due or (self._retry_ns and now_ns >= self._retry_ns):
            self._carry_out_plan()

    @staticmethod
    def _give_up(waiting: Sequence[_Then], error: ZsqError) -> None:
        for then in waiting:
            then(error)

    # Changes of the directory

    def _create(self, message: CreateTopicRequest) -> None:
        topic = message.topic
        sync, retention = checked(topic, message.sync, message.settings, self._broker.options)
        settings: dict[str, object] = {
            "sync": sync,
            **({"retention": retention} if retention else {}),
        }
        of_topic = uuid.uuid4().hex
        entry = self._view.new_topic(message, uuid.uuid4().hex, of_topic, settings)

        def made() -> None:
            if self._view.directory.topic_of(of_topic) is None:
                text = f"topic {topic!r} was created or changed at the same time: see zsq cluster"
                raise UsageError(E_EXISTS, text)
            data = {"existed": False, "uuid": of_topic, "parts": len(entry.brokers)}
            self._requests.done(message.request, data)

        self._append(message.request, iter([entry]), made)

    def _add_parts(self, message: AddPartsRequest) -> None:
        entries = self._view.more_parts(message, _ids())

        def added() -> None:
            parted = self._view.directory.topic_of(entries[0].uuid)
            if parted is None:
                raise NotFound(E_NOT_FOUND, f"topic {message.topic!r} was deleted meanwhile")
            self._requests.done(message.request, {"parts": len(parted.parts)})

        self._append(message.request, iter(entries), added)

    def _move(self, message: MovePartRequest) -> None:
        if not self._is_shared:
            text = "this broker belongs to no cluster, so it has all parts: start it with --cluster"
            raise UsageError(E_UNSUPPORTED, text)
        entry = self._view.move(message, uuid.uuid4().hex)
        self._append(
            message.request,
            iter([entry]),
            partial(self._requests.done, message.request, {"hold": entry.hold}),
        )

    def _change_cluster(
        self, message: DrainBrokerRequest | ForgetBrokerRequest | SetAutoRequest
    ) -> None:
        if not self._is_shared:
            text = "this broker belongs to no cluster: start it with --cluster"
            raise UsageError(E_UNSUPPORTED, text)
        done = partial(self._requests.done, message.request, {})
        id = uuid.uuid4().hex
        if isinstance(message, SetAutoRequest):
            auto = AutoEntry(id, message.on, message.rate, message.concurrency, message.gone_after)
            self._append(message.request, iter([auto]), done)
            return
        self._view.check_broker(message.broker)
        if isinstance(message, DrainBrokerRequest):
            drain = DrainEntry(id, message.broker, message.draining, message.concurrency)
            self._append(message.request, iter([drain]), done)
            return
        if self._view.directory.brokers[message.broker].gone:
            done()
            return

        def answer(error: ZsqError | None) -> None:
            with self._requests.answering(message.request):
                if error is not None:
                    raise error
                done()

        self._forget(message.broker, answer, quiet_s=0.0 if message.force else QUIET_S)

    def _forget(self, number: int, then: _Then, *, quiet_s: float = QUIET_S) -> None:
        """Forget a broker. If it has parts, its log is ended first, so that it can never go on.

        This may be interrupted at any point, and repeated by any broker.
        """
        directory = self._view.directory
        if number == self._view.me:
            raise UsageError(E_UNSUPPORTED, "a broker cannot forget itself: ask another one")
        # What the directory would not take must not end a log.
        entry = ForgetEntry(uuid.uuid4().hex, number, 0)
        if (objection := directory.objection(entry)) is not None:
            raise from_wire(objection.code, objection.text)

        def add(tick: int) -> None:
            def added(done: p.Done | None, error: ZsqError | None) -> None:
                if done is None:
                    then(error or _no_archive())
                elif (at := int(done.data["number"])) < self._view.directory.next:
                    then(None)
                else:
                    deadline_ns = time.monotonic_ns() + int(APPLIED_S * _NS_PER_S)
                    self._waits.append(_Wait(at, deadline_ns, then))

            make = partial(p.AppendEntry, entry=encode_entry(entry._replace(tick=tick)))
            if (archive := self._archive()) is None:
                then(_no_archive())
            else:
                self._requests.orders.send(archive, make, added)

        def closed(done: p.Done | None, error: ZsqError | None) -> None:
            if done is None:
                then(error or _no_archive())
            else:
                add(int(done.data["tick"]))

        if not directory.has_parts(number):
            add(NOBODY)
            return
        if (archive := self._archive()) is None:
            raise _no_archive()
        end = partial(p.EndLog, url=directory.brokers[number].bucket, quiet_s=quiet_s)
        self._requests.orders.send(archive, end, closed, FORGET_S)

    def _forget_silently(self, number: int, then: Callable[[], None]) -> None:
        """Forget a broker that announces itself no more."""

        def ended(error: ZsqError | None) -> None:
            if error is not None:
                log.error("broker %d cannot be forgotten: %s", number, error.text)
            then()

        try:
            self._forget(number, ended)
        except ZsqError as error:
            ended(error)

    def _begin_move(self, order: Order, then: Callable[[bool], None]) -> None:
        """Add a move that nobody has asked for."""
        archive = self._archive()
        if archive is None:
            then(False)
            return
        entry = MoveEntry(uuid.uuid4().hex, *order)
        make = partial(p.AppendEntry, entry=encode_entry(entry))
        self._requests.orders.send(archive, make, lambda done, error: then(done is not None))

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of the parts of this broker, as they last said."""
        return {
            name: int(group.topic.stats.get("storage", {}).get("log_bytes", 0))
            for name, group in self._broker.groups.items()
            if group.row.part_of and group.topic is not None
        }

    def _fixed(self) -> dict[str, str]:
        """Return the parts of this broker that cannot move, and why."""
        return {
            name: ONLY_HERE
            for name, row in self._broker.registry.topics.items()
            if row.part_of and row.retention.get("archive") == "off"
        }

    def _remove(self, message: DeleteRequest) -> None:
        if not (message.force or message.drained):
            # The brokers of the parts know what is left in them. So the client asks them first.
            decision = self._view.manage(message, is_fresh=True)
            assert isinstance(decision, p.Spread)
            self._requests.spread(message.request, decision)
            return
        entry = self._view.removal(message, uuid.uuid4().hex)
        done = partial(self._requests.done, message.request, {})
        self._append(message.request, iter([entry]), done)

    def _drain(self, message: AdminRequest[Any]) -> None:
        """Remove a part of this broker when all of it is finished.

        The entry in the directory is the removal. If this broker is killed before, the part is
        there, closed. If it is killed after, it reads the entry, and deletes the part then. An
        entry whose answer was lost may come later. Until then, the part takes messages only if it
        is opened, and the `open` makes the entry void, or is void.
        """
        assert isinstance(message, RemovePartRequest)
        self._view.part_removal(message, _ids())  # raises what is wrong before anything is done
        group = self._broker.groups[message.topic]

        def drained(end: int, unseal: Callable[[], None]) -> None:
            try:
                entries = self._view.part_removal(message, _ids(), end)
            except ZsqError:
                unseal()
                raise
            removal = entries[-1]
            assert isinstance(removal, RemovePartEntry)

            def removed() -> None:
                if not self._view.is_removed(removal):
                    unseal()
                    text = f"part {message.topic!r} was opened or moved at the same time"
                    raise Refused(E_CLOSING, f"{text}: see zsq cluster")
                self._requests.done(message.request, {"end": end})

            self._append(message.request, iter(entries), removed, unseal)

        drain_part(self._requests, message, group, drained)

    def _append(
        self,
        request: int,
        entries: Iterator[Entry],
        then: Callable[[], None],
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """Add the entries one after the other. Call `then` when the last one was read here, or
        `undo` if that is not known.
        """
        if not self._is_shared:
            try:
                for entry in entries:
                    self._view.directory = local_directory.append(self._broker.registry, entry)
            except ZsqError:
                undo()
                raise
            self._carry_out_plan()
            then()
            return
        archive = self._archive()
        if archive is None:
            undo()
            raise _no_archive()

        def applied(error: ZsqError | None) -> None:
            with self._requests.answering(request):
                if error is not None:
                    undo()
                    raise error
                then()

        def added(done: p.Done | None, error: ZsqError | None) -> None:
            if done is None:
                undo()
            with self._requests.answering(request):
                if done is None:
                    raise error or _no_archive()
                if (following := next(entries, None)) is not None:
                    add(following)
                elif (number := int(done.data["number"])) < self._view.directory.next:
                    applied(None)
                else:
                    deadline_ns = time.monotonic_ns() + int(APPLIED_S * _NS_PER_S)
                    self._waits.append(_Wait(number, deadline_ns, applied))

        def add(entry: Entry) -> None:
            make = partial(p.AppendEntry, entry=encode_entry(entry))
            self._requests.orders.send(archive, make, added)

        add(next(entries))

    # Parts of this broker

    def _carry_out_plan(self) -> None:
        self._is_due, self._retry_ns = False, 0
        steps = [
            step
            for step in self._view.plan()
            if step.name not in self._deleting
            and step.name not in self._joining
            and not self._moves.is_busy(step.name)
        ]
        waiting = {step.name for step in steps}
        for name in self._view.failures.keys() - waiting:
            del self._view.failures[name]
        for name, text in self._view.conflicts.items():
            if name not in self._said:
                self._said.add(name)
                log.error("%s", text)
        for step in islice(steps, STEPS_MAX):
            try:
                self._carry_out(step)
            except (ZsqError, OSError) as error:
                self._failed(step, error)
            else:
                self._view.failures.pop(step.name, None)
        self._is_due = self._is_due or len(steps) > STEPS_MAX

    def _carry_out(self, step: Step) -> None:
        match step:
            case Open(name=name, topic=topic, hold=hold):
                settings = topic.settings
                sync = str(settings.get("sync", ""))
                create_topic(
                    self._broker, name, sync, retention_of(settings), topic.uuid, hold.number,
                    hold.reserves * options.SHIP_RESERVE,
                )  # fmt: skip
                log.info("part %s is opened", name)
                self._note("create", name)
            case Join():
                self._join(step)
            case Adopt(name=name, uuid=of_topic, hold=hold):
                self._broker.registry.adopt(name, of_topic, hold)
                log.warning(
                    "part %s is taken as a part of the topic that the cluster has under its name, "
                    "because the registry of this broker lost to which topic it belongs",
                    name,
                )
            case Delete(name=name) if name in self._broker.groups:
                self._deleting.add(name)
                delete_part(self._requests, self._broker.groups[name], partial(self._gone, step))
            case Delete(name=name):
                row = self._broker.registry.topics[name]
                self._broker.registry.set_state(name, "deleting")
                self._broker.registry.remove(name)
                self._broker.forget_archive(row.uuid)
                log.info("the files of part %s are removed: this broker has it no more", name)
                self._is_due = True
            case Prepare() | Release() | Give() | Resume() | Take() | Confirm() | Reclaim():
                self._moves.begin(step)

    def _join(self, step: Join) -> None:
        """Put a topic that this broker had alone into the directory of the cluster.

        The entry has the id that it has in the registry, so it is added once, however often.
        """
        archive = self._archive()
        if archive is None:
            raise _no_archive()
        self._joining.add(step.name)

        def added(done: p.Done | None, error: ZsqError | None) -> None:
            self._joining.discard(step.name)
            if done is None:
                self._failed(step, error or _no_archive())

        make = partial(p.AppendEntry, entry=encode_entry(step.entry))
        self._requests.orders.send(archive, make, added)

    def _note_joined(self) -> None:
        """Take the topics that are in the directory of the cluster out of the registry."""
        directory = self._view.directory
        joined = frozenset(
            entry.uuid
            for entry in self._view.joining.values()
            if entry.uuid in directory.removed or directory.topic_of(entry.uuid) is not None
        )
        if not joined:
            return
        registry = self._broker.registry
        try:
            registry.note_parted(local_directory.without(registry.parted, joined))
        except Refused as error:  # it is noted with the next entry, or at the next start
            log.error("the topics %s cannot be noted as joined: %s", sorted(joined), error)
            return
        for entry in list(self._view.joining.values()):
            if entry.uuid in joined:
                del self._view.joining[entry.topic]
                log.info(
                    "topic %s, which has parts, is in the directory of the cluster", entry.topic
                )

    def _gone(self, step: Step, error: ZsqError | None) -> None:
        self._deleting.discard(step.name)
        if error is not None:
            self._failed(step, error)
            return
        log.info("part %s is deleted, because it was removed, or its topic was deleted", step.name)
        self._note("delete", step.name)
        self._is_due = True  # a new topic of that name may have the part here too

    def _step_done(self, step: LongStep) -> None:
        self._view.failures.pop(step.name, None)
        self._is_due = True
        if isinstance(step, (Give, Resume, Take)):
            self._note(ROW_OF[MovePartRequest].name, step.name)

    def noted(self, key: int, stats: Mapping[str, Any]) -> None:
        """Note a pulse of a topic."""
        self._moves.noted(key, stats)

    def _failed(self, step: Step, error: Exception) -> None:
        moves = isinstance(step, Prepare | Release | Give | Take | Confirm | Resume | Reclaim)
        action = "deleted" if isinstance(step, Delete) else "moved" if moves else "opened"
        action = "put into the directory of the cluster" if isinstance(step, Join) else action
        text = f"cannot be {action}: {error}"
        if self._view.failures.get(step.name) != text:
            what = kind_of(step.name)
            log.error("%s %s %s; trying again every %g s", what, step.name, text, RETRY_S)
        self._view.failures[step.name] = text
        self._retry_ns = time.monotonic_ns() + int(RETRY_S * _NS_PER_S)

    def _note(self, action: str, name: str) -> None:
        origin = {"user": "", "from": "", "via": "cluster"}
        self._requests.audit_log.note(
            action, topic=name, channel="", options={}, **origin, result="done"
        )


def _ids() -> Iterator[str]:
    """Yield random ids for entries of the directory."""
    return iter(lambda: uuid.uuid4().hex, "")


def _no_archive() -> Refused:
    return Refused(
        E_BUCKET, "the process that uses the bucket is being started; try again in a moment"
    )
