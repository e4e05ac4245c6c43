"""Tests of the index of ids: what it knows, what its files have after a crash, and its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.apps.dump.dump import dump
from zsq.apps.dump.kinds import kind_of
from zsq.storage.dedupe.id_check import check_ids
from zsq.storage.dedupe.id_format import NO_OFFSET
from zsq.storage.dedupe.id_index import IdIndex
from zsq.storage.files import Files
from zsq.transport.wire.dedupe import digest_of

UUID = b"u" * 16
END = 1 << 40


def digests(*names: int) -> list[bytes]:
    return [digest_of(b"%d" % name) for name in names]


def make(root: Path, ids_max: int = 1 << 20) -> IdIndex:
    return IdIndex(Files(), str(root), UUID, ids_max)


def flush(index: IdIndex, synced_end: int = END) -> None:
    while (one := index.take(synced_end)) is not None:
        one.run()
        index.done(one)


def again(root: Path, log_end: int = END) -> tuple[IdIndex, list[str]]:
    index = make(root)
    return index, index.load(log_end)


def ids_files(root: Path) -> list[Path]:
    return sorted((root / "ids").glob("*.ids"))


def test_an_id_is_known_with_its_offset_until_the_window_ends(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add(digests(1, 2), [7, 8], 100, 9)
    assert index.known(digests(0, 2, 1, 3), 99) == {1: 8, 2: 7}
    assert index.known(digests(1), 100) == {}
    index.add(digests(1), [20], 200, 21)  # stored again after its window
    assert index.known(digests(1), 150) == {0: 20}
    assert index.known(digests(1), 50) == {0: 20}
    assert index.known(digests(2, 1), 150) == {1: 20}  # both are in one segment


def test_files_have_what_was_synced_and_the_next_start_reads_it(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add(digests(1), [0], 100, 1)
    index.add(digests(2), [1], 100, 2)
    index.add(digests(3), [NO_OFFSET], 100, 0)
    flush(index, synced_end=1)
    assert index.written_end == 1
    other, problems = again(tmp_path)
    assert problems == []
    assert other.known(digests(1, 2, 3), 0) == {0: 0}
    flush(index, synced_end=2)
    assert index.written_end == 2
    assert index.known(digests(1, 2, 3), 0) == {0: 0, 1: 1, 2: NO_OFFSET}
    assert again(tmp_path)[0].known(digests(1, 2, 3), 0) == {0: 0, 1: 1, 2: NO_OFFSET}
    other.close()
    index.close()


def test_ids_of_messages_that_the_log_lost_are_cut_off_for_good(tmp_path: Path) -> None:
    """Otherwise the next publish with the id would be called a duplicate of another message."""
    index = make(tmp_path)
    index.add(digests(1), [0], 100, 1)
    index.add(digests(2), [1], 100, 2)
    flush(index)
    index.close()
    for _ in range(2):
        other, _ = again(tmp_path, log_end=1)
        assert other.known(digests(1, 2), 0) == {0: 0}
        other.close()
    other, _ = again(tmp_path)
    assert other.known(digests(1, 2), 0) == {0: 0}
    other.close()


@pytest.mark.parametrize("cut", [1, 31, 33, 63, 65])
def test_a_torn_end_costs_only_its_batch(tmp_path: Path, cut: int) -> None:
    index = make(tmp_path)
    index.add(digests(1), [0], 100, 1)
    flush(index)
    index.add(digests(2, 3, 4), [1, 2, 3], 100, 4)
    flush(index)
    index.close()
    (path,) = ids_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    other, _ = again(tmp_path)
    assert other.known(digests(1, 2, 3, 4), 0) == {0: 0}
    assert other.written_end == 1
    other.add(digests(2), [1], 100, 2)
    flush(other)
    assert again(tmp_path)[0].known(digests(1, 2), 0) == {0: 0, 1: 1}
    other.close()


def test_segments_follow_each_other_and_expire_as_a_whole(tmp_path: Path) -> None:
    index = make(tmp_path)
    for start in range(0, 60_000, 1_000):
        names = range(start, start + 1_000)
        index.add(digests(*names), names, start + 1, start + 1_000)
        flush(index)
    assert len(ids_files(tmp_path)) == 3
    assert len(list((tmp_path / "ids").glob("*.table"))) == 2
    wanted = digests(0, 4_500, 59_999)
    index.close()
    index, problems = again(tmp_path)
    assert problems == []
    assert len(index) == 60_000
    assert index.known(wanted, 0) == {0: 0, 1: 4_500, 2: 59_999}
    assert index.range == (0, 60_000)
    index.expire(10_000)
    flush(index)
    assert len(ids_files(tmp_path)) == 2
    assert index.known(wanted, 0) == {1: 4_500, 2: 59_999}
    index.expire(60_000)
    flush(index)
    assert ids_files(tmp_path) == []
    assert index.range == (0, 0)
    index.close()


def test_a_damaged_table_is_made_again(tmp_path: Path) -> None:
    index = make(tmp_path)
    for start in range(0, 8_000, 1_000):
        index.add(
            digests(*range(start, start + 1_000)), range(start, start + 1_000), 1, start + 1_000
        )
    flush(index)
    index.close()
    (table,) = (tmp_path / "ids").glob("*.table")
    data = table.read_bytes()
    table.write_bytes(data[:48] + bytes(len(data) - 48))
    index, problems = again(tmp_path)
    assert problems == []
    assert len(index.known(digests(*range(8_000)), 0)) == 8_000
    index.close()


def test_a_damaged_or_missing_file_is_reported(tmp_path: Path) -> None:
    index = make(tmp_path)
    for start in range(0, 60_000, 1_000):
        names = range(start, start + 1_000)
        index.add(digests(*names), names, 1, start + 1_000)
    flush(index)
    index.close()
    first, second, _ = ids_files(tmp_path)
    data = bytearray(first.read_bytes())
    data[4] ^= 1
    first.write_bytes(data)
    second.unlink()
    index, problems = again(tmp_path)
    assert len(problems) == 1
    assert "damaged" in problems[0]
    assert index.known(digests(0, 59_999), 0) == {1: 59_999}
    index.close()


def test_beyond_its_limit_the_oldest_are_forgotten_and_counted(tmp_path: Path) -> None:
    index = make(tmp_path, ids_max=10_000)
    for start in range(0, 20_000, 1_000):
        names = range(start, start + 1_000)
        index.add(digests(*names), names, start + 1, start + 1_000)
    assert index.forgotten_early == 4_000
    assert index.early_until_ns == 3_001
    assert index.known(digests(3_999, 4_000), 0) == {1: 4_000}


def test_a_full_disk_costs_nothing_while_the_process_lives(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add(digests(1), [0], 100, 1)
    one = index.take(END)
    assert one is not None
    (tmp_path / "ids").write_text("in the way")
    with pytest.raises(OSError, match="Not a directory"):
        one.run()
    (tmp_path / "ids").unlink()
    assert index.known(digests(1), 0) == {0: 0}
    flush(index)
    assert again(tmp_path)[0].known(digests(1), 0) == {0: 0}
    index.close()


def test_a_single_id_takes_less_than_100_bytes_of_disk(tmp_path: Path) -> None:
    """Each is in a batch of its own, which is the worst case. The tables are counted, too."""
    index = make(tmp_path)
    count = 4_096
    for name in range(count + 1):
        index.add(digests(name), [name], 1, name + 1)
    flush(index)
    size = sum(path.stat().st_size for path in (tmp_path / "ids").glob("00000001.*"))
    assert size / count < 100
    index.close()


def test_the_check_tells_a_torn_end_from_damage(tmp_path: Path) -> None:
    index = make(tmp_path)
    for start in range(0, 8_000, 1_000):
        names = range(start, start + 1_000)
        index.add(digests(*names), names, 1, start + 1_000)
    flush(index)
    index.close()

    def check() -> list[tuple[str, str, bool]]:
        return [*check_ids(Files(), str(tmp_path), UUID)]

    assert check() == []
    first, second = ids_files(tmp_path)
    second.write_bytes(second.read_bytes()[:-1])
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    assert [(name, torn) for name, _, torn in check()] == [
        ("ids/00000001.ids", False),
        ("ids/00000002.ids", True),
    ]
    assert kind_of(first.read_bytes()[:100], first.name) == "ids"
    rows = [*dump(str(second), "ids")]
    assert [row["kind"] for row in rows[-2:]] == ["id", "damaged"]
