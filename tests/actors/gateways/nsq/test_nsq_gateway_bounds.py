"""Tests of how many consumers one NSQ gateway accepts, and of when it stops reading
from a client.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from zsq.actors.gateways.nsq.connection import Connection as RealConnection
from zsq.actors.gateways.nsq.gateway import NsqGateway, limits_of
from zsq.actors.gateways.nsq.intake import Intake
from zsq.actors.settings.options import NsqOptions
from zsq.transport.nsq.limits import NsqLimits


class Connection:
    def __init__(self, place: tuple[str, str] | None) -> None:
        self.subscription = (
            None if place is None else SimpleNamespace(topic=place[0], channel=place[1])
        )


def gateway_with(limits: NsqLimits, *consumers: tuple[str, str] | None) -> NsqGateway:
    made = NsqGateway(1, "nsq gateway", cast("Any", None))
    made.limits = limits
    made.connections = cast("Any", dict.fromkeys(map(Connection, consumers)))
    return made


def loop() -> Any:
    """Return a loop that calls nothing."""
    return SimpleNamespace(call_soon=lambda _: None, call_later=lambda *_: None)


def test_a_consumer_over_the_limit_of_its_channel_is_refused() -> None:
    limits = NsqLimits(max_channel_consumers=1)
    assert gateway_with(limits, ("t", "other"), None).refuses("t", "c") == ""
    assert (
        gateway_with(limits, ("t", "c")).refuses("t", "c") == "consumers for t:c exceeds limit of 1"
    )


def test_a_client_that_reads_no_answers_is_no_longer_read_from() -> None:
    """If the gateway read on, each publish would add one more answer that the client does not
    read.
    """
    said: list[str] = []
    transport = SimpleNamespace(
        pause_reading=lambda: said.append("pause"),
        resume_reading=lambda: said.append("resume"),
        write=lambda data: None,
    )
    publishing = SimpleNamespace(full=False)
    soon: list[Callable[[], object]] = []
    turns: Any = SimpleNamespace(call_soon=soon.append, call_later=lambda *_: None)
    gateway = SimpleNamespace(
        loop=None,
        limits=NsqLimits(),
        gatherer=publishing,
        paused={},
        intake=Intake(turns, {}),
        publish=lambda topic, bodies, defer_ms, answer: answer(""),
    )
    connection = RealConnection(cast("Any", gateway))
    connection._transport = cast("Any", transport)
    connection.data_received(b"  V2")
    connection.pause_writing()
    assert said == [], "its FINs free what it holds"
    while not said or said[-1] == "resume":  # each publish is answered
        connection.data_received(1_000 * b"PUB t\n\0\0\0\1x")
        while soon:
            soon.pop(0)()
    connection.resume_writing()
    while soon:
        soon.pop(0)()
    assert said[-2:] == ["pause", "resume"]


def test_no_client_is_read_from_while_too_many_publishes_are_unanswered() -> None:
    said: list[str] = []
    transport = SimpleNamespace(
        pause_reading=lambda: said.append("pause"), resume_reading=lambda: said.append("resume")
    )
    publishing = SimpleNamespace(full=True)
    gateway = SimpleNamespace(
        loop=None, limits=NsqLimits(), gatherer=publishing, paused={}, intake=Intake(loop(), {})
    )
    connection = RealConnection(cast("Any", gateway))
    connection._transport = cast("Any", transport)
    connection.data_received(b"  V2")
    assert said == ["pause"]
    assert list(gateway.paused) == [connection], "so that it is looked at again with the answers"
    publishing.full = False
    connection.look()
    assert said == ["pause", "resume"]
    assert not gateway.paused


def test_the_largest_message_fits_into_an_mpub() -> None:
    told, large = NsqOptions(), NsqLimits().max_body_size
    assert limits_of(told, snappy=False, max_msg_size=1_000).max_body_size == large
    assert limits_of(told, snappy=False, max_msg_size=large).max_body_size == large + 8
