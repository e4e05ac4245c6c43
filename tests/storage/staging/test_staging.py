"""Staging: order, seals, files, bounds, what a restart finds; and any mix of it all with commits and crashes."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import keep_all, keep_none

from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, STAGING_NAME
from zsq.storage.log.transactions import Transaction
from zsq.storage.staging import stage, staging
from zsq.storage.staging.stage import checksum_after
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack
from zsq.transport.errors import NotFound, Refused, UsageError
from zsq.transport.wire import protocol_client as protocol_staging

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

ONE = Transaction("query", 1, "app")
STAGE = b"s" * 16


def test_blocks_are_taken_in_order_and_counted(group_desk: StorageHarness) -> None:
    area = group_desk.staging
    assert area.open(STAGE, ONE, 3, 50) == (0, 0)
    blocks = [pack([b"%d" % i, b"x"], sequence=i) for i in range(4)]
    assert area.append(STAGE, blocks[:3], 60) == 3
    with pytest.raises(UsageError):
        area.append(STAGE, blocks[:1], 60)
    with pytest.raises(UsageError):
        area.append(STAGE, [blocks[3], blocks[3]], 60)
    assert area.append(STAGE, [], 60) == 3
    facts = area.facts(STAGE)
    checksum = 0
    for block in blocks[:3]:
        checksum = protocol_staging.checksum_after(checksum, block.header.columns_crc)
    assert facts == (3, 6, sum(block.length for block in blocks[:3]), checksum, 0, False, 60, ONE, 3)
    assert area.stages() == {STAGE: facts}
    assert area.open(STAGE, ONE, 3, 55) == (3, 0)
    assert checksum_after(5, 6) == protocol_staging.checksum_after(5, 6)


def test_the_time_of_last_use_follows_each_append(group_desk: StorageHarness) -> None:
    area = group_desk.staging
    area.open(STAGE, ONE, 0, 50)
    assert area.facts(STAGE).used_ns == 50
    area.append(STAGE, [pack([b"x"])], 70)
    assert area.facts(STAGE).used_ns == 70
    ticket = area.begin_seal(STAGE, final=False, now_ns=90)
    ticket.run()
    assert area.finish_seal(ticket).used_ns == 90
    area.append(STAGE, [pack([b"x"], sequence=1)])
    assert area.facts(STAGE).used_ns > 10**18, "without a time it is now"


def test_other_transactions_and_unknown_stages_are_refused(group_desk: StorageHarness) -> None:
    area = group_desk.staging
    area.open(STAGE, ONE, 0, 50)
    for other in (ONE._replace(app="x"), ONE._replace(version=2), ONE._replace(kind="job")):
        with pytest.raises(UsageError):
            area.open(STAGE, other, 0, 50)
    for call in (area.facts, area.part, lambda key: area.append(key, []), lambda key: area.begin_seal(key, True)):
        with pytest.raises(NotFound):
            call(b"t" * 16)
    with pytest.raises(UsageError):
        area.part(STAGE)


def test_a_final_seal_ends_a_stage(group_desk: StorageHarness) -> None:
    area = group_desk.staging
    key = group_desk.stage("a", 1)
    group_desk.seal(key, final=False)
    group_desk.stage("a", 1)
    first = area.begin_seal(key, final=True)
    second = area.begin_seal(key, final=True)
    with pytest.raises(UsageError):
        area.append(key, [pack([b"x"], sequence=4)])
    with pytest.raises(UsageError):
        area.part(key)
    assert not area.facts(key).final
    for ticket in (second, first):
        ticket.run()
        row = area.finish_seal(ticket)
        assert (row.blocks, row.final) == (4, True)
        assert area.facts(key).final
    assert area.part(key).messages == 8
    assert group_desk.files._nodes.keys() == {group_desk.log._active.fd}, "no descriptor stays open"


def test_a_seal_covers_what_was_staged_before_it(group_desk: StorageHarness) -> None:
    area = group_desk.staging
    key = group_desk.stage("a", 1)
    ticket = area.begin_seal(key, final=False)
    thread = threading.Thread(target=ticket.run)
    thread.start()
    group_desk.stage("a", 1)
    thread.join(10)
    row = area.finish_seal(ticket)
    path = Path(group_desk.staging._stages[key].files[0].path)
    assert (row.blocks, area.facts(key).sealed_blocks, area.facts(key).blocks) == (2, 2, 4)
    assert group_desk.store is not None
    group_desk.store.state.commit(StateBatch(stage_puts={key: row}))
    group_desk.crash(keep_all)
    assert group_desk.staging.open(key, Transaction("query", 1, "app"), 0, 1) == (2, 2)
    assert path.stat().st_size == row.files[0].data_end, "what no row names is cut off"
    group_desk.after_crash()
    group_desk.stage("a", 1, blocks=3)
    group_desk.seal(key)
    group_desk.commit(1, key)
    assert group_desk.check() == []


def test_a_seal_that_fails_ends_staging(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1)
    group_desk.files.fail["sync"] = {group_desk.files._calls.get("sync", 0) + 1: errno.EIO}
    ticket = group_desk.staging.begin_seal(key, final=False)
    later = group_desk.staging.begin_seal(key, final=False)
    for each in (ticket, later):
        with pytest.raises(StoreFailed):
            each.run()
    for call in (lambda: group_desk.staging.finish_seal(later), lambda: group_desk.stage("b", 1)):
        with pytest.raises(StoreFailed):
            call()


def test_a_stage_dropped_during_its_seal_leaves_no_files(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1)
    ticket = group_desk.staging.begin_seal(key, final=True)
    batch = StateBatch()
    group_desk.drop(key, batch=batch, lag=True)
    ticket.run()
    with pytest.raises(NotFound):
        group_desk.staging.finish_seal(ticket)
    assert group_desk.files._nodes.keys() == {group_desk.log._active.fd}
    assert batch.stage_gones == [key]
    group_desk.stage("a", 1, blocks=3)  # the same name again, before the old files are removed
    group_desk.staging.purge(StateBatch())
    assert len(list(Path(group_desk.directory, STAGING_NAME).iterdir())) == 2, "another batch's files are not touched"
    group_desk.staging.purge(batch)
    group_desk.seal(key)
    group_desk.commit(1, key)
    assert group_desk.check() == []


def test_a_row_of_the_same_batch_goes_with_its_stage(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1)
    ticket = group_desk.staging.begin_seal(key, final=True)
    ticket.run()
    batch = StateBatch(stage_puts={key: group_desk.staging.finish_seal(ticket)})
    group_desk.drop(key, batch=batch)
    assert group_desk.store is not None
    assert group_desk.store.state.load().stages == {}
    group_desk.staging.drop([b"u" * 16], batch)
    group_desk.staging.purge()
    assert group_desk.check() == []


def test_staged_files_have_the_form_of_chunks(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1, blocks=20)
    group_desk.seal(key)
    files = group_desk.staging.part(key).files
    assert len(files) > 2
    assert len({file.seed for file in files}) == len(files)
    assert sum(file.blocks for file in files) == 20
    for file in group_desk.staging._stages[key].files:
        assert Path(file.path).stat().st_size == file.data_end + 64 <= group_desk.options.chunk_bytes
    huge = pack([b"x" * 5000], sequence=0)
    group_desk.staging.open(STAGE, ONE, 0, 1)
    assert group_desk.staging.append(STAGE, [huge, *(pack([b"y"], sequence=i) for i in (1, 2))], 1) == 3
    assert [file.blocks for file in group_desk.staging._stages[STAGE].files] == [1, 2], "a block larger than a chunk has one for itself"


def test_many_blocks_are_appended_in_few_writes(group_desk: StorageHarness) -> None:
    group_desk.staging._chunk_bytes = 1 << 20
    group_desk.staging.open(STAGE, ONE, 0, 1)
    assert group_desk.staging.append(STAGE, [pack([b"y"], sequence=i) for i in range(1500)], 1) == 1500
    assert group_desk.files.log[-3:] == ["writev"] * 3


def test_few_files_are_open(group_desk: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that gives way is synced first: what is in the page cache only needs its descriptor, to learn of a failed write-back."""
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 2)
    keys = [group_desk.stage(name, 1, blocks=1) for name in "abcde"]
    assert len(group_desk.files._nodes) == 3
    for name in "abcde":
        group_desk.stage(name, 1, blocks=1 + 6 * (name == "b"))
        assert len(group_desk.files._nodes) <= 3
    group_desk.seal(*keys)
    group_desk.crash(keep_none)
    group_desk.commit(1, *keys)
    assert group_desk.check() == []
    group_desk.stage("f", 2)
    group_desk.stage("g", 2)
    group_desk.files.fail["sync"] = {group_desk.files._calls.get("sync", 0) + 1: errno.ENOSPC}
    with pytest.raises(StoreFailed):
        group_desk.stage("h", 2)
    with pytest.raises(StoreFailed):
        group_desk.stage("f", 2)


