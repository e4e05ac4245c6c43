"""Tests of staging: order, seals, files, limits, what a restart finds, and random sequences of all
these actions with commits and crashes.
"""

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


def test_blocks_are_taken_in_order_and_counted(group_case: StorageHarness) -> None:
    area = group_case.staging
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
    assert facts == (
        3,
        6,
        sum(block.length for block in blocks[:3]),
        checksum,
        0,
        False,
        60,
        ONE,
        3,
    )
    assert area.stages() == {STAGE: facts}
    assert area.open(STAGE, ONE, 3, 55) == (3, 0)
    assert checksum_after(5, 6) == protocol_staging.checksum_after(5, 6)


def test_the_time_of_last_use_follows_each_append(group_case: StorageHarness) -> None:
    area = group_case.staging
    area.open(STAGE, ONE, 0, 50)
    assert area.facts(STAGE).used_ns == 50
    area.append(STAGE, [pack([b"x"])], 70)
    assert area.facts(STAGE).used_ns == 70
    ticket = area.begin_seal(STAGE, final=False, now_ns=90)
    ticket.run()
    assert area.finish_seal(ticket).used_ns == 90
    area.append(STAGE, [pack([b"x"], sequence=1)])
    assert area.facts(STAGE).used_ns > 10**18, "without a time it is now"


def test_other_transactions_and_unknown_stages_are_refused(group_case: StorageHarness) -> None:
    area = group_case.staging
    area.open(STAGE, ONE, 0, 50)
    for other in (ONE._replace(app="x"), ONE._replace(version=2), ONE._replace(kind="job")):
        with pytest.raises(UsageError):
            area.open(STAGE, other, 0, 50)
    for call in (
        area.facts,
        area.part,
        lambda key: area.append(key, []),
        lambda key: area.begin_seal(key, True),
    ):
        with pytest.raises(NotFound):
            call(b"t" * 16)
    with pytest.raises(UsageError):
        area.part(STAGE)


def test_a_final_seal_ends_a_stage(group_case: StorageHarness) -> None:
    area = group_case.staging
    key = group_case.stage("a", 1)
    group_case.seal(key, final=False)
    group_case.stage("a", 1)
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
    assert group_case.files._nodes.keys() == {group_case.log._active.fd}, "no descriptor stays open"


def test_a_seal_covers_what_was_staged_before_it(group_case: StorageHarness) -> None:
    area = group_case.staging
    key = group_case.stage("a", 1)
    ticket = area.begin_seal(key, final=False)
    thread = threading.Thread(target=ticket.run)
    thread.start()
    group_case.stage("a", 1)
    thread.join(10)
    row = area.finish_seal(ticket)
    path = Path(group_case.staging._stages[key].files[0].path)
    assert (row.blocks, area.facts(key).sealed_blocks, area.facts(key).blocks) == (2, 2, 4)
    assert group_case.store is not None
    group_case.store.state.commit(StateBatch(stage_puts={key: row}))
    group_case.crash(keep_all)
    assert group_case.staging.open(key, Transaction("query", 1, "app"), 0, 1) == (2, 2)
    assert path.stat().st_size == row.files[0].data_end, "what no row names is cut off"
    group_case.after_crash()
    group_case.stage("a", 1, blocks=3)
    group_case.seal(key)
    group_case.commit(1, key)
    assert group_case.check() == []


def test_a_seal_that_fails_ends_staging(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1)
    group_case.files.fail["sync"] = {group_case.files._calls.get("sync", 0) + 1: errno.EIO}
    ticket = group_case.staging.begin_seal(key, final=False)
    later = group_case.staging.begin_seal(key, final=False)
    for each in (ticket, later):
        with pytest.raises(StoreFailed):
            each.run()
    for call in (lambda: group_case.staging.finish_seal(later), lambda: group_case.stage("b", 1)):
        with pytest.raises(StoreFailed):
            call()


def test_a_stage_dropped_during_its_seal_leaves_no_files(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1)
    ticket = group_case.staging.begin_seal(key, final=True)
    batch = StateBatch()
    group_case.drop(key, batch=batch, lag=True)
    ticket.run()
    with pytest.raises(NotFound):
        group_case.staging.finish_seal(ticket)
    assert group_case.files._nodes.keys() == {group_case.log._active.fd}
    assert batch.stage_gones == [key]
    group_case.stage("a", 1, blocks=3)  # uses the name again before the old files are removed
    group_case.staging.purge(StateBatch())
    assert len(list(Path(group_case.directory, STAGING_NAME).iterdir())) == 2, (
        "another batch's files are not touched"
    )
    group_case.staging.purge(batch)
    group_case.seal(key)
    group_case.commit(1, key)
    assert group_case.check() == []


