"""Tests of the supervisor with a table that only records which processes it kills: when each
process is ended, and how many processes and topics one broker may have.
"""

from __future__ import annotations

import signal
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from support.group import Broker

from zsq.actors.runtime.child import Failure, Phase
from zsq.actors.runtime.port import Mail
from zsq.actors.runtime.process_table import Child, HostProcess, ProcessTable
from zsq.actors.runtime.processes import Processes
from zsq.actors.settings import options
from zsq.actors.settings.starts import ActorStart
from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor import supervisor
from zsq.actors.supervisor.commands.creation import create_topic
from zsq.actors.supervisor.commands.requests import Orders
from zsq.actors.supervisor.start_reserve import StartReserve
from zsq.actors.supervisor.supervisor import Supervisor
from zsq.actors.supervisor.topics.registry_format import NO_PARTS
from zsq.transport.errors import E_LIMIT, Refused, ZsqError
from zsq.transport.wire import protocol as p

S = 1_000_000_000


class Place:
    """A supervisor without sockets and processes."""

    def __init__(self, processes_max: int = 2_000) -> None:
        self.killed: list[int] = []
        self.awaited: set[int] = set()
        self.sent: list[tuple[Any, Any]] = []
        self.started: list[Any] = []
        self.supervisor = object.__new__(Supervisor)
        self.supervisor.extensions = []
        self.scan_loop = self.child(1, "scan_loop", envelope=(b"scan",))
        table = SimpleNamespace(
            children={},
            hosts={},
            kill=lambda host: self.killed.extend(host.children),
            start=self.start,
        )
        port: Any = SimpleNamespace(send=self.send)
        self.processes = Processes(cast("Any", table), port, "/nowhere", processes_max)
        parts: dict[str, Any] = {
            "table": table, "port": port, "processes": self.processes,
            "state": SimpleNamespace(stopping=False, groups={}),
            "singles": SimpleNamespace(of_kind=lambda kind: [self.scan_loop]),
            "commands": SimpleNamespace(on_mail=self.sent.append, noted=lambda key, stats: None),
            "orders": SimpleNamespace(awaits=lambda _, request: request in self.awaited),
            "_signals": 0, "exit_code": 0, "_memory_ns": 0, "_socket_inode": None, "run_dir": "/nowhere",
            "reserve": StartReserve(Path("/nowhere")),
        }  # fmt: skip
        vars(self.supervisor).update(parts)

    def child(self, key: int, kind: str, **changes: Any) -> Child:
        spec = SimpleNamespace(
            key=key, kind=kind, title=kind, start=ActorStart(), stop_timeout_s=1.0
        )
        host = HostProcess(1, cast("Any", None))
        found = host.children[key] = Child(cast("Any", spec), host)
        for name, value in {"state": "up", "envelope": (b"%d" % key,), **changes}.items():
            setattr(found, name, value)
        return found

    def add(self, key: int, kind: str = "channel", **changes: Any) -> Child:
        found = self.supervisor.table.children[key] = self.child(key, kind, **changes)
        hosts: Any = self.supervisor.table.hosts
        hosts[found.host] = None
        return found

    def send(self, envelope: Any, message: Any) -> bool:
        self.sent.append((envelope, message))
        return True

    def start(self, spec: Any, owner: Any, host: Any) -> None:
        self.started.append(spec)

    def hear(self, message: p.Wire, who: bytes = b"scan") -> None:
        self.supervisor._on_mail(Mail((who,), message, []))


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_running_child_is_asked_to_stop_and_killed_if_it_does_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = place.add(7)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    place.processes.stop_child(child)
    assert place.sent == [((b"7",), p.Stop())]
    place.processes.kill_late()
    assert place.killed == []
    now += 1 * S + 1
    place.processes.kill_late()
    assert place.killed == [7]
    place.processes.kill_late()
    assert place.killed == [7], "once is enough: the end of a killed process comes by itself"


def test_a_child_that_is_not_up_yet_is_killed_at_once(place: Place) -> None:
    place.processes.stop_child(place.add(7, state="starting"))
    assert place.killed == [7]
    assert place.sent == []


def test_the_end_of_one_actor_leaves_its_neighbours_in_a_shared_host_alone(place: Place) -> None:
    alone, up, starting = place.add(7), place.add(8), place.add(9, state="starting", envelope=())
    for child in (up, starting):
        child.host = HostProcess(1, cast("Any", None), 1)
    for child in (alone, up, starting):
        place.processes.kill_alone(child)
    assert place.killed == [7]
    assert place.sent == [((b"8",), p.Stop())]
    place.processes.stop_started(starting, (b"9",))
    assert place.sent[1:] == [((b"9",), p.Stop())]


