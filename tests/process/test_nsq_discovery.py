"""Tests of a node of an NSQ cluster: topics and channels that are created or removed here are
registered or unregistered with nsqlookupd at once.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, kill, wait_for
from support.lookupd_thread import LookupdThread
from support.nsq_socket import NsqSocket

import zsq

SOON_S = 0.2
"""Without an event, the names are requested only once a second, so a change is noticed half a
second late on average.
"""


@pytest.fixture
def lookupd() -> Iterator[LookupdThread]:
    with LookupdThread() as one:
        yield one


@pytest.fixture
def broker(tmp_path: Path, lookupd: LookupdThread) -> Iterator[Broker]:
    with Broker(
        tmp_path / "data", "--nsq-lookupd-tcp-address", lookupd.tcp, nsq=True, http=True
    ) as broker:
        yield broker


def took_s(lookupd: LookupdThread, topic: str, channel: str = "", *, there: bool = True) -> float:
    """Return the seconds until nsqlookupd knows the name, or no longer knows it."""
    begun = time.monotonic()
    wait_for(
        lambda: ((topic, channel) in lookupd.here()) is there,
        30,
        f"the registration of {topic} {channel}",
    )
    return time.monotonic() - begun


def test_topics_and_channels_are_registered_and_unregistered_at_once(
    broker: Broker, lookupd: LookupdThread
) -> None:
    took: dict[str, list[float]] = {"topic": [], "channel": [], "no channel": [], "no topic": []}
    with zsq.Admin(broker.ipc) as admin:
        for number in range(7):
            topic = f"t{number}"
            admin.create_topic(topic)
            took["topic"].append(took_s(lookupd, topic))
            admin.create_channel(topic, "c")
            took["channel"].append(took_s(lookupd, topic, "c"))
            admin.delete_channel(topic, "c")
            took["no channel"].append(took_s(lookupd, topic, "c", there=False))
            admin.delete_topic(topic)
            took["no topic"].append(took_s(lookupd, topic, there=False))
    assert all(statistics.median(times) < SOON_S for times in took.values()), took


def test_topics_that_nsq_clients_create_are_registered_at_once(
    broker: Broker, lookupd: LookupdThread
) -> None:
    took = []
    for number in range(7):
        with NsqSocket(broker.nsq) as client:
            assert client.ask(f"SUB by-sub-{number} c") == "OK"
            took.append(took_s(lookupd, f"by-sub-{number}", "c"))
    assert statistics.median(took) < SOON_S, took


def test_the_nsqlookupds_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    """One that stays keeps its connection (nsqio/nsq#601)."""
    broker = Broker(tmp_path / "data", nsq=True, http=True)
    with LookupdThread() as first, LookupdThread() as second:

        def put(*addresses: str) -> httpx.Response:
            url = f"http://127.0.0.1:{broker.http}/config/nsqlookupd_tcp_addresses"
            return httpx.put(url, content=json.dumps(addresses), timeout=30)

        try:
            broker.start()
            with NsqSocket(broker.nsq) as client:
                assert client.ask("PUB t", b"x") == "OK"
            assert put(first.tcp).json() == [first.tcp]
            took_s(first, "t")
            assert put(first.tcp, second.tcp).json() == [first.tcp, second.tcp]
            took_s(second, "t")
            assert first.connections == 1
            assert put("127.0.0.1:99999").status_code == 400, "and nothing has changed"
            assert put(second.tcp).status_code == 200
            took_s(first, "t", there=False)
            kill(broker.pids("nsq_gateway")[0])
            wait_for(lambda: second.connections == 2, 20, "the next gateway, which knows it too")
            took_s(second, "t")
            assert put().json() == []
            took_s(second, "t", there=False)
        finally:
            broker.close()
