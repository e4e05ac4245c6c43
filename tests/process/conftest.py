"""Fixtures: a broker in real processes, which ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "data")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start one broker for all tests of a file."""
    one = Broker(tmp_path_factory.mktemp("shared") / "data")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(params=["ipc", "tcp"])
def url(shared: Broker, request: pytest.FixtureRequest) -> str:
    return shared.ipc if request.param == "ipc" else shared.tcp
