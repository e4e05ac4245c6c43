"""Tests of delayed messages that become due: each moves to the log once, even if the process dies
in between. Other tests damage the environment of the delayed messages.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest
from support.faulty_files import PowerCut, keep_all, keep_none

from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import ROW, DelayedKey, DelayedRow, due_block
from zsq.storage.delayed.delayed_recovery import check_delayed, moved_keys
from zsq.storage.errors import ForeignDirectory
from zsq.storage.rows import rows_of
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

PUBLISHER = 99
UUID = "00112233445566778899aabbccddeeff"
BLOCKS = [(b"a", b"b"), (b"c",), (b"d", b"e", b"f")]


def delayed(harness: StorageHarness) -> DelayedStore:
    assert harness.store is not None
    return harness.store.make_delayed(1_000)


def publish(harness: StorageHarness) -> list[DelayedKey]:
    made = [
        (pack(list(bodies), producer_id=PUBLISHER, sequence=number), 10 + number)
        for number, bodies in enumerate(BLOCKS)
    ]
    return delayed(harness).put(made, 5)


def move(harness: StorageHarness, now_ns: int = 99) -> list[DelayedRow]:
    """Move messages to the log in the same order of steps as the storage."""
    store = delayed(harness)
    rows = store.due(now_ns, 1 << 20, 99)
    harness.log.append([due_block(row) for row in rows], harness.now_ns)
    harness.log.sync()
    store.remove([row.key for row in rows])
    return rows


def checkpoint(harness: StorageHarness) -> None:
    assert harness.store is not None
    harness.store.state.commit(
        StateBatch(synced_end=harness.log.synced_end, applied_offset=harness.log.synced_end)
    )


def in_log(harness: StorageHarness) -> list[bytes]:
    blocks = harness.read_all()
    assert all(not block.header.flags for block in blocks)
    mine = [block for block in blocks if not block.header.producer_id]
    assert all(block.header.sequence == 0 for block in mine), (
        "due time and serial are no business of readers"
    )
    return [body or b"" for block in mine for body in block.body.values()]


def waiting(harness: StorageHarness) -> list[bytes]:
    assert harness.store is not None
    if harness.store.delayed is None:
        return []
    return [one.body for one in harness.store.delayed.listed(None, 999, 999)]


def test_due_messages_are_moved_to_the_log(harness: StorageHarness) -> None:
    keys = publish(harness)
    assert [row.key for row in move(harness, 10)] == keys[:1]
    assert (in_log(harness), waiting(harness)) == ([b"a", b"b"], [b"c", b"d", b"e", b"f"])
    assert list(moved_keys(harness.log, 0)) == keys[:1]
    assert list(moved_keys(harness.log, 1)) == keys[:1]
    assert list(moved_keys(harness.log, 2)) == []
    harness.restart()
    assert (in_log(harness), waiting(harness)) == ([b"a", b"b"], [b"c", b"d", b"e", b"f"])
    assert delayed(harness).producers[PUBLISHER].next_sequence == 3


@pytest.mark.parametrize("loss", [keep_all, keep_none], ids=["all kept", "none kept"])
def test_a_power_cut_before_any_change_moves_each_message_once(
    tmp_path: Path, harness: StorageHarness, loss: object
) -> None:
    """The power is also cut during the recovery that follows. The checkpoint of the state store is
    at different places.
    """
    everything = sorted(body for bodies in BLOCKS for body in bodies)
    at = 0
    finished = False
    while not finished:
        at += 1
        (tmp_path / f"run{at}").mkdir()
        other = type(harness)(tmp_path / f"run{at}")
        other.open()
        other.publish()
        publish(other)
        other.files.power_cut_at = other.files.changes + at
        try:
            for now_ns in (10, 11, 12):
                move(other, now_ns)
                other.publish()
                checkpoint(other) if now_ns == 11 else None
            finished = True
        except PowerCut:
            pass
        for _ in range(2):
            other.crash(loss)  # type: ignore[arg-type]
            assert sorted(in_log(other) + waiting(other)) == everything, f"before change {at}"
            assert other.store is not None
            table = other.store.state.load()
            assert PUBLISHER not in table.producers
            assert not any(pid > 1 << 32 or pid == 10 for pid in table.producers), (
                "a due time was taken for a producer"
            )
        move(other)
        assert sorted(in_log(other)) == everything
        other.abandon()
    assert at > 5


def test_a_message_moved_before_a_crash_is_not_moved_again(harness: StorageHarness) -> None:
    """At one moment the message is both in the log and among the delayed ones. The crash comes
    then.
    """
    publish(harness)
    store = delayed(harness)
    rows = store.due(99, 1 << 20, 2)
    harness.log.append([due_block(row) for row in rows], harness.now_ns)
    harness.log.sync()
    harness.crash(keep_none)
    assert (in_log(harness), waiting(harness)) == ([b"a", b"b", b"c"], [b"d", b"e", b"f"])
    assert harness.store is not None
    assert any("had already moved" in note for note in harness.store.report.notes)
    harness.crash(keep_none)
    assert (in_log(harness), waiting(harness)) == ([b"a", b"b", b"c"], [b"d", b"e", b"f"])


def test_making_the_environment_is_whole_or_not_at_all(
    tmp_path: Path, harness: StorageHarness
) -> None:
    finished = False
    for at in range(1, 20):
        (tmp_path / f"make{at}").mkdir()
        other = type(harness)(tmp_path / f"make{at}")
        other.open()
        other.files.power_cut_at = other.files.changes + at
        try:
            publish(other)
            finished = True
        except PowerCut:
            pass
        other.crash(keep_none)
        found = waiting(other)
        assert found == [b"a", b"b", b"c", b"d", b"e", b"f"] or (found == [] and not finished)
        if not found:
            assert len(publish(other)) == 3
        other.abandon()
        if finished:
            return
    raise AssertionError("more changes than making one has")


def test_another_topics_environment_and_one_without_its_file_are_refused(
    harness: StorageHarness,
) -> None:
    publish(harness)
    harness.abandon_cleanly()
    data = harness.path("delayed/data.mdb")
    kept = data.read_bytes()
    data.unlink()
    with pytest.raises(ForeignDirectory):
        harness.open()
    assert not data.exists(), "it is not made anew in its place"
    data.write_bytes(kept)
    harness.open()
    assert len(waiting(harness)) == 6


# Damage


def test_an_environment_that_cannot_be_opened_is_set_aside_and_said(
    harness: StorageHarness,
) -> None:
    publish(harness)
    harness.abandon_cleanly()
    harness.replace(harness.path("delayed/data.mdb"), b"\xff" * 8192)
    store = harness.open()
    assert waiting(harness) == []
    assert any("6 delayed messages are lost" in alarm for alarm in store.report.alarms)
    assert harness.path("delayed.bad-0/data.mdb").read_bytes() == b"\xff" * 8192
    assert len(publish(harness)) == 3
    harness.restart()
    assert len(waiting(harness)) == 6
    harness.abandon_cleanly()
    harness.replace(harness.path("delayed/data.mdb"), b"\xff" * 8192)
    harness.path("delayed/commits").unlink()
    assert any("unknown number" in alarm for alarm in harness.open().report.alarms)


def test_after_a_death_the_environment_is_looked_through_and_what_is_whole_is_saved(
    harness: StorageHarness,
) -> None:
    """A mark on disk says that the last process died, and one leaf page is damaged. The rows of
    other leaves survive, and the lost ones are counted.
    """
    store = delayed(harness)
    for number in range(40):
        store.put(
            [
                (
                    pack([b"%03d" % number + bytes(400)], producer_id=PUBLISHER, sequence=number),
                    10 + number,
                )
            ],
            5,
        )
    harness.abandon_cleanly()
    path = harness.path("delayed/data.mdb")
    data = bytearray(path.read_bytes())
    at = data.rfind(b"020" + bytes(400))
    assert at > 0
    while at >= 0:  # flip it in old copies of the page too
        data[at] ^= 1
        at = data.rfind(b"020" + bytes(400), 0, at)
    harness.replace(path, bytes(data))
    harness.open()
    assert len(waiting(harness)) == 39, "listed are those that are whole"
    harness.abandon_cleanly()
    harness.path("delayed.attempt").write_bytes(b"due")
    harness.files.reset()
    found = harness.open()
    assert len(waiting(harness)) == 39
    assert found.delayed is not None
    assert (found.delayed.summary.messages, found.delayed.summary.lost) == (39, 1)
    assert any("1 delayed messages are lost" in alarm for alarm in found.report.alarms)
    assert not harness.path("delayed.attempt").exists()
    assert found.delayed.producers[PUBLISHER].next_sequence == 40
    (key,) = found.delayed.put([(pack([b"z"], producer_id=PUBLISHER, sequence=40), 99)], 5)
    assert key.serial >= 1_040, "no serial comes again"
    assert harness.path("delayed.bad-0/data.mdb").read_bytes() == bytes(data)


def test_a_needless_look_changes_nothing(harness: StorageHarness) -> None:
    publish(harness)
    harness.abandon_cleanly()
    harness.path("delayed.attempt").write_bytes(b"put")
    harness.files.reset()
    store = harness.open()
    assert len(waiting(harness)) == 6
    assert store.report.alarms == []
    assert not harness.path("delayed.bad-0").exists()


def test_the_marker_stands_while_something_is_tried_for_the_first_time(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = publish(harness)
    harness.restart()
    store = delayed(harness)
    seen: list[bool] = []
    mark = harness.path("delayed.attempt")
    monkeypatch.setattr(
        "zsq.storage.delayed.delayed.decode_row", lambda key, value: seen.append(mark.exists())
    )
    with pytest.raises(AttributeError):
        store.due(99, 1, 1)
    assert seen == [True]
    assert mark.read_bytes() == b"due", "and stays when it went wrong"
    assert keys


def test_a_crash_in_the_middle_of_a_rescue_is_finished(harness: StorageHarness) -> None:
    publish(harness)
    harness.abandon_cleanly()
    folder = Path(harness.directory)
    (folder / "delayed").rename(folder / "delayed.ready")
    harness.files.reset()
    harness.open()
    assert len(waiting(harness)) == 6
    harness.abandon_cleanly()
    (folder / "delayed.ready").mkdir()
    (folder / "delayed.ready/data.mdb").write_bytes((folder / "delayed/data.mdb").read_bytes())
    (folder / "delayed/data.mdb").write_bytes(b"\xff" * 8192)
    harness.files.reset()
    harness.open()
    assert len(waiting(harness)) == 6
    assert (folder / "delayed.bad-0/data.mdb").exists()


def test_a_damaged_row_is_kept_as_a_file(harness: StorageHarness) -> None:
    store = delayed(harness)
    key = DelayedKey(10, 1_000)
    store.set_aside(b"d" + bytes(16), b"\x01\x02\x03", "it is damaged")
    (path,) = Path(harness.directory).glob("delayed-*.bad")
    head, _, rest = path.read_bytes().partition(b"\n")
    line, _, crc = head.rpartition(b" ")
    assert json.loads(line)["why"] == "it is damaged"
    assert (rest, len(crc)) == (b"\x01\x02\x03", 8)
    assert key.text()


def test_the_check_reports_missing_and_damaged_rows(harness: StorageHarness) -> None:
    publish(harness)
    harness.abandon_cleanly()
    path = str(harness.path("delayed"))
    assert check_delayed(path) == []
    with lmdb.open(path, lock=False) as env, env.begin(write=True) as txn:
        (key, value) = next(rows_of(txn, ROW))
        txn.delete(key)
    assert len(check_delayed(path)) == 4, "rows, messages, bytes and sum do not agree"
    with lmdb.open(path, lock=False) as env, env.begin(write=True) as txn:
        txn.put(key, value[:-1])
    assert "damaged" in check_delayed(path)[0]


DEATH = """
import sys
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_recovery import open_delayed
from zsq.storage.files import Files
class Log:
    def headers(self, offset):
        return iter(())
    def offset_at(self, time_ns):
        return 0
