"""Tests of the commands about schedules, and of what the scheduler is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.schedules import supervision
from zsq.actors.schedules.supervision import ScheduleSupervision
from zsq.actors.settings.schedule_settings import SCHEDULES_BYTES_MAX, SCHEDULES_MAX
from zsq.actors.supervisor.extension_point import SupervisorParts
from zsq.actors.supervisor.topics.registry import Registry
from zsq.storage.files import Files
from zsq.transport.errors import E_LIMIT, E_TOO_BIG, E_UNSUPPORTED, Refused, UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of

GIVEN = {"do": "add", "cron": "0 3 * * *", "body": b"x"}


class World:
    """A supervisor without processes. `started` counts the starts of the scheduler."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(Files(), folder, 0)
        self.registry.open()
        for name in ("t", "u"):
            self.registry.add(name, "always")
            self.registry.set_state(name, "live")
        self.children: list[Any] = []
        self.started = 0
        self.given_up: set[str] = set()
        self.told: list[tuple[dict[str, Any], ...]] = []
        self.done: list[dict[str, Any]] = []
        self.details: dict[int, Any] = {}
        options = SimpleNamespace(max_msg_size=100)
        broker = SimpleNamespace(
            registry=self.registry,
            options=options,
            stopping=False,
            processes=SimpleNamespace(send=self._send),
        )
        requests = SimpleNamespace(
            broker=broker,
            done=lambda request, data: self.done.append(data),
            gatherings=SimpleNamespace(
                gather=lambda children, then, detailed: then(True, self.details)
            ),
        )
        singles: Any = SimpleNamespace(
            start_when_needed=self._start,
            of_kind=lambda kind: self.children,
            given_up=self.given_up,
        )
        nothing = cast("Any", None)
        self.schedules = ScheduleSupervision(
            SupervisorParts(
                cast("Any", broker), cast("Any", requests), singles, nothing, dict, nothing
            )
        )

    def _start(self, kind: str) -> None:
        self.started += 1
        self.children = [SimpleNamespace(spec=SimpleNamespace(key=self.started), state="starting")]

    def _send(self, child: Any, message: p.Schedules) -> None:
        self.told.append(message.rows)

    def ask(self, topic: str = "t", **options: Any) -> None:
        request = request_of(p.Manage(1, "schedule", topic, "", options))
        self.schedules.handlers()[type(request)](request)

    def add(self, name: str, topic: str = "t", **more: Any) -> None:
        self.ask(topic, **(GIVEN | {"name": name} | more))

    def names(self) -> list[tuple[str, str]]:
        return [(row["topic"], row["name"]) for row in self.told[-1]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_scheduler_is_started_with_the_first_schedule_and_told_when_it_is_up(
    world: World,
) -> None:
    world.schedules.tick(0)
    assert world.started == 0
    world.add("a")
    world.schedules.tick(0)
    assert (world.started, world.told) == (1, [])
    world.children[0].state = "up"
    world.schedules.tick(10**9 - 1)
    assert world.told == [], "it looks once a second"
    world.schedules.tick(2 * 10**9)
    assert world.names() == [("t", "a")]
    world.schedules.tick(4 * 10**9)
    assert len(world.told) == 1, "nothing has changed"
    world.add("b", "u")
    world.schedules.tick(4 * 10**9 + 1)
    assert world.names() == [("t", "a"), ("u", "b")]
    world.children = []  # it was killed
    world.schedules.tick(6 * 10**9)
    world.children[0].state = "up"
    world.schedules.tick(8 * 10**9)
    assert (world.started, len(world.told)) == (2, 3)


def test_the_scheduler_hears_of_the_end_of_a_topic_at_once(world: World) -> None:
    world.add("a")
    world.add("b", "u")
    world.schedules.tick(0)
    world.children[0].state = "up"
    world.schedules.tick(2 * 10**9)
    world.registry.set_state("t", "deleting", 5)
    world.schedules.tick(2 * 10**9 + 1)
    assert world.names() == [("u", "b")]


def test_a_schedule_is_in_the_registry_when_it_is_answered(world: World, tmp_path: Path) -> None:
    world.add("a", timezone="Europe/Berlin", missed="skip", key=b"k", tag="g", headers={"h": 1})
    (answer,) = world.done
    assert answer["next_due_ns"] > 0
    again = Registry(Files(), tmp_path, 0)
    again.open()
    row = again.topics["t"].schedules["a"]
    assert (row["timezone"], row["missed"], row["tag"]) == ("Europe/Berlin", "skip", "g")
    world.ask(do="pause", name="a")
    again.open()
    assert again.topics["t"].schedules["a"] == {**row, "paused": True}
    world.ask(do="resume", name="a")
    world.ask(do="remove", name="a")
    again.open()
    assert again.topics["t"].schedules == {}
    assert "schedules" not in (tmp_path / "registry.json").read_text()


def test_the_numbers_and_sizes_of_a_broker_are_bounded(world: World) -> None:
    with pytest.raises(UsageError, match="this broker's limit of a message, 100 bytes") as big:
        world.add("a", body=bytes(101))
    assert big.value.code == E_TOO_BIG
    world.add("a")
    row = world.registry.topics["t"].schedules["a"]
    full = {**row, "body": "A" * (SCHEDULES_BYTES_MAX // 3 * 4)}
    world.registry.schedule("u", {"full": full})
    with pytest.raises(Refused, match="the bodies of all schedules") as size:
        world.add("b")
    world.registry.schedule("u", {f"{number}": row for number in range(SCHEDULES_MAX - 1)})
    with pytest.raises(Refused, match="has 1000 schedules, which is the limit") as count:
        world.add("b")
    assert {size.value.code, count.value.code} == {E_LIMIT}
    assert [*world.registry.topics["t"].schedules] == ["a"]


def test_without_the_library_it_is_said_what_to_install(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "find_spec", lambda name: None)
    assert world.schedules.trouble() == ""
    with pytest.raises(UsageError, match="pip install 'zsq\\[schedules\\]'") as caught:
        world.add("a")
    assert caught.value.code == E_UNSUPPORTED
    world.registry.schedule("t", {"a": {"cron": "* * * * *"}})
    world.schedules.tick(10**10)
    assert world.started == 0
    assert "1 schedules are not carried out: schedules need cronsim" in world.schedules.trouble()
    world.ask("", do="list")
    assert "schedules need cronsim" in world.done[-1]["schedules"][0]["trouble"]


def test_the_health_says_when_the_scheduler_stays_stopped(world: World) -> None:
    world.add("a")
    assert world.schedules.trouble() == ""
    world.given_up.add("scheduler")
    assert "their process failed too often" in world.schedules.trouble()


def test_the_list_has_what_the_scheduler_knows(world: World) -> None:
    world.add("a")
    world.add("b")
    world.ask(do="pause", name="b")
    world.schedules.tick(0)
    world.children[0].state = "up"
    known = {
        "topic": "t", "name": "a", "state": "failing", "next_due_ns": 5, "last_due_ns": 3,
        "published_count": 1, "missed_count": 2, "trouble": "E_CLOSED closed",
    }  # fmt: skip
    world.details = {1: {"schedules": (known, {**known, "name": "gone"})}}
    world.ask("", do="list")
    a, b = world.done[-1]["schedules"]
    rest = {
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "missed": "one",
        "unique": "never",
        "body_bytes": 1,
    }
    assert a == known | rest
    assert (b["name"], b["state"], b["next_due_ns"]) == ("b", "paused", 0)


@pytest.mark.parametrize("do", [None, "", "walk", 5, ("add",)])
def test_an_unknown_order_is_refused(world: World, do: Any) -> None:
    with pytest.raises(UsageError, match="must be one of add, list, pause"):
        world.ask(do=do)
