"""Tests of complaints: one line in a while, with the number of the others."""

from __future__ import annotations

import pytest

from zsq.actors.security.complaints import COMPLAINT_S, Complaints


def test_warnings_about_clients_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    complaints = Complaints(clock=lambda: now_s)
    for number in range(1_000):
        complaints.add("%s is bad", number)
    assert [record.getMessage() for record in caplog.records] == ["0 is bad"]
    now_s += COMPLAINT_S
    complaints.add("%s is bad", "the last")
    assert caplog.records[-1].getMessage() == "the last is bad (999 more warnings were not logged)"
    assert complaints.count == 1_001
