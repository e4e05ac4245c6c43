"""Tests of fsck with staged blocks: a part that a start would drop, or a commit would refuse, is
reported as damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.checks.fsck import TopicReport, check_topic
from zsq.storage.directory.store import TopicIdentity
from zsq.storage.files import Files
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES
from zsq.transport.block.block import HEADER_BYTES

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")


def look(harness: StorageHarness, *, repair: bool = False) -> TopicReport:
    found = check_topic(Files(), harness.directory, IDENTITY, 9_000, repair=repair)
    harness.files.reset()
    return found


def staged(harness: StorageHarness, final: bool) -> Path:
    harness.publish()
    harness.sync()
    key = harness.stage("a", 1, blocks=3)
    harness.seal(key, final=final)
    harness.abandon_cleanly()
    (path,) = harness.path("staging").iterdir()
    return path


@pytest.mark.parametrize("final", [True, False])
def test_a_sealed_part_that_is_gone_or_short_is_damage_which_a_start_ends(
    harness: StorageHarness, final: bool
) -> None:
    path = staged(harness, final)
    whole = path.read_bytes()
    assert look(harness).findings == []
    for data in (
        None,
        b"",
        whole[:70],
        whole[:-1],
        whole[:-FOOTER_BYTES],
        bytes(CHUNK_HEADER_BYTES) + whole[CHUNK_HEADER_BYTES:],
    ):
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        assert [finding.needs_recovery for finding in look(harness).damaged] == [True], data
    report = look(harness, repair=True)
    assert "is dropped, with" in report.findings[0].repaired
    assert look(harness).findings == []


def test_a_damaged_block_in_a_sealed_part_is_damage(harness: StorageHarness) -> None:
    path = staged(harness, True)
    harness.flip(path, (CHUNK_HEADER_BYTES + HEADER_BYTES + 9) * 8)
    assert [finding.text for finding in look(harness).damaged] == [
        f"no intact block at position {CHUNK_HEADER_BYTES}: its commit will be refused"
    ]


def test_a_damaged_part_that_nothing_names_is_a_note(harness: StorageHarness) -> None:
    path = staged(harness, False)
    for data in (path.read_bytes()[:-9], b""):
        path.with_name("ab" * 16 + "-9.part").write_bytes(data)
        report = look(harness)
        assert report.findings
        assert not report.damaged