def test_a_row_of_the_same_batch_goes_with_its_stage(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1)
    ticket = group_case.staging.begin_seal(key, final=True)
    ticket.run()
    batch = StateBatch(stage_puts={key: group_case.staging.finish_seal(ticket)})
    group_case.drop(key, batch=batch)
    assert group_case.store is not None
    assert group_case.store.state.load().stages == {}
    group_case.staging.drop([b"u" * 16], batch)
    group_case.staging.purge()
    assert group_case.check() == []


def test_staged_files_have_the_form_of_chunks(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1, blocks=20)
    group_case.seal(key)
    files = group_case.staging.part(key).files
    assert len(files) > 2
    assert len({file.seed for file in files}) == len(files)
    assert sum(file.blocks for file in files) == 20
    for file in group_case.staging._stages[key].files:
        assert (
            Path(file.path).stat().st_size == file.data_end + 64 <= group_case.options.chunk_bytes
        )
    huge = pack([b"x" * 5000], sequence=0)
    group_case.staging.open(STAGE, ONE, 0, 1)
    assert (
        group_case.staging.append(STAGE, [huge, *(pack([b"y"], sequence=i) for i in (1, 2))], 1)
        == 3
    )
    assert [file.blocks for file in group_case.staging._stages[STAGE].files] == [1, 2], (
        "a block larger than a chunk has one for itself"
    )


def test_many_blocks_are_appended_in_few_writes(group_case: StorageHarness) -> None:
    group_case.staging._chunk_bytes = 1 << 20
    group_case.staging.open(STAGE, ONE, 0, 1)
    assert (
        group_case.staging.append(STAGE, [pack([b"y"], sequence=i) for i in range(1500)], 1) == 1500
    )
    assert group_case.files.log[-3:] == ["writev"] * 3


