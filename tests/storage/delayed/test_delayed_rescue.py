"""Tests of the rescue of delayed messages: what damage costs, crashes at any moment, and names."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest
from support.faulty_files import Change, Choose, FaultyFiles, PowerCut, keep_all, keep_none
from support.lmdb_calls import LmdbCall, LmdbCalls

from tests.storage.delayed.test_delayed_power import (
    DUE,
    ForgetfulFiles,
    all_of,
    make,
    publish,
    waiting,
)
from zsq.storage.delayed.delayed import DelayedStore, Progress
from zsq.storage.delayed.delayed_format import producer_key, row_key
from zsq.storage.delayed.delayed_recovery import finish_rescue, note_progress, rescue
from zsq.storage.errors import StoreFailed
from zsq.storage.files import Files
from zsq.storage.lmdb_pages import PageReader
from zsq.storage.rows import META
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

UUID = bytes(range(16))
ROWS = 4
PAGE = 4_096
HEAD = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")
MAGIC_AT = 16
ROOT_AT = 16 + HEAD.size - 24


def newest(files: FaultyFiles) -> Choose:
    """Keep only the last change: a folder may store names in another order than the calls came."""

    def choose(number: int, change: Change) -> int:
        return keep_all(number, change) if number == len(files.pending) - 1 else 0

    return choose


LOSSES: dict[str, Callable[[FaultyFiles], Choose]] = {
    "none": lambda files: keep_none,
    "all": lambda files: keep_all,
    "newest": newest,
}


def with_a_bad_row(made: StorageHarness, key: bytes = producer_key(8)) -> None:
    with lmdb.open(f"{made.directory}/delayed", lock=False) as env, env.begin(write=True) as txn:
        txn.put(key, b"a row that is damaged")


def with_a_bad_head(made: StorageHarness) -> None:
    """Flip a bit of the magic number, so that LMDB refuses the file."""
    path = made.path("delayed/data.mdb")
    data = bytearray(path.read_bytes())
    data[newest_head(bytes(data)) + MAGIC_AT] ^= 1
    path.write_bytes(data)


def newest_head(data: bytes) -> int:
    first, second = (HEAD.unpack_from(data, at + 16)[-1] for at in (0, PAGE))
    return 0 if first > second else PAGE


DAMAGE: dict[str, Callable[[StorageHarness], None]] = {
    "row": with_a_bad_row,
    "head": with_a_bad_head,
}


def to_be_rescued(root: Path, harness: StorageHarness, damage: str = "row") -> StorageHarness:
    """Make a topic whose next start rescues its delayed messages."""
    root.mkdir()
    made = type(harness)(root, files=ForgetfulFiles(str(root)))
    made.open()
    publish(make(made), ROWS)
    made.abandon_cleanly()
    DAMAGE[damage](made)
    made.files.reset()
    return made


def names(harness: StorageHarness) -> set[str]:
    return {name for name in harness.files.list(harness.directory) if name.startswith("delayed")}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_at_every_change_of_a_rescue(
    tmp_path: Path, harness: StorageHarness, loss: str, damage: str
) -> None:
    """There is another power cut after the start that completed the rescue. Nothing is lost or left
    over, and the damaged files are kept.
    """
    finished = False
    at = 0
    while not finished:
        at += 1
        other = to_be_rescued(tmp_path / f"run{at}", harness, damage)
        old = other.path("delayed/data.mdb").read_bytes()
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            pass
        other.crash(LOSSES[loss](other.files))
        store = other.crash(keep_none)
        assert waiting(other) == all_of(ROWS), f"before change {at}"
        assert store.delayed is not None
        assert store.delayed.summary.lost == 0
        assert store.delayed.producers[7].next_sequence == ROWS
        assert names(other) - {"delayed.attempt"} == {"delayed", "delayed.bad-0", "delayed.made"}, (
            f"before change {at}"
        )
        assert set(other.files.list(f"{other.directory}/delayed")) == {"data.mdb", "commits"}, (
            f"before change {at}"
        )
        assert other.path("delayed.bad-0/data.mdb").read_bytes() == old, (
            f"before change {at}: something was wiped"
        )
        other.abandon()
    assert at > 12


def test_commits_after_a_rescue_survive_a_power_cut(
    tmp_path: Path, harness: StorageHarness
) -> None:
    made = to_be_rescued(tmp_path / "one", harness, "head")
    assert any("0 delayed messages are lost" in alarm for alarm in made.open().report.alarms)
    publish(make(made), 3, first=ROWS)
    assert made.crash(keep_none).report.alarms == []
    assert waiting(made) == all_of(ROWS + 3)
    made.abandon()


def test_a_rescue_that_was_asked_for_is_done_once(tmp_path: Path, harness: StorageHarness) -> None:
    """The request must not come back after a power cut, because then a sound environment would be
    rescued, and renamed to `.bad`.
    """
    made = harness.fresh(tmp_path, 1)
    publish(make(made), ROWS)
    made.abandon_cleanly()
    made.path("delayed.attempt").write_bytes(b"rescue")
    made.files.reset()
    assert any(
        "was saved: 0 delayed messages are lost" in alarm for alarm in made.open().report.alarms
    )
    assert made.crash(keep_none).report.alarms == []
    assert waiting(made) == all_of(ROWS)
    made.abandon()


# Names


def environment(folder: Path, count: int = 100) -> str:
    folder.mkdir(exist_ok=True)
    store = DelayedStore(
        str(folder / "delayed"), UUID, map_bytes=1 << 20, create=True, first_serial=2_000
    )
    publish(store, count)
    store.close()
    note_progress(Files(), store.path, store.progress)
    return store.path


def rescued(folder: Path, noted: Progress | None = None) -> tuple[int | None, list[bytes], int]:
    """Rescue the environment. Return the number of lost messages, the rest, and the next serial."""
    _, lost = rescue(Files(), str(folder), UUID, 5, noted or Progress(), lambda store: None)
    with contextlib.closing(DelayedStore(str(folder / "delayed"), UUID)) as store:
        found = store.listed(None, 9_999, 99)
        assert store.summary.messages == len(found)
        return lost, [one.body for one in found], store.progress.serial


def test_when_a_rescue_has_returned_all_names_are_on_disk(tmp_path: Path) -> None:
    """Code that looks at the folder later, without another start, finds the messages under their
    final name.
    """
    environment(tmp_path / "a")
    files = ForgetfulFiles(str(tmp_path / "a"))
    assert rescue(files, files.root, UUID, 5, Progress(), lambda store: None) == (
        f"{files.root}/delayed.bad-0",
        0,
    )
    files.crash(keep_none)
    assert files.list(files.root) == ["delayed", "delayed.bad-0"]
    assert files.list(f"{files.root}/delayed") == ["data.mdb"]


def test_when_a_rescue_was_finished_all_names_are_on_disk(tmp_path: Path) -> None:
    path = Path(environment(tmp_path / "a"))
    path.rename(f"{path}.ready")
    files = ForgetfulFiles(str(tmp_path / "a"))
    finish_rescue(files, files.root)
    files.crash(keep_none)
    assert files.list(files.root) == ["delayed"]


def test_serials_go_on_after_a_rescue(tmp_path: Path) -> None:
    """The clock was set back to a time before the last serial numbers were given."""
    environment(tmp_path / "a")
    assert rescued(tmp_path / "a") == (0, all_of(100), 2_100)


# Batches


def test_a_rescue_that_ended_early_continues_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    """A rescue of many rows takes longer than a start may take. If each start began it again, it
    would never end. Nothing is saved twice, nothing is left out.
    """
    folder = tmp_path / "a"
    new = environment(folder, 100) + ".rescue"
    with contextlib.closing(DelayedStore(str(folder / "delayed"), UUID)) as store:
        many = [pack([b"%04d" % number], sequence=number) for number in range(100, 2_600)]
        store.put([(block, DUE) for block in many], 5)
    kept = []
    for allowed in (3, 0):  # commits that succeed
        heads: list[str] = []

        def see(call: LmdbCall, heads: list[str] = heads, allowed: int = allowed) -> int:
            heads += [call.kind] if call.durable else []
            return errno.EIO if len(heads) > allowed else 0

        with LmdbCalls(see), pytest.raises(StoreFailed):
            rescued(folder)
        with contextlib.closing(DelayedStore(new, UUID)) as store:
            kept.append(store.summary.messages)
    assert 0 < kept[0] == kept[1] < 2_600
    lost, found, _ = rescued(folder)
    assert (lost, len(found), len(set(found))) == (0, 2_600, 2_600)


def test_rows_of_a_batch_are_on_disk_before_the_next_one(tmp_path: Path) -> None:
    """A row that a power cut could take from the new environment is in the old one until then."""
    environment(tmp_path / "a")
    calls: list[LmdbCall] = []

    def see(call: LmdbCall) -> int:
        calls.append(call)
        return 0

    with LmdbCalls(see):
        rescued(tmp_path / "a")
    kinds = [(call.kind, call.durable) for call in calls]
    heads = [at for at, kind in enumerate(kinds) if kind == ("write", True)]
    assert len(heads) >= 3, "the creation, the rows, the adjusted counts"
    assert all(kinds[at - 1] == ("sync", False) for at in heads), (
        "the pages before the head that names them"
    )


# Pages


def meta_value(file: Path) -> bytes:
    with contextlib.closing(PageReader(Files(), str(file))) as reader:
        (value,) = [value for value in reader.values(reader.trees[0]) if value[6:7] == META]
    return value


def tree_pages(data: bytes) -> list[int]:
    """Return the numbers of the pages below the root of the newest tree, which is a branch."""
    root = HEAD.unpack_from(data, newest_head(data) + 16)[19] * PAGE
    end = struct.unpack_from("=H", data, root + 12)[0]
    places = struct.unpack_from(f"={(end - 16) // 2}H", data, root + 16)
    return [struct.unpack_from("=I", data, root + place)[0] for place in places]


@pytest.mark.parametrize("page", [0, 1, 2, -1])
def test_a_lost_page_costs_only_the_rows_in_it(tmp_path: Path, page: int) -> None:
    """Rows before it and after it are saved, and all that is gone is counted as lost."""
    path = Path(environment(tmp_path / "a")) / "data.mdb"
    data = bytearray(path.read_bytes())
    pages = tree_pages(bytes(data))
    assert len(pages) > 4
    data[pages[page] * PAGE : pages[page] * PAGE + PAGE] = bytes(PAGE)
    path.write_bytes(data)
    lost, found, _ = rescued(tmp_path / "a", Progress(100, 2_100, 100))
    assert lost is not None
    assert lost == 100 - len(found)
    assert 0 < lost < 40
    assert set(found) < set(all_of(100))


def test_a_lost_page_with_the_meta_row_costs_neither_its_rows_nor_the_last_commit(
    tmp_path: Path,
) -> None:
    """The page that has the meta row is written by each commit. The last one stored 300 messages,
    which are in many other pages too.
    """
    path = environment(tmp_path / "a")
    blocks = [
        (pack([b"%03d" % number], producer_id=7, sequence=number), DUE + number)
        for number in range(100, 400)
    ]
    with contextlib.closing(DelayedStore(path, UUID)) as store:
        store.put(blocks, 5)
        noted = store.progress
    file = Path(path) / "data.mdb"
    data = bytearray(file.read_bytes())
    page = data.index(meta_value(file)) // PAGE
    assert page in tree_pages(bytes(data))
    data[page * PAGE : page * PAGE + PAGE] = bytes(PAGE)
    file.write_bytes(data)
    lost, bodies, serial = rescued(tmp_path / "a", noted)
    assert lost == 400 - len(bodies) < 40
    assert set(all_of(100)) < set(bodies) < set(all_of(400))
    assert serial == 2_400


@pytest.mark.parametrize("place", [0, 1 << 40], ids=["not a value", "beyond the file"])
def test_a_value_that_cannot_be_reached_costs_only_its_row(tmp_path: Path, place: int) -> None:
    """Its key is in a page without damage, and the number of its first overflow page is wrong."""
    path = environment(tmp_path / "a", 3)
    with contextlib.closing(DelayedStore(path, UUID)) as store:
        for number in (3, 4, 5):
            body = b"%03d" % number * PAGE
            key = store.put([(pack([body], producer_id=7, sequence=number), DUE + number)], 5)[0]
    file = Path(path) / "data.mdb"
    data = bytearray(file.read_bytes())
    leaf = HEAD.unpack_from(data, newest_head(bytes(data)) + 16)[19] * PAGE
    at = data.index(row_key(key), leaf) + len(row_key(key))
    data[at : at + 8] = struct.pack("=Q", place)
    file.write_bytes(data)
    lost, bodies, _ = rescued(tmp_path / "a", Progress(6, 2_006, 6))
    assert (lost, [body[:3] for body in bodies]) == (1, all_of(5))


@pytest.mark.parametrize("byte", [8, 10, *range(16, 16 + HEAD.size, 4)])
def test_a_flipped_bit_in_a_head_costs_no_message(tmp_path: Path, byte: int) -> None:
    """This holds for each field but the position of the newest tree. Then the tree of the commit
    before it is used, and the loss of that commit is counted by the note.
    """
    path = Path(environment(tmp_path / "a", 6)) / "data.mdb"
    data = bytearray(path.read_bytes())
    data[newest_head(bytes(data)) + byte] ^= 1 << byte % 8
    path.write_bytes(data)
    lost, found, serial = rescued(tmp_path / "a", Progress(6, 2_006, 6))
    if byte in range(ROOT_AT, ROOT_AT + 8):
        assert (lost, found) == (1, all_of(5))
    else:
        assert (lost, found) == (0, all_of(6))
    assert serial == 2_006


def test_a_damaged_meta_row_does_not_bring_back_the_commit_before_it(tmp_path: Path) -> None:
    """The tree of the newest commit has all its rows, so it is used although its number of commits
    is not known.
    """
    path = environment(tmp_path / "a", 6)
    with contextlib.closing(DelayedStore(path, UUID)) as store:
        store.cancel([store.listed(None, 1, 0)[0].key])
    file = Path(path) / "data.mdb"
    data = bytearray(file.read_bytes())
    value = meta_value(file)
    at = data.index(value)
    data[at + len(value) - 1] ^= 1
    file.write_bytes(data)
    assert rescued(tmp_path / "a")[:2] == (None, all_of(6)[1:])


@pytest.mark.parametrize("cut", [0, 1, PAGE, 2 * PAGE, 3 * PAGE + 7, -1])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    path = Path(environment(tmp_path / "a")) / "data.mdb"
    path.write_bytes(path.read_bytes()[:cut])
    lost, found, serial = rescued(tmp_path / "a", Progress(100, 2_100, 100))
    assert lost == 100 - len(found)
    assert serial == 2_100
