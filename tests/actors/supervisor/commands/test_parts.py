"""Tests of how the supervisor handles topics with parts: what it asks the archive actor, when it
answers, and which parts it opens and deletes. All processes are replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.runtime.port import Envelope, Mail
from zsq.actors.settings.channel_settings import DEAD_LETTERS
from zsq.actors.supervisor.commands import parts
from zsq.actors.supervisor.commands.management import Commands
from zsq.actors.supervisor.commands.requests import Orders, Requests
from zsq.actors.supervisor.topics.registry_format import NO_PARTS, LocalParts, TopicRow
from zsq.storage.cluster.directory import (
    BrokerEntry,
    CloseEntry,
    Directory,
    Entry,
    MoveEntry,
    OpenEntry,
    PartEntry,
    RemoveEntry,
    RemovePartEntry,
    TopicEntry,
    decode_entry,
    encode_entry,
)
from zsq.transport.errors import (
    E_BUCKET,
    E_CLOSING,
    E_EXISTS,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_PARTS,
    E_TIMEOUT,
    E_UNSUPPORTED,
    Refused,
    ZsqError,
)
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of
from zsq.transport.wire.admin_requests import CloseRequest

ME, OTHER = "a" * 32, "b" * 32
CLICKS = "1" * 32
ARCHIVE: Envelope = (b"archive",)
CLIENT: Envelope = (b"client",)
S = 1_000_000_000


class Group:
    """A replacement for a topic's group. `end` lets its deletion end."""

    is_dormant = False

    def __init__(self, row: TopicRow) -> None:
        self.row = row


