"""Tests of 5,000 distinct disks that a power cut may leave, in every run of continuous integration.
`scripts/prove crash-states` tries more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from support.storage_harness import GROUPS

from zsq.actors.channel.channel import ChannelActor
from zsq.actors.channel.supply import SavedRows, Supply
from zsq.actors.runtime.port import Mail
from zsq.storage.state.state import StateBatch
from zsq.transport.wire import protocol as p

from .crash_states import prove_some, work_folder
from .life import Life
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


def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the channel delivers from the new position of a seek before that seek is
    committed.
    """
    monkeypatch.setattr(
        Supply, "moving", property(lambda supply: False, lambda supply, value: None), raising=False
    )


def _answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a seek is answered before it is committed."""
    plain = ChannelActor.seek

    def seek(channel: ChannelActor, message: p.Seek) -> None:
        plain(channel, message)
        answers, channel.commits._answers = channel.commits._answers, []
        for answer in answers:
            channel.answer_order(answer)

    monkeypatch.setattr(ChannelActor, "seek", seek)


def _confirmed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a finish is confirmed before it is committed."""

    def _answer(channel: ChannelActor, mail: Mail, request: int, token: int, refused: Any) -> None:
        channel.front.send(mail.envelope, p.Answer(request, token, tuple(refused)))

    monkeypatch.setattr(ChannelActor, "_answer", _answer)


def _with_its_old_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a seek moves the cursor, but keeps the rows of the messages that the channel held
    before.
    """
    plain = SavedRows.changes

    def changes(rows: SavedRows, *arguments: Any) -> Any:
        return plain(rows, *arguments)[0], ()

    monkeypatch.setattr(SavedRows, "changes", changes)


@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        (_without_waiting, "was undone, and consumers had seen it"),
        (_answered_at_once, "does not come"),
        (_confirmed_at_once, "comes again (attempt"),
        (_with_its_old_rows, "comes again (attempt"),
    ],
)
def test_a_defect_of_seeks_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with work_folder() as folder:
        result = prove_some("moved", folder, 400, 0, seed=1)
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
