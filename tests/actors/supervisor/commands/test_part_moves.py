"""Tests of the steps of a move that take long: what they wait for, and what happens if they fail.

The registry is a real one. Topics and the archive actor are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsq.actors.settings import options
from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor.cluster.cluster_view import (
    ClusterView,
    Confirm,
    Give,
    Prepare,
    Reclaim,
    Release,
    Resume,
    Take,
)
from zsq.actors.supervisor.commands import part_moves
from zsq.actors.supervisor.commands.part_moves import LAST_PULSE_NS, PartMoves
from zsq.actors.supervisor.commands.requests import Orders
from zsq.actors.supervisor.topics.registry import Registry
from zsq.actors.supervisor.topics.registry_format import GIVEN, TAKING, RegistryDamaged, TopicRow
from zsq.storage.cluster.directory import (
    BrokerEntry,
    GiveEntry,
    Hold,
    PartedTopic,
    ReadyEntry,
    ReclaimEntry,
    TakenEntry,
    decode_entry,
    encode_entry,
)
from zsq.storage.files import Files
from zsq.transport.errors import (
    E_BUCKET,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_TOPIC_FAILED,
    E_UNSUPPORTED,
    Refused,
    ZsqError,
)
from zsq.transport.wire import protocol as p

NAME, TOPIC, LOG = "t#0", "7" * 32, "f" * 32
ARCHIVE = (b"archive",)
KEY = 5
PARTED = PartedTopic("t", TOPIC, (1,), {})
TAKE = Take(NAME, PARTED, Hold(1, -1, False, 0, LOG, 9), "s3://b/0")
GIVE = Give(NAME, GiveEntry("", TOPIC, 0, 1, 1, LOG, 0))
CONFIRM = Confirm(NAME, TakenEntry("", TOPIC, 0, 1))
SHIPPED = {"storage": {"extension_settled": True}}
ROW = {
    "number": 3,
    "uuid": LOG,
    "sync": "bucket",
    "base_offset": 4,
    "state": "given",
    "retention": {"keep_time_s": 5},
    "closed": "publishers",
}


class Group:
    """A topic. `wake` and `end` are called by the test."""

    def __init__(self, row: TopicRow) -> None:
        self.row = row
        self.state = GroupState.UP
        self.topic: Any = SimpleNamespace(spec=SimpleNamespace(key=KEY), stats={"head": 12})
        self.wake: Callable[[ZsqError | None], None] | None = None
        self.end: Callable[[], None] | None = None

    def want(self, channel: str, then: Callable[[ZsqError | None], None]) -> None:
        assert channel == ""
        self.wake = then

    def stop(self, then: Callable[[], None]) -> None:
        self.end = then


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registry = Registry(Files(), folder, 0)
        self.registry.open()
        self.sent: list[Any] = []
        self.results: list[tuple[Any, str]] = []
        self.groups: dict[str, Group] = {}
        self.now_ns = 1
        self.archive: Any = SimpleNamespace(
            spec=SimpleNamespace(kind="archive", key=1, title="bucket"), envelope=ARCHIVE
        )
        processes: Any = SimpleNamespace(
            children={1: self.archive}, send=self._send, check_room=lambda count, what: None
        )
        self.broker: Any = SimpleNamespace(
            registry=self.registry,
            groups=self.groups,
            stopping=False,
            processes=processes,
            add_group=self._add,
            remove_group=lambda name: self.groups.pop(name, None),
        )
        requests: Any = SimpleNamespace(
            broker=self.broker, orders=Orders(processes), count_refused=lambda: None
        )
        self.orders = requests.orders
        self.view = ClusterView("a" * 32, self.registry.topics)
        self.moves = PartMoves(
            requests,
            self.view,
            lambda: self.archive,
            lambda step: self.results.append((step, "")),
            lambda step, error: self.results.append(
                (step, error.code if isinstance(error, ZsqError) else type(error).__name__)
            ),
        )
        monkeypatch.setattr(part_moves, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))

    def _send(self, child: Any, message: Any) -> bool:
        assert child is self.archive
        self.sent.append(message)
        return True

    def _add(self, name: str, row: TopicRow) -> None:
        self.groups[name] = Group(row)

    def have(self, **fields: Any) -> Group:
        """Let this broker have the part."""
        row = self.registry.add(NAME, "always", {}, TOPIC)
        for field, value in {"state": "live", **fields}.items():
            setattr(row, field, value)
        group = self.groups[NAME] = Group(row)
        return group

    def obey(self, error: ZsqError | None = None, **data: Any) -> Any:
        """Let the archive actor answer its only order."""
        (order,), self.sent = self.sent, []
        answer = p.Failed(order.request, error.code, error.text) if error else None
        self.orders.on_answer(ARCHIVE, answer or p.Done(order.request, data))
        return order

    def result(self) -> str:
        """Return the code of the error of the only step that ended, "" if there is none."""
        ((_, code),), self.results = self.results, []
        assert not self.moves.is_busy(NAME)
        return code


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def release(world: World) -> Group:
    group = world.have()
    world.moves.begin(Release(NAME))
    assert world.moves.is_busy(NAME)
    assert NAME in world.view.leaving, "clients are refused from now on"
    assert group.wake is not None
    assert group.end is None
    group.wake(None)
    assert group.end is not None
    return group


@pytest.mark.parametrize("order", ["pulse first", "end first"])
def test_a_part_is_released_when_the_bucket_has_all_of_it(world: World, order: str) -> None:
    group = release(world)
    assert group.end is not None
    steps = [lambda: world.moves.noted(KEY, SHIPPED), group.end]
    for step in steps if order == "pulse first" else reversed(steps):
        assert not world.results
        world.moves.noted(KEY, {"storage": {"extension_settled": False}})
        world.moves.noted(KEY + 1, SHIPPED)
        world.moves.tick(world.now_ns)
        step()
    assert world.result() == ""
    assert world.registry.topics[NAME].state == GIVEN
    again = Registry(Files(), world.registry._data_dir, 0)
    again.open()
    assert again.topics[NAME].state == GIVEN, "it is durable"
    assert not world.groups
    assert not world.view.leaving


@pytest.mark.parametrize("reason", ["late", "stopping", "disk"])
def test_a_part_stays_if_it_cannot_be_released(
    world: World, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = release(world)
    assert group.end is not None
    group.end()
    if reason == "late":
        world.now_ns += LAST_PULSE_NS + 2
        world.moves.tick(world.now_ns)
    else:
        world.broker.stopping = reason == "stopping"
        if reason == "disk":

            def full() -> None:
                raise Refused(E_LIMIT, "full")

            monkeypatch.setattr(world.registry, "save", full)
        world.moves.noted(KEY, SHIPPED)
    assert world.result() == {"late": E_BUCKET, "stopping": E_CLOSING, "disk": E_LIMIT}[reason]
    assert world.registry.topics[NAME].state == "live"
    assert (NAME in world.groups) == (reason != "stopping"), "it is started again"
    assert not world.view.leaving


def test_a_part_that_is_not_up_or_has_no_archive_is_not_released(world: World) -> None:
    group = world.have()
    world.moves.begin(Release(NAME))
    group.state = GroupState.FAILED
    assert group.wake is not None
    group.wake(None)
    assert world.result() == E_TOPIC_FAILED
    assert not world.view.leaving
    assert group.end is None
    group.row.retention = {"archive": "off"}
    with pytest.raises(ZsqError, match=E_UNSUPPORTED):
        world.moves.begin(Release(NAME))
    assert not world.moves.is_busy(NAME)
    assert not world.view.leaving


def test_a_part_is_given_when_the_bucket_knows_that_it_was_released(world: World) -> None:
    world.have(state=GIVEN)
    world.moves.begin(GIVE)
    wait = world.obey(tick=17)
    assert (type(wait), wait.uuid) == (p.WaitForShipping, "")
    assert not world.results
    append = world.obey(number=5)
    entry = decode_entry(append.entry)
    assert isinstance(entry, GiveEntry)
    assert entry == GIVE.entry._replace(id=entry.id, tick=17)
    assert world.result() == ""


def test_a_broker_says_that_it_is_ready_when_it_can_read_and_ships(world: World) -> None:
    prepare = Prepare(NAME, "s3://b/0", ReadyEntry("", TOPIC, 0, 0, 1))
    world.moves.begin(prepare)
    world.obey(Refused(E_BUCKET, "403"))
    assert world.result() == E_BUCKET, "it must be able to read the other bucket"
    world.moves.begin(prepare)
    copy = world.obey(log=LOG)
    assert (type(copy), copy.url, copy.name) == (p.CopyArchive, "s3://b/0", NAME)
    world.obey(tick=17)
    entry = decode_entry(world.obey(number=5).entry)
    assert isinstance(entry, ReadyEntry)
    assert (entry.hold, entry.broker) == (0, 1)
    assert world.result() == ""


@pytest.mark.parametrize("fate", ["withdrawn", "given", "taken", "here", "no archive"])
def test_a_copy_that_nobody_needs_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    monkeypatch.setattr(world.view, "comes", lambda name: fate == "given")
    prepare = Prepare(NAME, "s3://b/0", ReadyEntry("", TOPIC, 0, 0, 1))
    world.moves.begin(prepare)
    world.obey(log=LOG)
    world.moves.tick(1)
    world.obey(tick=17)  # still the only order: nothing is removed while it goes on
    world.obey(number=5)
    assert world.result() == ""
    if fate == "taken":
        world.moves.begin(TAKE)
        world.obey(row=ROW, start=0, end=12, archived=0)
    elif fate == "here":
        world.have().row.uuid = LOG
    archive = world.archive
    if fate == "no archive":
        world.archive = None
        world.moves.tick(1)
        world.archive = archive
    world.moves.tick(1)
    world.moves.tick(1)
    is_removed = fate in ("withdrawn", "no archive")
    assert world.sent == [p.ForgetArchive(LOG)] * is_removed


@pytest.mark.parametrize("step", [GIVE, TAKE, CONFIRM])
def test_a_step_fails_while_the_bucket_cannot_be_used(world: World, step: Any) -> None:
    if step is not TAKE:
        world.have()
    world.moves.begin(step)
    world.obey(Refused(E_BUCKET, "no route"))
    assert world.result() == E_BUCKET
    world.archive = None
    with pytest.raises(Refused, match=E_BUCKET):
        world.moves.begin(step)
    assert not world.moves.is_busy(NAME)


def test_a_part_is_taken_over_with_its_settings(world: World) -> None:
    world.moves.begin(TAKE)
    row = world.registry.topics[NAME]
    assert (row.state, row.uuid, row.part_of, row.hold) == (TAKING, LOG, TOPIC, 1)
    assert not world.groups, "it is not started"
    order = world.obey(row=ROW, start=0, end=12, archived=0)
    assert (order.url, order.log, order.tick) == ("s3://b/0", LOG, 9)
    assert order.directory == world.registry.folder(row)
    assert world.result() == ""
    assert (row.state, row.number, row.sync, row.base_offset) == ("live", 1, "bucket", 4)
    assert (row.retention, row.closed) == ({"keep_time_s": 5}, "publishers")
    assert world.groups.keys() == {NAME}
    world.moves.begin(CONFIRM)
    wait = world.obey(tick=17)
    assert (wait.uuid, wait.end) == (LOG, 12)
    assert isinstance(decode_entry(world.obey(number=5).entry), TakenEntry)
    assert world.result() == ""


def test_a_broker_that_was_killed_takes_the_part_again_in_the_same_place(world: World) -> None:
    first = world.registry.begin_taking(NAME, LOG, TOPIC, 1)
    world.moves.begin(TAKE)
    assert world.registry.topics[NAME] is first
    world.obey(Refused(E_BUCKET, "no route"))
    later = TAKE._replace(hold=TAKE.hold._replace(number=3))
    world.moves.begin(later)
    again = world.registry.topics[NAME]
    assert (again.hold, again.number) == (3, 2), "an attempt of an earlier hold is left"


def test_a_part_is_confirmed_by_its_end_after_a_restart(world: World) -> None:
    group = world.have(hold=1)
    world.moves.begin(CONFIRM)
    assert world.obey(tick=1).end == 12
    world.obey(number=5)
    assert world.result() == ""
    group.topic.stats = {}
    with pytest.raises(Refused, match="being started"):
        world.moves.begin(CONFIRM)


def test_what_comes_from_the_other_broker_is_checked(world: World) -> None:
    world.moves.begin(TAKE)
    world.obey(row={**ROW, "sync": "sometimes"}, start=0, end=12, archived=0)
    assert world.result() == RegistryDamaged.__name__
    assert world.registry.topics[NAME].state == TAKING
    world.moves.begin(TAKE)
    del world.registry.topics[NAME]
    world.obey(row=ROW, start=0, end=12, archived=0)
    assert world.result() == E_CLOSING
    assert not world.groups


def test_a_part_is_not_taken_over_if_there_is_no_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "TOPICS_MAX", 0)
    with pytest.raises(Refused, match=E_LIMIT):
        world.moves.begin(TAKE)
    assert not world.registry.topics


def test_a_part_that_stays_is_started_with_the_next_hold(world: World) -> None:
    group = world.have(state=GIVEN)
    del world.groups[NAME]
    world.moves.begin(Resume(NAME, Hold(1)))
    assert (group.row.state, group.row.hold) == ("live", 1)
    assert world.groups.keys() == {NAME}
    assert world.result() == ""


def test_a_part_that_comes_back_from_lost_brokers_is_started_behind_a_gap(world: World) -> None:
    group = world.have(state=GIVEN)
    del world.groups[NAME]
    step = Resume(NAME, Hold(3, reserves=2))
    world.moves.begin(step)
    order = world.obey(Refused(E_BUCKET, "it is being started"))
    assert (order.url, order.log, order.reserve) == ("", group.row.uuid, 2 * options.SHIP_RESERVE)
    assert order.directory == world.registry.folder(group.row)
    assert (world.result(), group.row.state, world.groups) == (E_BUCKET, GIVEN, {})
    world.moves.begin(step)
    assert world.obey(start=0, end=9).reserve == 2 * options.SHIP_RESERVE
    assert world.result() == ""
    assert (group.row.state, group.row.hold, {*world.groups}) == ("live", 3, {NAME})


@pytest.mark.parametrize(
    ("log", "origin", "expected"),
    [
        (LOG, -1, (LOG, 5, 1)),
        (LOG, 2, (LOG, 5, 1)),
        ("", 2, ("e" * 32, 9, 2)),  # it was still in the bucket of the broker before
        ("", -1, (part_moves.NO_LOG, 0, -1)),
    ],
)
def test_a_part_of_a_forgotten_broker_is_reclaimed_from_where_it_is(
    world: World, log: str, origin: int, expected: tuple[str, int, int]
) -> None:
    world.view.take(
        0, [encode_entry(BrokerEntry("1" * 32, "a" * 32, ("tcp://a:1",), "s3://b/a"))], True
    )
    hold = Hold(4, -1, False, origin, "e" * 32, 9)
    step = Reclaim(NAME, "s3://b/1", PARTED, 0, hold)
    world.moves.begin(step)
    find = world.obey(log=log, tick=5)
    assert (find.url, find.name, find.of_topic, find.hold) == ("s3://b/1", NAME, TOPIC, 4)
    assert find.given == ("e" * 32 if origin == -1 else ""), "it may have come back to its broker"
    entry = decode_entry(world.obey(number=5).entry)
    assert isinstance(entry, ReclaimEntry)
    assert entry == ReclaimEntry(entry.id, TOPIC, 0, 5, 0, *expected[:2], expected[2])
    assert world.result() == ""
    world.moves.begin(step)
    world.obey(log=log, tick=5)
    world.obey(Refused(E_EXISTS, "another broker was faster"))
    assert world.result() == "", "which is as good"


def test_offsets_that_a_forgotten_broker_may_have_given_out_are_left_out(world: World) -> None:
    for reserves in (0, 1, 2):
        step = TAKE._replace(hold=TAKE.hold._replace(reserves=reserves))
        world.moves.begin(step)
        order = world.obey(Refused(E_BUCKET, "no route"))
        assert order.reserve == reserves * options.SHIP_RESERVE
        assert world.result() == E_BUCKET