def test_files_that_wait_for_a_sync_stay_open(group_desk: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 1)
    keys = [group_desk.stage("a", 1), group_desk.stage("b", 1)]
    tickets = [group_desk.staging.begin_seal(key, final=True) for key in keys]
    group_desk.stage("c", 1)
    for ticket in tickets:
        ticket.run()
        group_desk.staging.finish_seal(ticket)
    assert len(group_desk.files._nodes) == 2


def test_stages_and_files_over_the_limits_are_refused(group_desk: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STAGES_MAX", 2)
    monkeypatch.setattr(staging, "FILES_MAX", 3)
    group_desk.stage("a", 1, blocks=1)
    key = group_desk.stage("b", 1, blocks=1)
    with pytest.raises(Refused, match="E_LIMIT"):
        group_desk.staging.open(STAGE, ONE, 0, 1)
    before = group_desk.staging.facts(key)
    with pytest.raises(Refused, match="E_LIMIT"):
        group_desk.staging.append(key, [pack([b"z" * 300], sequence=i) for i in range(1, 9)])
    assert group_desk.staging.facts(key)._replace(used_ns=0) == before._replace(used_ns=0), "nothing of a refused call stays"
    group_desk.stage("b", 1, blocks=1)
    group_desk.seal(key)
    group_desk.drop(key)
    group_desk.staging.open(STAGE, ONE, 0, 1)
    group_desk.staging.append(STAGE, [pack([b"z"])])
    assert group_desk.check() == []


def test_a_store_from_before_has_no_staging_folder(group_desk: StorageHarness) -> None:
    folder = group_desk.path(STAGING_NAME)
    assert not folder.exists()
    group_desk.files.log.clear()
    key = group_desk.stage("a", 1, blocks=1)
    assert group_desk.files.log[:3] == ["make_folder", "sync_folder", "open_new"]
    assert folder.stat().st_mode & 0o777 == 0o700
    group_desk.seal(key)
    group_desk.crash(keep_none)
    assert group_desk.staging.facts(key).final


@pytest.mark.parametrize("harm", ["gone", "short", "header", "other"])
def test_a_damaged_stage_is_dropped_and_the_topic_starts(group_desk: StorageHarness, harm: str) -> None:
    good, bad = group_desk.stage("a", 1), group_desk.stage("b", 1, blocks=9)
    group_desk.seal(good, bad)
    path = Path(group_desk.staging._stages[bad].files[-1].path)
    group_desk.abandon_cleanly()
    whole = path.read_bytes()
    data = {"short": whole[:-80], "header": bytes(CHUNK_HEADER_BYTES) + whole[CHUNK_HEADER_BYTES:]}
    if harm == "gone":
        path.unlink()
        group_desk.files.reset()
    else:
        group_desk.replace(path, data.get(harm, Path(f"{group_desk.directory}/{chunk_of(group_desk)}").read_bytes() + bytes(2000)))
    report = group_desk.open().report
    assert len(report.alarms) == 1
    assert bad.hex() in report.alarms[0]
    assert list(group_desk.staging.stages()) == [good]
    assert [path.name[:32] for path in path.parent.iterdir()] == [good.hex()]
    del group_desk.sealed[bad]
    assert group_desk.restart().report.alarms == []
    group_desk.commit(1, good)
    assert group_desk.check() == []


def test_a_sealed_stage_that_cannot_be_read_now_stays(group_desk: StorageHarness) -> None:
    """Its commit is refused until it can be. One that is still written to goes: its writer would meet that disk again and again."""
    good, bad, going = group_desk.stage("a", 1), group_desk.stage("b", 1, blocks=9), group_desk.stage("c", 1)
    group_desk.seal(good, bad)
    group_desk.seal(going, final=False)
    paths = [Path(group_desk.staging._stages[key].files[-1].path) for key in (bad, going)]
    group_desk.abandon_cleanly()
    for path, left in zip(paths, ([good, bad, going], [good, bad]), strict=True):
        group_desk.files.unreadable = (path.name, 5)
        assert len(group_desk.open().report.alarms) == 1
        assert list(group_desk.staging.stages()) == left
        if path == paths[0]:
            with pytest.raises(Damaged):
                group_desk.commit(1, good, bad)
        group_desk.abandon_cleanly()
    group_desk.files.unreadable = ("", 0)
    del group_desk.sealed[going], group_desk.staged[going]
    assert group_desk.open().report.alarms == []
    group_desk.commit(1, good, bad)
    assert group_desk.check() == []


def chunk_of(harness: StorageHarness) -> str:
    return next(name for name in harness.files.list(harness.directory) if name.endswith(".chunk"))


def test_either_copy_of_a_staged_header_will_do(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1, blocks=4)
    group_desk.seal(key)
    path = Path(group_desk.staging._stages[key].files[0].path)
    group_desk.abandon_cleanly()
    whole = path.read_bytes()
    for byte in range(0, CHUNK_HEADER_BYTES, 3):
        group_desk.replace(path, whole[:byte] + bytes([whole[byte] ^ 16]) + whole[byte + 1 :])
        assert group_desk.open().report.alarms == []
        assert group_desk.staging.facts(key).final
        group_desk.abandon_cleanly()


def test_the_store_closes_staged_files(group_desk: StorageHarness) -> None:
    group_desk.stage("a", 1)
    group_desk.abandon_cleanly()
    assert group_desk.files._nodes == {}


def test_a_block_that_was_cut_off_does_not_count_as_synced(group_desk: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file gave way, synced, to the stage's next one, for which there was no space: what takes its place must be synced again."""
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 1)
    group_desk.staging.open(STAGE, ONE, 0, 1)
    group_desk.files.fail["open_new"] = {2: errno.ENOSPC}
    with pytest.raises(DiskFull):
        group_desk.staging.append(STAGE, [pack([b"x" * 600], sequence=i) for i in (0, 1)], 1)
    group_desk.files.fail["open_new"] = {4: errno.ENOSPC}
    group_desk.staging.append(STAGE, [pack([b"x"])], 1)
    with pytest.raises(DiskFull):
        group_desk.staging.append(STAGE, [pack([b"x" * 300], sequence=i) for i in (1, 2, 3)], 1)
    group_desk.staging.append(STAGE, [pack([b"y"], sequence=1)], 1)
    ticket = group_desk.staging.begin_seal(STAGE, final=True)
    ticket.run()
    row = group_desk.staging.finish_seal(ticket)
    assert group_desk.store is not None
    group_desk.store.state.commit(StateBatch(stage_puts={STAGE: row}))
    group_desk.crash(keep_none)
    group_desk.log.append_group(ONE, [group_desk.staging.part(STAGE)], 9)
    assert [block.body.value(0) for block in group_desk.read_all()] == [b"x", b"y"]


def test_a_refused_append_gives_its_space_back(group_desk: StorageHarness) -> None:
    key = group_desk.stage("a", 1)
    (file,) = group_desk.staging._stages[key].files
    group_desk.files.short = {group_desk.files._calls["writev"] + 1: 100}
    with pytest.raises(DiskFull):
        group_desk.staging.append(key, [pack([b"x"], sequence=2)])
    assert Path(file.path).stat().st_size == file.data_end
