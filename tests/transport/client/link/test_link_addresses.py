"""Tests of one link with several addresses, with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zsq.transport.client.link.link import (
    ATTEMPT_NS,
    BACKOFF_MS_MAX,
    MS,
    REACH_NS,
    Engine,
    Link,
)
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import (
    E_CLOSING,
    E_FENCED,
    E_LIMIT,
    E_STANDBY,
    UsageError,
    ZsqError,
)
from zsq.transport.wire import addresses, sockets
from zsq.transport.wire.address import Address, Target
from zsq.transport.wire.addresses import Rotation, parse_all
from zsq.transport.wire.protocol import Done, Failed, Spread, Unstored, Wire
from zsq.transport.wire.spread import HasParts

A, B = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
READ_EVENTS = sockets.read_events


class Peer:
    """A peer that notes what happens to its link."""

    def __init__(self) -> None:
        self.lost = 0
        self.errors: list[ZsqError] = []
        self.words: list[Wire] = []

    def greeting(self) -> Wire | None:
        return None

    def on_word(self, message: Wire, *_: object) -> Reaction:
        self.words.append(message)
        return Reaction.NOTHING

    def on_up(self, now_ns: int) -> None: ...

    def on_received(self, now_ns: int) -> None: ...

    def on_lost(self) -> None:
        self.lost += 1

    def on_refused(self, error: ZsqError) -> None:
        self.errors.append(error)


@pytest.fixture(autouse=True)
def _nothing_happens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reached", {})
    monkeypatch.setenv("ZSQ_TRANSPORT", "tcp")
    # The connections to A and B are refused in reality. The tests say themselves what happens.
    monkeypatch.setattr(sockets, "read_events", lambda _: 0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.stop()
    made.events.close()


def begun(engine: Engine, *urls: str, topic: str = "t") -> Link:
    rotation = next((one.rotation for one in engine.links), Rotation(parse_all(list(urls))))
    made = Link(engine, rotation, Target("topic", topic), Peer())
    engine.add(made)
    made.start(0)
    return made


def hears(link: Link, now_ns: int, message: Wire) -> None:
    """Let the link process a message as if it had arrived."""
    link._answered = link.touched = True
    link._on_word(message, [], now_ns)
    if link.up and not link._arrived:
        link._arrive(now_ns)


def at(link: Link) -> tuple[LinkState, str]:
    return link.state, link.given.url


def goes_on(link: Link) -> int:
    """Let the pause end. Return the time."""
    now_ns = link._again_ns
    link.on_time(now_ns)
    return now_ns


def test_a_silent_address_is_left_before_the_time_of_an_attempt(engine: Engine) -> None:
    link = begun(engine, A, B)
    assert link.on_time(1) == REACH_NS < ATTEMPT_NS
    link.on_time(REACH_NS)
    assert link._again_ns == REACH_NS, "no pause before the next address"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)
    first, _, second = link.why().partition("; ")
    assert first.startswith(f"no answer within 3 s: no connection to {A}")
    assert second == f"{B}: no answer"


def test_a_peer_that_has_completed_the_handshake_gets_the_usual_time(engine: Engine) -> None:
    link = begun(engine, A, B)
    link._shaken = True
    assert link.on_time(REACH_NS) == ATTEMPT_NS
    link.on_time(ATTEMPT_NS)
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


def test_a_gateway_may_answer_when_another_link_has_left_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names its run directory, but the next attempt is at the other address."""
    monkeypatch.setattr(
        addresses, "direct_address", lambda _: Address("ipc:///run", True, run_id="one")
    )
    first, second = begun(engine, A, B), begun(engine, A, B, topic="u")
    first.given = replace(first.given, auto=True)
    hears(second, 1, Failed(second._request, E_STANDBY, "a standby"))
    assert second.rotation.present.url == B
    hears(first, 2, Done(first._request, {"run": "/run", "run_id": "one"}))
    assert at(first) == (LinkState.OPENING, B)


