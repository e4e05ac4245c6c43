"""What all tests of the edges need."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _signals_count() -> Iterator[None]:
    """Let programs notice signals that this process ignores, as in the background of a shell.

    A program inherits that a signal is ignored, and does not inherit a handler.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        if signal.getsignal(number) == signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.default_int_handler)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
