"""Tests of fsck: it finds every kind of damage and repairs what can be repaired. A second check
finds nothing, and no byte is lost.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zsq.storage.checks.fsck import DAMAGE, Finding, TopicReport, check_topic
from zsq.storage.directory.store import StoreOptions, TopicIdentity
from zsq.storage.errors import Locked
from zsq.storage.files import Files
from zsq.storage.log.damage import bad_heads
from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    IDENTITY_NAME,
    chunk_name,
    decode_chunk_header,
    decode_disk_header,
    index_name,
)
from zsq.transport.block.block import HEADER_BYTES, encode_header

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
TINY = StoreOptions(chunk_bytes=460, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0)
NOW_NS = 9_000


@pytest.fixture
def topic(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic: sealed chunks 0 and 3 with three blocks each, and a last one with
    two.
    """
    folder = tmp_path / "topic"
    folder.mkdir()
    made = type(harness)(folder, TINY)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    assert made.log.chunks == (0, 3, 6)
    made.abandon_cleanly()
    return made


def look(harness: StorageHarness, *, repair: bool = False) -> TopicReport:
    assert harness.store is None
    found = check_topic(Files(), harness.directory, IDENTITY, NOW_NS, repair=repair)
    harness.files.reset()
    return found


def damage(report: TopicReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.level == DAMAGE]


def places(harness: StorageHarness, base: int) -> list[int]:
    data = harness.chunk_path(base).read_bytes()
    return [at for at in range(0, len(data), 8) if data[at : at + 4] == b"ZSQD"]


def test_a_clean_topic_has_no_findings_and_is_not_changed(topic: StorageHarness) -> None:
    before = {
        path: path.read_bytes()
        for path in Path(topic.directory).iterdir()
        if path.is_file() and path.name != "lock"
    }
    report = look(topic)
    assert report.findings == []
    assert (report.chunks, report.blocks, report.messages, report.start, report.end) == (
        3,
        8,
        8,
        0,
        8,
    )
    assert report.bytes == sum(topic.chunk_path(base).stat().st_size for base in (0, 3, 6))
    assert look(topic, repair=True).findings == []
    assert before == {
        path: path.read_bytes()
        for path in Path(topic.directory).iterdir()
        if path.is_file() and path.name != "lock"
    }


def test_an_open_topic_is_refused(topic: StorageHarness) -> None:
    topic.open()
    with pytest.raises(Locked):
        check_topic(Files(), topic.directory, IDENTITY, NOW_NS)


@pytest.mark.parametrize("base", [0, 6])
def test_each_byte_of_a_chunk_is_checked(
    topic: StorageHarness, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This check starts a process each time.
    monkeypatch.setattr("zsq.storage.checks.fsck.check_environment", lambda path: [])
    path = topic.chunk_path(base)
    good = path.read_bytes()
    for byte in range(len(good)):
        topic.replace(path, topic.flipped(good, byte * 8 + byte % 8))
        assert damage(look(topic)), f"byte {byte}"
    topic.replace(path, good)
    assert not look(topic).findings


def flip_block(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), (places(harness, 3)[1] + 70) * 8)


def flip_block_header(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), (places(harness, 3)[1] + 3) * 8)


def flip_last_block(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), (places(harness, 3)[2] + 70) * 8)


def flip_in_the_last_chunk(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(6), (places(harness, 6)[0] + 70) * 8)


def flip_header_copy(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), 20 * 8)


def flip_second_header_copy(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), 84 * 8)


def flip_footer(harness: StorageHarness) -> None:
    harness.flip(harness.chunk_path(3), (harness.chunk_path(3).stat().st_size - 20) * 8)


def cut_footer(harness: StorageHarness) -> None:
    harness.replace(harness.chunk_path(3), harness.chunk_path(3).read_bytes()[:-FOOTER_BYTES])


def cut_last_block(harness: StorageHarness) -> None:
    harness.replace(
        harness.chunk_path(3), harness.chunk_path(3).read_bytes()[: places(harness, 3)[2] + 30]
    )


def flip_index(harness: StorageHarness) -> None:
    harness.flip(harness.path(index_name(3)), 300)


