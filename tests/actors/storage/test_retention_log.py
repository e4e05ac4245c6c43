"""Tests of the log's upkeep: which jobs go to the housekeeping thread, what becomes an alarm, and
how often it is repeated.
"""

from __future__ import annotations

import errno
import logging
import time
from pathlib import Path

import pytest
from support.stage_bench import Thread

from zsq.actors.storage.retention import ALARM_CHARACTERS_MAX, ALARMS_MAX, LogUpkeep
from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.state.state_rows import StateBatch
from zsq.transport.block.block import pack

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
OPTIONS = StoreOptions(chunk_bytes=460, map_bytes=1 << 20, reserve_bytes=0)


class House(Thread):
    """A thread that works only when a test tells it to."""

    def work(self) -> int:
        done = 0
        while self.jobs:
            self.run()
            for then, value in self.results():
                then(value)
                done += 1
        return done


def filled(folder: Path, files: Files | None = None, blocks: int = 8) -> Store:
    create_store(Files(), f"{folder}/clicks", IDENTITY, OPTIONS)
    store = open_store(files or Files(), f"{folder}/clicks", OPTIONS, IDENTITY)
    for number in range(blocks):
        store.log.append([pack([b"%d" % number])], 1_000 + number)
    store.log.sync()
    store.state.commit(StateBatch(applied_offset=store.log.end, synced_end=store.log.end))
    return store


def spoil(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what, 128 + 64)] ^= 1
    path.write_bytes(data)


def test_an_idle_topic_gives_its_thread_no_work(tmp_path: Path) -> None:
    store, housekeeping = filled(tmp_path), House()
    harness = LogUpkeep(store, "topic clicks", housekeeping)
    for second in range(20):
        harness.tick(1_000, time.monotonic_ns() + second * 1_000_000_000)
    assert not housekeeping.jobs
    assert harness.statistics([])["ring_bytes"] == 0, "what is old is not kept in memory"
    store.close()


def test_damage_is_counted_at_once_and_set_aside_by_the_thread(tmp_path: Path) -> None:
    store, housekeeping = filled(tmp_path), House()
    harness = LogUpkeep(store, "topic clicks", housekeeping)
    store.log.reader.ring.clear()
    first = Path(store.directory) / f"{0:020d}.chunk"
    spoil(first, bytes((0, 0, 0, 0, 1, 0, 0, 0)) + b"0")
    with pytest.raises(Damaged) as raised:
        store.log.read(0, 1, 8)
    harness.alarm(str(raised.value))
    harness.tick(5_000)
    assert harness.statistics([])["lost_messages"] == harness.statistics([])["damaged_blocks"] == 1
    assert store.log.reader.chunk_rows()["chunks"][0]["bad"] == 1
    assert not list(Path(store.directory).glob("*.bad")), "not in the loop"
    assert housekeeping.work() == 1
    assert len(list(Path(store.directory).glob("*.bad"))) == 1
    harness.tick(6_000)
    assert not housekeeping.jobs, "once"
    store.close()


def test_a_failed_job_is_logged_and_does_not_end_the_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, housekeeping = filled(tmp_path), House()
    harness = LogUpkeep(store, "topic clicks", housekeeping)
    with caplog.at_level(logging.ERROR, "zsq"):
        harness._kept(OSError("broken"))
        harness._surveyed(OSError("broken too"))
    assert "broken" in caplog.text
    assert "broken too" in caplog.text
    store.close()


def test_the_number_and_length_of_alarms_are_bounded(tmp_path: Path) -> None:
    store = filled(tmp_path)
    harness = LogUpkeep(store, "topic clicks", House())
    for number in range(ALARMS_MAX + 5):
        harness.alarm(f"{number} " + "x" * 1_000)
    alarms = harness.statistics([])["alarms"]
    assert len(alarms) == ALARMS_MAX + 1
    assert max(map(len, alarms)) == ALARM_CHARACTERS_MAX
    assert "5 more" in alarms[-1]
    store.close()


class Limited(Files):
    """Files in which one chunk cannot be opened."""

    code = 0

    def open_read(self, path: str) -> int:
        if self.code and path.endswith(f"{3:020d}.chunk"):
            raise OSError(self.code, "by plan")
        return super().open_read(path)


@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.EIO, errno.ENOENT, errno.EACCES, errno.ESTALE, 0]
)
def test_the_survey_checks_all_chunks_without_further_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """If the operating system cannot open a chunk now, that is an alarm but not a loss. A chunk
    that is missing in its folder is a loss (code 0: the file is removed).
    """
    files = Limited()
    filled(tmp_path, files, 30).close()
    monkeypatch.setattr("zsq.storage.log.recovery.AT_START_MAX", 1)
    monkeypatch.setattr("zsq.storage.log.survey.Survey.take.__defaults__", (2,))
    files.code = code
    store, housekeeping = open_store(files, f"{tmp_path}/clicks", OPTIONS, IDENTITY), House()
    assert not store.report.holes
    harness = LogUpkeep(store, "topic clicks", housekeeping)
    if not code:
        (tmp_path / "clicks" / f"{3:020d}.chunk").unlink()
    harness.tick(0)
    assert len(housekeeping.jobs) == 1, "one at a time"
    assert housekeeping.work() == (len(store.log.chunks) - 2 + 1) // 2, "each begins the next"
    assert harness.statistics([])["lost_messages"] == (0 if code else 3)
    assert len(harness.alarms) == 1
    assert ("are not lost" in harness.alarms[0]) == bool(code)
    files.code = 0
    store.close()
