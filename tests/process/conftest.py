"""Fixtures: brokers in real processes, for one test or for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.transport.errors import E_CLOSING

pytestmark = pytest.mark.slow


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker for this test, which may stop it, kill its processes, and read its files.

    Each topic and channel has its own process, so that a kill ends only one of them. The tests of
    shared processes are in test_shared_hosts.py.
    """
    with Broker(tmp_path / "data", "--own-process", "always") as broker:
        yield broker


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start one broker for all tests of a file. Each test uses its own topics."""
    with Broker(tmp_path_factory.mktemp("shared") / "data") as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    """Return the broker that all tests of a file share, without the topics of other tests. The
    offsets of a topic go on behind those of a topic with the same name in a test before.
    """
    yield shared
    with zsq.Admin(shared.ipc) as admin:
        for topic in admin.stats()["topics"]:
            # An ephemeral topic ends by itself.
            try:
                admin.delete_topic(topic["topic_name"], force=True)
            except zsq.NotFound:
                pass
            except zsq.Refused as error:
                if error.code != E_CLOSING:
                    raise
        wait_for(lambda: not admin.stats()["topics"], 20, "the end of the last ephemeral topic")


@pytest.fixture(params=["ipc", "tcp"])
def url(shared: Broker, request: pytest.FixtureRequest) -> str:
    return shared.ipc if request.param == "ipc" else shared.tcp