def test_a_round_without_success_ends_with_a_pause_that_grows(engine: Engine) -> None:
    link = begun(engine, A, B)
    pauses, now_ns = [], 0
    for _ in range(8):
        for _ in range(2):
            now_ns += 10 * MS
            link._die(now_ns, "the connection was lost")
            pauses.append(link._again_ns - now_ns)
            now_ns = goes_on(link)
    assert pauses[::2] == [0] * 8
    assert all(25 * MS <= pause <= BACKOFF_MS_MAX * MS for pause in pauses[1::2])
    assert pauses[-1] >= BACKOFF_MS_MAX * MS // 2


def test_a_link_that_was_up_tries_the_same_address_once_more(engine: Engine) -> None:
    link = begun(engine, A, B)
    hears(link, 1, Done(link._request, {}))
    assert at(link) == (LinkState.UP, A)
    link._die(2, "the connection was lost")
    assert link._again_ns > 2, "a pause, as with one address"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, A)
    link._die(3, "the connection was lost")
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


@pytest.mark.parametrize("code", [E_STANDBY, E_FENCED, E_CLOSING])
def test_a_refusal_that_another_broker_may_not_give_leads_to_the_next_address(
    code: str, engine: Engine
) -> None:
    link = begun(engine, A, B)
    hears(link, 1, Failed(link._request, code, "not here"))
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)
    hears(link, 2, Done(link._request, {}))
    assert at(link) == (LinkState.UP, B)
    peer = link.peer
    assert isinstance(peer, Peer)
    assert peer.errors == []


def test_a_limit_of_the_primary_does_not_lead_to_the_standby(engine: Engine) -> None:
    link = begun(engine, A, B)
    link.passing |= {E_LIMIT}
    hears(link, 1, Failed(link._request, E_LIMIT, "full"))
    goes_on(link)
    assert at(link) == (LinkState.OPENING, A)


@pytest.mark.parametrize(
    "message", [Failed(7, E_STANDBY, "a standby"), Unstored(3, 3, E_FENCED, "superseded")]
)
def test_a_refusal_on_an_open_link_leads_to_the_next_address(
    message: Failed | Unstored, engine: Engine
) -> None:
    link = begun(engine, A, B)
    peer = link.peer
    assert isinstance(peer, Peer)
    hears(link, 1, Done(link._request, {}))
    hears(link, 2, message)
    assert (peer.words, peer.lost) == ([], 1), "the peer sends again what is not answered"
    goes_on(link)
    assert at(link) == (LinkState.OPENING, B)


def test_one_address_is_tried_again_until_its_broker_is_the_primary(engine: Engine) -> None:
    link = begun(engine, A)
    now_ns, pauses = 0, []
    for _ in range(9):
        now_ns += MS
        hears(link, now_ns, Failed(link._request, E_STANDBY, "a standby"))
        pauses.append(link._again_ns - now_ns)
        refusal = link.rotation.refusal()
        assert refusal is not None
        assert (refusal.code, refusal.text) == (E_STANDBY, "a standby")
        now_ns = goes_on(link)
        assert at(link) == (LinkState.OPENING, A)
    assert min(pauses) >= 25 * MS
    assert pauses[-1] >= BACKOFF_MS_MAX * MS // 2
    hears(link, now_ns, Done(link._request, {}))
    assert link.up
    assert link.rotation.refusal() is None


def test_a_superseded_broker_is_reported_at_once_with_one_address(engine: Engine) -> None:
    link = begun(engine, A)
    peer = link.peer
    assert isinstance(peer, Peer)
    hears(link, 1, Failed(link._request, E_FENCED, "superseded"))
    assert link.state is LinkState.REFUSED
    assert [error.code for error in peer.errors] == [E_FENCED]


def test_all_links_of_a_client_go_to_the_address_that_was_reached(engine: Engine) -> None:
    first, second = begun(engine, A, B), begun(engine, A, B, topic="u")
    for link in (first, second):
        hears(link, 1, Done(link._request, {}))
    hears(first, 2, Unstored(0, 0, E_FENCED, "superseded"))
    goes_on(first)
    assert at(second) == (LinkState.UP, A)
    hears(first, 3, Done(first._request, {}))
    assert at(first) == (LinkState.UP, B)
    assert second.state is LinkState.WAITING
    goes_on(second)
    assert at(second) == (LinkState.OPENING, B)


