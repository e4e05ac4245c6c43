"""Test of a broker that is far away: how many round trips its clients need before they work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker import Broker
from support.tcp_proxy import FarLink

import zsq

pytestmark = pytest.mark.timeout(60)

ONE_WAY_S = 0.1
CONNECTED = 3  # TCP takes one round trip, and ZeroMQ's greeting and handshake take two


@pytest.fixture
def link(shared: Broker) -> Iterator[FarLink]:
    one = FarLink(shared.tcp, ONE_WAY_S)
    yield one
    one.close()


def test_a_first_publish_needs_three_round_trips_after_those_of_its_connection(
    shared: Broker, link: FarLink
) -> None:
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic("t")
    with zsq.Producer(link.url, transport="tcp") as producer:
        producer.publish("t", b"body")
        assert link.round_trips <= CONNECTED + 3, "Open, Hello, and the block"
        before = link.round_trips
        producer.publish("t", b"body")
        assert link.round_trips == before + 1