def other_index(harness: StorageHarness) -> None:
    """Write an index that has the chunk's seed (a random number in its header), but does not match
    its blocks.
    """
    from zsq.storage.log.index import Index

    wrong = Index(4096)
    wrong.note(1, CHUNK_HEADER_BYTES, 5)
    seed = decode_chunk_header(harness.chunk_path(3).read_bytes()).seed
    harness.replace(harness.path(index_name(3)), wrong.encode(seed))


def remove_middle_chunk(harness: StorageHarness) -> None:
    harness.chunk_path(3).unlink()
    harness.files.reset()


def flip_identity(harness: StorageHarness) -> None:
    harness.flip(harness.path(IDENTITY_NAME), 200)


def remove_identity(harness: StorageHarness) -> None:
    harness.path(IDENTITY_NAME).unlink()
    harness.files.reset()


def cut_synced_tail(harness: StorageHarness) -> None:
    harness.replace(
        harness.chunk_path(6), harness.chunk_path(6).read_bytes()[: places(harness, 6)[1]]
    )


@pytest.mark.parametrize(
    ("spoil", "says", "left"),
    [
        (flip_block, "1 damaged blocks", [0, 1, 2, 3, 5, 6, 7]),
        (flip_block_header, "1 damaged blocks", [0, 1, 2, 3, 5, 6, 7]),
        (flip_last_block, "1 damaged blocks", [0, 1, 2, 3, 4, 6, 7]),
        (flip_in_the_last_chunk, "1 damaged blocks", [0, 1, 2, 3, 4, 5, 7]),
        (flip_header_copy, "copy 1 of its header", list(range(8))),
        (flip_second_header_copy, "copy 2 of its header", list(range(8))),
        (flip_footer, "no footer", list(range(8))),
        (cut_footer, "no footer", list(range(8))),
        (cut_last_block, "no footer", [0, 1, 2, 3, 4, 6, 7]),
        (flip_index, "index is damaged", list(range(8))),
        (other_index, "does not match its blocks", list(range(8))),
        (remove_middle_chunk, "3 messages are missing", [0, 1, 2, 6, 7]),
        (flip_identity, "missing or damaged", list(range(8))),
        (remove_identity, "missing or damaged", list(range(8))),
        (cut_synced_tail, "was synced up to 8", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_each_damage_is_found_repaired_and_then_gone(
    topic: StorageHarness, spoil: Callable[[StorageHarness], None], says: str, left: list[int]
) -> None:
    spoil(topic)
    spoiled = {
        path: path.read_bytes()
        for path in Path(topic.directory).iterdir()
        if path.is_file() and path.name != "lock"
    }
    report = look(topic)
    assert any(says in finding.text for finding in damage(report)), [
        finding.text for finding in report.findings
    ]
    for path, data in spoiled.items():
        assert path.read_bytes() == data, "looking changes nothing"
    repaired = look(topic, repair=True)
    assert repaired.damaged == [], [
        (finding.text, finding.repaired) for finding in repaired.findings
    ]
    assert all(finding.repaired for finding in damage(repaired))
    again = look(topic)
    assert damage(again) == [], [finding.text for finding in again.findings]
    report_of_start = topic.open().report
    assert not report_of_start.alarms, "and the broker has nothing to complain of"
    assert topic.check(lost_max=3) == left
    assert not topic.damage, "what is lost is a known hole"
    topic.publish(count=1, size=1)
    topic.sync()
    topic.restart()
    assert len(topic.check(lost_max=3)) == len(left) + 1


def test_a_repair_keeps_the_bytes_that_it_changes(topic: StorageHarness) -> None:
    position = places(topic, 3)[1]
    flip_block(topic)
    footer_at = topic.chunk_path(3).stat().st_size - FOOTER_BYTES
    flip_footer(topic)
    data = topic.chunk_path(3).read_bytes()
    look(topic, repair=True)
    kept = {
        head.bad.position: topic.path(head.bad.name).read_bytes()[512:]
        for head in bad_heads(Files(), topic.directory)
    }
    assert kept == {position: data[position : places(topic, 3)[2]], footer_at: data[footer_at:]}
    assert topic.chunk_path(3).read_bytes()[:footer_at] == data[:footer_at]


def test_a_header_is_made_again_from_the_footer(topic: StorageHarness) -> None:
    """One bad sector destroyed both copies of the header."""
    path = topic.chunk_path(0)
    before = path.read_bytes()
    topic.replace(path, bytes(128) + before[128:])
    (finding,) = look(topic, repair=True).findings
    assert "from the footer" in finding.repaired
    assert path.read_bytes() == before


def test_damage_that_cannot_be_repaired_stays_reported(topic: StorageHarness) -> None:
    topic.flip(topic.chunk_path(0), (topic.chunk_path(0).stat().st_size - 1) * 8)
    topic.flip(topic.chunk_path(0), 100)
    topic.flip(topic.chunk_path(0), 64 * 8 + 100)
    before = topic.chunk_path(0).read_bytes()
    (finding,) = look(topic, repair=True).damaged
    assert (finding.first_offset, finding.count) == (0, 3)
    assert topic.chunk_path(0).read_bytes() == before


def test_an_unfinished_write_is_a_note(topic: StorageHarness) -> None:
    """The next start cuts the unfinished write off anyway, as it does after every kill."""
    path = topic.chunk_path(6)
    topic.replace(path, path.read_bytes() + b"half a block")
    (finding,) = look(topic).findings
    assert finding.level == "note"
    assert "12 bytes" in finding.text
    assert not damage(look(topic, repair=True))
    assert look(topic).findings == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"first_offset": 2}, "has offset 5 instead of 4"),
        ({"first_offset": 0}, "has offset 3 instead of 4"),
        ({"time_ns": -5}, "has an earlier time than the block before it"),
    ],
)
def test_blocks_whose_checksums_agree_and_whose_place_does_not(
    topic: StorageHarness, changed: dict[str, int], says: str
) -> None:
    path = topic.chunk_path(3)
    topic.replace(path, placed_anew(path.read_bytes(), places(topic, 3)[1], **changed))
    assert any(says in finding.text for finding in damage(look(topic)))


