"""Tests of a broker from whose data directory somebody took files. Each row of `MISSING` is played,
and is a row of the table in docs/data-directory.md.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.broker import Broker

import zsq

TOPIC: Final = "topics/NUMBER/"
OFFSETS: Final = 1000
DOCS: Final = Path(__file__).resolve().parents[2] / "docs" / "data-directory.md"


class Missing(NamedTuple):
    """Files that are missing at a start, what comes, and what shows it.

    The topic had 1,000 messages, of which its channel had finished the first 10 and deferred one,
    and a delayed message. `depth` is that of the channel afterwards, None without the channel.
    `refusal` is in the error of the start, and `health` in the topic's health.
    """

    paths: tuple[str, ...]
    outcome: str
    depth: int | None = 989
    deferred: int = 1
    delayed: int = 1
    health: str = "OK"
    refusal: str = ""


def _nothing(*paths: str, outcome: str = "Nothing is lost.") -> Missing:
    return Missing(paths, outcome)


def _fails(*paths: str, outcome: str, health: str) -> Missing:
    return Missing(paths, outcome, None, 0, 0, health)


MISSING: Final = (
    Missing(
        ("registry.json",),
        "Nothing is lost, but the broker does not start. `zsq fsck DIR --repair` rebuilds the file "
        "(see below).",
        refusal="has lost its registry.json",
    ),
    _nothing("registry.json.old", outcome="Nothing is lost. `zsq fsck --repair` knows less."),
    _nothing("history", outcome="The history of the statistics."),
    _nothing("audit.log", outcome="The record of who ordered what."),
    _nothing("lock", "reserve", "trash"),
    _fails(
        "topics",
        outcome="Topics fail, and the broker runs on. Nothing is created again, because the "
        "folder may just not be mounted.",
        health="is not mounted",
    ),
    _nothing(f"{TOPIC}topic", f"{TOPIC}lock", f"{TOPIC}*.index"),
    _fails(
        f"{TOPIC}*.chunk",
        outcome="The messages. The topic fails until chunks are restored or its folder is moved "
        "away.",
        health="no readable chunk",
    ),
    _nothing(f"{TOPIC}state.snapshot", f"{TOPIC}state.starts"),
    Missing(
        (f"{TOPIC}state",),
        "Channels go on from the snapshot: no message is lost, some are delivered again.",
        depth=990,
        deferred=0,
        health="was rebuilt as of",
    ),
    Missing(
        (f"{TOPIC}state", f"{TOPIC}state.snapshot"),
        "The channels with their settings and cursors. The first new channel begins with the "
        "oldest message. A block or a batch of Spark that is sent again may be stored twice.",
        depth=None,
        health="all channels are lost",
    ),
    Missing(
        (f"{TOPIC}delayed",),
        "The delayed messages that are not due yet.",
        delayed=0,
        health="is missing, with all delayed messages",
    ),
    Missing(
        (f"{TOPIC}delayed", f"{TOPIC}delayed.made"),
        "The delayed messages that are not due yet. Nothing tells of it.",
        delayed=0,
    ),
    _nothing(f"{TOPIC}delayed/commits"),
    _nothing(f"{TOPIC}delayed.made"),
)
TABLE: Final = "".join(
    f"| {', '.join(f'`{path}`' for path in row.paths)} | {row.outcome} |\n" for row in MISSING
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the data directory of a broker that has stopped."""
    broker = Broker(tmp_path_factory.mktemp("whole") / "data")
    try:
        broker.start()
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many("t", [b"%d" % number for number in range(OFFSETS)])
            producer.publish("t", b"later", delay=3600)
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            for _ in range(10):
                received(consumer).finish(sync=True)
            received(consumer).requeue(delay=3600)
        broker.stop()
        yield broker.data_dir
    finally:
        broker.close()


def received(consumer: zsq.Consumer) -> zsq.Message:
    message = consumer.receive(timeout=20)
    assert message is not None
    return message


def remove(data_dir: Path, pattern: str) -> None:
    paths = list(data_dir.glob(pattern.replace("NUMBER", "*")))
    assert paths, f"{pattern} was not there"
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.mark.parametrize("row", MISSING, ids=[" ".join(row.paths) for row in MISSING])
def test_a_file_is_missing(row: Missing, data_dir: Path, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    shutil.copytree(data_dir, broker.data_dir)
    for path in row.paths:
        remove(broker.data_dir, path)
    try:
        if row.refusal:
            with pytest.raises(AssertionError, match=row.refusal):
                broker.start()
            return
        broker.start()
        with zsq.Admin(broker.ipc) as admin:
            (topic,) = admin.stats()["topics"]
        depths: dict[str, Any] = {channel["channel_name"]: channel for channel in topic["channels"]}
        assert row.health in topic["health"]
        assert topic["delayed_count"] == row.delayed
        if row.depth is None:
            assert not depths
        else:
            assert (depths["c"]["depth"], depths["c"]["deferred_count"]) == (
                row.depth,
                row.deferred,
            )
    finally:
        broker.close()


def test_the_table_is_current() -> None:
    (table,) = re.findall(r"^\| missing \|.*\n\|.*\n((?:\|.*\n)+)", DOCS.read_text(), re.M)
    assert table == TABLE