class World:
    """A supervisor's handler of topics with parts, with replacements of everything around it.

    `log` is the directory in the bucket. The archive actor reads it when it is told to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[p.Wire] = []
        self.orders_sent: list[Any] = []
        self.carried: list[Any] = []
        self.audited: list[tuple[str, str]] = []
        self.log: list[bytes] = []
        self.told = 0
        self.now_ns = 0
        self.rows: dict[str, TopicRow] = {}
        self.groups: dict[str, Group] = {}
        self.deletions: dict[str, Callable[[ZsqError | None], None]] = {}
        self.refusal: ZsqError | None = None
        self.archive = SimpleNamespace(
            spec=SimpleNamespace(kind="archive", key=1, title="bucket"),
            state="up",
            envelope=ARCHIVE,
        )
        children = {1: self.archive}
        processes: Any = SimpleNamespace(children=children, send=self._send_order, changes=0)
        given = SimpleNamespace(
            cluster="file:///c", sync="always", retention={}, bucket="b", bucket_lag_s=1.0
        )
        self.broker: Any = SimpleNamespace(
            options=given,
            registry=SimpleNamespace(
                uuid=ME,
                topics=self.rows,
                adopt=self._adopt,
                parted=NO_PARTS,
                note_parted=self._note_parted,
            ),
            processes=processes,
            groups=self.groups,
            stopping=False,
        )
        note: Any = SimpleNamespace(
            note=lambda action, **what: self.audited.append((action, what["topic"]))
        )
        broker: Any = self.broker
        self.requests = Requests(broker, Orders(processes), note, self._answer, lambda: None)
        self.parts = parts.Parts(self.requests)
        monkeypatch.setattr(parts, "create_topic", self._create)
        monkeypatch.setattr(parts, "delete_part", self._delete)
        self.drains: list[tuple[Any, Callable[[int, Callable[[], None]], None]]] = []
        monkeypatch.setattr(
            parts, "drain_part", lambda requests, *what: self.drains.append((what[0], what[-1]))
        )
        monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))

    # What is around

    def _answer(self, envelope: Envelope, message: p.Wire) -> bool:
        assert envelope == CLIENT
        self.sent.append(message)
        return True

    def _send_order(self, child: Any, message: Any) -> bool:
        assert child is self.archive
        self.orders_sent.append(message)
        return True

    def _create(
        self, broker: Any, name: str, sync: str, retention: Any, of_topic: str, hold: int,
        start: int,
    ) -> None:  # fmt: skip
        if self.refusal is not None:
            raise self.refusal
        assert bool(start) == bool(hold), "only what a lost broker had begins behind a gap"
        row = TopicRow(1, "f" * 32, sync, 0, retention=retention, part_of=of_topic, hold=hold)
        self.rows[name] = row
        self.groups[name] = Group(self.rows[name])

    def _delete(self, requests: Any, group: Any, answer: Any) -> None:
        (name,) = [name for name, one in self.groups.items() if one is group]
        assert name not in self.deletions
        self.deletions[name] = answer

    def _note_parted(self, parted: LocalParts) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.broker.registry.parted = parted

    def restart(self, *, cluster: str) -> None:
        """Begin again with the same registry, and with or without a cluster."""
        self.broker.options.cluster = cluster
        self.parts = parts.Parts(self.requests)

    def _adopt(self, name: str, of_topic: str, hold: int) -> None:
        self.rows[name].part_of, self.rows[name].hold = of_topic, hold

    # Steps

    def add(self, *entries: Entry) -> None:
        """Add entries as another broker does."""
        self.log += [encode_entry(one) for one in entries]

    def tell(self, *, is_all: bool = True) -> None:
        """Let the archive actor send what is new."""
        first, self.told = self.told, len(self.log)
        self.parts.heard(ARCHIVE, p.DirectoryEntries(first, tuple(self.log[first:]), is_all))

    def obey(self, error: ZsqError | None = None, *, tell: bool = True) -> p.Wire:
        """Let the archive actor carry out its next order."""
        order = self.orders_sent.pop(0)
        number = len(self.log)
        if isinstance(order, p.AppendEntry) and error is None:
            self.log.append(order.entry)
        if tell and error is None:
            self.tell()
        data = {"number": number} if isinstance(order, p.AppendEntry) else {}
        answer = (
            p.Done(order.request, data)
            if error is None
            else p.Failed(order.request, error.code, error.text)
        )
        self.requests.orders.on_answer(ARCHIVE, answer)
        return cast("p.Wire", order)

    def ask(self, message: Any) -> None:
        """Send a request of a client, as `Commands.on_mail` does."""
        number = self.requests.numbered(CLIENT, 9)
        message = replace(message, request=number)
        handler: Any = {p.Lookup: self.parts.lookup, p.Stats: self.parts.stats}.get(type(message))
        with self.requests.answering(number):
            if handler is None:
                self.parts.manage(request_of(message), self.carried.append)
            else:
                handler(message, self.carried.append)

    def lookup(self, topic: str, create: bool = True, **by: str) -> None:
        self.ask(p.Lookup(0, topic, "", create, {}, by))

    def manage(self, action: str, topic: str = "", channel: str = "", **given: Any) -> None:
        self.ask(p.Manage(0, action, topic, channel, given, {}))

    def answer(self) -> Any:
        """Return the only answer that a client got since the last call."""
        (answer,), self.sent = self.sent, []
        assert cast("Any", answer).request == 9
        return answer

    def error(self) -> str:
        answer = self.answer()
        assert isinstance(answer, p.Failed)
        return answer.code


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(monkeypatch)
    made.add(
        BrokerEntry(f"{1:032x}", ME, ("tcp://a:1",)),
        BrokerEntry(f"{2:032x}", OTHER, ("tcp://b:1",)),
        TopicEntry(f"{3:032x}", "clicks", CLICKS, (0, 1), {"retention": {"max_bytes": 5}}),
    )
    made.tell()
    return made


def ask_cluster(world: World, action: str) -> None:
    """Send a request that only a broker of a cluster carries out."""
    given: dict[str, dict[str, Any]] = {"create": {"parts": 1}, "add_parts": {"count": 1}}
    world.manage(action, "" if action == "cluster" else "clicks", **given.get(action, {}))


def entry(order: p.Wire) -> Any:
    assert isinstance(order, p.AppendEntry)
    return decode_entry(order.entry)


def test_the_parts_of_this_broker_are_opened_when_the_directory_is_read(world: World) -> None:
    assert world.rows.keys() == {"clicks#0"}
    row = world.rows["clicks#0"]
    assert (row.part_of, row.retention) == (CLICKS, {"max_bytes": 5})
    assert world.audited == [("create", "clicks#0")]
    world.tell()
    world.parts.tick(1)
    assert world.audited == [("create", "clicks#0")]


def test_a_client_is_told_where_the_parts_are(world: World) -> None:
    expected = p.Spread(
        9, "clicks", CLICKS, ((0, 0), (1, 1)), ((0, ("tcp://a:1",)), (1, ("tcp://b:1",)))
    )
    world.lookup("clicks")
    assert world.answer() == expected
    world.lookup("clicks#1")
    assert world.answer() == expected
    world.ask(p.Stats(0, "clicks", ""))
    assert world.answer() == expected
    world.manage("pause", "clicks")
    assert world.answer() == expected
    assert not world.carried
    world.lookup("clicks#0")
    world.lookup("clicks#0", create=False)
    world.ask(p.Stats(0, "", ""))
    world.manage("list")
    world.manage("pause", "clicks#0", "c")
    assert [type(one).__name__ for one in world.carried] == [
        *("Lookup", "Lookup", "Stats", "ListTopicsRequest", "PauseRequest")
    ]
    assert not world.orders_sent


def test_a_sender_of_dead_letters_is_refused(world: World) -> None:
    world.lookup("clicks", via=DEAD_LETTERS)
    assert world.error() == E_PARTS


def test_a_new_topic_waits_until_the_directory_is_read_again(world: World) -> None:
    world.lookup("new")
    world.lookup("new")
    assert (world.sent, world.carried) == ([], [])
    assert isinstance(world.obey(), p.ReadDirectory)
    assert len(world.carried) == 1
    # The second one came when the first one was read already. So it reads again, a little later.
    assert not world.orders_sent
    world.now_ns += S
    world.parts.tick(world.now_ns)
    world.add(TopicEntry(f"{4:032x}", "new", OTHER, (1,), {}))
    world.obey()
    assert isinstance(world.answer(), p.Spread)
    assert len(world.carried) == 1


def test_a_part_that_another_broker_knows_already_is_opened_before_the_answer(
    world: World,
) -> None:
    world.add(PartEntry(f"{4:032x}", CLICKS, 0))
    world.lookup("clicks#2")
    world.obey()
    assert "clicks#2" in world.rows
    assert [cast("Any", one).topic for one in world.carried] == ["clicks#2"]
    world.now_ns += S
    world.lookup("clicks#3")
    world.obey()
    assert world.error() == E_NOT_FOUND


def test_a_new_topic_is_refused_for_the_moment_while_the_bucket_is_away(world: World) -> None:
    world.lookup("new")
    world.obey(Refused(E_BUCKET, "no route"))
    assert world.error() == E_CLOSING
    world.now_ns += S
    world.archive.state = "starting"
    world.lookup("new")
    assert world.error() == E_CLOSING
    world.parts.heard(ARCHIVE, p.DirectoryTrouble("no route"))  # it is not up
    assert world.parts.trouble() == ""
    world.archive.state = "up"
    world.parts.heard((b"stranger",), p.DirectoryTrouble("no route"))
    assert world.parts.trouble() == ""
    world.parts.heard(ARCHIVE, p.DirectoryTrouble("no route"))
    assert world.parts.trouble() == "no route"


@pytest.mark.parametrize("action", ["create", "add_parts", "cluster", "lookup"])
def test_a_request_just_after_the_start_waits_until_the_directory_is_read(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A script that starts a broker and creates a topic must not be refused."""
    world = World(monkeypatch)
    world.add(BrokerEntry(f"{1:032x}", ME, ("tcp://a:1",)))
    world.add(TopicEntry(f"{3:032x}", "clicks", CLICKS, (0,), {}))
    if action == "lookup":
        world.lookup("clicks")
    elif action == "create":
        world.manage("create", "new", parts=1)
    else:
        ask_cluster(world, action)
    assert not world.sent
    assert isinstance(world.obey(), p.ReadDirectory)
    if action in ("create", "add_parts"):
        assert isinstance(world.obey(), p.AppendEntry)
    answer = world.answer()
    assert isinstance(answer, p.Spread if action == "lookup" else p.Done)