def placed_anew(data: bytes, at: int, **changed: int) -> bytes:
    """Change fields of a block's header, and make its checksum correct."""
    seed = decode_chunk_header(data).seed
    header = decode_disk_header(data[at : at + HEADER_BYTES], seed)
    assert header is not None
    return (
        data[:at]
        + encode_header(header._replace(**changed), magic=b"ZSQD", seed=seed)
        + data[at + HEADER_BYTES :]
    )


def test_a_mark_that_is_not_of_its_group(group_case: StorageHarness) -> None:
    group_case.publish()
    key = group_case.stage("s", 1, blocks=1)
    group_case.seal(key)
    group_case.commit(1, key)
    group_case.abandon_cleanly()
    path = group_case.chunk_path(0)
    data = path.read_bytes()
    mark = next(at for at in places(group_case, 0) if data[at + 12 : at + 16] == bytes(4))
    group_case.replace(path, placed_anew(data, mark, first_offset=4))
    assert any(
        "does not belong to the group before it" in finding.text
        for finding in damage(look(group_case))
    )


def test_a_missing_index_is_a_note_and_made(topic: StorageHarness) -> None:
    good = topic.path(index_name(3)).read_bytes()
    topic.path(index_name(3)).unlink()
    topic.files.reset()
    (finding,) = look(topic, repair=True).findings
    assert (finding.level, finding.repaired) == ("note", "the index was rebuilt")
    assert topic.path(index_name(3)).read_bytes() == good
    assert look(topic).findings == []


def test_a_damaged_bad_file_is_evidence_only(topic: StorageHarness) -> None:
    flip_block(topic)
    look(topic, repair=True)
    (kept,) = Path(topic.directory).glob("*.bad")
    topic.flip(kept, 560 * 8)
    assert any(
        "damaged; it is kept only as evidence" in finding.text for finding in look(topic).findings
    )
    topic.flip(kept, 30 * 8)
    assert damage(look(topic)), "what it said is not known any more, and found again"


