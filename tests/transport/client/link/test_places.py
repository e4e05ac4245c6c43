"""Tests of links whose gateway has a name: while it is resolved, and with several addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.fake_connection import FakeEngine, QuietPeer

from zsq.transport.client.link.link import ATTEMPT_NS, NAME_LOOK_NS_MAX, NAME_NS, REACH_NS, Link
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.places import NotAccepted, Places
from zsq.transport.client.link.timeouts import MS
from zsq.transport.resolver import NotResolved, Resolver
from zsq.transport.wire import addresses
from zsq.transport.wire.address import Space, Target, parse
from zsq.transport.wire.addresses import Addresses, Rotation, parse_all

SLOW = "tcp://slow.test:4153"


class Names:
    """A name server that answers when the test lets it."""

    def __init__(self, *found: str) -> None:
        self.found = found
        self.goes = threading.Event()
        self.resolver = Resolver(self)

    def __call__(self, host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        assert self.goes.wait(20)
        if not self.found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in self.found]

    def answer(self, host: str = "slow.test") -> None:
        self.goes.set()
        if self.found:
            self.resolver.ask(host).wait(20)
        else:
            with pytest.raises(NotResolved):
                self.resolver.ask(host).wait(20)


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Iterator[Names]:
    made = Names(*getattr(request, "param", ("127.0.0.1",)))
    yield made
    made.goes.set()


@pytest.fixture
def engine(names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    monkeypatch.setattr(addresses, "_reached", {})
    engine = FakeEngine(names.resolver)
    yield engine
    engine.end()


def begun(engine: FakeEngine, *urls: str) -> Link:
    made = Link(engine, Rotation(parse_all(list(urls))), Target("topic", "t"), QuietPeer())
    engine.add(made)
    made.start(0)
    return made


def test_a_slow_name_is_looked_at_more_and_more_seldom(engine: FakeEngine, names: Names) -> None:
    link = begun(engine, SLOW)
    assert (link.state, link.on_time(0)) == (LinkState.RESOLVING, 1 * MS)
    assert link.on_time(8 * MS) == 16 * MS
    assert link.on_time(5 * NAME_NS) == 5 * NAME_NS + NAME_LOOK_NS_MAX
    assert "slow.test could not be resolved (DNS): no answer within 5 s" in link.why()
    names.answer()
    assert link.on_time(6 * NAME_NS) == 6 * NAME_NS + ATTEMPT_NS
    assert (link.state, link.trouble) == (LinkState.OPENING, "")


def test_the_next_address_is_tried_while_a_name_is_slow(engine: FakeEngine, names: Names) -> None:
    """When the link comes back, the answer of the name server is used."""
    link = begun(engine, SLOW, "tcp://127.0.0.1:1")
    link.on_time(NAME_NS)
    link.on_time(NAME_NS)
    assert (link.state, link.given.url) == (LinkState.OPENING, "tcp://127.0.0.1:1")
    names.answer()
    link.on_time(NAME_NS + REACH_NS)
    assert link.state is LinkState.WAITING
    link.on_time(NAME_NS + REACH_NS + 1_000 * MS)
    assert (link.state, link.places.host) == (LinkState.OPENING, "127.0.0.1")
    assert link.given.url == SLOW


@pytest.mark.parametrize("names", [()], indirect=True)
def test_a_name_without_an_address_is_named_in_the_error(engine: FakeEngine, names: Names) -> None:
    link = begun(engine, SLOW)
    names.answer()
    link.on_time(1 * MS)
    assert link.state is LinkState.WAITING
    assert link.why() == (
        f"{SLOW}: the name slow.test could not be resolved (DNS): Name or service not known"
    )


@pytest.mark.parametrize("names", [("::1", "127.0.0.1")], indirect=True)
def test_all_addresses_of_a_name_are_tried_before_the_pause(
    engine: FakeEngine, names: Names
) -> None:
    link = begun(engine, SLOW)
    names.answer()
    link.on_time(1 * MS)
    assert (link.state, link.places.host) == (LinkState.OPENING, "::1")
    link.on_time(1 * MS + REACH_NS)
    link.on_time(1 * MS + REACH_NS)
    assert (link.state, link.places.host) == (LinkState.OPENING, "127.0.0.1")
    again_ns = link.on_time(1 * MS + 2 * REACH_NS)
    assert link.state is LinkState.WAITING
    assert again_ns > 1 * MS + 2 * REACH_NS, "all are tried, so it pauses"
    assert link.why().startswith("no answer within 3 s: no connection to")
    assert "(127.0.0.1)" in link.why()
    assert link.why().count("within") == 1, "the time is named once"


def test_a_time_is_named_once_however_often_an_attempt_fails(engine: FakeEngine) -> None:
    link = begun(engine, "tcp://127.0.0.1:1")
    now_ns = 0
    for _ in range(5):
        now_ns += ATTEMPT_NS
        now_ns = link.on_time(now_ns)
        link.on_time(now_ns)
    assert link.why().count("within") == 1


def test_the_place_that_led_to_the_broker_is_the_first_one_next_time() -> None:
    names = Names("::1", "127.0.0.1")
    names.answer()
    places = Places(names.resolver)
    gateway = parse(SLOW)
    found = []
    for _ in range(2):
        places.begin(gateway)
        found.append(places.take())
    assert found == ["tcp://[::1]:4153", "tcp://127.0.0.1:4153"]
    places.reached()
    names.found = ("::1", "127.0.0.1", "10.0.0.1")
    places.begin(gateway)
    names.answer()
    assert (places.take(), places.more) == ("tcp://127.0.0.1:4153", True)


@pytest.mark.parametrize("found", [("127.0.0.1",), ("127.0.0.1", "::1", "169.254.169.254")])
def test_a_name_that_a_broker_gave_leads_nowhere_near_this_machine(found: tuple[str, ...]) -> None:
    """The addresses count, and not the name: it may have others than when it was checked."""
    names = Names(*found)
    names.answer()
    places = Places(names.resolver)
    places.begin(replace(parse(SLOW), least=Space.SITE))
    with pytest.raises(NotAccepted, match=r"leads to 127.0.0.1.* reaches less far .*\(site\)"):
        places.take()


def test_only_the_addresses_that_are_accepted_are_tried() -> None:
    names = Names("127.0.0.1", "10.0.0.1", "8.8.8.8")
    names.answer()
    places = Places(names.resolver)
    gateway = replace(parse(SLOW), least=Space.SITE)
    found: list[str | None] = []
    while not found or places.more:
        places.begin(gateway)
        found.append(places.take())
    assert found == ["tcp://10.0.0.1:4153", "tcp://8.8.8.8:4153"]


def test_a_link_says_which_address_it_does_not_accept(engine: FakeEngine) -> None:
    named = replace(parse("tcp://127.0.0.1:1"), least=Space.WORLD)
    link = Link(
        engine, Rotation(Addresses((named,)), moves=True), Target("topic", "t"), QuietPeer()
    )
    engine.add(link)
    link.start(0)
    assert link.state is LinkState.WAITING
    assert "a broker has named this address" in link.why()
    assert "give it to the client, too" in link.why()
