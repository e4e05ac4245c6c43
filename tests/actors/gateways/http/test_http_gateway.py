"""Tests of the HTTP gateway's own parts: the addresses where it listens, the addresses that it
shows to others, and its publisher.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from zsq.actors.gateways.http.api.publish import GatheredPublisher
from zsq.actors.gateways.http.gateway import (
    first_tcp_port,
    http_limits,
    make_node,
    open_listeners,
)
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.shared.gatherer import Gatherer
from zsq.actors.runtime.actor import StartFailed
from zsq.actors.settings.options import NsqOptions
from zsq.transport.errors import E_CLOSING, E_TOPIC_FULL, Refused


def test_an_address_that_cannot_be_listened_on_is_reported() -> None:
    [first] = open_listeners("127.0.0.1:0")
    with first:
        port = first.getsockname()[1]
        with pytest.raises(
            StartFailed, match=rf"cannot listen on http://127.0.0.1:{port}: Address already in use"
        ):
            open_listeners(f"127.0.0.1:{port}")
    with pytest.raises(StartFailed, match=r"cannot listen on http://no\.invalid:4151: "):
        open_listeners("no.invalid:4151")


def test_the_node_shows_the_given_addresses_or_its_hostname() -> None:
    nsq = NsqOptions(listen=("unix:/run/nsq", "127.0.0.1:4150"))
    node = make_node(nsq, "127.0.0.1", 4151)
    assert (node.broadcast_address, node.tcp_port, node.http_port) == (
        "127.0.0.1",
        4150,
        4151,
    )
    assert (
        make_node(nsq, "", 1).broadcast_address
        == make_node(nsq, "0.0.0.0", 1).broadcast_address
        == socket.gethostname()
    )
    assert make_node(nsq, "::", 1).broadcast_address == socket.gethostname()
    assert make_node(nsq, "queue.example", 1).broadcast_address == "queue.example"
    told = NsqOptions(broadcast_address="b", broadcast_tcp_port=5, broadcast_http_port=6)
    assert (make_node(told, "", 1).http_port, make_node(told, "", 1).tcp_port) == (6, 5)
    assert make_node(None, "", 1).tcp_port == -1
    assert first_tcp_port(("unix:/x:4150",)) == -1


def test_limits_agree_with_what_a_block_holds() -> None:
    with pytest.raises(ValueError, match=r"must be at most \d+, which fills a block, not \d+"):
        HttpLimits(max_msg_size=8 << 20)


class FakeGatherer:
    """A gatherer for tests. `finish` waits for `may_finish`, if that is given."""

    def __init__(self, may_finish: asyncio.Event | None = None) -> None:
        self.may_finish = may_finish
        self.stopping = False
        self.given: list[tuple[str, list[bytes], int]] = []
        self.answers: list[Callable[[str], None]] = []
        self.finished = asyncio.Event()

    def publish(
        self,
        topic: str,
        bodies: Sequence[bytes],
        delay_ms: int,
        answer: Callable[[str], None],
        *_: Any,
    ) -> None:
        self.given.append((topic, list(bodies), delay_ms))
        self.answers.append(answer)

    def stop_waiting(self) -> None:
        self.stopping = True

    async def finish(self, timeout_s: float) -> None:
        if self.may_finish is not None:
            await self.may_finish.wait()
        for answer in self.answers:
            answer("E_CLOSING the end")
        self.finished.set()

    def statistics(self) -> dict[str, Any]:
        return {}


def test_a_publish_ends_with_its_answer_or_with_the_reason_of_its_failure() -> None:
    async def run() -> None:
        gatherer = FakeGatherer()
        publisher = GatheredPublisher(lambda: cast("Gatherer", gatherer))
        first = asyncio.ensure_future(publisher.publish("t", [b"a"], 5))
        second = asyncio.ensure_future(publisher.publish("t", [b"b"], 0))
        left = asyncio.ensure_future(publisher.publish("t", [b"c"], 0))
        await asyncio.wait((first, left), timeout=0.01)
        assert gatherer.given == [("t", [b"a"], 5), ("t", [b"b"], 0), ("t", [b"c"], 0)]
        assert not first.done()
        left.cancel()
        gatherer.answers[0]("")
        gatherer.answers[1]("E_TOPIC_FULL no room: try later")
        await first
        with pytest.raises(Refused) as refused:
            await second
        assert (refused.value.code, refused.value.text) == (E_TOPIC_FULL, "no room: try later")
        await asyncio.wait((left,))
        gatherer.answers[2]("")  # no request waits for this answer
        await publisher.close()
        assert gatherer.finished.is_set()

    asyncio.run(run())


def test_lanes_to_many_topics_are_given_up() -> None:
    async def run() -> None:
        made: list[FakeGatherer] = []

        def make() -> Gatherer:
            made.append(FakeGatherer())
            return cast("Gatherer", made[-1])

        publisher = GatheredPublisher(make, lanes_max=3)
        waiting = [
            asyncio.ensure_future(publisher.publish(f"t{number % 7}", [b""], 0))
            for number in range(14)
        ]
        await asyncio.wait(waiting, timeout=0.01)
        assert [len({topic for topic, _, _ in one.given}) for one in made] == [3, 3, 3, 3, 2]
        assert [one.finished.is_set() for one in made] == [True] * 4 + [False]
        for answer in made[-1].answers:
            answer("")
        await publisher.close()
        await asyncio.wait(waiting)
        assert [task.exception() is None for task in waiting[-2:]] == [True, True]
        for task in waiting:
            task.exception()

    asyncio.run(run())


def test_all_gatherers_hear_that_the_broker_stops() -> None:
    """This includes gatherers that were retired, the current one, and one that is created for a
    late request.
    """

    async def run() -> None:
        made: list[FakeGatherer] = []
        may_finish = asyncio.Event()

        def make() -> Gatherer:
            made.append(FakeGatherer(may_finish))
            return cast("Gatherer", made[-1])

        publisher = GatheredPublisher(make, lanes_max=1)
        waiting = [
            asyncio.ensure_future(publisher.publish(f"t{number}", [b""], 0)) for number in range(2)
        ]
        await asyncio.wait(waiting, timeout=0.01)
        assert [one.stopping for one in made] == [False, False]
        publisher.stop_waiting()
        assert [one.stopping for one in made] == [True, True]
        waiting.append(asyncio.ensure_future(publisher.publish("t2", [b""], 0)))
        await asyncio.wait(waiting, timeout=0.01)
        assert [one.stopping for one in made] == [True] * 3
        may_finish.set()
        await publisher.close()
        await asyncio.wait(waiting)
        assert [cast("Refused", task.exception()).code for task in waiting] == [E_CLOSING] * 3

    asyncio.run(run())


def test_the_largest_message_fits_into_a_counted_body() -> None:
    told = NsqOptions()
    assert http_limits(told, 1_000).max_body_size == HttpLimits().max_body_size
    large = HttpLimits().max_body_size
    assert http_limits(told, large).max_body_size == large + 8
