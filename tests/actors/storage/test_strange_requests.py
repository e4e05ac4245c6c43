"""Tests of invalid requests to storage, which no actor of the broker sends. Each is refused, and
storage continues as if it had not arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.storage.test_channels_channel import ChannelsHarness
from zsq.transport.errors import UsageError
from zsq.transport.wire import protocol as p


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ChannelsHarness]:
    one = ChannelsHarness(str(tmp_path / "t"))
    yield one
    one.bench.store.close()


BEYOND = 1_001  # the log ends at 1,000
NUMBERS = {"next": 5}


@pytest.mark.parametrize("channel", ["c", "c#ephemeral"])
@pytest.mark.parametrize(
    ("row", "put", "gone"),
    [
        # No commit of the topic is made before the log has reached this offset.
        ({"next": BEYOND}, (), ()),
        ({"next": "5"}, (), ()),
        ({"next": -1}, (), ()),
        ({"next": True}, (), ()),
        ({"next": 5, "paused": 1}, (), ()),
        ({"next": 5, "counters": {"a": 1 << 64 - 1}}, (), ()),
        ({"next": 5, "counters": ()}, (), ()),
        ({"next": 5, "settings": {"tags": 5}}, (), ()),
        (NUMBERS, ((1, 1, 1),), ()),
        (NUMBERS, ((1, 1, 1, 0, 0),), ()),
        (NUMBERS, ((1, 1, 1, "0"),), ()),
        (NUMBERS, ((1, 1, 1, 1 << 63),), ()),
        (NUMBERS, ((-1, 1, 1, 0),), ()),
        (NUMBERS, ((999, 2, 1, 0),), ()),
        (NUMBERS, (5,), ()),
        (NUMBERS, ((),), ()),
        (NUMBERS, ((), ()), ()),
        (NUMBERS, (), ("a",)),
        (NUMBERS, (), (-1,)),
    ],
)
def test_rows_that_cannot_be_written_or_read_back_are_refused(
    harness: ChannelsHarness,
    channel: str,
    row: dict[str, Any],
    put: tuple[Any, ...],
    gone: tuple[Any, ...],
) -> None:
    """Such rows once ended storage, some of them at each start, or blocked all its commits."""
    harness.open(channel=channel)
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT"):
        harness.say(p.Save(2, channel, row, put, gone, False, False))
    harness.open(channel=channel)
    harness.say(p.Save(3, channel, {"next": 7}, ((5, 1, 1, 0),), (), False, False))
    assert harness.commit() == [p.Done(3, {})]


@pytest.mark.parametrize("name", ["a\0b", "x" * 65, "", "x" * 2_000])
def test_a_channel_with_an_illegal_name_is_refused(harness: ChannelsHarness, name: str) -> None:
    """A key of the state store has at most 511 bytes, and the name in it ends at the first zero
    byte.
    """
    with pytest.raises(UsageError, match="E_BAD_NAME"):
        harness.say(p.OpenChannel(1, name))
    harness.open()


@pytest.mark.parametrize("until_ns", [-1, 1 << 63, (1 << 64) - 1])
def test_a_request_for_due_rows_with_an_invalid_time_is_refused(
    harness: ChannelsHarness, until_ns: int
) -> None:
    harness.open()
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT"):
        harness.say(p.Due(2, "c", until_ns, 10))