def test_a_child_that_does_not_come_up_in_time_is_killed(place: Place) -> None:
    now = time.monotonic_ns()
    limit_ns = int(options.START_TIMEOUT_S * S)
    place.add(7, state="starting", started_ns=now - limit_ns - S)
    place.add(8, state="starting", started_ns=now - limit_ns + 100 * S)
    place.add(9, started_ns=now - limit_ns - S)
    place.processes.kill_late()
    assert place.killed == [7]


def test_only_a_channel_that_the_scan_loop_reports_as_hung_is_killed(place: Place) -> None:
    place.add(7)
    place.add(8, "storage")
    place.hear(p.Hung(7), b"somebody")
    assert place.killed == [], "only the scan loop may say so"
    place.hear(p.Hung(8))
    place.hear(p.Hung(9))
    assert place.killed == []
    place.hear(p.Hung(7))
    assert place.killed == [7]


def test_an_actor_that_hangs_explains_the_end_of_its_shared_host(place: Place) -> None:
    first, second = place.add(7), place.add(8)
    assert first.host is not None
    first.host.children[8], second.host = second, first.host
    place.hear(p.Hung(7))
    place.hear(p.Hung(8))
    assert (first.explains_end, second.explains_end) == (True, False)


def test_no_topic_is_placed_in_a_shared_host_that_was_killed(place: Place) -> None:
    hosts: Any = place.supervisor.table.hosts
    killed, other = (HostProcess(1, cast("Any", None), number) for number in (1, 2))
    child = killed.children[7] = place.child(7, "channel", host=killed)
    hosts[killed] = hosts[other] = None
    assert place.processes.place("topic t", 1, 0) is killed, "it is the fullest"
    place.processes.kill(child)
    assert place.processes.place("topic t", 1, 0) is other


def test_the_reason_why_a_child_cannot_start_is_kept(place: Place) -> None:
    up, starting = place.add(7), place.add(8, state="starting")
    for key in (7, 8):
        place.hear(p.Failed(key, "E_X", "why"), b"%d" % key)
    assert (str(up.failure), str(starting.failure)) == ("E_X why", "cannot start: E_X why")
    place.hear(p.Failed(9, "E_X", "why"), b"7")
    assert [mail.message for mail in cast("list[Mail]", place.sent)] == [p.Failed(9, "E_X", "why")]


def test_a_second_signal_kills_all_children_unless_it_follows_at_once(place: Place) -> None:
    place.add(7)
    place.add(8)
    place.supervisor._on_signal(signal.SIGTERM, None)
    place.supervisor._on_signal(signal.SIGTERM, None)
    assert place.killed == [], "both are one order to stop"
    place.supervisor._signal_ns -= int(options.SIGNALS_AS_ONE_S * 1e9)
    place.supervisor._on_signal(signal.SIGTERM, None)
    assert place.killed == [7, 8]


