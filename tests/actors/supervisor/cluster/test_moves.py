"""Tests of the steps by which a part moves: a table of what each broker does next, and many random
histories of three brokers that read the directory late, are killed, or are restored elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.supervisor.cluster.cluster_view import (
    Adopt,
    ClusterView,
    Confirm,
    Delete,
    Give,
    Go,
    Open,
    Prepare,
    Release,
    Resume,
    Step,
    Take,
)
from zsq.actors.supervisor.topics.registry_format import GIVEN, TAKING, TopicRow
from zsq.storage.cluster.directory import (
    BrokerEntry,
    Directory,
    Entry,
    GiveEntry,
    Hold,
    MoveEntry,
    PartedTopic,
    ReadyEntry,
    TakenEntry,
    TopicEntry,
    encode_entry,
)
from zsq.transport.errors import E_BAD_ARGUMENT, E_CLOSING, E_NOT_FOUND, ZsqError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of

BROKERS = 3
TOPIC = "7" * 32
LOG = "f" * 32
NAME = "t#0"


def parsed(message: p.Manage) -> Any:
    return request_of(message)


def uuid(number: int) -> str:
    return f"{number:032x}"


def broker(number: int) -> BrokerEntry:
    return BrokerEntry(uuid(100 + number), uuid(number), ("tcp://a:1",), f"s3://b/{number}")


BEGIN: tuple[Entry, ...] = (
    *(broker(number) for number in range(BROKERS)),
    TopicEntry(uuid(200), "t", TOPIC, (0,), {}),
)
MOVE = MoveEntry(uuid(300), TOPIC, 0, 0, 1)
READY = ReadyEntry(uuid(301), TOPIC, 0, 0, 1)
GIVE = GiveEntry(uuid(302), TOPIC, 0, 1, 1, LOG, 9)
TAKEN = TakenEntry(uuid(303), TOPIC, 0, 1)
BACK = GiveEntry(uuid(304), TOPIC, 0, 1, 0, LOG, 9)


def row(state: str = "live", hold: int = 0, part_of: str = TOPIC) -> TopicRow:
    return TopicRow(1, LOG, "always", 0, state, part_of=part_of, hold=hold)


def view(number: int, local: Mapping[str, TopicRow], *entries: Entry) -> ClusterView:
    made = ClusterView(uuid(number), local)
    made.take(0, [encode_entry(one) for one in (*BEGIN, *entries)], True)
    return made


def parted(*entries: Entry) -> PartedTopic:
    directory = Directory()
    for number, entry in enumerate((*BEGIN, *entries)):
        directory.apply(number, encode_entry(entry))
    return directory.topics["t"]


@pytest.mark.parametrize(
    ("number", "own", "entries", "step"),
    [
        (0, None, (), Open(NAME, parted())),
        (0, row(), (MOVE,), None),
        (1, None, (MOVE,), Prepare(NAME, "s3://b/0", ReadyEntry("", TOPIC, 0, 0, 1))),
        (2, None, (MOVE,), None),
        (1, None, (MOVE, READY), None),
        (0, row(), (MOVE, READY), Release(NAME)),
        (0, row(GIVEN), (MOVE, READY), Give(NAME, GiveEntry("", TOPIC, 0, 1, 1, LOG, 0))),
        # The move was withdrawn after the part was released.
        (0, row(GIVEN), (), Give(NAME, GiveEntry("", TOPIC, 0, 1, 0, LOG, 0))),
        (0, row(GIVEN), (BACK,), Resume(NAME, parted(BACK).hold(0))),
        (0, row("live", 1), (BACK,), None),
        (0, row(GIVEN), (MOVE, READY, GIVE), None),
        (
            1,
            None,
            (MOVE, READY, GIVE),
            Take(NAME, parted(MOVE, READY, GIVE), Hold(1, -1, False, 0, LOG, 9), "s3://b/0"),
        ),
        (
            1,
            row(TAKING, 1),
            (MOVE, READY, GIVE),
            Take(NAME, parted(MOVE, READY, GIVE), Hold(1, -1, False, 0, LOG, 9), "s3://b/0"),
        ),
        (1, row("live", 1), (GIVE,), Confirm(NAME, TakenEntry("", TOPIC, 0, 1))),
        (1, row("live", 1), (GIVE, TAKEN), None),
        (0, row(GIVEN), (GIVE, TAKEN), Delete(NAME)),
        (0, None, (GIVE, TAKEN), None),
        # The registry was repaired, so it is not known in which hold the part is.
        (1, row("live", 0, ""), (GIVE, TAKEN), Adopt(NAME, TOPIC, 1)),
        # Nothing begins again with an empty log, or with an older one.
        (1, None, (GIVE, TAKEN), None),
        (1, row("live", 0), (GIVE, TAKEN), None),
        (0, row("live", 0), (GIVE, TAKEN), None),
        # What it had before must go before it takes the part again.
        (1, row(GIVEN, 0), (GIVE,), Delete(NAME)),
        (0, row("live", 1), (), None),
        (0, row("deleting"), (MOVE, READY), None),
    ],
)
def test_each_broker_does_the_next_step_of_a_move(
    number: int, own: TopicRow | None, entries: tuple[Entry, ...], step: Step | None
) -> None:
    known = view(number, {} if own is None else {NAME: own}, *entries)
    assert known.plan() == ([] if step is None else [step])


def test_a_part_that_moves_is_refused_for_the_moment() -> None:
    ask = p.Lookup(1, NAME, "", True, {}, {})
    for own, entries in ((row(GIVEN), (MOVE, READY)), (row(TAKING, 1), (GIVE,)), (None, (GIVE,))):
        at = 0 if own is not None and own.state == GIVEN else 1
        known = view(at, {} if own is None else {NAME: own}, *entries)
        with pytest.raises(ZsqError, match=E_CLOSING):
            known.lookup(ask, True)
    for state in (GIVEN, TAKING):  # a broker that was just started has not read the directory
        known = ClusterView(uuid(0), {NAME: row(state)})
        assert known.lookup(ask, False) is Go.READ
        with pytest.raises(ZsqError, match=E_CLOSING):
            known.lookup(ask, True)
    known = view(0, {NAME: row()}, MOVE, READY)
    assert known.lookup(ask, True) is Go.HERE
    known.leaving.add(NAME)
    with pytest.raises(ZsqError, match="t#0' is being moved"):
        known.lookup(ask, True)
    # The broker that shall have it reads the directory before it sends a client away.
    known = view(1, {}, MOVE)
    assert known.lookup(ask, False) is Go.READ
    assert isinstance(known.lookup(ask, True), p.Spread)


def test_a_copy_that_lost_or_never_got_the_part_is_reported() -> None:
    older = view(0, {NAME: row()}, GIVE, TAKEN)
    older.plan()
    assert "restored from an old backup?" in older.trouble
    assert isinstance(older.lookup(p.Lookup(1, NAME, "", True, {}, {}), True), p.Spread)
    lost = view(1, {}, GIVE, TAKEN)
    lost.plan()
    assert "should be here since hold 1, and is not: restore it" in lost.trouble


def test_news_is_read_often_while_a_part_moves() -> None:
    assert not view(0, {NAME: row()}).is_moving
    assert view(1, {}, MOVE).is_moving
    assert not view(2, {}, MOVE).is_moving
    for number in (0, 1):
        assert view(number, {}, GIVE).is_moving
        assert not view(number, {}, GIVE, TAKEN).is_moving


@pytest.mark.parametrize(
    ("part", "to", "code"),
    [
        ("t", 1, E_BAD_ARGUMENT),
        ("t#0", 3, E_BAD_ARGUMENT),
        ("t#0", None, E_BAD_ARGUMENT),
        ("t#1", 1, E_NOT_FOUND),
        ("other#0", 1, E_NOT_FOUND),
    ],
)
def test_moves_that_make_no_sense_are_refused(part: str, to: int | None, code: str) -> None:
    with pytest.raises(ZsqError, match=code):
        view(0, {NAME: row()}).move(
            parsed(p.Manage(1, "move", part, "", {"broker": to}, {})), uuid(1)
        )


# Random histories


class Site:
    """A broker: its rows and its part of the log on the disk, and what its bucket has of them."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.rows: dict[str, TopicRow] = {}
        self.log: list[int] = []
        self.shipped: tuple[TopicRow | None, tuple[int, ...]] = (None, ())
        self.begin()

    def begin(self) -> None:
        """Begin a new process, which has read nothing."""
        self.view = ClusterView(uuid(self.number), self.rows)

    def read(self, count: int) -> None:
        """Read `count` entries at most. Only a process that has read all may act."""
        first = self.view.directory.next
        entries = self.world.log[first : first + count]
        self.view.take(first, entries, first + len(entries) == len(self.world.log))

    def ship(self) -> None:
        own = self.rows.get(NAME)
        self.shipped = (None if own is None else replace(own), tuple(self.log))

    def restore(self) -> None:
        """Lose the disk, and go on with what the bucket has, as a standby does."""
        own, log = self.shipped
        self.rows.clear()
        self.log = list(log)
        if own is not None and own.state != TAKING:
            self.rows[NAME] = replace(own)
        self.begin()

    @property
    def serves(self) -> bool:
        own = self.rows.get(NAME)
        return own is not None and own.state == "live"

    def act(self) -> None:
        for step in self.view.plan():
            self._act(step)

    def _act(self, step: Step) -> None:
        own = self.rows.get(NAME)
        match step:
            case Open():
                self.rows[NAME], self.log = row(), []
            case Prepare(entry=entry) | Confirm(entry=entry):
                self.ship()
                self.world.append(entry)
            case Release():
                assert own is not None
                own.state = GIVEN
            case Give(entry=give):
                self.ship()
                self.world.append(give._replace(tick=self.world.tick()))
            case Resume(hold=hold):
                assert own is not None
                own.state, own.hold = "live", hold.number
            case Take(hold=found, url=url):
                source = self.world.sites[int(url[-1])]
                released, log = source.shipped
                assert released is not None, "the other broker has lost it"
                assert released.state == GIVEN
                self.rows[NAME], self.log = row("live", found.number), list(log)
            case Delete():
                del self.rows[NAME]
                self.log = []
                if self.world.chance.random() < 0.5:
                    self.ship()


