"""A page of a channel's commit that storage refuses takes the whole commit with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.test_channel_desk import Desk
from zsq.transport import protocol as p
from zsq.transport.errors import Refused, UsageError


def test_a_refused_page_takes_its_whole_commit_with_it(tmp_path: Path) -> None:
    """Those behind it are on their way already: without this one's holes they would move the channel past what it has not finished."""
    desk = Desk(str(tmp_path / "t"))
    desk.open()
    desk.say(p.Save(9, "c", {"next": 800}, ((5, 1, 1, 0),), (), False, True))
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT"):
        desk.say(p.Save(9, "c", {"next": 800}, ((999, 2, 1, 0),), (), False, True))
    with pytest.raises(Refused, match="E_CLOSING"):
        desk.say(p.Save(9, "c", {"next": 800}, ((700, 1, 1, 0),), (), False, False))
    desk.commit()
    assert desk.open()["row"]["next"] < 800
    desk.bench.store.close()
