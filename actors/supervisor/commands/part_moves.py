"""Moves of parts between brokers: the steps of `cluster_view.py` that take long.

| step | waits for | then |
|---|---|---|
| Prepare | the archive actor: it has copied the archive, and ships to its own bucket | a `ready` in the directory |
| Release | the topic is up; its processes end; its last pulse says that the bucket has all of it | the row is `given` |
| Give | the archive actor: the bucket has the registry | a `give` in the directory |
| Resume | the archive actor, if there must be a gap | the row is live, and the topic starts |
| Take | the archive actor: the part's directory is made | the row is live, and the topic starts |
| Confirm | the archive actor: the bucket has all of the part | a `taken` in the directory |
| Reclaim | the archive actor: it has looked for the part in a forgotten broker's bucket | a `reclaim` |

A step that fails changes nothing that counts, and is tried again. If a release fails, the topic
starts again. Only one step of a part is carried out at a time.

If a move is withdrawn after the archive was copied, the copy is removed. A broker that is stopped
before that does not remove it; zsq fsck lists its objects.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from ....storage.cluster.directory import (
    NOBODY,
    Entry,
    GiveEntry,
    ReadyEntry,
    ReclaimEntry,
    TakenEntry,
    encode_entry,
)
from ....storage.errors import ForeignDirectory
from ....transport.errors import (
    E_BUCKET,
    E_CLOSING,
    E_EXISTS,
    E_TOPIC_FAILED,
    E_UNSUPPORTED,
    Refused,
    UsageError,
    ZsqError,
)
from ....transport.wire import protocol as p
from ...runtime.process_table import Child
from ...settings.options import SHIP_RESERVE
from ...statistics.broker_view import GroupState
from ..cluster.cluster_view import (
    ClusterView,
    Confirm,
    Give,
    Prepare,
    Reclaim,
    Release,
    Resume,
    Take,
)
from ..topics.registry_format import GIVEN, TAKING, TopicRow, decode_row
from ..topics.topic_group import TopicGroup
from .creation import check_room
from .requests import Requests

log = logging.getLogger("zsq")

LAST_PULSE_NS: Final = 2_000_000_000  # the last pulse may come after the news of the end
SHIPPED_S: Final = 30.0
COPIED_S: Final = 3_600.0  # for the archive; what takes longer goes on in the next attempt
TAKEN_S: Final = 3_600.0  # a large part that the store cannot copy goes through this machine

ONLY_HERE: Final = "it is kept only on the disk (--archive off)"
NO_LOG: Final = "0" * 32

LongStep = Prepare | Release | Give | Resume | Take | Confirm | Reclaim


class _Stopped(NamedTuple):
    """A topic whose processes have ended, and the key of its last process."""

    group: TopicGroup
    key: int
    deadline_ns: int


class PartMoves:
    """Carries out the steps of moves.

    `archive` returns the archive actor, or None while it does not run. `done` is called when a step
    has a result, and `failed` when it has none.
    """

    def __init__(
        self,
        requests: Requests,
        view: ClusterView,
        archive: Callable[[], Child | None],
        done: Callable[[LongStep], None],
        failed: Callable[[LongStep, Exception], None],
    ) -> None:
        self._requests = requests
        self._broker = requests.broker
        self._view = view
        self._archive = archive
        self._done = done
        self._failed = failed
        self._busy: set[str] = set()
        self._stopped: dict[str, _Stopped] = {}
        self._ends: dict[str, int] = {}  # of the parts that were taken over, as they came
        self._shipped: set[int] = set()  # keys of topics whose last pulse was complete
        # The uuid of the log of each part whose archive was copied, and that was not taken yet.
        self._ahead: dict[str, str] = {}

    def is_busy(self, name: str) -> bool:
        """Return True while a step of this part is carried out."""
        return name in self._busy

    def begin(self, step: LongStep) -> None:
        """Begin a step. Raises `ZsqError` if that is not possible."""
        self._busy.add(step.name)
        try:
            match step:
                case Release():
                    self._release(step)
                case Prepare(name=name, url=url, entry=entry):
                    # It also shows that this broker can read that bucket. Otherwise the part could
                    # be released, and nobody could have it.
                    copy = partial(p.CopyArchive, url=url, name=name)
                    self._order(step, copy, COPIED_S, partial(self._copied, step, entry))
                case Give(entry=entry):
                    self._wait_and_append(step, "", 0, entry)
                case Resume():
                    self._resume(step)
                case Take():
                    self._take(step)
                case Confirm(entry=entry):
                    self._confirm(step, entry)
                case Reclaim():
                    self._reclaim(step)
        except BaseException:
            self._busy.discard(step.name)
            raise

    def _end(self, step: LongStep, error: Exception | None = None) -> None:
        self._busy.discard(step.name)
        if not self._busy:
            self._shipped.clear()  # other topics fell asleep meanwhile
        # Another broker that has adopted the part first has done what was to be done.
        is_late = isinstance(step, Reclaim) and getattr(error, "code", "") == E_EXISTS
        if error is None or is_late:
            self._done(step)
        else:
            self._failed(step, error)

    # The copy ahead

    def _copied(self, step: Prepare, entry: ReadyEntry, done: p.Done) -> None:
        self._ahead[step.name] = str(done.data["log"])
        self._wait_and_append(step, "", 0, entry)

    def _forget_withdrawn(self) -> None:
        """Let the archive actor remove the copies of parts that shall not come here any more."""
        for name, log in list(self._ahead.items()):
            if name in self._busy or self._view.comes(name):
                continue
            row, archive = self._broker.registry.topics.get(name), self._archive()
            if row is not None and row.uuid == log:
                del self._ahead[name]  # it is here after all, and needs its archive
            elif archive is not None and self._broker.processes.send(archive, p.ForgetArchive(log)):
                del self._ahead[name]

    # Release

    def _release(self, step: Release) -> None:
        group = self._broker.groups[step.name]
        if group.row.retention.get("archive") == "off":
            raise UsageError(E_UNSUPPORTED, ONLY_HERE)
        self._view.leaving.add(step.name)
        group.want("", partial(self._up, step, group))  # it may be asleep

    def _up(self, step: Release, group: TopicGroup, error: ZsqError | None) -> None:
        topic = group.topic
        if error is not None or topic is None or group.state is not GroupState.UP:
            self._view.leaving.discard(step.name)
            self._end(step, error or ZsqError(E_TOPIC_FAILED, "its topic is not up"))
            return
        self._requests.count_refused()  # the topic's count ends with the topic
        group.stop(partial(self._all_ended, step, group, topic.spec.key))

    def _all_ended(self, step: Release, group: TopicGroup, key: int) -> None:
        deadline_ns = time.monotonic_ns() + LAST_PULSE_NS
        self._stopped[step.name] = _Stopped(group, key, deadline_ns)
        self._look(time.monotonic_ns())

    def noted(self, key: int, stats: Mapping[str, Any]) -> None:
        """Note a pulse of a topic."""
        if self._busy and stats.get("storage", {}).get("extension_settled"):
            self._shipped.add(key)
            self._look(time.monotonic_ns())

    def tick(self, now_ns: int) -> None:
        if self._stopped:
            self._look(now_ns)
        self._forget_withdrawn()

    def _look(self, now_ns: int) -> None:
        for name, stopped in list(self._stopped.items()):
            is_shipped = stopped.key in self._shipped
            if is_shipped or now_ns > stopped.deadline_ns:
                del self._stopped[name]
                self._shipped.discard(stopped.key)
                self._released(Release(name), stopped.group, is_shipped=is_shipped)

    def _released(self, step: Release, group: TopicGroup, *, is_shipped: bool) -> None:
        error: Exception | None = None
        if self._broker.stopping:
            error = Refused(E_CLOSING, "the broker is stopping")
        elif not is_shipped:
            error = Refused(E_BUCKET, "the bucket does not have all of it; it is started again")
        else:
            try:
                self._broker.registry.set_state(step.name, GIVEN)
            except Refused as refused:
                error = refused
        self._broker.remove_group(step.name)
        self._view.leaving.discard(step.name)
        if error is not None and not self._broker.stopping:
            self._broker.add_group(step.name, group.row)
        self._end(step, error)

    # Orders to the archive actor

    def _order(
        self,
        step: LongStep,
        make: Callable[[int], p.Order[p.Done]],
        patience_s: float,
        then: Callable[[p.Done], None],
    ) -> None:
        archive = self._archive()
        if archive is None:
            raise Refused(E_BUCKET, "the process that uses the bucket is being started")

        def answered(done: p.Done | None, error: ZsqError | None) -> None:
            if done is None:
                self._end(step, error or Refused(E_BUCKET, "no answer"))
                return
            try:
                then(done)
            except (ZsqError, ForeignDirectory, OSError) as failure:
                self._end(step, failure)

        self._requests.orders.send(archive, make, answered, patience_s)

    def _wait_and_append(
        self,
        step: Prepare | Give | Confirm,
        log: str,
        end: int,
        entry: ReadyEntry | GiveEntry | TakenEntry,
    ) -> None:
        def shipped(done: p.Done) -> None:
            appended: Entry = entry._replace(id=uuid.uuid4().hex)
            if isinstance(appended, GiveEntry):
                appended = appended._replace(tick=int(done.data["tick"]))
            make = partial(p.AppendEntry, entry=encode_entry(appended))
            self._order(step, make, SHIPPED_S, lambda done: self._end(step))

        wait = partial(p.WaitForShipping, uuid=log, end=end)
        self._order(step, wait, SHIPPED_S, shipped)

    def _confirm(self, step: Confirm, entry: TakenEntry) -> None:
        topic, row = self._broker.groups[step.name].topic, self._broker.registry.topics[step.name]
        end = self._ends.get(step.name)
        if end is None:  # an earlier process of this broker has taken it over
            end = topic.stats.get("head") if topic is not None else None
        if end is None:
            raise Refused(E_CLOSING, "its topic is being started")
        self._wait_and_append(step, row.uuid, int(end), entry)

    # Reclaim

    def _reclaim(self, step: Reclaim) -> None:
        hold = step.hold

        def found(done: p.Done) -> None:
            gone, me = step.topic.parts[step.part], self._view.me
            assert me is not None
            place = str(done.data["log"]), int(done.data["tick"]), gone
            if not place[0]:
                # It was not shipped yet. The broker before still has it, if there was one.
                is_first = hold.origin == NOBODY
                place = (NO_LOG, 0, NOBODY) if is_first else (hold.log, hold.tick, hold.origin)
            log, tick, source = place
            entry = ReclaimEntry(
                uuid.uuid4().hex, step.topic.uuid, step.part, hold.number + 1, me, log, tick, source
            )
            make = partial(p.AppendEntry, entry=encode_entry(entry))
            self._order(step, make, SHIPPED_S, lambda done: self._end(step))

        find = partial(
            p.FindPart,
            url=step.url,
            name=step.name,
            of_topic=step.topic.uuid,
            hold=hold.number,
            given=hold.log if hold.origin == NOBODY else "",
        )
        self._order(step, find, TAKEN_S, found)

    # Take

    def _take(self, step: Take) -> None:
        registry, hold = self._broker.registry, step.hold
        row = registry.topics.get(step.name)
        if row is not None and (row.uuid, row.hold) != (hold.log, hold.number):
            registry.remove(step.name)  # an attempt of an earlier hold
            row = None
        if row is None:
            check_room(self._broker, step.name)
            row = registry.begin_taking(step.name, hold.log, step.topic.uuid, hold.number)
        make = partial(
            p.TakePart,
            url=step.url,
            name=step.name,
            log=hold.log,
            tick=hold.tick,
            directory=registry.folder(row),
            reserve=SHIP_RESERVE * hold.reserves,
        )
        self._order(step, make, TAKEN_S, partial(self._taken, step, row))

    def _taken(self, step: Take, row: TopicRow, done: p.Done) -> None:
        registry = self._broker.registry
        if registry.topics.get(step.name) is not row or row.state != TAKING:
            raise Refused(E_CLOSING, "it was deleted meanwhile")
        given = decode_row(done.data["row"], f"the row of part {step.name}")
        registry.take_over(step.name, given)
        self._ahead.pop(step.name, None)
        self._ends[step.name] = int(done.data["end"])
        self._broker.add_group(step.name, row)
        log.info(
            "part %s was moved to this broker, with the offsets %d to %d",
            step.name,
            done.data["start"],
            done.data["end"],
        )
        self._end(step)

    # Resume

    def _resume(self, step: Resume) -> None:
        """Start a part again that was released, and stays here."""
        row, hold = self._broker.registry.topics[step.name], step.hold
        if not hold.reserves:
            self._resumed(step, row)
            return
        # Those that had it since may have given out offsets behind its end.
        make = partial(
            p.TakePart,
            url="",
            name=step.name,
            log=row.uuid,
            tick=0,
            directory=self._broker.registry.folder(row),
            reserve=SHIP_RESERVE * hold.reserves,
            base_offset=row.base_offset,
        )
        self._order(step, make, TAKEN_S, lambda done: self._resumed(step, row))

    def _resumed(self, step: Resume, row: TopicRow) -> None:
        registry = self._broker.registry
        if registry.topics.get(step.name) is not row or row.state != GIVEN:
            raise Refused(E_CLOSING, "it was deleted meanwhile")
        registry.resume(step.name, step.hold.number)
        self._broker.add_group(step.name, row)
        self._end(step)
