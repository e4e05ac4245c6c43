"""The pytest plugin: fixtures with a broker for tests. Pytest loads it by its entry point.

It imports nothing of ZSQ until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .local import LocalBroker
    from .memory_broker import MemoryBroker
    from .namespace import Namespace


@pytest.fixture(scope="session")
def zsq_serve_options() -> tuple[str, ...]:
    """Return more options of `zsq serve` for `zsq_broker`. Override it in a conftest.py."""
    return ()


@pytest.fixture(scope="session")
def zsq_broker(
    tmp_path_factory: pytest.TempPathFactory, zsq_serve_options: tuple[str, ...]
) -> Iterator[LocalBroker]:
    """Start a real broker on a temporary directory. It ends with the session.

    With pytest-xdist, each worker has its own broker.
    """
    from .local import LocalBroker

    with LocalBroker(tmp_path_factory.mktemp("zsq"), *zsq_serve_options) as broker:
        yield broker


@pytest.fixture
def zsq_namespace(zsq_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """Return topics for one test at `zsq_broker`, see `zsq.testing.Namespace`.

    During the test, `ZSQ_URL` is the address of this broker, so clients without a URL use it.
    """
    from .namespace import Namespace

    monkeypatch.setenv("ZSQ_URL", zsq_broker.url)
    monkeypatch.delenv("ZSQ_KEY_FILE", raising=False)
    with Namespace(zsq_broker) as namespace:
        yield namespace


@pytest.fixture
def zsq_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    """Start an in-memory broker for one test, see `zsq.testing.MemoryBroker`.

    During the test, `ZSQ_URL` is the address of this broker, so clients without a URL use it.
    """
    from .memory_broker import MemoryBroker

    with MemoryBroker() as broker:
        monkeypatch.setenv("ZSQ_URL", broker.url)
        monkeypatch.delenv("ZSQ_KEY_FILE", raising=False)
        yield broker