@pytest.mark.parametrize("action", ["create", "add_parts", "cluster"])
def test_a_request_that_waits_is_answered_if_the_directory_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    world = World(monkeypatch)
    ask_cluster(world, action)
    world.parts.heard(ARCHIVE, p.DirectoryTrouble("no route"))
    for _ in range(2):  # the archive actor may not be ready yet
        world.obey(Refused(E_BUCKET, "no route"))
        assert not world.sent
        world.now_ns += 6 * S
        world.parts.tick(world.now_ns)
    world.obey(Refused(E_BUCKET, "no route"))
    if action == "cluster":
        assert world.answer().data["trouble"] == "no route"
    else:
        assert world.error() == E_CLOSING


def test_a_topic_with_parts_is_created_in_the_directory(world: World) -> None:
    world.manage("create", "new", parts=3, brokers=(1, 0), sync="interval", keep_time_s=None)
    made = entry(world.obey())
    assert made == TopicEntry(made.id, "new", made.uuid, (1, 0, 1), {"sync": "interval"})
    assert world.answer() == p.Done(9, {"existed": False, "uuid": made.uuid, "parts": 3})
    assert world.rows["new#1"].sync == "interval", "the part here is opened before the answer"
    world.manage("create", "new", parts=3)
    assert world.error() == E_EXISTS
    world.manage("create", "new")
    assert world.error() == E_EXISTS
    assert not world.carried


