"""fsck where chunks are missing, and where a staged part is not the one that its row names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zsq.storage.files import Files
from zsq.storage.fsck import TopicReport, check_topic
from zsq.storage.log_format import CHUNK_HEADER_BYTES, decode_chunk_header, encode_chunk_header
from zsq.storage.store import Identity, StoreOptions

if TYPE_CHECKING:
    from tests.storage.conftest import Desk

IDENTITY = Identity("clicks", "00112233445566778899aabbccddeeff")
TINY = StoreOptions(chunk_bytes=460, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0)


def look(desk: Desk, *, repair: bool = False) -> TopicReport:
    found = check_topic(Files(), desk.directory, IDENTITY, 9_000, repair=repair)
    desk.files.reset()
    return found


@pytest.mark.parametrize(("known", "new"), [(3, 9), (9, 3)])
def test_a_missing_chunk_is_damage_though_another_one_is_known_to_be_missing(tmp_path: Path, desk: Desk, known: int, new: int) -> None:
    folder = tmp_path / "topic"
    folder.mkdir()
    topic = type(desk)(folder, TINY)
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
    ("changes", "says"), [({"uuid": bytes(16)}, "belongs to another topic"), ({"seed": 5}, "another file"), ({}, "bytes are there")]
)
def test_a_part_that_is_not_the_one_its_row_names(desk: Desk, changes: dict[str, Any], says: str) -> None:
    key = desk.stage("a", 1, blocks=3)
    desk.seal(key)
    desk.abandon_cleanly()
    (path,) = desk.path("staging").iterdir()
    data = path.read_bytes()
    header = decode_chunk_header(data)._replace(**changes)
    desk.replace(path, encode_chunk_header(header) + data[CHUNK_HEADER_BYTES : None if changes else -3])
    (finding,) = look(desk).damaged
    assert says in finding.text
