"""Tests of what a broker moves by itself: its own parts, and not more at a time than it may."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from zsq.actors.supervisor.cluster.cluster_view import ClusterView, Reclaim
from zsq.actors.supervisor.commands import balancing
from zsq.actors.supervisor.commands.balancing import ORPHANS_S, SETTLE_S, Balancing, Order
from zsq.actors.supervisor.topics.registry_format import TopicRow
from zsq.storage.cluster.directory import (
    AutoEntry,
    BrokerEntry,
    DrainEntry,
    Entry,
    ForgetEntry,
    MoveEntry,
    TopicEntry,
    encode_entry,
)

S = 1_000_000_000
UUIDS = ["a" * 32, "b" * 32, "c" * 32]
TOPIC = "7" * 32


class World:
    """The broker with the number `me` of three, and a topic whose parts are at `places`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, places: tuple[int, ...], me: int = 0
    ) -> None:
        self.now_ns = 1_000 * S
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        monkeypatch.setattr(balancing, "time", clock)
        self.ids = iter(range(1_000))
        rows = {
            f"t#{part}": TopicRow(1, "f" * 32, "always", 0, "live", part_of=TOPIC)
            for part, at in enumerate(places)
            if at == me
        }
        self.view = ClusterView(UUIDS[me], rows)
        self.sizes: dict[str, int] = {}
        self.fixed: dict[str, str] = {}
        self.orders: list[Order] = []
        self.answers: list[Callable[[bool], None]] = []
        self.forgotten: list[int] = []
        self.balancing = Balancing(
            self.view, lambda: self.sizes, lambda: self.fixed, self._move, self._forget
        )
        for number, uuid in enumerate(UUIDS):
            self.add(BrokerEntry(self.id(), uuid, (f"tcp://{number}:1",), f"s3://b/{number}"))
        self.add(TopicEntry(self.id(), "t", TOPIC, places, {}))

    def id(self) -> str:
        return f"{next(self.ids):032x}"

    def _move(self, order: Order, then: Callable[[bool], None]) -> None:
        self.orders.append(order)
        self.answers.append(then)

    def _forget(self, number: int, then: Callable[[], None]) -> None:
        self.forgotten.append(number)

    def add(self, entry: Entry) -> None:
        self.view.take(self.view.directory.next, [encode_entry(entry)], True)

    def pass_(self, seconds: float, quiet_s: float = 0.0) -> None:
        """Let time pass, in which the brokers announce themselves, except the last one."""
        while seconds > 0:
            step = min(5.0, seconds)
            seconds -= step
            self.now_ns += int(step * S)
            rows = tuple(
                (uuid, quiet_s if number == 2 else 0.0, 1_000, 1_000)
                for number, uuid in enumerate(UUIDS)
            )
            self.balancing.saw(rows, self.now_ns)
            self.balancing.tick(self.now_ns)

    def answer(self, is_done: bool = True) -> None:
        """Let the directory have the last order."""
        order = self.orders[-1]
        if is_done:
            self.add(MoveEntry(self.id(), *order))
        self.answers.pop(0)(is_done)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return lambda *places, me=0: World(monkeypatch, places, me)


def test_a_broker_moves_nothing_unless_it_is_told_to(make: Callable[..., World]) -> None:
    world = make(0, 0, 0, 0)
    world.pass_(100)
    assert not world.orders
    world.add(DrainEntry(world.id(), 1, True, 1))
    world.pass_(100)
    assert not world.orders, "another broker drains"


def test_a_broker_that_drains_moves_as_many_parts_at_a_time_as_it_may(
    make: Callable[..., World],
) -> None:
    world = make(0, 0, 0, 1)
    world.add(DrainEntry(world.id(), 0, True, 2))
    world.pass_(SETTLE_S - 1)
    assert not world.orders, "it does not know yet who lives"
    world.pass_(5)
    assert len(world.orders) == 1
    world.pass_(20)
    assert len(world.orders) == 1, "the order is not answered"
    world.answer()
    world.pass_(1)
    world.answer()
    world.pass_(60)
    assert [(order.part, order.broker) for order in world.orders] == [(0, 2), (1, 1)]