def test_a_topic_is_created_with_the_sync_mode_of_the_broker_that_was_asked(world: World) -> None:
    world.manage("create", "new", parts=1, keep_time_s=7)
    assert entry(world.obey()).settings == {"sync": "always", "retention": {"keep_time_s": 7}}


def test_a_request_waits_until_its_entry_was_read(world: World) -> None:
    world.manage("create", "new", parts=1)
    world.obey(tell=False)
    assert not world.sent
    world.tell()
    assert isinstance(world.answer(), p.Done)
    world.manage("create", "later", parts=1)
    world.obey(tell=False)
    world.parts.tick(world.now_ns + int(parts.APPLIED_S * S) - 1)
    assert not world.sent
    world.parts.tick(world.now_ns + int(parts.APPLIED_S * S) + 1)
    assert world.error() == E_TIMEOUT
    world.tell()
    assert not world.sent


def test_a_request_whose_entry_is_void_is_refused(world: World) -> None:
    world.manage("create", "new", parts=1)
    world.add(TopicEntry(f"{4:032x}", "new", OTHER, (1,), {}))  # another program was faster
    world.obey()
    assert world.error() == E_EXISTS
    world.manage("create", "later", parts=1)
    world.obey(Refused(E_BUCKET, "no route"))
    assert world.error() == E_BUCKET
    world.archive.state = "starting"
    world.manage("create", "later", parts=1)
    assert world.error() == E_BUCKET


def test_parts_are_added_one_after_the_other(world: World) -> None:
    world.manage("add_parts", "clicks", count=3)
    for broker in (0, 1, 0):
        assert len(world.orders_sent) == 1
        assert not world.sent
        found = entry(world.obey())
        assert found == PartEntry(found.id, CLICKS, broker)
    assert world.answer() == p.Done(9, {"parts": 5})
    assert world.rows.keys() == {"clicks#0", "clicks#2", "clicks#4"}
    world.manage("add_parts", "clicks", count=2)
    world.obey()
    world.obey(Refused(E_BUCKET, "no route"))
    assert world.error() == E_BUCKET
    world.manage("add_parts", "clicks", count=1)
    world.add(RemoveEntry(f"{4:032x}", CLICKS))
    world.obey()
    assert world.error() == E_NOT_FOUND


def test_a_topic_with_parts_is_deleted_at_all_brokers(world: World) -> None:
    world.manage("delete", "clicks", force=True)
    found = entry(world.obey())
    assert found == RemoveEntry(found.id, CLICKS)
    assert world.answer() == p.Done(9, {})
    assert world.deletions.keys() == {"clicks#0"}
    world.tell()
    world.deletions.pop("clicks#0")(Refused(E_CLOSING, "the disk is full"))
    assert "the disk is full" in world.parts.trouble()
    world.parts.tick(world.now_ns + 1)
    assert not world.deletions
    world.parts.tick(world.now_ns + int(parts.RETRY_S * S))
    del world.rows["clicks#0"], world.groups["clicks#0"]
    world.deletions.pop("clicks#0")(None)
    world.parts.tick(world.now_ns + 2)
    assert world.parts.trouble() == ""
    assert world.audited == [("create", "clicks#0"), ("delete", "clicks#0")]


def test_a_topic_with_parts_is_deleted_without_force_after_its_parts_were_asked(
    world: World,
) -> None:
    world.manage("delete", "clicks")
    assert isinstance(world.answer(), p.Spread), "the client asks the brokers of all parts"
    world.manage("delete", "clicks", drained=True)
    found = entry(world.obey(Refused(E_NOT_EMPTY, "part clicks#1 is open to publishers")))
    assert found == RemoveEntry(found.id, CLICKS, is_drained=True)
    assert world.error() == E_NOT_EMPTY
    assert not world.deletions
    world.add(CloseEntry(f"{4:032x}", CLICKS, 0), CloseEntry(f"{5:032x}", CLICKS, 1))
    world.manage("delete", "clicks", drained=True)
    world.obey()
    assert world.answer() == p.Done(9, {})
    assert world.deletions.keys() == {"clicks#0"}


