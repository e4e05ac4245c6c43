"""Tests of one link with several addresses, with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_connection import FakeEngine, QuietPeer
from support.router import make_router

from zsq.transport.client.link.course import BACKOFF_MS_MAX
from zsq.transport.client.link.engine import Engine
from zsq.transport.client.link.link import ATTEMPT_NS, REACH_NS, Link
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.timeouts import MS
from zsq.transport.errors import (
    E_CLOSING,
    E_FENCED,
    E_LIMIT,
    E_STANDBY,
)
from zsq.transport.wire import addresses, sockets
from zsq.transport.wire.address import Address, Target
from zsq.transport.wire.addresses import Rotation, parse_all
from zsq.transport.wire.protocol import Done, Failed, Spread, Unstored
from zsq.transport.wire.spread import HasParts

A, B = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


@pytest.fixture(autouse=True)
def _nothing_happens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reached", {})
    monkeypatch.setenv("ZSQ_TRANSPORT", "tcp")


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.end()


def begun(engine: FakeEngine, *urls: str, topic: str = "t") -> Link:
    rotation = next((link.rotation for link in engine.links), Rotation(parse_all(list(urls))))
    link = Link(engine, rotation, Target("topic", topic), QuietPeer())
    engine.add(link)
    link.start(0)
    return link


def opened(engine: FakeEngine, link: Link, now_ns: int, data: dict[str, Any]) -> None:
    """Let the gateway answer that it has opened the target."""
    engine.hear(link, now_ns, Done(engine.request_of(link), data))


def refused(engine: FakeEngine, link: Link, now_ns: int, code: str) -> None:
    """Let the gateway refuse to open the target."""
    engine.hear(link, now_ns, Failed(engine.request_of(link), code, "not here"))


def at(link: Link) -> tuple[LinkState, str]:
    return link.state, link.given.url


def goes_on(link: Link) -> int:
    """Let the pause end. Return the time."""
    now_ns = link.again_ns
    link.on_time(now_ns)
    return now_ns


def test_a_silent_address_is_left_before_the_time_of_an_attempt(engine: FakeEngine) -> None:
    link = begun(engine, A, B)
    assert link.on_time(1) == REACH_NS < ATTEMPT_NS
    link.on_time(REACH_NS)
    assert link.again_ns == REACH_NS, "no pause before the next address"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)
    first, _, second = link.why().partition("; ")
    assert first.startswith(f"no answer within 3 s: no connection to {A}")
    assert second == f"{B}: no answer"


def test_a_peer_that_has_completed_the_handshake_gets_the_usual_time(engine: FakeEngine) -> None:
    link = begun(engine, A, B)
    engine.report(link, 1, sockets.GREETED_EVENTS)
    assert link.on_time(REACH_NS) == ATTEMPT_NS
    link.on_time(ATTEMPT_NS)
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


def test_a_gateway_may_answer_when_another_link_has_left_it(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names its run directory, but the next attempt is at the other address."""
    monkeypatch.setattr(
        addresses, "direct_address", lambda _: Address("ipc:///run", True, run_id="one")
    )
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    first, second = begun(engine, A, B), begun(engine, A, B, topic="u")
    refused(engine, second, 1, E_STANDBY)
    assert second.rotation.present.url == B
    opened(engine, first, 2, {"run": "/run", "run_id": "one"})
    assert at(first) == (LinkState.OPENING, B)


def test_a_round_without_success_ends_with_a_pause_that_grows(engine: FakeEngine) -> None:
    link = begun(engine, A, B)
    pauses, now_ns = [], 0
    for _ in range(8):
        for _ in range(2):
            now_ns += 10 * MS
            engine.lose(link, now_ns)
            pauses.append(link.again_ns - now_ns)
            now_ns = goes_on(link)
    assert pauses[::2] == [0] * 8
    assert all(25 * MS <= pause <= BACKOFF_MS_MAX * MS for pause in pauses[1::2])
    assert pauses[-1] >= BACKOFF_MS_MAX * MS // 2