class World:
    """Three brokers, and the directory that they share."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log: list[bytes] = [encode_entry(one) for one in BEGIN]
        self.ids = 1_000
        self.ticks = 0
        self.acknowledged: list[int] = []
        self.sites = [Site(self, number) for number in range(BROKERS)]
        self.speeds = [chance.choice((0.02, 0.3, 1.0)) for _ in self.sites]

    def append(self, entry: Entry) -> None:
        self.ids += 1
        self.log.append(encode_entry(entry._replace(id=uuid(self.ids))))

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def step(self) -> None:
        """Let something happen. Some brokers are slow to read, and act on an old view meanwhile."""
        site = self.chance.choice(self.sites)
        if self.chance.random() < self.speeds[site.number]:
            site.read(self.chance.choice((1, 2, 1_000)))
        match self.chance.randrange(16):
            case 0 | 1:
                self._move(site)
            case 2:
                site.begin()
            case 3:
                site.restore()
            case 4 | 5 | 6:
                self._publish(site)
            case 7:
                site.ship()
            case _:
                site.act()

    def _move(self, site: Site) -> None:
        ask = parsed(p.Manage(1, "move", NAME, "", {"broker": self.chance.randrange(BROKERS)}, {}))
        parted = site.view.directory.topics.get("t")
        if parted is not None and site.view.is_read:
            self.append(site.view.move(ask, uuid(1)))

    def _publish(self, site: Site) -> None:
        """Acknowledge a message when the bucket has it, as with --sync bucket."""
        if site.serves:
            site.log.append(len(self.acknowledged))
            site.ship()
            self.acknowledged.append(site.log[-1])

    def check(self) -> None:
        serving = [site for site in self.sites if site.serves]
        assert len(serving) <= 1, "two brokers have the part"
        for site in serving:
            assert site.log == self.acknowledged

    def settle(self) -> None:
        """Let all read and act until nothing changes any more."""
        for _ in range(40):
            for site in self.sites:
                site.read(1_000)
                site.act()
                self.check()


@given(st.integers(0, 1 << 32))
def test_one_broker_has_the_part_and_all_its_messages_in_every_history(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(300):
        world.step()
        world.check()
    world.settle()
    (site,) = [one for one in world.sites if one.serves]
    assert [one for one in world.sites if one.rows] == [site]
    found = site.view.directory.topics["t"]
    assert found.parts == (site.number,)
    assert found.hold(0)[1:4] == (-1, False, -1), "no move is left"


def test_a_part_comes_while_the_directory_says_that_it_shall_be_here() -> None:
    assert view(1, {}, MOVE).comes(NAME)
    assert view(1, {}, MOVE, GIVE).comes(NAME)
    assert not view(1, {}).comes(NAME), "withdrawn"
    assert not view(2, {}, MOVE).comes(NAME)
    assert not view(1, {}, MOVE).comes("other#0"), "its topic was deleted"
    assert not view(1, {}, MOVE).comes("t#9")