def test_a_topic_that_was_created_again_gets_its_part_after_the_old_one_is_deleted(
    world: World,
) -> None:
    again = TopicEntry(f"{5:032x}", "clicks", "2" * 32, (0,), {})
    world.add(RemoveEntry(f"{4:032x}", CLICKS), again)
    world.tell()
    world.lookup("clicks#0")
    assert world.error() == E_CLOSING
    assert world.rows["clicks#0"].part_of == CLICKS
    del world.rows["clicks#0"], world.groups["clicks#0"]
    world.deletions.pop("clicks#0")(None)
    world.parts.tick(1)
    assert world.rows["clicks#0"].part_of == "2" * 32
    world.lookup("clicks#0")
    assert len(world.carried) == 1


def test_a_part_that_cannot_be_opened_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refusal = Refused(E_CLOSING, "no space")
    world.add(PartEntry(f"{4:032x}", CLICKS, 0))
    with caplog.at_level(logging.ERROR):
        world.tell()
        world.tell()
    assert len(caplog.records) == 1
    assert "clicks#2 cannot be opened" in world.parts.trouble()
    world.refusal = None
    world.parts.tick(world.now_ns + int(parts.RETRY_S * S))
    assert "clicks#2" in world.rows
    assert world.parts.trouble() == ""


def test_a_conflict_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.rows["new"] = TopicRow(1, "f" * 32, "always", 0)
    world.add(TopicEntry(f"{4:032x}", "new", OTHER, (1,), {}))
    with caplog.at_level(logging.ERROR):
        world.tell()
        world.tell()
    assert [record.getMessage() for record in caplog.records] == [world.parts.trouble()]


def test_a_part_without_its_topic_in_the_registry_is_adopted(world: World) -> None:
    world.rows["clicks#0"].part_of = ""
    world.tell()
    assert world.rows["clicks#0"].part_of == CLICKS


def test_many_parts_are_opened_in_several_turns(world: World) -> None:
    world.add(TopicEntry(f"{4:032x}", "wide", OTHER, (0,) * 100, {}))
    world.tell()
    assert len(world.rows) == 1 + parts.STEPS_MAX
    for _ in range(4):
        world.parts.tick(1)
    assert len(world.rows) == 101


def test_producers_learn_of_a_closed_part_before_it_is_closed(world: World) -> None:
    world.manage("close", "clicks#0")
    assert not world.carried
    found = entry(world.obey())
    assert found == CloseEntry(found.id, CLICKS, 0)
    assert [type(one) for one in world.carried] == [CloseRequest]
    world.manage("close", "clicks#0", to="consumers")
    assert len(world.carried) == 2
    world.manage("close", "clicks")
    assert world.answer().closed == (0,)


def drained(world: World, end: int) -> list[str]:
    """Let the part of the request be drained. Return a list that notes when it is unsealed."""
    noted: list[str] = []
    ((message, then),), world.drains = world.drains, []
    with world.requests.answering(message.request):
        then(end, lambda: noted.append("unsealed"))
    return noted


def test_a_part_is_removed_when_its_entry_is_in_the_directory(world: World) -> None:
    world.manage("remove_part", "clicks#0")
    assert world.error() == E_NOT_EMPTY
    world.add(CloseEntry(f"{4:032x}", CLICKS, 0))
    world.tell()
    world.manage("remove_part", "clicks#0")
    noted = drained(world, 17)
    assert not world.sent
    found = entry(world.obey())
    assert found == RemovePartEntry(found.id, CLICKS, 0, 0, 17)
    assert world.answer() == p.Done(9, {"end": 17})
    assert world.deletions.keys() == {"clicks#0"}
    assert not noted
    world.manage("remove_part", "clicks#0")
    assert world.answer().removed == (0,)
    world.manage("ended", "clicks#0")
    assert world.answer() == p.Done(9, {"ended": 17})
    world.manage("ended", "clicks#1")
    assert world.answer().removed == (0,)


def test_force_closes_a_part_before_it_removes_it(world: World) -> None:
    world.manage("remove_part", "clicks#0", force=True)
    drained(world, 3)
    kinds = [type(entry(world.obey())) for _ in range(2)]
    assert kinds == [CloseEntry, RemovePartEntry]
    assert world.answer() == p.Done(9, {"end": 3})