def test_a_link_that_was_up_tries_the_same_address_once_more(engine: FakeEngine) -> None:
    link = begun(engine, A, B)
    opened(engine, link, 1, {})
    assert at(link) == (LinkState.UP, A)
    engine.lose(link, 2)
    assert link.again_ns > 2, "a pause, as with one address"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, A)
    engine.lose(link, 3)
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


@pytest.mark.parametrize("code", [E_STANDBY, E_FENCED, E_CLOSING])
def test_a_refusal_that_another_broker_may_not_give_leads_to_the_next_address(
    code: str, engine: FakeEngine
) -> None:
    link = begun(engine, A, B)
    refused(engine, link, 1, code)
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)
    opened(engine, link, 2, {})
    assert at(link) == (LinkState.UP, B)
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    assert peer.errors == []


def test_a_limit_of_the_primary_does_not_lead_to_the_standby(engine: FakeEngine) -> None:
    link = begun(engine, A, B)
    link.passing |= {E_LIMIT}
    refused(engine, link, 1, E_LIMIT)
    goes_on(link)
    assert at(link) == (LinkState.OPENING, A)


@pytest.mark.parametrize(
    "message", [Failed(7, E_STANDBY, "a standby"), Unstored(3, 3, E_FENCED, "superseded")]
)
def test_a_refusal_on_an_open_link_leads_to_the_next_address(
    message: Failed | Unstored, engine: FakeEngine
) -> None:
    link = begun(engine, A, B)
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    opened(engine, link, 1, {})
    engine.hear(link, 2, message)
    assert (peer.words, peer.lost) == ([], 1), "the peer sends again what is not answered"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


def test_one_address_is_tried_again_until_its_broker_is_the_primary(engine: FakeEngine) -> None:
    link = begun(engine, A)
    now_ns, pauses = 0, []
    for _ in range(9):
        now_ns += MS
        refused(engine, link, now_ns, E_STANDBY)
        pauses.append(link.again_ns - now_ns)
        refusal = link.rotation.refusal()
        assert refusal is not None
        assert (refusal.code, refusal.text) == (E_STANDBY, "not here")
        now_ns = goes_on(link)
        assert at(link) == (LinkState.OPENING, A)
    assert min(pauses) >= 25 * MS
    assert pauses[-1] >= BACKOFF_MS_MAX * MS // 2
    opened(engine, link, now_ns, {})
    assert link.up
    assert link.rotation.refusal() is None


def test_a_superseded_broker_is_reported_at_once_with_one_address(engine: FakeEngine) -> None:
    link = begun(engine, A)
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    refused(engine, link, 1, E_FENCED)
    assert link.state is LinkState.REFUSED
    assert [error.code for error in peer.errors] == [E_FENCED]


def test_all_links_of_a_client_go_to_the_address_that_was_reached(engine: FakeEngine) -> None:
    first, second = begun(engine, A, B), begun(engine, A, B, topic="u")
    for link in (first, second):
        opened(engine, link, 1, {})
    engine.hear(first, 2, Unstored(0, 0, E_FENCED, "superseded"))
    goes_on(first)
    assert at(second) == (LinkState.UP, A)
    opened(engine, first, 3, {})
    assert at(first) == (LinkState.UP, B)
    assert second.state is LinkState.WAITING
    goes_on(second)
    assert at(second) == (LinkState.OPENING, B)


def test_what_a_broker_said_about_a_topic_is_not_used_at_the_next_address(
    engine: FakeEngine,
) -> None:
    link = begun(engine, A, B)
    opened(engine, link, 1, {"message_bytes": 5})
    assert not link.left
    engine.hear(link, 2, Failed(0, E_STANDBY, "a standby"))
    assert link.left
    goes_on(link)
    opened(engine, link, 3, {"message_bytes": 6})
    assert (link.left, link.opened) == (False, {"message_bytes": 6})


