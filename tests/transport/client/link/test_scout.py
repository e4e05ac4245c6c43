"""Tests of the scout: when it asks, whom, and what it does with the answer. The clock is simulated,
and its links are fakes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, cast

from zsq.transport.client.link.link import SCOUT_LOOK_NS
from zsq.transport.client.link.scout import (
    IDLE_NS,
    PAUSE_LATER_NS,
    PAUSE_NS,
    SILENT_NS,
    SOON_NS,
    TRIES_SOON,
    TRY_NS,
    Scout,
)
from zsq.transport.client.link.timeouts import FAR_NS, MS
from zsq.transport.wire.address import Target, parse
from zsq.transport.wire.addresses import Addresses, Rotation

URLS = ("tcp://a:1", "tcp://b:1", "tcp://c:1")
S = 1_000 * MS


@dataclass(eq=False)
class Link:
    """A link of the client, which waits for an answer."""

    rotation: Rotation
    target: Target = field(default_factory=lambda: Target("topic", "t"))
    opened: dict[str, Any] = field(default_factory=lambda: {"uuid": "one"})
    word_ns: int = 0
    waits: bool = True
    up: bool = True
    restarts: int = 0

    def __post_init__(self) -> None:
        self.given = self.rotation.present

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        self.given = self.rotation.present
        self.restarts += 1


class Own:
    """A link of the scout. `answer` sets what its broker answers."""

    def __init__(self, rotation: Rotation, target: Target, peer: Scout) -> None:
        self.asked, self.target, self.peer = rotation.present.url, target, peer
        self.down = self.stopped = self.stays = False
        self.serves = False
        self.opened: dict[str, Any] = {"uuid": "one"}

    def start(self, now_ns: int) -> None:
        self.began_ns = now_ns

    def stop(self, linger_ms: int = 0) -> None:
        self.stopped = True

    def on_time(self, now_ns: int) -> int:
        if self.serves:
            self.peer.on_up(now_ns)
        return FAR_NS


class Bench:
    def __init__(self, *urls: str) -> None:
        rotation = Rotation(Addresses(tuple(parse(url) for url in urls or URLS[:2])), moves=True)
        self.link = Link(rotation)
        self.links: list[Any] = [self.link]
        self.made: list[Own] = []
        self.scout = Scout(cast("Any", self._make))
        self.now_ns = 100 * S

    def _make(self, rotation: Rotation, target: Target, peer: Any) -> Own:
        self.made.append(Own(rotation, target, peer))
        return self.made[-1]

    def run(self, seconds: float) -> int:
        """Call the scout when it wants to be called. Return the time of its next call."""
        end_ns = self.now_ns + int(seconds * S)
        while (next_ns := self.scout.on_time(self.now_ns, self.links)) <= end_ns:
            assert next_ns > self.now_ns
            self.now_ns = next_ns
        self.now_ns = end_ns
        return next_ns


def test_it_asks_after_a_second_without_an_answer() -> None:
    bench = Bench()
    bench.run((SILENT_NS - MS) / S)
    assert not bench.made
    bench.run(SCOUT_LOOK_NS / S)
    assert [own.asked for own in bench.made] == [URLS[1]]
    assert bench.made[0].target == Target("topic", "t", create=False), "it creates nothing"


def test_a_client_with_one_address_or_nothing_to_wait_for_is_never_looked_at_again() -> None:
    bench = Bench(URLS[0])
    assert bench.run(10) == FAR_NS
    bench = Bench()
    bench.link.waits = False
    assert bench.run(10) == FAR_NS
    assert not bench.made


def test_each_answer_begins_the_time_anew() -> None:
    bench = Bench()
    for _ in range(20):
        bench.run(0.5)
        bench.link.word_ns = bench.now_ns
    assert not bench.made


def test_the_time_begins_when_the_link_begins_to_wait() -> None:
    bench = Bench()
    bench.link.waits = False
    bench.run(10)
    bench.link.waits = True
    bench.run((SILENT_NS - MS) / S)
    assert not bench.made


def test_an_answer_ends_the_search() -> None:
    bench = Bench()
    bench.run(1.3)
    assert not bench.made[0].stopped
    bench.link.word_ns = bench.now_ns + 1
    bench.run(0.3)
    assert bench.made[0].stopped
    assert len(bench.made) == 1


def test_all_others_are_asked_in_turn_and_seldom_after_a_while() -> None:
    bench = Bench(*URLS)
    bench.run(5)
    assert [own.asked for own in bench.made[:4]] == [URLS[1], URLS[2], URLS[1], URLS[2]]
    assert all(own.stopped for own in bench.made[:-1])
    bench.run(100)
    times = [own.began_ns for own in bench.made]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    slack = SCOUT_LOOK_NS + TRY_NS
    assert max(pauses[: TRIES_SOON - 1]) <= PAUSE_NS + slack
    assert min(pauses[TRIES_SOON:]) >= PAUSE_LATER_NS // 2


def test_a_silent_address_is_given_up() -> None:
    bench = Bench()
    bench.run(1.3)
    bench.run((TRY_NS + SCOUT_LOOK_NS) / S)
    assert bench.made[0].stopped
    assert len(bench.made) == 2


def test_a_link_that_is_down_is_closed_at_once() -> None:
    bench = Bench()
    bench.run(1.3)
    bench.made[0].down = True
    bench.run(2 * SOON_NS / S)
    assert bench.made[0].stopped


def test_all_links_with_this_address_go_to_the_primary() -> None:
    bench = Bench(*URLS)
    elsewhere = Link(Rotation(Addresses((parse(URLS[0]), parse("tcp://d:1"))), moves=True))
    idle = Link(bench.link.rotation, waits=False)
    bench.links = [elsewhere, idle, bench.link]
    elsewhere.waits = False
    bench.run(1.8)
    bench.made[-1].serves = True
    found = bench.made[-1].asked
    bench.run(0.3)
    assert bench.link.rotation.present.url == found
    assert (bench.link.restarts, idle.restarts, elsewhere.restarts) == (1, 1, 0)
    assert bench.made[-1].stopped


def test_another_topic_of_this_name_is_not_gone_to() -> None:
    """The other address may be that of another broker of a cluster."""
    bench = Bench()
    bench.run(1.3)
    assert bench.made[0].stays, "it is not sent on to the broker of the part"
    bench.made[0].opened = {"uuid": "two"}
    bench.made[0].serves = True
    bench.run(3)
    assert bench.link.restarts == 0
    assert bench.made[0].stopped


def test_links_without_a_known_topic_are_not_watched() -> None:
    """They lead to a supervisor, or have never been up."""
    bench = Bench()
    bench.link.opened = {}
    assert bench.run(10) == FAR_NS
    assert not bench.made


def idle_bench(epoch: int) -> Bench:
    bench = Bench()
    bench.link.waits = False
    bench.link.opened["epoch"] = epoch
    return bench


def test_an_idle_client_asks_now_and_then_and_goes_to_a_later_epoch_only() -> None:
    bench = idle_bench(5)
    bench.run(10 * IDLE_NS / S)
    assert 10 <= len(bench.made) <= 20
    assert all(own.stopped for own in bench.made[:-1])
    for epoch in (4, 5, None):
        count = len(bench.made)
        while len(bench.made) == count:
            bench.run(1)
        bench.made[-1].opened = {"uuid": "one"} | ({} if epoch is None else {"epoch": epoch})
        bench.made[-1].serves = True
        bench.run(3)
        assert bench.link.restarts == 0
    count = len(bench.made)
    while len(bench.made) == count:
        bench.run(1)
    bench.made[-1].opened = {"uuid": "one", "epoch": 6}
    bench.made[-1].serves = True
    bench.run(1)
    assert (bench.link.restarts, bench.link.rotation.present.url) == (1, URLS[1])


def test_an_idle_client_of_a_broker_without_a_bucket_asks_nobody() -> None:
    bench = idle_bench(0)
    assert bench.run(1000) == FAR_NS
    assert not bench.made


def test_a_client_that_waits_does_not_go_back_to_an_earlier_epoch() -> None:
    bench = idle_bench(5)
    bench.link.waits = True
    bench.run(1.3)
    bench.made[0].opened = {"uuid": "one", "epoch": 4}
    bench.made[0].serves = True
    bench.run(0.5)
    assert bench.link.restarts == 0
    while len(bench.made) < 2:
        bench.run(0.2)
    bench.made[1].opened = {"uuid": "one"}
    bench.made[1].serves = True
    bench.run(0.5)
    assert bench.link.restarts == 1, "that broker does not say its epoch yet"


def test_the_try_of_an_idle_client_ends_when_an_answer_is_late() -> None:
    bench = idle_bench(5)
    while not bench.made:
        bench.run(0.1)
    bench.link.waits = True
    bench.run(1.5)
    assert bench.made[0].stopped
    assert len(bench.made) >= 2
