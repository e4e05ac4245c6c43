"""Test that storage refuses a channel's whole commit if it refuses one page of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.storage.test_channels_channel import ChannelsHarness
from zsq.transport.errors import Refused, UsageError
from zsq.transport.wire import protocol as p


def test_the_whole_commit_of_a_refused_page_is_refused(tmp_path: Path) -> None:
    """The following pages are already on their way. Without the deferred and unfinished messages of
    the refused page, they would move the channel past messages that it has not finished.
    """
    harness = ChannelsHarness(str(tmp_path / "t"))
    harness.open()
    harness.say(p.Save(9, "c", {"next": 800}, ((5, 1, 1, 0),), (), False, True))
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT"):
        harness.say(p.Save(9, "c", {"next": 800}, ((999, 2, 1, 0),), (), False, True))
    with pytest.raises(Refused, match="E_CLOSING"):
        harness.say(p.Save(9, "c", {"next": 800}, ((700, 1, 1, 0),), (), False, False))
    harness.commit()
    assert harness.open()["row"]["next"] < 800
    harness.bench.store.close()