notes, alarms = [], []
store = open_delayed(Files(), sys.argv[1], bytes.fromhex(sys.argv[2]), Log(), 0, 5_000, notes, alarms)
found = [body.decode() for row in store.due(1 << 62, 1 << 30, 1 << 30) for body in row.block.body.values()]
store.adjust(0, 0)
store.close()
sys.stdout.write(repr((found, store.summary.lost, alarms)))
"""


def lives(directory: Path) -> tuple[list[str], int, list[str]]:
    """Start processes one after the other until one succeeds."""
    said = b""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", DEATH, directory, UUID],
            capture_output=True,
            check=False,
            timeout=60,
        )
        if done.returncode == 0:
            found, lost, alarms = ast.literal_eval(done.stdout.decode())
            return found, lost, alarms
        said = done.stderr
        if b"ForeignDirectory" in said:
            return (
                [],
                0,
                ["unknown number: its version or uuid is another one now, a person must look"],
            )
    raise AssertionError(f"it does not come up any more: {said.decode()[-2000:]}")


def test_flipped_bits_cost_only_their_messages_and_are_reported(tmp_path: Path) -> None:
    """The bits are anywhere in the file. No message has a wrong body or comes twice, and missing
    messages are counted. The store can be started, if necessary by a rescue.
    """
    source = tmp_path / "source"
    (source / "delayed").mkdir(parents=True)
    store = DelayedStore(
        str(source / "delayed"), bytes.fromhex(UUID), map_bytes=1 << 20, create=True
    )
    for number in range(60):
        bodies = [b"%03d-%d" % (number, index) + b"." * 40 for index in range(1 + number % 3)]
        store.put([(pack(bodies, producer_id=PUBLISHER, sequence=number), 10 + number)], 5)
        if number % 7 == 0:
            store.remove([row.key for row in store.due(10 + number, 1, 1)])
    everything = [one.body.decode() for one in store.listed(None, 999, 999)]
    store.close()
    data = (source / "delayed/data.mdb").read_bytes()
    chance = random.Random(4)
    harmless = hurt = 0
    for turn in range(40):
        directory = tmp_path / f"flip{turn}"
        shutil.copytree(source, directory)
        bit = chance.randrange(len(data) * 8)
        # The two meta pages and the headers of pages are small, but damage in them matters most.
        if turn < 20:
            bit = (turn % (len(data) // 4096)) * 4096 * 8 + chance.randrange(64 * 8)
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        (directory / "delayed/data.mdb").write_bytes(bytes(changed))
        found, lost, alarms = lives(directory)
        assert len(set(found)) == len(found), f"bit {bit}: twice"
        assert set(found) <= set(everything), f"bit {bit}: a wrong body"
        missing = len(everything) - len(found)
        told = lost >= missing or any("unknown number" in alarm for alarm in alarms)
        assert told, f"bit {bit}: {missing} are missing, {lost} are counted; {alarms}"
        harmless += not missing
        hurt += bool(missing)
        shutil.rmtree(directory)
    assert harmless > 12
    assert hurt > 1, "nothing that counts was hit"


def test_a_death_while_recovery_removes_what_has_moved(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that time, the checkpoint must not include the blocks yet. Otherwise no start would look
    for their keys again, and the messages would come twice.
    """
    publish(harness)
    store = delayed(harness)
    harness.log.append([due_block(row) for row in store.due(99, 1 << 20, 2)], harness.now_ns)
    harness.log.sync()
    harness.abandon()
    harness.files.crash(keep_all)

    def die(self: DelayedStore, keys: object, **options: object) -> None:
        raise PowerCut("now")

    with monkeypatch.context() as patch:
        patch.setattr(DelayedStore, "remove", die)
        with pytest.raises(PowerCut):
            harness.open()
    harness.crash(keep_all)
    assert (in_log(harness), waiting(harness)) == ([b"a", b"b", b"c"], [b"d", b"e", b"f"])
