"""Test of seeks: which orders are refused."""

from __future__ import annotations

import time

import pytest

from zsq.actors.supervisor.commands import moving
from zsq.transport.errors import UsageError
from zsq.transport.wire.admin_requests import SeekRequest


def test_a_seek_to_a_time_ahead_of_the_clock_is_refused_unless_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a seek would skip all waiting messages."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    latest_ns = 1_000 + int(moving.CLOCKS_DIFFER_S * 1e9)

    def seek(time_ns: int, *, clamp: bool = False) -> None:
        moving.check_time(SeekRequest("t", "c", time_ns=time_ns, clamp=clamp))

    seek(latest_ns)
    seek(2 * latest_ns, clamp=True)
    with pytest.raises(UsageError, match="ahead of the broker's clock"):
        seek(latest_ns + 1_000_000_000)
