"""Tests of the history of a day and of 30 days, with a broker whose clock is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import wait_for

import zsq
from zsq.apps.testing.local import LocalBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path) as made:
        yield made


def begin_an_hour(broker: LocalBroker) -> None:
    """Let no minute and no hour of the broker's clock end by itself while a test looks."""
    broker.advance(3_600 - broker.now_ns() / 1e9 % 3_600 + 1)


def known(admin: zsq.Admin, name: str, channel: str | None = None, span: str = "1d") -> list[float]:
    values = admin.history("t", channel, span=span, points=720)["series"][name]
    return [one for one in values if one is not None]


def are_reported(admin: zsq.Admin, count: int) -> bool:
    """Return True if the newest pulses have so many messages; the history is made of pulses."""
    overview = admin.overview()
    row, channels = overview["topics"].get("t", ((), {}))
    of_topic = dict(zip(overview["topic_fields"], row, strict=False))
    of_channel = dict(zip(overview["channel_fields"], channels.get("c", ()), strict=False))
    return of_topic.get("backlog") == of_channel.get("depth") == count


def test_the_history_survives_a_restart_and_begins_anew_when_it_is_damaged(
    broker: LocalBroker, tmp_path: Path
) -> None:
    begin_an_hour(broker)
    with zsq.Admin(broker.url, timeout=30) as admin, zsq.Producer(broker.url) as producer:
        admin.create_channel("t", "c")
        producer.publish_many("t", [b"m"] * 7)
        wait_for(lambda: are_reported(admin, 7), what="7 messages in a pulse")
        assert known(admin, "backlog") == []
        broker.advance(60)
        wait_for(lambda: {*known(admin, "backlog")} == {7}, 30, "the first minute")
        assert {*known(admin, "depth", "c")} == {7}
        broker.advance(3_600)
        wait_for(lambda: known(admin, "depth", "c", "30d") == [7], 30, "the first hour")
        broker.stop()
        broker.start()
        assert known(admin, "depth", "c", "30d") == [7]
        assert known(admin, "backlog")[:1] == [7]
        for span, points in (("1y", 5), ("1d", 0)):
            with pytest.raises(zsq.UsageError, match="history needs span"):
                admin.history("t", None, span=span, points=points)
        broker.stop()
        (path,) = tmp_path.rglob("history")
        path.write_bytes(b"damaged")
        broker.start()
        assert known(admin, "depth", "c", "30d") == []
