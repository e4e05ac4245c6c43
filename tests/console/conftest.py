"""Fixtures for the console's tests: a browser and a broker for each module, and windows that must
have recorded no errors at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.broker import Broker
from support.browser import Window, chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(
        tmp_path_factory.mktemp("console") / "data",
        "--alarm-depth",
        "40",
        "--alarm-hold",
        "0.5s",
        http=True,
    ) as broker:
        yield broker


@pytest.fixture
def window_of(browser: Any) -> Iterator[Callable[..., Window]]:
    """Return a function that opens windows. Each window must have recorded no errors when the test
    is over.
    """
    opened: list[Window] = []

    def make(broker: Broker, **context: Any) -> Window:
        opened.append(Window(browser, f"http://127.0.0.1:{broker.http}", **context))
        return opened[-1]

    yield make
    for window in opened:
        window.close()
    assert [window.complaints for window in opened if window.complaints] == []


@pytest.fixture
def window(window_of: Callable[..., Window], broker: Broker) -> Window:
    return window_of(broker)