def test_a_move_that_did_not_count_is_tried_again_after_a_pause(
    make: Callable[..., World],
) -> None:
    world = make(0, 1)
    world.add(DrainEntry(world.id(), 0, True, 1))
    world.pass_(10)
    world.answer(is_done=False)
    world.pass_(1)
    assert len(world.orders) == 1
    world.pass_(10)
    assert len(world.orders) == 2


def test_nothing_moves_to_a_broker_that_is_silent_or_while_nothing_is_heard(
    make: Callable[..., World],
) -> None:
    world = make(0, 0, 1)
    world.add(DrainEntry(world.id(), 0, True, 9))
    world.pass_(10, quiet_s=50)
    world.answer()
    world.pass_(1, quiet_s=50)
    assert {order.broker for order in world.orders} == {1}
    world.now_ns += 100 * S
    world.answers.clear()
    world.balancing.tick(world.now_ns)
    assert world.view.stuck == ()


def test_what_cannot_leave_is_said(make: Callable[..., World]) -> None:
    world = make(0, 1, 0)
    world.sizes = {"t#0": 5_000}
    world.fixed = {"t#2": "it is only here"}
    world.add(DrainEntry(world.id(), 0, True, 1))
    world.pass_(10)
    assert not world.orders
    assert "part t#2 cannot leave this broker: it is only here" in world.view.trouble
    assert "part t#0 cannot leave this broker: no broker has room for it" in world.view.trouble
    world.add(DrainEntry(world.id(), 0, False, 1))
    world.pass_(10)
    assert world.view.trouble == ""


def test_with_auto_each_broker_moves_only_its_own_parts_at_the_rate(
    make: Callable[..., World],
) -> None:
    one, other = make(0, 0, 0, 0, 1, 1), make(0, 0, 0, 0, 1, 1, me=1)
    for world in (one, other):
        world.sizes = {f"t#{part}": 100 for part in range(4)}
        world.add(AutoEntry(world.id(), True, 2, 1, 0))
        world.pass_(10)
        assert world.balancing.describe() == {"moving": 0, "planned": 2}
    assert (len(one.orders), other.orders) == (1, [])
    one.answer()
    one.pass_(10)
    assert one.balancing.describe() == {"moving": 1, "planned": 1}
    assert len(one.orders) == 1, "one at a time"
    one.add(MoveEntry(one.id(), TOPIC, one.orders[0].part, 0, 0))
    one.pass_(30)
    assert len(one.orders) == 1, "100 bytes need 50 s"
    one.pass_(20)
    assert len(one.orders) == 2


def test_a_silent_broker_is_forgotten_after_the_bound_if_it_has_parts(
    make: Callable[..., World],
) -> None:
    world = make(0, 1, 2)
    world.add(AutoEntry(world.id(), True, 0, 1, 600))
    world.pass_(500, quiet_s=1_000)
    assert not world.forgotten, "it was not watched for so long"
    world.pass_(150, quiet_s=599)
    assert not world.forgotten
    world.pass_(10, quiet_s=1_000)
    world.pass_(500, quiet_s=1_000)
    assert world.forgotten == [2], "once, until that has ended"
    without = make(0, 1, 1)
    without.add(AutoEntry(without.id(), True, 0, 1, 600))
    without.pass_(900, quiet_s=1_000)
    assert not without.forgotten


def test_parts_that_their_adopters_do_not_open_are_opened_by_others(
    make: Callable[..., World],
) -> None:
    world = make(2, 2, 2)
    world.add(ForgetEntry(world.id(), 2, 9))

    def adopted() -> set[str]:
        return {step.name for step in world.view.plan() if isinstance(step, Reclaim)}

    world.balancing.tick(world.now_ns)
    assert adopted() == {"t#0", "t#2"}
    world.now_ns += int((ORPHANS_S + 1) * S)
    world.balancing.tick(world.now_ns)
    assert adopted() == {"t#0", "t#1", "t#2"}


def test_with_auto_only_so_many_parts_of_the_cluster_move_at_a_time(
    make: Callable[..., World],
) -> None:
    world = make(0, 0, 0, 0, 0, 0)
    world.add(AutoEntry(world.id(), True, 0, 2, 0))
    for _ in range(4):
        world.pass_(10)
        if world.answers:
            world.answer()
    assert len(world.orders) == 2, "without a rate"