def test_a_group_is_clean_and_a_damaged_stage_is_found(group_case: StorageHarness) -> None:
    group_case.publish()
    for version, blocks in ((1, 1), (2, 6)):
        key = group_case.stage(f"s{version}", version, blocks=blocks)
        group_case.seal(key)
        group_case.commit(version, key)
    left = group_case.stage("left", 3, blocks=2)
    group_case.seal(left)
    group_case.publish()
    group_case.abandon_cleanly()
    assert look(group_case).findings == []
    (part,) = Path(group_case.directory, "staging").iterdir()
    group_case.flip(part, (CHUNK_HEADER_BYTES + 70) * 8)
    assert any(finding.path.endswith(part.name) for finding in look(group_case).findings)
    data = group_case.chunk_path(0).read_bytes()
    mark = next(
        at
        for at in range(0, len(data), 8)
        if data[at : at + 4] == b"ZSQD" and data[at + 12 : at + 16] == bytes(4)
    )
    group_case.flip(group_case.chunk_path(0), (mark + 80) * 8)
    assert any("damaged blocks" in finding.text for finding in damage(look(group_case)))


def test_a_damaged_state_store_is_found_and_made_again(topic: StorageHarness) -> None:
    data = topic.path("state") / "data.mdb"
    good = data.read_bytes()
    topic.replace(data, good[: len(good) // 2] + bytes(len(good) - len(good) // 2))
    report = look(topic)
    assert any("/state" in finding.path for finding in damage(report))
    assert data.read_bytes()[: len(good) // 2] == good[: len(good) // 2]
    assert look(topic, repair=True).damaged == []
    assert damage(look(topic)) == []
    topic.open()
    assert topic.check() == list(range(8))


def test_a_foreign_directory_is_named_and_not_touched(topic: StorageHarness) -> None:
    other = TopicIdentity("clicks", "ff" * 16)
    report = check_topic(Files(), topic.directory, other, NOW_NS, repair=True)
    assert any("belongs to" in finding.text for finding in report.damaged)
    assert (
        json.loads(topic.path(IDENTITY_NAME).read_bytes().split(b"\n")[0])["uuid"]
        == IDENTITY.uuid_bytes.hex()
    )
    assert {path.name for path in Path(topic.directory).glob("*.chunk")} == {
        chunk_name(base) for base in (0, 3, 6)
    }
    assert not list(Path(topic.directory).glob("*.bad"))


def test_a_chunk_that_was_put_back_is_named(topic: StorageHarness) -> None:
    """The hole was recorded while the chunk was gone. Since then, channels may have passed the
    hole.
    """
    path = topic.chunk_path(3)
    away = path.with_suffix(".away")
    path.rename(away)
    look(topic, repair=True)
    known = look(topic)
    assert [finding.level for finding in known.findings] == ["note"]
    away.rename(path)
    (finding,) = look(topic).findings
    assert "can be read again" in finding.text
    assert finding.path.endswith(".bad")


def test_a_bad_file_that_cannot_be_read_is_named_and_no_more(
    topic: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_block(topic)
    look(topic, repair=True)
    real = Files.read_file

    def refuse(files: Files, path: str, max_bytes: int) -> bytes:
        if path.endswith(".bad"):
            raise OSError(errno.EIO, "by plan")
        return real(files, path, max_bytes)

    monkeypatch.setattr(Files, "read_file", refuse)
    assert any(
        "cannot be read" in finding.text and finding.path.endswith(".bad")
        for finding in look(topic).findings
    )


def test_a_check_changes_nothing(topic: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check does not even change the lock file: the topic may be on a file system that is mounted
    read-only.
    """
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(topic.directory):
            raise OSError(errno.EROFS, "by plan")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr("zsq.storage.files.os.open", read_only)
    assert look(topic).findings == []
    topic.path("lock").unlink()
    assert look(topic).findings == []
    assert not topic.path("lock").exists()


def test_the_repairs_of_recovery_are_reported_once(topic: StorageHarness) -> None:
    path = topic.chunk_path(6)
    topic.replace(path, path.read_bytes() + b"half a block")
    topic.path(IDENTITY_NAME).write_bytes(b"")
    said = [finding.repaired for finding in look(topic, repair=True).findings]
    assert len(said) == 2
    assert sum("recovered in" in one for one in said) == 1