def test_what_a_broker_said_about_a_topic_is_not_used_at_the_next_address(engine: Engine) -> None:
    link = begun(engine, A, B)
    hears(link, 1, Done(link._request, {"message_bytes": 5}))
    assert not link.left
    hears(link, 2, Failed(0, E_STANDBY, "a standby"))
    assert link.left
    goes_on(link)
    hears(link, 3, Done(link._request, {"message_bytes": 6}))
    assert (link.left, link.opened) == (False, {"message_bytes": 6})


def test_a_refused_connection_over_ipc_leads_to_the_next_address(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ alone would try a supervisor's socket again and again."""
    monkeypatch.setattr(sockets, "read_events", READ_EVENTS)
    router = sockets.make_router(f"ipc://{tmp_path}/supervisor")
    link = Link(
        engine,
        Rotation(parse_all([f"ipc://{tmp_path}/none", f"ipc://{tmp_path}"])),
        Target("supervisor"),
        Peer(),
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
        router.close(linger=0)


# Parts


def parted(part: int, url: str) -> Spread:
    parts = tuple((number, 3) for number in range(part + 1))
    return Spread(0, "t", "u", parts, ((3, (url,)),))


def answers(link: Link, now_ns: int, message: Spread) -> None:
    hears(link, now_ns, replace(message, request=link._request))


def test_a_link_goes_to_the_broker_that_has_the_part(engine: Engine) -> None:
    link = begun(engine, A, topic="t#1")
    answers(link, MS, parted(1, B))
    assert link._again_ns == MS, "at once"
    link.on_time(2 * MS)
    assert link.given.url == B
    assert [one.url for one in link.rotation.each] == [B, A]


def test_a_link_asks_at_home_again_when_the_broker_of_the_part_is_gone(engine: Engine) -> None:
    link = begun(engine, A, topic="t#1")
    answers(link, MS, parted(1, B))
    link.on_time(2 * MS)
    link.on_time(2 * MS + REACH_NS)
    link.on_time(3 * MS + REACH_NS)
    assert link.given.url == A
    answers(link, 4 * MS + REACH_NS, parted(1, B))
    assert link._again_ns > 4 * MS + REACH_NS, "brokers that disagree must not cause a storm"


def test_a_link_to_a_topic_with_parts_is_refused(engine: Engine) -> None:
    link = begun(engine, A)
    answers(link, MS, parted(1, B))
    assert link.state is LinkState.REFUSED
    peer = link.peer
    assert isinstance(peer, Peer)
    (error,) = peer.errors
    assert isinstance(error, HasParts)
    assert error.spread.topic == "t"


def test_a_link_that_stays_is_refused_instead(engine: Engine) -> None:
    link = begun(engine, A, topic="t#1")
    link.stays = True
    answers(link, MS, parted(1, B))
    assert (link.state, link.given.url) == (LinkState.REFUSED, A)
    peer = link.peer
    assert isinstance(peer, Peer)
    assert [type(error) for error in peer.errors] == [HasParts]


def test_a_link_to_a_part_waits_for_a_broker_that_knows_the_part(engine: Engine) -> None:
    """A broker may have an old view of the directory."""
    link = begun(engine, A, topic="t#5")
    answers(link, MS, parted(1, B))
    assert link.state is LinkState.WAITING
    peer = link.peer
    assert isinstance(peer, Peer)
    assert peer.errors == []
    link.on_time(2 * MS)
    assert link.given.url == A


def test_a_spread_that_cannot_be_used_ends_the_attempt(engine: Engine) -> None:
    link = begun(engine, A, topic="t#0")
    with pytest.raises(UsageError, match="E_BAD_COMMAND"):
        answers(link, MS, replace(parted(0, B), parts=((7, 3),)))
    with pytest.raises(UsageError, match="only tcp:// is accepted"):
        answers(link, MS, parted(0, "nowhere"))


def test_a_late_spread_changes_nothing(engine: Engine) -> None:
    link = begun(engine, A, topic="t#1")
    hears(link, MS, parted(1, B))
    assert link.state is LinkState.OPENING
