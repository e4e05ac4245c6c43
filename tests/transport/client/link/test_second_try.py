"""Tests of the second try: when it begins, and which links are left. The clock is simulated, and
its links are fakes.
"""

from __future__ import annotations

from typing import Any, cast

from zsq.transport.client.link.second_try import (
    GRACE_NS,
    LOOK_NS,
    TRY_NS,
    SecondTry,
)
from zsq.transport.client.link.timeouts import FAR_NS, MS
from zsq.transport.client.link.watch import SILENT_NS
from zsq.transport.wire.address import Target, parse
from zsq.transport.wire.addresses import Rotation

S = 1_000 * MS


class Link:
    """A link of the client."""

    def __init__(self, topic: str) -> None:
        self.given = parse("tcp://a:1")
        self.target = Target("topic", topic)
        self.opened = {"uuid": topic}
        self.since_ns = self.restarts = 0

    def silent_since(self, now_ns: int) -> int:
        return self.since_ns

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        self.since_ns = 0
        self.restarts += 1


class Try:
    """The link of a try. The gateway opens the topic at once."""

    def __init__(self, rotation: Rotation, target: Target, peer: SecondTry) -> None:
        self.url, self.target, self.peer = rotation.present.url, target, peer
        self.opened = {"uuid": target.topic}
        self.stays = self.down = self.stopped = self.answers = False
        self.heard_ns = self.beat_ns = 0

    def start(self, now_ns: int) -> None:
        assert not self.target.create, "it creates nothing"

    def stop(self, linger_ms: int = 0) -> None:
        self.stopped = True

    def on_time(self, now_ns: int) -> int:
        self.heard_ns = now_ns
        if not self.beat_ns:
            self.peer.on_up(now_ns)
        elif not self.answers:
            self.heard_ns = self.beat_ns
        return FAR_NS

    def beat(self, now_ns: int) -> None:
        self.beat_ns = now_ns


class Bench:
    def __init__(self, *topics: str) -> None:
        self.links: list[Any] = [Link(topic) for topic in topics]
        self.tries: list[Try] = []
        self.living: set[str] = set()  # the topics that answer
        self.second_try = SecondTry(cast("Any", self._make))
        self.now_ns = 100 * S

    def _make(self, rotation: Rotation, target: Target, peer: Any) -> Try:
        self.tries.append(Try(rotation, target, peer))
        return self.tries[-1]

    def run(self, seconds: float) -> int:
        """Call it as often as it may be called. Return the time of its next call."""
        end_ns = self.now_ns + int(seconds * S)
        next_ns = 0
        while self.now_ns < end_ns:
            for one in self.tries:
                one.answers = one.target.topic in self.living
            next_ns = self.second_try.on_time(self.now_ns, self.links)
            self.now_ns += LOOK_NS
        return next_ns


def test_a_link_that_is_silent_is_left_when_its_target_has_answered_a_second_connection() -> None:
    bench = Bench("t")
    (link,) = bench.links
    link.since_ns = bench.now_ns
    bench.run((SILENT_NS - LOOK_NS) / S)
    assert not bench.tries
    bench.living.add("t")
    bench.run(GRACE_NS / S)
    assert [one.url for one in bench.tries] == [link.given.url]
    assert (bench.tries[0].stopped, link.restarts) == (True, 0), "it may still answer"
    assert bench.run(0.3) == FAR_NS
    assert (link.restarts, len(bench.tries)) == (1, 1)


def test_a_link_that_answers_within_the_grace_is_kept() -> None:
    bench = Bench("t")
    (link,) = bench.links
    link.since_ns = bench.now_ns
    bench.living.add("t")
    bench.run((SILENT_NS + GRACE_NS / 2) / S)
    assert bench.tries[0].stopped
    link.since_ns = 0
    assert bench.run(GRACE_NS / S) == FAR_NS
    assert link.restarts == 0
    link.since_ns = bench.now_ns
    bench.run((SILENT_NS + GRACE_NS / 2) / S)
    assert link.restarts == 0, "the answer of an earlier silence does not count"


def test_a_gateway_whose_topic_does_not_answer_moves_no_link() -> None:
    bench = Bench("t")
    (link,) = bench.links
    link.since_ns = bench.now_ns
    bench.run(SILENT_NS / S + 60)
    assert link.restarts == 0
    assert len(bench.tries) >= 60 * S // (2 * TRY_NS)
    assert sum(not one.stopped for one in bench.tries) <= 1, "one at a time"


def test_another_topic_of_the_same_name_moves_no_link() -> None:
    bench = Bench("t")
    (link,) = bench.links
    link.opened = {"uuid": "of an earlier topic"}
    link.since_ns = bench.now_ns
    bench.living.add("t")
    bench.run(20)
    assert (link.restarts, bench.tries[0].beat_ns) == (0, 0)


def test_a_topic_that_hangs_does_not_keep_the_other_links_in_the_hole() -> None:
    bench = Bench("hangs", "t", "u")
    for link in bench.links:
        link.since_ns = bench.now_ns
    bench.living |= {"t", "u"}
    bench.run(3 * TRY_NS / S)
    assert [link.restarts for link in bench.links] == [0, 1, 1]
