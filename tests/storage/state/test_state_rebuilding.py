"""Tests of power cuts while a state store is rebuilt: each name is on disk before the next step
needs it, and nothing is erased or done twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import PowerCut, keep_none

from tests.storage.conftest import IDENTITY
from tests.storage.delayed.test_delayed_power import ForgetfulFiles
from tests.storage.delayed.test_delayed_rescue import LOSSES
from tests.storage.state.test_state_keeper_rebuild import spoil, table_of, work
from zsq.storage.rows import META, wrap
from zsq.storage.state.snapshot import SNAPSHOT_NAME, encode_snapshot, read_snapshot
from zsq.storage.state.state_keeper import finish_rebuild, rebuild_state
from zsq.storage.state.state_rows import new_meta
from zsq.transport.wire.codec import pack_value

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

OTHER_UUID = bytes(16)


def forgetful(root: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic whose state is damaged."""
    root.mkdir()
    made = type(harness)(root, files=ForgetfulFiles(str(root)))
    made.open()
    work(made)
    made.abandon()
    spoil(made)
    made.files.reset()
    return made


def tear(harness: StorageHarness) -> None:
    """Cut the snapshot. Its first line can still be read, and names more commits than a new store
    has.
    """
    path = harness.path(SNAPSHOT_NAME)
    path.write_bytes(path.read_bytes()[:-1])
    harness.files.reset()


def of_state(harness: StorageHarness) -> set[str]:
    return {name for name in harness.files.list(harness.directory) if name.startswith("state")}


@pytest.mark.parametrize("torn", [False, True], ids=["snapshot", "torn snapshot"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_at_every_change(
    tmp_path: Path, harness: StorageHarness, loss: str, torn: bool
) -> None:
    """There is another power cut after the start that completed the rebuild."""
    wanted = {"state", "state.starts", "state.bad-1", *([f"{SNAPSHOT_NAME}.bad-1"] if torn else [])}
    finished = False
    at = 0
    while not finished:
        at += 1
        other = forgetful(tmp_path / f"run{at}", harness)
        if torn:
            tear(other)
        damaged = other.path("state/data.mdb").read_bytes()
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            pass
        other.crash(LOSSES[loss](other.files))
        other.crash(keep_none)
        table = table_of(other)
        assert set(table.channels) == (set() if torn else {"c", "d"}), f"before change {at}"
        assert table.producers[77].next_sequence == 4
        assert other.check() == [0, 1, 2, 3]
        assert of_state(other) - {SNAPSHOT_NAME} == wanted, f"before change {at}"
        assert other.path("state.bad-1/data.mdb").read_bytes() == damaged, (
            f"before change {at}: something was wiped"
        )
        other.abandon()
    assert at > 8


def test_a_missing_state_is_not_made_twice_because_a_bad_snapshot_came_back(
    tmp_path: Path, harness: StorageHarness
) -> None:
    """The rename of the snapshot must be durable before the new store gets its name. Otherwise the
    old snapshot could come back and contradict the new store.
    """
    finished = False
    at = 0
    while not finished:
        at += 1
        other = forgetful(tmp_path / f"run{at}", harness)
        other.path("state").rename(tmp_path / f"away{at}")
        tear(other)
        other.files.power_cut_at = at
        try:
            rebuild_state(
                other.files, other.directory, IDENTITY.uuid_bytes, 1 << 20, "it is missing"
            )
            finished = True
        except PowerCut:
            pass
        other.files.crash(LOSSES["newest"](other.files))
        if other.path("state").exists():
            assert not other.path(SNAPSHOT_NAME).exists(), f"before change {at}"
    assert at > 5


def test_the_name_of_a_rebuilt_store_is_synced(tmp_path: Path, harness: StorageHarness) -> None:
    """Code that looks at the folder later, without another start, finds the store."""
    other = forgetful(tmp_path / "one", harness)
    rebuild_state(other.files, other.directory, IDENTITY.uuid_bytes, 1 << 20, "it is damaged")
    other.files.crash(keep_none)
    assert of_state(other) >= {"state", "state.bad-1"}
    assert "state.tmp" not in of_state(other)
    assert other.path("state/data.mdb").exists()


def test_the_name_of_a_store_is_synced_when_its_rebuild_is_finished(
    tmp_path: Path, harness: StorageHarness
) -> None:
    other = forgetful(tmp_path / "one", harness)
    other.path("state").rename(other.path("state.tmp"))
    other.files.reset()
    notes: list[str] = []
    finish_rebuild(other.files, other.directory, notes)
    assert len(notes) == 1
    other.files.crash(keep_none)
    assert "state" in of_state(other)
    assert "state.tmp" not in of_state(other)


def test_a_snapshot_with_another_topics_checkpoint_is_not_used(harness: StorageHarness) -> None:
    """The first line of the snapshot names this topic, but its content names another one. A store
    made from it would be refused by every start.
    """
    work(harness)
    harness.abandon()
    spoil(harness)
    rows = [(META, wrap(META, pack_value(new_meta(OTHER_UUID, 0))))]
    harness.path(SNAPSHOT_NAME).write_bytes(encode_snapshot(IDENTITY.uuid_bytes, 5, rows, {}))
    harness.files.reset()
    assert read_snapshot(harness.files, harness.directory) is not None
    assert any(
        "belongs to another topic: all channels are lost" in alarm
        for alarm in harness.open().report.alarms
    )
    assert table_of(harness).producers[77].next_sequence == 4
    assert harness.check() == [0, 1, 2, 3]
