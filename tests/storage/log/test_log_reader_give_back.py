"""Tests of a reader that is far behind: it gives pages back to the system after reading them, and
other readers do not. Other tests find the newest messages by reading backward.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.storage.log.log_format import CHUNK_HEADER_BYTES
from zsq.storage.log.log_reader import (
    CHUNKS_COUNTED_MAX,
    FAR_BYTES,
    KEPT_BYTES,
    PAGE_BYTES,
    STEP_BYTES,
    GiveBack,
)

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

PAGES = PAGE_BYTES * 4


class Backlog:
    """A log with limits of a few pages. It records the advice (`posix_fadvise`) that it gives to
    the system, by chunk.
    """

    def __init__(self, folder: Path, harness: StorageHarness, chunk_bytes: int) -> None:
        folder.mkdir()
        self.harness = type(harness)(
            folder, replace(harness.options, chunk_bytes=chunk_bytes, reserve_bytes=0)
        )
        self.harness.open()
        self.advice: list[tuple[int, int, int]] = []
        """(chunk, position, end) of each call."""
        self.sequential: list[int] = []
        self.harness.files.advise_done = self.done  # type: ignore[method-assign]
        self.harness.files.advise_sequential = self.in_order  # type: ignore[method-assign]

    def _base(self, fd: int) -> int:
        return int(self.harness.files._tree_name(fd).partition(".")[0])

    def done(self, fd: int, position: int, size: int) -> None:
        self.advice.append((self._base(fd), position, position + size))

    def in_order(self, fd: int) -> None:
        self.sequential.append(self._base(fd))

    def fill(self, size: int) -> None:
        while sum(self.sizes()) < size:
            self.harness.publish(count=1, size=1000)
        self.harness.sync()
        reader = self.harness.log.reader
        reader.give_back = GiveBack(reader.bases, reader.book.facts, far_bytes=PAGES)

    def sizes(self) -> list[int]:
        return [self.harness.chunk_path(base).stat().st_size for base in self.harness.log.chunks]

    def go_through(self, offset: int = 0) -> None:
        log = self.harness.log
        while offset < log.end:
            offset = log.read(offset, 2000, log.end)[-1].next_offset


def backlog(tmp_path: Path, harness: StorageHarness, chunk_bytes: int) -> Backlog:
    return Backlog(tmp_path / "backlog", harness, chunk_bytes)


def test_the_bounds_are_those_of_the_design() -> None:
    assert (FAR_BYTES, KEPT_BYTES, STEP_BYTES) == (64 << 20, 8 << 20, 4 << 20)


def test_one_large_chunk_up_to_the_hot_end(tmp_path: Path, harness: StorageHarness) -> None:
    made = backlog(tmp_path, harness, 1 << 20)
    made.fill(PAGES * 8)
    made.go_through()
    (size,) = made.sizes()
    assert made.advice
    assert made.advice[0][1] == CHUNK_HEADER_BYTES
    assert all(before[2] == after[1] for before, after in pairwise(made.advice)), (
        "without gaps, and nothing twice"
    )
    assert all(end - start >= PAGES / 2 for _, start, end in made.advice), "in large steps"
    assert size - PAGES - 3 * PAGES < made.advice[-1][2] <= size - PAGES, (
        "up to the hot end, and not beyond"
    )
    assert not made.sequential, "the chunk that is written has its own ways"


def test_small_chunks_are_given_back_whole(tmp_path: Path, harness: StorageHarness) -> None:
    made = backlog(tmp_path, harness, PAGE_BYTES * 2)
    made.fill(PAGES * 6)
    made.go_through()
    sizes = dict(zip(made.harness.log.chunks, made.sizes(), strict=True))
    behind = 0
    far = []
    for base, size in reversed(sizes.items()):
        if behind >= PAGES:
            far.append(base)
        behind += size
    assert sorted({base for base, _, _ in made.advice}) == sorted(far)
    assert {(base, start) for base, start, _ in made.advice} == {
        (base, CHUNK_HEADER_BYTES) for base in far
    }
    assert set(far) <= set(made.sequential)
    assert len(set(made.sequential) - set(far)) <= 1, (
        "no hint near the hot end, but where a chunk begins far from it"
    )
    assert len(made.sequential) == len(set(made.sequential))


def test_a_reader_near_the_end_gives_nothing_back(tmp_path: Path, harness: StorageHarness) -> None:
    made = backlog(tmp_path, harness, PAGE_BYTES * 2)
    made.fill(PAGES * 6)
    near = made.harness.log.chunks[-2]
    made.go_through(near)
    assert made.advice == []


def test_a_lone_read_gives_nothing_back(tmp_path: Path, harness: StorageHarness) -> None:
    """One old message is read, as when a person peeks at it."""
    made = backlog(tmp_path, harness, 1 << 20)
    made.fill(PAGES * 6)
    made.harness.log.read(3, 100, made.harness.log.end)
    assert (made.advice, made.sequential) == ([], [])


def test_reads_go_on_when_the_system_refuses_the_advice(
    tmp_path: Path, harness: StorageHarness
) -> None:
    made = backlog(tmp_path, harness, PAGE_BYTES * 2)
    made.fill(PAGES * 6)

    refused: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> None:
        refused.append(arguments)
        raise OSError

    made.harness.files.advise_done = refuse  # type: ignore[assignment]
    made.harness.files.advise_sequential = refuse  # type: ignore[assignment]
    made.go_through()
    assert refused


# Walking back


@pytest.fixture
def walked(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a topic with five chunks, and blocks of one to three messages."""
    folder = tmp_path / "walked"
    folder.mkdir()
    made = type(harness)(folder, harness.options)
    made.open()
    for number in range(30):
        made.publish(count=1 + number % 3)
    made.sync()
    assert len(made.log.chunks) >= 4
    return made


