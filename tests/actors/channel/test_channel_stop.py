"""Test of how a channel stops: with its last commit, or without it if storage does not answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from zsq.actors.channel.channel import ChannelActor
from zsq.actors.channel.commit_queue import CommitQueue
from zsq.actors.channel.dead_letter_sender import DeadLetterSender
from zsq.actors.settings import options

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness


def test_a_last_commit_that_does_not_come_is_not_waited_for(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage does not answer, because the disk is full. If the channel waited longer, the
    supervisor would kill it and report that it hangs.
    """
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    channel = ChannelActor(7, "channel t/c", cast("Any", None))
    channel.core = harness.channel
    channel.commits = CommitQueue("c")
    channel.dead_letters = DeadLetterSender(channel, "t", "", "c", "")
    channel.commits.out, channel.commits.now, channel._stop_ns = 3, False, 0
    assert not channel.on_stop()
    now[0] += int(options.STOP_COMMIT_S * 1e9) - 1
    assert not channel.on_stop()
    now[0] += 1
    assert channel.on_stop()
    assert "stops without its last commit" in caplog.text
    assert options.STOP_COMMIT_S < options.STOP_TIMEOUT_S
    channel.commits.out, channel._stop_ns = 0, 0
    assert channel.on_stop(), "nothing is out"