def test_few_files_are_open(group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it is closed for another one. Without its descriptor, a failed
    write-back of its pages would not be noticed.
    """
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 2)
    keys = [group_case.stage(name, 1, blocks=1) for name in "abcde"]
    assert len(group_case.files._nodes) == 3
    for name in "abcde":
        group_case.stage(name, 1, blocks=1 + 6 * (name == "b"))
        assert len(group_case.files._nodes) <= 3
    group_case.seal(*keys)
    group_case.crash(keep_none)
    group_case.commit(1, *keys)
    assert group_case.check() == []
    group_case.stage("f", 2)
    group_case.stage("g", 2)
    group_case.files.fail["sync"] = {group_case.files._calls.get("sync", 0) + 1: errno.ENOSPC}
    with pytest.raises(StoreFailed):
        group_case.stage("h", 2)
    with pytest.raises(StoreFailed):
        group_case.stage("f", 2)


def test_files_that_wait_for_a_sync_stay_open(
    group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 1)
    keys = [group_case.stage("a", 1), group_case.stage("b", 1)]
    tickets = [group_case.staging.begin_seal(key, final=True) for key in keys]
    group_case.stage("c", 1)
    for ticket in tickets:
        ticket.run()
        group_case.staging.finish_seal(ticket)
    assert len(group_case.files._nodes) == 2


def test_stages_and_files_over_the_limits_are_refused(
    group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGES_MAX", 2)
    monkeypatch.setattr(staging, "FILES_MAX", 3)
    group_case.stage("a", 1, blocks=1)
    key = group_case.stage("b", 1, blocks=1)
    with pytest.raises(Refused, match="E_LIMIT"):
        group_case.staging.open(STAGE, ONE, 0, 1)
    before = group_case.staging.facts(key)
    with pytest.raises(Refused, match="E_LIMIT"):
        group_case.staging.append(key, [pack([b"z" * 300], sequence=i) for i in range(1, 9)])
    assert group_case.staging.facts(key)._replace(used_ns=0) == before._replace(used_ns=0), (
        "nothing of a refused call stays"
    )
    group_case.stage("b", 1, blocks=1)
    group_case.seal(key)
    group_case.drop(key)
    group_case.staging.open(STAGE, ONE, 0, 1)
    group_case.staging.append(STAGE, [pack([b"z"])])
    assert group_case.check() == []


def test_a_store_from_before_has_no_staging_folder(group_case: StorageHarness) -> None:
    folder = group_case.path(STAGING_NAME)
    assert not folder.exists()
    group_case.files.log.clear()
    key = group_case.stage("a", 1, blocks=1)
    assert group_case.files.log[:3] == ["make_folder", "sync_folder", "open_new"]
    assert folder.stat().st_mode & 0o777 == 0o700
    group_case.seal(key)
    group_case.crash(keep_none)
    assert group_case.staging.facts(key).final


@pytest.mark.parametrize("harm", ["gone", "short", "header", "other"])
def test_a_damaged_stage_is_dropped_and_the_topic_starts(
    group_case: StorageHarness, harm: str
) -> None:
    good, bad = group_case.stage("a", 1), group_case.stage("b", 1, blocks=9)
    group_case.seal(good, bad)
    path = Path(group_case.staging._stages[bad].files[-1].path)
    group_case.abandon_cleanly()
    whole = path.read_bytes()
    data = {"short": whole[:-80], "header": bytes(CHUNK_HEADER_BYTES) + whole[CHUNK_HEADER_BYTES:]}
    if harm == "gone":
        path.unlink()
        group_case.files.reset()
    else:
        group_case.replace(
            path,
            data.get(
                harm,
                Path(f"{group_case.directory}/{chunk_of(group_case)}").read_bytes() + bytes(2000),
            ),
        )
    report = group_case.open().report
    assert len(report.alarms) == 1
    assert bad.hex() in report.alarms[0]
    assert list(group_case.staging.stages()) == [good]
    assert [path.name[:32] for path in path.parent.iterdir()] == [good.hex()]
    del group_case.sealed[bad]
    assert group_case.restart().report.alarms == []
    group_case.commit(1, good)
    assert group_case.check() == []


def test_a_sealed_stage_that_cannot_be_read_now_stays(group_case: StorageHarness) -> None:
    """Its commit is refused until it can be read. A stage that is still being written is dropped,
    because its writer would meet the bad disk again and again.
    """
    good, bad, going = (
        group_case.stage("a", 1),
        group_case.stage("b", 1, blocks=9),
        group_case.stage("c", 1),
    )
    group_case.seal(good, bad)
    group_case.seal(going, final=False)
    paths = [Path(group_case.staging._stages[key].files[-1].path) for key in (bad, going)]
    group_case.abandon_cleanly()
    for path, left in zip(paths, ([good, bad, going], [good, bad]), strict=True):
        group_case.files.unreadable = (path.name, 5)
        assert len(group_case.open().report.alarms) == 1
        assert list(group_case.staging.stages()) == left
        if path == paths[0]:
            with pytest.raises(Damaged):
                group_case.commit(1, good, bad)
        group_case.abandon_cleanly()
    group_case.files.unreadable = ("", 0)
    del group_case.sealed[going], group_case.staged[going]
    assert group_case.open().report.alarms == []
    group_case.commit(1, good, bad)
    assert group_case.check() == []


def chunk_of(harness: StorageHarness) -> str:
    return next(name for name in harness.files.list(harness.directory) if name.endswith(".chunk"))


def test_either_copy_of_a_staged_header_will_do(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1, blocks=4)
    group_case.seal(key)
    path = Path(group_case.staging._stages[key].files[0].path)
    group_case.abandon_cleanly()
    whole = path.read_bytes()
    for byte in range(0, CHUNK_HEADER_BYTES, 3):
        group_case.replace(path, whole[:byte] + bytes([whole[byte] ^ 16]) + whole[byte + 1 :])
        assert group_case.open().report.alarms == []
        assert group_case.staging.facts(key).final
        group_case.abandon_cleanly()


def test_the_store_closes_staged_files(group_case: StorageHarness) -> None:
    group_case.stage("a", 1)
    group_case.abandon_cleanly()
    assert group_case.files._nodes == {}


def test_a_block_that_was_cut_off_does_not_count_as_synced(
    group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file was synced and closed, because the stage needed its next file. But the disk
    was full, so the next file was not made. The block that is then written into the first file must
    be synced too.
    """
    monkeypatch.setattr(stage, "OPEN_FILES_MAX", 1)
    group_case.staging.open(STAGE, ONE, 0, 1)
    group_case.files.fail["open_new"] = {2: errno.ENOSPC}
    with pytest.raises(DiskFull):
        group_case.staging.append(STAGE, [pack([b"x" * 600], sequence=i) for i in (0, 1)], 1)
    group_case.files.fail["open_new"] = {4: errno.ENOSPC}
    group_case.staging.append(STAGE, [pack([b"x"])], 1)
    with pytest.raises(DiskFull):
        group_case.staging.append(STAGE, [pack([b"x" * 300], sequence=i) for i in (1, 2, 3)], 1)
    group_case.staging.append(STAGE, [pack([b"y"], sequence=1)], 1)
    ticket = group_case.staging.begin_seal(STAGE, final=True)
    ticket.run()
    row = group_case.staging.finish_seal(ticket)
    assert group_case.store is not None
    group_case.store.state.commit(StateBatch(stage_puts={STAGE: row}))
    group_case.crash(keep_none)
    group_case.log.append_group(ONE, [group_case.staging.part(STAGE)], 9)
    assert [block.body.value(0) for block in group_case.read_all()] == [b"x", b"y"]


def test_a_refused_append_gives_its_space_back(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1)
    (file,) = group_case.staging._stages[key].files
    group_case.files.short = {group_case.files._calls["writev"] + 1: 100}
    with pytest.raises(DiskFull):
        group_case.staging.append(key, [pack([b"x"], sequence=2)])
    assert Path(file.path).stat().st_size == file.data_end