def test_an_exception_in_the_supervisor_ends_its_children(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the children continued, they would have no supervisor. The program that called the
    supervisor would wait for them at its own end.
    """
    closed: list[str] = []

    def fails() -> None:
        place.add(7)
        place.add(8, state="starting")
        raise OSError("by plan")

    for name in ("signal", "set_wakeup_fd"):
        monkeypatch.setattr(signal, name, lambda *_, **__: None)
    one, other = pair = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: pair)
    monkeypatch.setattr(zmq, "Poller", lambda: SimpleNamespace(register=lambda *_: None))
    with one, other:
        vars(place.supervisor.table)["events_fd"] = one.fileno()
        parts: dict[str, Any] = {
            "run_dir": "/nowhere", "_start_all": fails, "context": SimpleNamespace(term=lambda: closed.append("context")),
            "port": SimpleNamespace(socket=SimpleNamespace(bind=lambda endpoint: None), close=lambda: closed.append("port")),
            "audit": SimpleNamespace(open=lambda: None, close=lambda: closed.append("audit")),
            "requests": SimpleNamespace(audits=SimpleNamespace(close=lambda: None)),
            "state": SimpleNamespace(registry=SimpleNamespace(settle=lambda: None)),
        }  # fmt: skip
        vars(place.supervisor).update(parts)
        with pytest.raises(OSError, match="by plan"):
            place.supervisor.run()
    assert place.killed == [7, 8]
    assert closed == ["port", "context", "audit"]


def test_the_number_of_processes_of_a_node_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PROCESSES_MAX", 3)
    place = Place(processes_max=3)
    place.add(7)
    place.add(8)
    place.processes.check_room(1, "a channel")
    with pytest.raises(
        ZsqError,
        match=r"this broker runs at most 3 processes \(16 topics and channels that share one count",
    ):
        place.processes.check_room(2, "a topic")
    with pytest.raises(ZsqError, match=r"at most 2 processes .* raise --processes-max"):
        Place(processes_max=2).processes.check_room(3, "a channel")
    place.processes.start(cast("Any", "spec"))
    place.add(9)
    with pytest.raises(ZsqError, match=E_LIMIT):
        place.processes.start(cast("Any", "another"))
    assert place.started == ["spec"]


def test_memory_is_returned_to_the_system_after_large_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    freed: list[None] = []

    def due(now_ns: int, *, worked: bool, stirred: bool) -> bool:
        asked.append(stirred)
        return stirred

    vars(place.supervisor)["_memory"] = SimpleNamespace(due=due)
    settled: list[None] = []
    place.supervisor.state.registry = cast(
        "Any",
        SimpleNamespace(
            settle=lambda: settled.append(None), remove_left=lambda: None, in_doubt=False
        ),
    )
    vars(place.supervisor)["requests"] = SimpleNamespace(sealed=[], broker=place.supervisor.state)
    monkeypatch.setattr(supervisor, "release_memory", lambda: freed.append(None))
    now = 10**15
    place.processes.changes = options.LARGE_CHANGE - 1
    place.supervisor._now_and_then(now)
    place.supervisor._now_and_then(now + options.MEMORY_LOOK_MS * 1_000_000 - 1)
    assert asked == [False]
    place.processes.changes += 1
    place.supervisor._now_and_then(now + options.MEMORY_LOOK_MS * 1_000_000)
    assert asked == [False, True]
    assert (len(freed), place.processes.changes) == (1, 0)
    assert len(settled) == 2, "a change of the registry that was refused is taken back as often"


# The process table


@pytest.mark.parametrize("known", [True, False])
def test_a_kill_uses_the_pidfd_and_before_it_is_known_the_pid(
    known: bool, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    """A process is killed by its pidfd. Its pid is used only until the pidfd has arrived."""
    sent: list[tuple[str, int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(("pid", pid, number)))
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda fd, number: sent.append(("pidfd", fd, number))
    )
    host = HostProcess(123_456, cast("Any", None), pidfd=9 if known else -1)
    table = SimpleNamespace(hosts={host})
    ProcessTable.kill(cast("Any", table), host)
    assert sent == [("pidfd", 9, signal.SIGKILL) if known else ("pid", 123_456, signal.SIGKILL)]
    sent.clear()
    host.pidfd = -1
    table.hosts.clear()
    ProcessTable.kill(cast("Any", table), host)
    assert sent == [], "the pid may be another's by now"


# Topics


def test_when_a_topic_dies_its_channels_are_killed_before_it_restarts() -> None:
    """All channels are killed, and nothing is started before the last one has ended."""
    broker = Broker()
    broker.want("c")
    broker.up("c")
    dead = broker.group.topic
    assert dead is not None
    begun = len(broker.started)
    dead.state = "ended"
    broker.group.died(dead)
    assert broker.group.state is GroupState.CLEARING
    assert {child.spec.kind for child in broker.killed} == {"channel"}
    for other in list(broker.killed):
        assert len(broker.started) == begun
        other.state = "ended"
        broker.group.died(other)
    assert broker.started[begun:] == ["topic"]


def test_a_failure_during_the_start_of_a_topic_kills_its_process() -> None:
    broker = Broker()
    broker.group.fail("no room")
    assert {child.spec.kind for child in broker.killed} == {"topic"}


def test_the_pause_before_another_start_grows_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, now_ns = Broker(), 5 * S
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    for pause_s in (1, 2, 4, 8, 16, 32, options.RETRY_S_MAX, options.RETRY_S_MAX):
        topic = broker.group.topic
        assert topic is not None
        topic.state, topic.failure = "ended", Failure(Phase.START, "", "no room")
        broker.group.died(topic)
        broker.started.clear()
        now_ns += int(pause_s * S) - 1
        broker.group.tick()
        assert broker.started == []
        now_ns += 1
        broker.group.tick()
        assert broker.started == ["topic"]


class Managed:
    """The orders of a supervisor that has `topics` topics."""

    def __init__(self, topics: int = 0, room: bool = True) -> None:
        self.sent: list[Any] = []
        self.answers: list[Any] = []

        def check_room(count: int, what: str) -> None:
            if not room:
                raise Refused("E_LIMIT", f"no room for {what}")

        here: Any = SimpleNamespace(
            groups={f"t{number}": None for number in range(topics)}, processes=SimpleNamespace(check_room=check_room, send=self.send),
            options=SimpleNamespace(sync="always", retention={}, cluster=""),
            registry=SimpleNamespace(uuid="", topics={}, parted=NO_PARTS, add=lambda *row, part_of="": row),
            add_group=lambda name, row: name,
        )  # fmt: skip
        self.broker = here
        self.orders = Orders(here.processes)

    def send(self, envelope: Any, message: Any) -> bool:
        self.sent.append(message)
        return True

    def answer(self, data: Any, error: Any) -> None:
        self.answers.append(error)


def test_the_number_of_topics_of_a_node_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "TOPICS_MAX", 2)
    assert create_topic(Managed(topics=1).broker, "new") == cast("Any", "new")
    with pytest.raises(Refused, match="2 topics, which is the limit; delete"):
        create_topic(Managed(topics=2).broker, "new")
    with pytest.raises(Refused, match="no room for topic 'new'"):
        create_topic(Managed(room=False).broker, "new")


def test_the_number_of_unanswered_orders_is_bounded(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    here = Managed()
    for _ in range(3):
        here.orders.send(
            place.child(7, "channel"), partial(p.SetPaused, is_paused=True), here.answer
        )
    assert len(here.sent) == 2
    (error,) = here.answers
    assert error.code == E_LIMIT


def test_a_failure_of_another_process_is_not_taken_for_that_of_a_child() -> None:
    """The key in the message may be the number of an order to another process. A refusal of that
    order must not be taken for the failure of the child with this key.
    """
    place = Place()
    up, starting = place.add(5), place.add(6, state="starting", envelope=())
    message = p.Failed(5, "E_NOT_EMPTY", "7 messages")
    place.supervisor._on_mail(Mail((b"9",), message, []))
    assert up.failure is None
    assert cast("list[Mail]", place.sent) == [Mail((b"9",), message, [])], (
        "an answer to an order, or nobody's"
    )
    place.awaited.add(6)
    place.supervisor._on_mail(Mail((b"9",), p.Failed(6, "E_NOT_EMPTY", "7 messages"), []))
    assert starting.failure is None
    place.awaited.clear()
    place.supervisor._on_mail(Mail((b"5",), p.Failed(5, "E_DISK", "gone"), []))
    place.supervisor._on_mail(Mail((b"new",), p.Failed(6, "E_DISK", "none"), []))
    assert [str(one.failure) for one in (up, starting)] == [
        "E_DISK gone",
        "cannot start: E_DISK none",
    ]


def pulse(key: int, request: int = 0, **stats: Any) -> Mail:
    return Mail((b"%d" % key,), p.Pulse(key, request, stats, {}), [])


@pytest.mark.parametrize("is_dormant", [True, False])
def test_the_last_pulse_of_a_topic_that_sleeps_counts_after_the_news_of_its_end(
    place: Place, is_dormant: bool
) -> None:
    topic, channel = place.child(7, "topic"), place.child(8, "channel")
    place.supervisor.state.groups["t"] = cast(
        "Any",
        SimpleNamespace(is_dormant=is_dormant, processes=lambda: [topic, channel]),
    )
    for child in (topic, channel):
        child.state = "ended"
        place.supervisor._on_mail(pulse(child.spec.key, head=9))
        assert child.stats.get("head", 0) == (9 if is_dormant else 0)
    stranger = Mail((b"other",), p.Pulse(7, 0, {"head": 1}, {}), [])
    place.supervisor._on_mail(stranger)
    assert topic.stats.get("head", 0) != 1


def test_an_answer_is_no_news(place: Place) -> None:
    """A topic may sleep if its processes had no news for a while, however often they are asked."""
    place.supervisor.requests = cast(
        "Any", SimpleNamespace(gatherings=SimpleNamespace(reported=lambda *_: None))
    )
    child = place.add(7)
    place.supervisor._on_mail(pulse(7, request=3))
    assert (child.news_ns, child.pulsed_ns > 0) == (0, True)
    place.supervisor._on_mail(pulse(7))
    assert child.news_ns == child.pulsed_ns