def test_the_newest_messages_are_found_below_any_end(walked: StorageHarness) -> None:
    end = walked.log.end
    for count in (1, 2, 3, 10, end - 1, end, end + 5):
        assert walked.log.reader.newest(count, end) == max(0, end - count)
    for until in range(1, end):
        assert walked.log.reader.newest(4, until) == max(0, until - 4), "below any end"


def test_a_mark_is_walked_over(group_case: StorageHarness) -> None:
    group_case.publish()
    for version in (1, 2):
        key = group_case.stage(f"s{version}", version, blocks=1 if version == 1 else 6)
        group_case.seal(key)
        group_case.commit(version, key)
    group_case.publish()
    end = group_case.log.end
    for count in range(1, end + 1):
        assert group_case.log.reader.newest(count, end) == end - count


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_costs_its_block_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Flip any bit of a chunk. The search finds the position of the newest readable messages, or a
    position a few messages before it.
    """
    from tests.storage.conftest import StorageHarness

    made = StorageHarness(tmp_path_factory.mktemp("walk"))
    made.open()
    for number in range(12):
        made.publish(count=1 + number % 3)
    made.sync()
    base = data.draw(st.sampled_from(made.log.chunks[:-1]))
    path = made.chunk_path(base)
    made.abandon_cleanly()
    made.flip(path, data.draw(st.integers(CHUNK_HEADER_BYTES * 8, path.stat().st_size * 8 - 1)))
    made.open()
    there = [
        offset
        for block in made.read_all()
        for offset in range(block.first_offset, block.next_offset)
    ]
    for count in (1, 3, 7, 15):
        offset = made.log.reader.newest(count, made.log.end)
        found = [one for one in there if one >= offset]
        assert min(count, len(there)) - 3 <= len(found) <= count + 3, (
            "a damaged block may still count, or its neighbour not"
        )
    made.abandon()


def test_a_small_far_distance_also_bounds_the_pages_kept_for_others() -> None:
    usual, small = GiveBack([0], {}), GiveBack([0], {}, far_bytes=PAGES)
    assert (usual.kept_bytes, usual.step_bytes) == (KEPT_BYTES, STEP_BYTES)
    assert (small.kept_bytes, small.step_bytes) == (PAGES, PAGES)


def test_many_chunks_before_the_end_are_far_whatever_their_sizes(harness: StorageHarness) -> None:
    """The sizes of these chunks may not be known yet. In a log of a hundred thousand chunks, they
    must not be added up at each step.
    """
    harness.publish()
    harness.sync()
    chunk = harness.log.reader.open(0)
    for chunks, far in ((CHUNKS_COUNTED_MAX, False), (CHUNKS_COUNTED_MAX + 1, True)):
        found = GiveBack(range(chunks), {})
        assert found._is_far(chunk, chunk.end_position, chunk) == far
