"""Tests of a staged file: it must be the one that its row names, belong to this stage, and have its
blocks in order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.log.group import walk_staged
from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    decode_chunk_header,
    encode_chunk_header,
    encode_disk_header,
)
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def staged(harness: StorageHarness) -> tuple[bytes, Path]:
    key = harness.stage("a", 1, blocks=3)
    harness.seal(key)
    (path,) = harness.path("staging").iterdir()
    return key, path


@pytest.mark.parametrize("changes", [{"uuid": bytes(16)}, {"seed": 5}])
def test_a_staged_file_of_another_topic_or_another_life_is_not_taken(
    harness: StorageHarness, changes: dict[str, object]
) -> None:
    key, path = staged(harness)
    harness.abandon_cleanly()
    data = path.read_bytes()
    header = decode_chunk_header(data)._replace(**changes)  # type: ignore[arg-type]
    harness.replace(path, encode_chunk_header(header) + data[CHUNK_HEADER_BYTES:])
    report = harness.open().report
    assert any("was changed or replaced after it was sealed" in alarm for alarm in report.alarms)
    assert key not in harness.staging.stages()
    assert not path.exists()


def test_blocks_of_a_staged_file_are_in_their_order(harness: StorageHarness) -> None:
    """The checksums and positions of the blocks are correct, but their sequence numbers are not. A
    commit would give the offsets to the wrong blocks.
    """
    key, path = staged(harness)
    part = harness.staging.part(key)
    blocks = [pack([b"%d" % number] * 2) for number in range(2)]
    (file,) = part.files
    length = blocks[0].length
    for offsets, good in (((0, 2), True), ((0, 3), False), ((1, 2), False)):
        data = path.read_bytes()[:CHUNK_HEADER_BYTES]
        for number, (block, offset) in enumerate(zip(blocks, offsets, strict=True)):
            data += encode_disk_header(
                block.header, offset, 0, 0, file.seed, CHUNK_HEADER_BYTES + number * length
            ) + bytes(block.payload)
        path.write_bytes(data)
        wanted = part._replace(files=(file._replace(blocks=2, messages=4, data_end=len(data)),))
        if good:
            assert [header.first_offset for header, _ in walk_staged(Files(), wanted)] == [0, 2]
        else:
            with pytest.raises(Damaged):
                list(walk_staged(Files(), wanted))