@pytest.mark.parametrize(
    "between",
    [OpenEntry(f"{5:032x}", CLICKS, 0), MoveEntry(f"{5:032x}", CLICKS, 0, 0, 1)],
)
def test_a_part_that_is_opened_or_moved_meanwhile_stays(world: World, between: Entry) -> None:
    """The order of the entries decides, so the archive actor may refuse, or add a void entry."""
    world.add(CloseEntry(f"{4:032x}", CLICKS, 0))
    world.tell()
    world.manage("remove_part", "clicks#0")
    noted = drained(world, 17)
    world.add(between)
    world.obey()
    assert world.error() == E_CLOSING
    assert noted == ["unsealed"]
    assert not world.deletions
    # Its entry is known here before the part is drained.
    world.manage("remove_part", "clicks#0", force=False)
    assert world.error() in (E_NOT_EMPTY, E_CLOSING)
    assert not world.drains


@pytest.mark.parametrize("error", [Refused(E_BUCKET, "away"), ZsqError(E_TIMEOUT, "no answer")])
def test_a_part_is_unsealed_if_its_removal_cannot_be_noted(world: World, error: ZsqError) -> None:
    world.add(CloseEntry(f"{4:032x}", CLICKS, 0))
    world.tell()
    world.manage("remove_part", "clicks#0")
    noted = drained(world, 17)
    world.obey(error)
    assert world.error() == error.code
    assert noted == ["unsealed"]
    world.archive.state = "starting"
    world.manage("remove_part", "clicks#0")
    noted = drained(world, 17)
    assert world.error() == E_BUCKET
    assert noted == ["unsealed"]


def test_dead_letters_may_go_back_to_a_topic_with_parts_that_the_user_chose(world: World) -> None:
    def redrive(to: str, channel: str, *, chosen: bool) -> None:
        origin = ("clicks", CLICKS, "c")
        given = {"to": to, "to_channel": channel, "chosen": chosen, "origin": origin}
        world.ask(p.Manage(0, "redrive", "clicks.c.dead", "", given, {}))

    redrive("clicks", "", chosen=True)
    assert world.answer() == p.Done(9, {})
    redrive("clicks", "c", chosen=True)
    assert world.error() == E_PARTS
    redrive("clicks", "", chosen=False)
    assert world.error() == E_PARTS
    redrive("plain", "", chosen=True)
    assert len(world.carried) == 1


def test_a_broker_that_lags_reads_the_directory_before_it_drains_or_forgets_another(
    world: World,
) -> None:
    """It must not forget one that has just got a part without ending its log."""
    world.add(
        BrokerEntry(f"{4:032x}", "8" * 32, ("tcp://c:1",), "file:///b/c"),
        TopicEntry(f"{5:032x}", "new", "7" * 32, (2,), {}),
    )
    world.manage("broker", do="forget", broker=2)
    assert isinstance(world.obey(), p.ReadDirectory)
    (order,) = world.orders_sent
    assert isinstance(order, p.EndLog)
    assert order.url == "file:///b/c"
    world.orders_sent.clear()
    world.add(BrokerEntry(f"{6:032x}", "9" * 32, ("tcp://d:1",)))
    world.now_ns += 1_000_000_000
    world.manage("broker", do="drain", broker=3)
    assert isinstance(world.obey(), p.ReadDirectory)
    assert entry(world.obey()).broker == 3
    assert isinstance(world.answer(), p.Done)


def test_the_cluster_is_described(world: World) -> None:
    world.manage("cluster")
    data = world.answer().data
    assert [one["me"] for one in data["brokers"]] == [True, False]
    assert [one["topic"] for one in data["topics"]] == ["clicks"]
    assert (data["directory"], data["trouble"]) == (3, "")


@pytest.fixture
def alone(world: World) -> World:
    """A broker that belongs to no cluster, and has no topic."""
    world.rows.clear()
    world.groups.clear()
    world.audited.clear()
    world.restart(cluster="")
    return world


def test_without_a_cluster_topics_without_parts_are_carried_out_here(alone: World) -> None:
    alone.rows["old#0"] = TopicRow(1, "f" * 32, "always", 0, part_of=OTHER)  # of a former cluster
    alone.lookup("new")
    alone.lookup("old#0")
    alone.manage("create", "new")
    alone.manage("delete", "clicks")
    alone.manage("close", "clicks")
    alone.manage("close", "old#0")
    alone.manage("redrive", "dead", to="clicks", origin=("clicks", CLICKS, "c"))
    alone.ask(p.Stats(0, "clicks", ""))
    assert len(alone.carried) == 8
    alone.lookup("clicks#1")
    assert alone.error() == E_NOT_FOUND
    alone.manage("move", "clicks#1", broker=0)
    assert alone.error() == E_UNSUPPORTED
    alone.parts.heard(ARCHIVE, p.DirectoryEntries(0, (), is_all=True))
    alone.parts.tick(1)
    assert alone.parts.trouble() == ""
    assert not alone.orders_sent


