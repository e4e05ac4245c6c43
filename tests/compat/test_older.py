"""Tests that this version opens the data of an older version.

`fixtures/zsq-2026-11-22/` holds a data directory that `older.py` made with the version of that
day, and a list of what must be found in it. No version was released, so clients of that day need
not work with this broker.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker

import zsq
from tests.compat import older

FIXTURES: Final = Path(__file__).parent / "fixtures" / "zsq-2026-11-22"
PROGRAM: Final = Path(older.__file__)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with tarfile.open(FIXTURES / "data.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "data").chmod(0o700)
    one = Broker(tmp_path / "data")
    one.start()
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def expected() -> Any:
    return json.loads((FIXTURES / "expected.json").read_text())


def _row(admin: zsq.Admin, topic: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = [row for row in admin.stats()["topics"] if row["topic_name"] == topic]
    return row


def test_a_data_directory_of_an_older_version_opens_with_all_that_is_in_it(
    broker: Broker, expected: Any
) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Reader("orders", url=broker.ipc) as reader:
        assert reader.bounds()[0] == 0
        stored = [reader.message(offset) for offset in range(older.MESSAGES + 1)]
        assert (
            hashlib.sha256(b"\n".join(one.body for one in stored[:-1])).hexdigest()
            == expected["bodies"]
        )
        assert [(one.key, one.tag) for one in stored[:2]] == [(b"k0", "even"), (b"k1", None)]
        assert stored[-1].headers == {"trace": b"\x00\xff"}
        row = _row(admin, "orders")
        channels = {one["channel_name"]: one for one in row["channels"]}
        assert set(channels) == {"work", "strict", "idle"}
        assert not row["damaged_blocks"]
        assert not row["lost_messages"]
        # A delayed message is in the log once it is due. So the delayed messages and those that
        # became due are together all that were published with a delay.
        came = reader.bounds()[1] - older.MESSAGES - 1
        assert admin.delayed_count("orders")["messages"] + came == expected["delayed"]
        quiet = _row(admin, "quiet")
        assert quiet["channels"][0]["paused"]
        assert quiet["channels"][0]["depth"] == expected["quiet"]
    with zsq.Reader("orders.work.dead", url=broker.ipc) as reader:
        assert reader.bounds() == (0, len(expected["dead"]))
        assert reader.message(0).body == older.bodies()[expected["dead"][0]]


def test_a_channel_of_an_older_version_goes_on_where_it_was(broker: Broker, expected: Any) -> None:
    done = {*expected["finished"], *expected["dead"]}
    with zsq.Consumer("orders", "work", url=broker.ipc, ready=2_500) as consumer:
        found: set[int] = set()
        while len(found) < older.MESSAGES + 1 - len(done):
            message = consumer.receive(20)
            assert message is not None, f"{len(found)} messages came, and then none"
            if message.offset <= older.MESSAGES:
                found.add(message.offset)
            message.finish()
    assert found == set(range(older.MESSAGES + 1)) - done
    with zsq.Consumer("orders", "strict", url=broker.ipc) as consumer:
        message = consumer.receive(20)
        assert message is not None
        assert message.offset >= expected["strict_finished"], (
            "what was finished does not come again"
        )
