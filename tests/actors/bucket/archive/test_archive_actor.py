"""Tests of the archive actor: who may write the list of a topic's files."""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import pytest

from zsq.actors.bucket.archive.archive_actor import HELD_MAX, ArchiveActor
from zsq.actors.bucket.archive.shipper import ShipperState
from zsq.transport.errors import E_BUCKET, E_FENCED, Refused, UsageError
from zsq.transport.wire import protocol as p


class Actor:
    """An archive actor whose shipper and threads are replaced."""

    _is_early: Any = ArchiveActor._is_early
    _write_early: Any = ArchiveActor._write_early
    write_manifest: Any = ArchiveActor.write_manifest
    on_turn: Any = ArchiveActor.on_turn
    _all_trouble: Any = ArchiveActor._all_trouble
    _may_write: Any = ArchiveActor._may_write

    def __init__(self) -> None:
        self.written: list[int] = []
        self.epochs: list[int] = []
        self.answers: list[Any] = []
        self.refusal: Refused | None = None
        self._early: list[Any] = []
        self._polls, self._beat_ms, self._is_lost = False, 0.0, False
        self._claimed: Any = SimpleNamespace(writes=True)
        self._shipper: Any = SimpleNamespace(
            is_opening=True,
            check=self._check,
            poll=lambda: None,
            is_busy=False,
            beat_ms=0.0,
            state=None,
            trouble="",
            epoch=4,
        )
        self._cluster: Any = None
        self._trouble = self._failing = ""
        self._polls = False
        self._control = None
        self._manifests = SimpleNamespace(write=lambda *_: 0)
        self.given = SimpleNamespace(broker="b", writer="w")
        self.front = SimpleNamespace(send=lambda envelope, message: self.answers.append(message))

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _submit(self, threads: Any, envelope: Any, request: int, job: Any, shape: Any) -> None:
        self.written.append(request)
        self.epochs.append(job.args[0].epoch)

    def ask(self, request: int) -> None:
        message = p.WriteManifest(request, "t", "0" * 32, 0, 9, (), ())
        mail = SimpleNamespace(envelope=(b"a",))
        MethodType(ArchiveActor.write_manifest, self)(None, mail, message)


def test_a_list_waits_until_it_is_known_that_this_broker_goes_on() -> None:
    actor = Actor()
    actor.ask(1)
    actor.on_turn()
    assert actor.written == []
    actor._shipper.is_opening = False
    actor.on_turn()
    actor.ask(2)
    assert actor.written == [1, 2]
    assert actor.answers == []
    assert actor.epochs == [4, 4]
    actor._claimed.writes = False  # a copy that may only read has no log of ticks
    actor.ask(3)
    assert actor.epochs == [4, 4, 0]


def test_a_copy_that_another_one_has_overtaken_writes_no_list() -> None:
    """The broker that goes on would find it, and would end its archive."""
    actor = Actor()
    actor.ask(1)
    actor.refusal = Refused(E_FENCED, "another copy has taken over")
    actor._shipper.is_opening = False
    actor.on_turn()
    assert [one.code for one in actor.answers] == [E_FENCED]
    with pytest.raises(Refused, match="another copy"):
        actor.ask(2)
    assert actor.written == []


def test_a_takeover_is_named_before_other_trouble_with_the_bucket() -> None:
    actor = Actor()
    actor._failing = "it does not answer"
    actor._shipper.trouble = "another copy has taken over"
    assert actor._all_trouble() == "it does not answer"
    actor._shipper.state = ShipperState.LOST
    assert actor._all_trouble() == "another copy has taken over"


def test_the_lists_that_wait_are_bounded() -> None:
    actor = Actor()
    for request in range(HELD_MAX):
        actor.ask(request)
    with pytest.raises(Refused) as refusal:
        actor.ask(HELD_MAX)
    assert refusal.value.code == E_BUCKET


def test_lists_do_not_wait_where_nothing_is_shipped() -> None:
    actor = Actor()
    actor._shipper = None
    actor.ask(1)
    actor.on_turn()
    assert actor.written == [1]


def test_the_directory_of_the_cluster_is_read_while_this_broker_may_write() -> None:
    actor = Actor()
    told: list[bool] = []
    actor._cluster = SimpleNamespace(allow=told.append)
    actor._claimed = None
    actor.on_turn()
    actor._claimed = SimpleNamespace(writes=True)
    actor._shipper.is_opening = False
    for actor._shipper.state in (ShipperState.TAKING, ShipperState.OPEN):
        actor.on_turn()
    actor._claimed = SimpleNamespace(writes=False)
    actor.on_turn()
    assert told == [False, False, True, False]
    actor._claimed, actor._shipper = SimpleNamespace(writes=True), None
    actor.on_turn()
    assert told[-1] is True


@pytest.mark.parametrize("order", [p.ReadDirectory(1), p.AppendEntry(1, b"")])
def test_orders_about_a_cluster_are_refused_without_one(order: Any) -> None:
    handle = MethodType(ArchiveActor._of_cluster, Actor())(lambda *_: None)
    with pytest.raises(UsageError, match="belongs to no cluster"):
        handle(order)