def test_a_broker_without_a_cluster_has_all_parts_of_a_topic(alone: World) -> None:
    alone.manage("create", "clicks", parts=3)
    assert alone.answer().data["parts"] == 3
    assert alone.rows.keys() == {"clicks#0", "clicks#1", "clicks#2"}
    alone.lookup("clicks")
    found = alone.answer()
    assert (found.parts, found.brokers) == (((0, 0), (1, 0), (2, 0)), ((0, ()),))
    alone.lookup("clicks#1")
    alone.manage("close", "clicks#1")
    assert len(alone.carried) == 2
    alone.manage("add_parts", "clicks", count=1)
    assert alone.answer() == p.Done(9, {"parts": 4})
    alone.manage("remove_part", "clicks#1")
    drained(alone, 17)
    assert alone.answer() == p.Done(9, {"end": 17})
    assert alone.deletions.keys() == {"clicks#1"}
    # The registry is all that is left at a restart.
    alone.restart(cluster="")
    alone.lookup("clicks")
    found = alone.answer()
    assert (found.parts, found.removed) == (((0, 0), (2, 0), (3, 0)), (1,))
    alone.manage("cluster")
    described = alone.answer().data
    assert described["brokers"] == [
        {
            "number": 0,
            "uuid": ME,
            "addresses": (),
            "bucket": "",
            "draining": 0,
            "gone": False,
            "me": True,
        }
    ]
    assert (described["topics"][0]["parts"], described["is_shared"]) == ((0, -1, 0, 0), False)


def test_parts_that_are_missing_or_left_are_opened_and_deleted_at_the_start(alone: World) -> None:
    alone.manage("create", "clicks", parts=2)
    uuid = alone.answer().data["uuid"]
    del alone.rows["clicks#1"], alone.groups["clicks#1"]
    alone.restart(cluster="")
    alone.parts.tick(1)
    assert alone.rows.keys() == {"clicks#0", "clicks#1"}
    alone.manage("delete", "clicks", force=True)
    assert alone.answer() == p.Done(9, {})
    assert alone.deletions.keys() == {"clicks#0", "clicks#1"}
    alone.deletions.clear()
    alone.restart(cluster="")
    alone.parts.tick(1)
    assert alone.deletions.keys() == {"clicks#0", "clicks#1"}
    alone.rows.clear()
    # What was deleted is forgotten when none of its parts is left.
    assert alone.broker.registry.parted.removed == (uuid,)
    alone.manage("create", "views", parts=1)
    assert alone.broker.registry.parted.removed == ()


def test_a_change_that_the_registry_cannot_note_did_not_happen(alone: World) -> None:
    alone.refusal = Refused(E_CLOSING, "the disk is full")
    alone.manage("create", "clicks", parts=2)
    assert alone.error() == E_CLOSING
    assert not alone.rows
    alone.lookup("clicks")
    assert len(alone.carried) == 1
    alone.refusal = None
    alone.manage("create", "clicks", parts=2)
    assert alone.answer().data["parts"] == 2
    alone.manage("create", "clicks", parts=2)
    assert alone.error() == E_EXISTS


def joined(world: World) -> World:
    """Let a broker with topic clicks, which has a closed and a removed part, join a cluster."""
    world.manage("create", "clicks", parts=3)
    world.answer()
    world.manage("close", "clicks#0")
    world.manage("close", "clicks#1")
    world.manage("remove_part", "clicks#1")
    drained(world, 17)
    world.sent.clear()
    world.carried.clear()
    del world.rows["clicks#1"], world.groups["clicks#1"]
    world.log.clear()
    world.told = 0
    world.add(
        BrokerEntry(f"{1:032x}", OTHER, ("tcp://b:1",)),
        BrokerEntry(f"{2:032x}", ME, ("tcp://a:1",)),
    )
    world.restart(cluster="file:///c")
    return world


