"""Tests of when a full disk is reported: once at the beginning, every minute while it lasts, and
once at its end.
"""

from __future__ import annotations

from zsq.actors.supervisor.disk_watch import AGAIN_S, OVER_S, DiskState, RefusedCount

S = 1_000_000_000


def test_a_full_disk_is_reported_once_then_every_minute_then_at_its_end() -> None:
    state = DiskState()
    told = [
        state.see("" if second < 5 or second > 130 else "full", second * S, second * S)
        for second in range(140)
    ]
    assert {second: one for second, one in enumerate(told) if one} == {
        5: "began", 5 + int(AGAIN_S): "lasts", 5 + 2 * int(AGAIN_S): "lasts", 131 + int(OVER_S): "over",
    }  # fmt: skip
    assert state.text == ""


def test_a_disk_that_is_full_every_other_second_is_reported_once() -> None:
    state = DiskState()
    told = [state.see("full" if second % 2 else "", second * S, second * S) for second in range(50)]
    assert [one for one in told if one] == ["began"]
    assert state.text == "full"


def test_the_text_about_the_disk_is_the_latest_one() -> None:
    state = DiskState()
    state.see("2 MiB free", S, S)
    state.see("1 MiB free", 2 * S, 2 * S)
    assert state.text == "1 MiB free"
    assert state.began_wall_ns == S


def test_refused_publishes_stay_counted_when_their_topic_is_deleted() -> None:
    refused = RefusedCount()
    refused.see({"big": 20, "other": 1})
    refused.see({"big": 30, "other": 1})
    refused.see({"other": 1})
    assert refused.total == 31
    refused.see({"other": 3, "new": 2})
    assert refused.total == 35


def test_refused_publishes_stay_counted_when_a_topic_restarts() -> None:
    refused = RefusedCount()
    refused.see({"t": 30})
    refused.see({"t": 0})
    refused.see({"t": 4})
    assert refused.total == 34
