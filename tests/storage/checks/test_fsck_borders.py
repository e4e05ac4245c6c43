"""Tests of fsck with missing chunks, and with a staged part that is not the one that its row
names.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zsq.storage.checks.fsck import TopicReport, check_topic
from zsq.storage.directory.store import StoreOptions, TopicIdentity, create_store
from zsq.storage.files import Files
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, decode_chunk_header, encode_chunk_header
from zsq.storage.state.state import StateBatch

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
TINY = StoreOptions(chunk_bytes=460, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0)


def look(harness: StorageHarness, *, repair: bool = False) -> TopicReport:
    found = check_topic(Files(), harness.directory, IDENTITY, 9_000, repair=repair)
    harness.files.reset()
    return found


@pytest.mark.parametrize(("known", "new"), [(3, 9), (9, 3)])
def test_a_missing_chunk_is_damage_though_another_one_is_known_to_be_missing(
    tmp_path: Path, harness: StorageHarness, known: int, new: int
) -> None:
    folder = tmp_path / "topic"
    folder.mkdir()
    topic = type(harness)(folder, TINY)
    topic.open()
    for _ in range(14):
        topic.publish(count=1, size=1)
        topic.sync()
    assert topic.log.chunks == (0, 3, 6, 9, 12)
    topic.abandon_cleanly()
    topic.chunk_path(known).unlink()
    look(topic, repair=True)
    assert look(topic).damaged == []
    topic.chunk_path(new).unlink()
    (finding,) = look(topic).damaged
    assert (finding.first_offset, finding.count) == (new, 3)
    look(topic, repair=True)
    assert look(topic).damaged == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"uuid": bytes(16)}, "belongs to another topic"),
        ({"seed": 5}, "changed or replaced after it was sealed"),
        ({}, "it has only"),
    ],
)
def test_a_part_that_is_not_the_one_its_row_names(
    harness: StorageHarness, changes: dict[str, Any], says: str
) -> None:
    key = harness.stage("a", 1, blocks=3)
    harness.seal(key)
    harness.abandon_cleanly()
    (path,) = harness.path("staging").iterdir()
    data = path.read_bytes()
    header = decode_chunk_header(data)._replace(**changes)
    harness.replace(
        path, encode_chunk_header(header) + data[CHUNK_HEADER_BYTES : None if changes else -3]
    )
    (finding,) = look(harness).damaged
    assert says in finding.text


def test_a_state_store_of_another_topic_is_told(tmp_path: Path, harness: StorageHarness) -> None:
    harness.publish()
    harness.sync()
    harness.abandon_cleanly()
    other = TopicIdentity("other", "ff" * 16)
    create_store(Files(), f"{tmp_path}/other", other, TINY)
    for path in harness.path("state").iterdir():
        path.unlink()
    shutil.copy(tmp_path / "other/state/data.mdb", harness.path("state/data.mdb"))
    harness.path("state.snapshot").unlink(missing_ok=True)
    assert any(
        finding.text == f"it belongs to another topic (uuid {'ff' * 16})"
        for finding in look(harness).damaged
    )


@pytest.fixture
def gone(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a topic with the chunks 0 and 6. Chunk 3 is missing, and its hole is recorded. The chunk
    is still in the folder under another name.
    """
    folder = tmp_path / "gone"
    folder.mkdir()
    made = type(harness)(folder, TINY)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    made.abandon_cleanly()
    made.chunk_path(3).rename(made.chunk_path(3).with_suffix(".away"))
    look(made, repair=True)
    assert [finding.level for finding in look(made).findings] == ["note"]
    return made


def readable_again(harness: StorageHarness) -> int:
    return sum("can be read again" in finding.text for finding in look(harness).findings)


def test_a_chunk_that_was_missing_is_reported_when_it_is_back(gone: StorageHarness) -> None:
    path = gone.chunk_path(3)
    path.with_suffix(".away").rename(path)
    for base in (0, 6):
        at = gone.chunk_path(base).read_bytes().index(b"ZSQD")
        gone.flip(gone.chunk_path(base), (at + 70) * 8)
    assert readable_again(gone) == 1


def test_a_missing_chunk_below_the_logs_start_does_not_count_as_back(gone: StorageHarness) -> None:
    gone.chunk_path(0).unlink()
    gone.files.reset()
    store = gone.open()
    store.state.commit(StateBatch(start=6))
    gone.abandon_cleanly()
    assert readable_again(gone) == 0
