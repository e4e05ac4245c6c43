"""Tests of backups inside storage: in which order parts are copied, what is refused, and when the
copies are removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.fake_storage import Listener
from support.scripted_extension import plain
from support.stage_bench import Bench, Thread

from zsq.actors.storage import backups as backups_module
from zsq.actors.storage.backups import Backups, BackupState
from zsq.actors.storage.channels import Channels
from zsq.actors.storage.delayed import DelayedMessages
from zsq.actors.storage.retention import RetentionRunner
from zsq.actors.supervisor.commands.relayed import order_for
from zsq.storage.files import Files
from zsq.storage.space import Shortage
from zsq.storage.state.state_keeper import StateKeeper
from zsq.transport.block.block import pack
from zsq.transport.errors import Refused, UsageError, ZsqError
from zsq.transport.settings import Retention
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of


class Office(Bench):
    """All parts of storage that a backup uses. The threads work only when a test tells them to."""

    def keeper(self) -> StateKeeper:
        return self.store.keeper

    def begin(self) -> Backups:
        self.housekeeping, self.late = Thread(), Thread()
        self.answers: list[p.Done | p.Failed] = []
        table = self.store.state.load()
        channels = Channels(self.store.log, self.state, table, "always")
        self.retention = RetentionRunner(
            self.store, bytes(16), self.state, channels, Retention(keep_bytes=0), "t",
            self.housekeeping, lambda *_: None, lambda: 0, lambda: 0,
            dropped_count=0, in_memory=False, extension=plain(self.store.log),
        )  # fmt: skip
        ignore = cast("Callable[..., Any]", lambda *_: None)
        self.delayed = DelayedMessages(
            self.store, "t", self.late, Listener(), plain(), ignore, ignore, ignore, Shortage()
        )
        self.lock_path = f"{self.directory.rsplit('/', 2)[0]}/backup.lock"
        self.backup = Backups(
            self.store,
            self.state,
            self.retention,
            self.delayed,
            "storage t",
            self.housekeeping,
            self.answers.append,
        )
        return self.backup

    def order(self, do: str, name: str = "one") -> p.Done | None:
        order = order_for(request_of(p.Manage(0, "backup", "t", "", {"do": do, "id": name})))(1)
        if isinstance(order, p.BackUpState):
            self.backup.take_state(order)
        elif isinstance(order, p.BackUpLog):
            self.backup.take_log(order)
        return self.backup.end(order) if isinstance(order, p.EndBackup) else None

    def work(self) -> None:
        """Run every thread until nothing is left to do."""
        while self.housekeeping.jobs or self.state_thread.jobs or self.late.jobs:
            for thread in (self.housekeeping, self.late):
                thread.run()
                for then, value in thread.results():
                    then(value)
            self.state_thread.run()
            self.state.on_results()

    def state_is(self, name: str) -> bool:
        return self.backup.state is BackupState(name)

    @property
    def taken(self) -> list[str]:
        folder = f"{self.directory}/backup"
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    (tmp_path / "topics").mkdir()
    one = Office(str(tmp_path / "topics" / "t"))
    one.begin()
    one.store.log.append([pack([b"x"])], 1)
    yield one
    one.store.close()


def test_a_backup_takes_state_then_log_and_removes_its_copies_at_the_end(office: Office) -> None:
    office.order("state")
    assert office.state_is("state")
    assert office.answers == []
    office.work()
    assert office.answers.pop() == p.Done(1, {})
    assert office.state_is("held")
    assert office.taken == ["state", "state.snapshot", "topic"]
    assert office.store.log.synced_end == 0
    office.order("log")
    assert office.store.log.synced_end == 1, "what is taken is on disk"
    office.work()
    answer = office.answers.pop()
    assert isinstance(answer, p.Done)
    assert [answer.data[name] for name in ("start", "end", "missing", "newest")] == [
        0,
        1,
        0,
        f"{0:020d}.chunk",
    ]
    assert f"{0:020d}.chunk" in office.taken
    assert office.order("end") == p.Done(1, {})
    office.work()
    assert office.taken == []
    assert office.state_is("idle")


def test_no_chunk_is_removed_between_the_backup_of_state_and_log(office: Office) -> None:
    held: list[bool] = []
    tick = office.retention._view
    office.retention._view = lambda: held.append(True) or tick()  # type: ignore[method-assign, func-returns-value]
    office.order("state")
    office.work()
    office.retention.tick()
    assert held == [], "it does not even look"
    office.order("log")
    office.work()
    office.retention.tick()
    assert held


def test_the_log_is_taken_after_the_delayed_messages(office: Office) -> None:
    """A delayed message that becomes due meanwhile moves into the log, so the log must be copied
    last. In the other order, the backup would have the message in neither part.
    """
    office.store.make_delayed(1)
    office.order("state")
    office.work()
    office.order("log")
    assert office.store.log.synced_end == 0
    assert office.housekeeping.jobs == []
    office.work()
    assert {"delayed", f"{0:020d}.chunk"} <= set(office.taken)
    assert office.store.log.synced_end == 1


def test_a_backup_waits_for_a_removal_of_chunks_that_has_begun(office: Office) -> None:
    office.retention._removing = True
    office.order("state")
    office.work()
    assert office.answers == []
    office.retention._removed(0, 1, 3)
    office.work()
    assert office.answers == [p.Done(1, {})]


@pytest.mark.parametrize(
    ("do", "name", "error"),
    [
        ("log", "other", Refused),
        ("end", "other", Refused),
        ("state", "", UsageError),
        ("copy", "one", UsageError),
    ],
)
def test_an_order_for_another_backup_or_with_wrong_data_is_refused(
    office: Office, do: str, name: str, error: type[ZsqError]
) -> None:
    office.order("state")
    office.work()
    with pytest.raises(error):
        office.order(do, name)
    assert office.state_is("held")


def test_a_second_backup_is_refused_until_the_first_has_its_state(office: Office) -> None:
    office.order("state")
    with pytest.raises(Refused, match="busy"):
        office.order("state", "two")
    office.work()
    office.order("state", "two")
    office.work()
    with pytest.raises(Refused):
        office.order("log", "one")
    office.order("log", "two")
    office.work()
    with pytest.raises(Refused):
        office.order("log", "two")


def test_a_backup_whose_process_has_ended_holds_no_chunk(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups_module, "LOOK_NS", 0)
    lock = Files().lock(office.lock_path)
    office.order("state")
    office.work()
    office.backup.tick()
    assert office.state_is("held")
    monkeypatch.setattr(backups_module, "HELD_NS_MAX", -1)
    office.backup.tick()
    assert office.state_is("idle"), "who does not go on holds no chunk for ever"
    office.order("state")
    office.work()
    office.order("log")
    office.work()
    office.backup.tick()
    assert office.state_is("ready"), "copying takes as long as it takes"
    Files().close(lock)
    office.backup.tick()
    office.work()
    assert office.taken == []


@pytest.mark.parametrize("call", ["link", "make_folder"])
def test_a_backup_that_fails_does_not_prevent_the_next_one(
    office: Office, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "no such thing here")

    monkeypatch.setattr(Files, call, fail)
    office.order("state")
    office.work()
    [answer] = office.answers
    assert isinstance(answer, p.Failed)
    assert "no such thing here" in answer.text
    assert office.state_is("idle")
    monkeypatch.undo()
    office.order("state")
    office.work()
    assert office.answers[-1] == p.Done(1, {})


def test_a_backup_is_refused_without_space_for_its_copies(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "free_bytes", lambda *_: 4096)
    with pytest.raises(Refused, match=r"beyond the reserve of .*; 4096 bytes are free"):
        office.order("state")
    assert office.state_is("idle")


def test_copies_from_before_a_restart_are_removed(office: Office) -> None:
    office.order("state")
    office.work()
    assert office.taken
    office.begin()
    office.work()
    assert office.taken == []
