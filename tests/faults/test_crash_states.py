"""Tests of 5,000 distinct disks that a power cut may leave, in every run of continuous integration.
`scripts/prove crash-states` tries more.
"""

from __future__ import annotations

from typing import Final

import pytest
from support.storage_harness import GROUPS

from zsq.storage.state.state import StateBatch

from .crash_states import prove_some, work_folder
from .id_life import IdLife, ids
from .life import Life
from .seek_life import SeekLife, moved
from .workloads import WORKLOADS, TopicWork, groups, publishes

pytestmark = pytest.mark.slow

SHARE: Final = (200, 20)  # number of disks after a power cut, and after a crash in recovery
SHARES: Final = {
    name: {"queue": (160, 10), "queue-4": (140, 20)}.get(name, SHARE) for name in WORKLOADS
}


def test_the_shares_are_all_that_is_said() -> None:
    assert sum(disks for disks, _ in SHARES.values()) >= 5_000
    assert sum(nested for _, nested in SHARES.values()) >= 500


class Forgetful(Life):
    """A faulty life: its commits count blocks that its rows of producers do not include, as if
    blocks that became durable by a new chunk or a group were forgotten.
    """

    def counted(self, batch: StateBatch) -> StateBatch:
        batch = super().counted(batch)
        batch.producers = {}
        return batch


@pytest.mark.parametrize(
    "work", [TopicWork(publishes, kind=Forgetful), TopicWork(groups, GROUPS, kind=Forgetful)]
)
def test_a_producer_that_would_be_asked_for_what_is_there_is_found(
    work: TopicWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKLOADS, "forgetful", work)
    with work_folder() as folder:
        result = prove_some("forgetful", folder, 60, 0, seed=1)
    assert "the producer would be asked for" in "".join(what for _, what in result.violations)


class UncountedIds(IdLife):
    """A faulty life: its commits do not say that the log below them has ids."""

    def counted(self, batch: StateBatch) -> StateBatch:
        batch = super().counted(batch)
        batch.ids = None
        return batch


def test_an_id_that_a_restart_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "uncounted", TopicWork(ids, kind=UncountedIds))
    with work_folder() as folder:
        result = prove_some("uncounted", folder, 100, 0, seed=1)
    assert "of a stored message is not known" in "".join(what for _, what in result.violations)


class AnsweredAtOnce(SeekLife):
    """A faulty life: a seek counts as answered when it is requested."""

    def seek(self, place: int) -> None:
        super().seek(place)
        super().was_moved(place)

    def was_moved(self, place: int) -> None:
        pass


class SeenAtOnce(SeekLife):
    """A faulty life: a consumer counts as served from the new position when it is requested."""

    def seek(self, place: int) -> None:
        super().seek(place)
        self.seen = True


class ConfirmedAtOnce(SeekLife):
    """A faulty life: a finish counts as confirmed when it is requested."""

    def finish(self, *offsets: int) -> None:
        super().finish(*offsets)
        self.confirmed.update(offsets)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (AnsweredAtOnce, "does not come"),
        (SeenAtOnce, "was undone, and consumers had seen it"),
        (ConfirmedAtOnce, "comes again (attempt"),
    ],
)
def test_a_seek_or_a_finish_that_is_undone_is_found(
    kind: type[SeekLife], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKLOADS, "faulty", TopicWork(moved, kind=kind))
    with work_folder() as folder:
        result = prove_some("faulty", folder, 100, 0, seed=1)
    assert complaint in "".join(what for _, what in result.violations)


@pytest.mark.parametrize("name", SHARES)
def test_every_promise_holds_after_a_few_power_cuts(name: str) -> None:
    with work_folder() as folder:
        result = prove_some(name, folder, 12, 2, seed=1)
    assert [what for _, what in result.violations] == []


@pytest.mark.long
@pytest.mark.parametrize("name", SHARES)
def test_every_promise_holds_after_a_power_cut(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disks, nested = SHARES[name]
    with work_folder() as folder:
        result = prove_some(name, folder, disks, nested, seed=1)
    with capsys.disabled():
        print(f" {name}: {result.sentence()}", end="")
    for where, what in result.violations:
        raise AssertionError(f"{what}\nreplay: scripts/prove crash-states --replay {where}")
    assert len(result.disks) >= disks
    assert len(result.nested) >= nested