def test_a_refused_connection_over_ipc_leads_to_the_next_address(
    tmp_path: Path,
) -> None:
    """ZeroMQ alone would try a supervisor's socket again and again."""
    engine = Engine()
    router = make_router(f"ipc://{tmp_path}/supervisor")
    link = Link(
        engine,
        Rotation(parse_all([f"ipc://{tmp_path}/none", f"ipc://{tmp_path}"])),
        Target("supervisor"),
        QuietPeer(),
    )
    engine.add(link)
    try:
        link.start(0)
        assert link.up, "before anything was heard"
        for _ in range(100):
            engine.turn(engine.events.poll(0.05))
            if link.given.url == f"ipc://{tmp_path}":
                break
        assert at(link) == (LinkState.UP, f"ipc://{tmp_path}")
    finally:
        engine.stop()
        engine.events.close()
        router.close(linger=0)


# Parts


def parted(part: int, url: str) -> Spread:
    parts = tuple((number, 3) for number in range(part + 1))
    return Spread(0, "t", "u", parts, ((3, (url,)),))


def answers(engine: FakeEngine, link: Link, now_ns: int, message: Spread) -> None:
    engine.hear(link, now_ns, replace(message, request=engine.request_of(link)))


def test_a_link_goes_to_the_broker_that_has_the_part(engine: FakeEngine) -> None:
    link = begun(engine, A, topic="t#1")
    answers(engine, link, MS, parted(1, B))
    assert link.again_ns == MS, "at once"
    link.on_time(2 * MS)
    assert link.given.url == B
    assert [one.url for one in link.rotation.each] == [B, A]


def test_a_link_asks_at_home_again_when_the_broker_of_the_part_is_gone(engine: FakeEngine) -> None:
    link = begun(engine, A, topic="t#1")
    answers(engine, link, MS, parted(1, B))
    link.on_time(2 * MS)
    link.on_time(2 * MS + REACH_NS)
    link.on_time(3 * MS + REACH_NS)
    assert link.given.url == A
    answers(engine, link, 4 * MS + REACH_NS, parted(1, B))
    assert link.again_ns > 4 * MS + REACH_NS, "brokers that disagree must not cause a storm"


def test_a_link_to_a_topic_with_parts_is_refused(engine: FakeEngine) -> None:
    link = begun(engine, A)
    answers(engine, link, MS, parted(1, B))
    assert link.state is LinkState.REFUSED
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    (error,) = peer.errors
    assert isinstance(error, HasParts)
    assert error.spread.topic == "t"


def test_a_link_that_stays_is_refused_instead(engine: FakeEngine) -> None:
    link = begun(engine, A, topic="t#1")
    link.stays = True
    answers(engine, link, MS, parted(1, B))
    assert (link.state, link.given.url) == (LinkState.REFUSED, A)
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    assert [type(error) for error in peer.errors] == [HasParts]


def test_a_link_to_a_part_waits_for_a_broker_that_knows_the_part(engine: FakeEngine) -> None:
    """A broker may have an old view of the directory."""
    link = begun(engine, A, topic="t#5")
    answers(engine, link, MS, parted(1, B))
    assert link.state is LinkState.WAITING
    peer = link.peer
    assert isinstance(peer, QuietPeer)
    assert peer.errors == []
    link.on_time(2 * MS)
    assert link.given.url == A


def test_a_spread_that_cannot_be_used_ends_the_attempt(engine: FakeEngine) -> None:
    link = begun(engine, A, topic="t#0")
    answers(engine, link, MS, replace(parted(0, B), parts=((7, 3),)))
    assert link.waiting
    assert link.trouble.startswith("E_BAD_COMMAND")
    goes_on(link)
    answers(engine, link, MS, parted(0, "nowhere"))
    assert link.waiting
    assert "only tcp:// is accepted" in link.trouble


def test_a_late_spread_changes_nothing(engine: FakeEngine) -> None:
    link = begun(engine, A, topic="t#1")
    engine.hear(link, MS, parted(1, B))
    assert link.state is LinkState.OPENING