def test_a_topic_with_parts_of_one_broker_joins_the_cluster(alone: World) -> None:
    joined(alone)
    alone.tell()
    for topic in ("clicks", "clicks#2"):
        alone.carried.clear()
        alone.lookup(topic)
        if topic == "clicks":
            assert alone.error() == E_CLOSING  # and no topic of that name is created
            alone.manage("create", "clicks", parts=1)
            assert alone.error() == E_EXISTS
        else:
            assert len(alone.carried) == 1
    before = alone.broker.registry.parted
    (order,) = alone.orders_sent
    assert entry(order) == before.topics[0]._replace(brokers=(1, -1, 1))
    alone.obey()
    assert alone.broker.registry.parted == NO_PARTS
    alone.lookup("clicks")
    found = alone.answer()
    assert (found.parts, found.closed, found.removed) == (((0, 1), (2, 1)), (0,), (1,))
    assert alone.rows.keys() == {"clicks#0", "clicks#2"}
    assert alone.parts.trouble() == ""


def test_a_topic_joins_once_if_the_broker_is_killed_between_the_steps(alone: World) -> None:
    joined(alone)
    alone.tell()
    alone.refusal = Refused(E_CLOSING, "the disk is full")
    alone.obey()
    assert len(alone.broker.registry.parted.topics) == 1
    alone.refusal = None
    alone.told = 0
    alone.restart(cluster="file:///c")
    alone.tell()
    assert not alone.orders_sent
    assert alone.broker.registry.parted == NO_PARTS


def test_a_topic_that_cannot_join_is_kept_and_reported(alone: World) -> None:
    joined(alone)
    alone.tell()
    alone.obey(Refused(E_BUCKET, "away"))
    assert "topic clicks cannot be put into the directory of the cluster" in alone.parts.trouble()
    alone.now_ns += int(parts.RETRY_S * S)
    alone.parts.tick(alone.now_ns)
    assert len(alone.orders_sent) == 1
    alone.add(TopicEntry(f"{9:032x}", "clicks", OTHER, (0, 0), {}))
    alone.obey(Refused(E_EXISTS, "topic clicks exists"))
    alone.tell()
    assert "has another topic of that name" in alone.parts.trouble()
    assert "start it without --cluster" in alone.parts.trouble()
    assert not alone.orders_sent
    assert alone.rows.keys() == {"clicks#0", "clicks#2"}
    alone.restart(cluster="")
    alone.lookup("clicks#2")
    assert len(alone.carried) == 1


@pytest.mark.parametrize("is_conflict", [False, True])
def test_no_part_is_closed_or_opened_before_its_topic_is_in_the_directory(
    alone: World, *, is_conflict: bool
) -> None:
    joined(alone)
    alone.tell()
    if is_conflict:
        alone.add(TopicEntry(f"{9:032x}", "clicks", OTHER, (0, 0), {}))
        alone.obey(Refused(E_EXISTS, "topic clicks exists"))
        alone.tell()
    for order in ("close", "open"):
        alone.carried.clear()
        alone.manage(order, "clicks#2")
        assert alone.error() == E_CLOSING
        assert not alone.carried, "the part would be closed, and the directory say that it is open"
    if not is_conflict:
        alone.obey()
        alone.manage("close", "clicks#2")
        assert isinstance(entry(alone.orders_sent[-1]), CloseEntry)


def test_all_that_wait_are_answered_when_the_broker_stops(world: World) -> None:
    world.lookup("one")
    world.lookup("two")
    world.manage("create", "new", parts=1)
    world.orders_sent.pop(0)
    world.obey(tell=False)
    world.broker.stopping = True
    world.add(PartEntry(f"{9:032x}", CLICKS, 0))
    world.requests.stop()
    world.parts.tick(1)
    assert [cast("Any", one).code for one in world.sent] == [E_CLOSING] * 3
    world.tell()
    assert "clicks#2" not in world.rows


def test_the_handlers_of_commands_ask_this_one_first(world: World) -> None:
    commands = Commands(world.requests, cast("Any", None))

    def send(envelope: Envelope, message: p.Wire) -> None:
        commands.on_mail(Mail(envelope, message, []))

    send(ARCHIVE, p.DirectoryEntries(0, tuple(world.log), is_all=True))
    for message in (
        p.Lookup(9, "clicks", "", True, {}, {}),
        p.Manage(9, "pause", "clicks#1", "", {}, {}),
        p.Stats(9, "clicks", ""),
    ):
        send(CLIENT, message)
        assert isinstance(world.answer(), p.Spread)
    world.broker.stopping = True
    send(CLIENT, p.Lookup(9, "clicks", "", True, {}, {}))
    assert world.error() == E_CLOSING


def test_both_sides_read_the_directory_in_the_same_way(world: World) -> None:
    replayed = Directory()
    for number, raw in enumerate(world.log):
        assert replayed.apply(number, raw)
    assert replayed.topics["clicks"].parts == (0, 1)
