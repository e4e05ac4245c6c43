"""Tests of the standby's loop and of its takeover, on a log of ticks in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.shipping_harness import ShippingHarness
from support.storage_harness import IDENTITY

from tests.storage.bucket.shipping.test_restore import OPTIONS, bodies_of
from zsq.actors.bucket.standby.standby import StandbyLoop
from zsq.actors.bucket.standby.takeover import TakeoverFailed, choose, read_copy, standing
from zsq.actors.supervisor.topics.registry import REGISTRY_NAME
from zsq.actors.supervisor.topics.registry_format import decode, encode
from zsq.storage.bucket.bucket import BucketAway, BucketRefuses
from zsq.storage.bucket.shipping.log_end import end_log
from zsq.storage.bucket.shipping.ship_log import find_chain
from zsq.storage.bucket.shipping.standbys import ANNOUNCE_S, STANDBYS, STRANGER_S, UNKNOWN_S
from zsq.storage.bucket.shipping.tick_format import (
    COPY_NAME,
    LOG,
    STANDBY_NAME,
    TAKEOVER,
    Copy,
    Index,
)
from zsq.storage.bucket.shipping.tick_reader import ShippedTopic
from zsq.storage.directory.store import open_store
from zsq.storage.errors import ForeignDirectory
from zsq.storage.files import Files

S = 1_000_000_000
PATIENCE_S = 2.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [1000 * S]
    monkeypatch.setattr("zsq.actors.bucket.standby.standby.time.monotonic_ns", lambda: now[0])
    return now


def loop_in(harness: ShippingHarness, folder: Path) -> StandbyLoop:
    folder.mkdir(exist_ok=True)
    return StandbyLoop(
        Files(), harness.bucket, folder, PATIENCE_S, ("tcp://two:4153",), lambda wait_s: False
    )


@pytest.fixture
def loop(harness: ShippingHarness, now: list[int], tmp_path: Path) -> Iterator[StandbyLoop]:
    made = loop_in(harness, tmp_path / "two")
    yield made
    made.follower.close()


def ship(harness: ShippingHarness, blocks: int = 1) -> None:
    harness.publish(blocks=blocks)
    harness.sync()
    harness.tick()


def follow(loop: StandbyLoop) -> None:
    """Let the standby apply what is there."""
    while loop.turn() == 0.0:
        pass


def test_a_standby_waits_until_there_is_something_to_follow(
    harness: ShippingHarness, loop: StandbyLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        names = harness.bucket.names

        def without_log(below: str) -> Iterator[str]:
            return iter(()) if below == f"{LOG}/" else names(below)

        patch.setattr(harness.bucket, "names", without_log)
        assert loop.turn()
        assert loop.status().state == "starting"
        assert loop.status().takes_over_in_s == -1
        assert "no broker has shipped" in loop.trouble
    ship(harness)
    follow(loop)
    assert loop.status().state == "following"
    assert not loop.trouble
    assert loop.status().takes_over_in_s >= 0
    loop.begin_again("the log is gone")
    assert loop.status().takes_over_in_s == -1, "it has only what it followed before"


def test_it_announces_itself_and_follows(harness: ShippingHarness, loop: StandbyLoop) -> None:
    ship(harness)
    follow(loop)
    assert len(list(harness.bucket.names(f"{STANDBYS}/"))) == 1
    status = loop.status()
    assert (status.number, status.topics, status.state) == (harness.number - 1, 1, "following")
    ship(harness)
    follow(loop)
    assert loop.status().number == harness.number - 1
    loop.end()
    assert not list(harness.bucket.names(f"{STANDBYS}/"))


@pytest.mark.parametrize(("lease_ms", "after_s"), [(0, UNKNOWN_S), (1_400, ANNOUNCE_S)])
def test_it_announces_itself_again_sooner_if_the_primary_does_not_know_it(
    harness: ShippingHarness,
    loop: StandbyLoop,
    now: list[int],
    monkeypatch: pytest.MonkeyPatch,
    lease_ms: int,
    after_s: float,
) -> None:
    ship(harness)
    follow(loop)
    last = loop.follower.last
    assert last is not None
    known = replace(last, index=last.index._replace(lease_ms=lease_ms))
    monkeypatch.setattr(loop.follower, "last", known)
    monkeypatch.setattr(loop.patience, "is_over", lambda now_ns: False)
    (first,) = harness.bucket.names(f"{STANDBYS}/")
    for name in list(harness.bucket.names(f"{STANDBYS}/")):  # a store that lost it
        harness.bucket.remove([name])
    now[0] += int(after_s * S) - 1
    assert loop.turn()
    assert not list(harness.bucket.names(f"{STANDBYS}/"))
    now[0] += 1
    assert loop.turn()
    assert list(harness.bucket.names(f"{STANDBYS}/")) == [first]


def test_it_takes_over_when_nothing_came_for_its_patience(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], tmp_path: Path
) -> None:
    ship(harness, 3)
    follow(loop)
    now[0] += int(STRANGER_S * S) - 1  # the harness knows no standby
    assert loop.turn()
    assert find_chain(harness.bucket).number == harness.number
    now[0] += 1
    assert loop.turn() is None
    folder = tmp_path / "two"
    content = decode((folder / REGISTRY_NAME).read_bytes(), "registry")
    assert content.uuid == harness.content.uuid
    (row,) = content.topics.values()
    last = find_chain(harness.bucket).last
    assert last is not None
    assert (last.index.kind, last.index.copy) == (TAKEOVER, loop.copy)
    assert read_copy(Files(), str(folder / COPY_NAME)) == Copy(last.index.archive, loop.copy)
    store = open_store(Files(), f"{folder}/topics/{row.number:06d}", OPTIONS, IDENTITY)
    assert list(bodies_of(store).values()) == list(harness.bodies.values())
    store.close()
    assert sorted(path.name for path in folder.iterdir()) == [
        REGISTRY_NAME, COPY_NAME, STANDBY_NAME, "topics",
    ]  # fmt: skip


def test_it_does_not_take_over_if_a_tick_came_meanwhile(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)
    now[0] += int(STRANGER_S * S)
    step = loop.follower.step

    def late() -> bool:
        found = step()
        if not found:
            monkeypatch.setattr(loop.follower, "step", step)
            ship(harness)  # after the standby has looked
        return found

    monkeypatch.setattr(loop.follower, "step", late)
    assert loop.turn() == 0.0
    follow(loop)
    assert loop.status().state == "following"
    assert loop.status().number == harness.number - 1
    last = find_chain(harness.bucket).last
    assert last is not None
    assert last.index.copy != loop.copy


def test_after_an_absence_of_the_bucket_its_patience_begins_anew(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)

    def away(*_: Any) -> bytes:
        raise BucketAway("503 SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(harness.bucket, "read", away)
        assert loop.turn()
        assert loop.status().state == "away"
        assert "503" in loop.status().trouble
        now[0] += int(2 * STRANGER_S * S)
        assert loop.turn()
    assert loop.turn()
    assert loop.status().state == "following"
    assert find_chain(harness.bucket).number == harness.number
    now[0] += int(STRANGER_S * S)
    assert loop.turn() is None


def test_a_request_that_fails_now_and_then_does_not_begin_the_patience_anew(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)

    def away(*_: Any) -> bytes:
        raise BucketAway("503 SlowDown")

    for _ in range(int(STRANGER_S)):
        now[0] += S // 2
        with monkeypatch.context() as patch:
            patch.setattr(harness.bucket, "read", away)
            assert loop.turn()
        now[0] += S // 2
        if loop.turn() is None:
            return
    raise AssertionError("it does not take over")


def test_a_standby_that_cannot_use_the_log_reads_it_again_less_and_less_often(
    harness: ShippingHarness, loop: StandbyLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)

    def refuse() -> bool:
        raise BucketRefuses("the log is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(loop.follower, "step", refuse)
        pauses = [loop.turn() for _ in range(6)]
    assert pauses == [0.5, 0.0, 1.0, 0.0, 2.0, 0.0]
    ship(harness)
    follow(loop)
    assert loop.status().state == "following"


def test_a_takeover_whose_answer_was_lost_is_finished(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)
    now[0] += int(STRANGER_S * S)
    create = harness.bucket.create

    def lose_answer(name: str, data: Any) -> None:
        create(name, data)
        raise BucketAway("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(harness.bucket, "create", lose_answer)
        assert loop.turn()
    assert loop.status().state == "away"
    assert loop.turn() == 0.0, "it sees its own takeover"
    assert loop.turn() is None, "and does not wait for its patience again"


def test_a_takeover_that_the_bucket_interrupts_begins_again(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that were built by then are half a directory."""
    ship(harness)
    follow(loop)
    now[0] += int(STRANGER_S * S)
    finish = loop.follower.finish

    def interrupted(identities: Any) -> list[Any]:
        finish(identities)
        raise BucketAway("503 SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(loop.follower, "finish", interrupted)
        assert loop.turn()
    assert loop.status().state == "starting"
    assert loop.turn() == 0.0
    assert loop.turn() is None


def test_a_standby_that_was_killed_after_its_takeover_goes_on_at_once(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ship(harness)
    follow(loop)
    now[0] += int(STRANGER_S * S)

    def killed(*_: Any) -> list[Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.follower, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            loop.turn()
    loop.follower.close()
    again = loop_in(harness, tmp_path / "two")
    assert again.copy == loop.copy
    assert again.turn() == 0.0
    assert again.turn() is None


def test_a_handover_is_taken_at_once(
    harness: ShippingHarness, loop: StandbyLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(harness)
    follow(loop)
    monkeypatch.setattr(
        "support.shipping_harness.Index",
        lambda *given: Index(*given)._replace(is_released=True),
    )
    harness.tick(empty=True)
    assert loop.turn() == 0.0
    assert loop.turn() is None


def test_what_a_new_primary_has_of_the_registry(harness: ShippingHarness) -> None:
    shipped = ShippedTopic(harness.uuid, begins=3)
    registry = encode(harness.content)
    (name,) = harness.content.topics
    chosen = choose(registry, {harness.uuid: shipped}, "a" * 32, "r")
    assert list(chosen.topics) == [harness.uuid]
    assert chosen.content.bucket == "a" * 32
    for wrong in ({}, {harness.uuid: ShippedTopic(harness.uuid)}):
        left = choose(registry, wrong, "a" * 32, "r").left_out
        assert left == {name: "the bucket has nothing of it"}
    harness.content.topics[name].retention = {"archive": "off"}
    left = choose(encode(harness.content), {harness.uuid: shipped}, "a" * 32, "r").left_out
    assert "only on the disk" in left[name]


def test_a_registry_that_cannot_be_read_fails_the_takeover(
    harness: ShippingHarness, loop: StandbyLoop, now: list[int]
) -> None:
    ship(harness)
    follow(loop)
    now[0] += int(STRANGER_S * S)
    loop.follower.registry = b"{}"
    with pytest.raises(TakeoverFailed):
        loop.turn()


def test_a_former_primary_finds_out_where_it_stands(harness: ShippingHarness) -> None:
    ship(harness)
    own = Copy("a", harness.ship_log.copy)
    assert standing(harness.bucket, own)[:2] == (True, False)
    last = find_chain(harness.bucket).last
    assert last is not None
    found = standing(harness.bucket, Copy(last.index.archive, "f" * 32))
    assert not found.is_newest
    assert "on host host" in found.who


def test_the_bucket_of_another_broker_is_refused_at_once(harness: ShippingHarness) -> None:
    """It would be asked again and again, and would never have what this directory has."""
    ship(harness)
    with pytest.raises(ForeignDirectory, match=r"another broker.*check the URL"):
        standing(harness.bucket, Copy("b" * 32, "f" * 32))


def test_it_ends_when_the_cluster_has_forgotten_its_broker(
    harness: ShippingHarness, loop: StandbyLoop, tmp_path: Path
) -> None:
    """Also one that begins to follow later. It must never take over."""
    ship(harness)
    follow(loop)
    end_log(harness.bucket, "host", 1, 1_000, lambda: None)
    with pytest.raises(TakeoverFailed, match="has forgotten this broker"):
        follow(loop)
    later = loop_in(harness, tmp_path / "later")
    with pytest.raises(TakeoverFailed, match="has forgotten this broker"):
        follow(later)
    later.end()
