"""Fixtures of the tests that pass at the in-memory broker and at a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zsq.testing import LocalBroker, MemoryBroker, Namespace


@pytest.fixture(scope="module")
def memory() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


@pytest.fixture(params=["memory", "real"])
def space(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    fixture = "memory" if request.param == "memory" else "zsq_broker"
    broker: MemoryBroker | LocalBroker = request.getfixturevalue(fixture)
    with Namespace(broker) as one:
        yield one


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
