"""Random histories of brokers that move a part, and are forgotten by their cluster at any moment,
although some of them live on for a while.

As with --sync bucket, a message is acknowledged when the bucket has it. Its offset may be read
before. So no offset may ever name another message.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.supervisor.cluster.cluster_view import (
    ClusterView,
    Confirm,
    Delete,
    Give,
    Open,
    Prepare,
    Reclaim,
    Release,
    Resume,
    Step,
    Take,
)
from zsq.actors.supervisor.topics.registry_format import GIVEN, TAKING, TopicRow
from zsq.storage.cluster.directory import (
    NOBODY,
    BrokerEntry,
    Directory,
    Entry,
    ForgetEntry,
    MoveEntry,
    ReclaimEntry,
    TopicEntry,
    encode_entry,
)

BROKERS = 6
RESERVE = 4  # offsets that a broker may give out before its bucket has them
TOPIC, LOG, NAME = "7" * 32, "f" * 32, "t#0"


def uuid(number: int) -> str:
    return f"{number:032x}"


class Site:
    """A broker, what its bucket has of it, and what it has of the part: pairs of an offset and a
    message, and the next offset.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.rows: dict[str, TopicRow] = {}
        self.log: list[tuple[int, int]] = []
        self.end = 0
        self.shipped: tuple[TopicRow | None, tuple[tuple[int, int], ...], int] = (None, (), 0)
        self.is_ended = self.is_dead = False
        self.view = ClusterView(uuid(number), self.rows)

    def begin(self) -> None:
        self.view = ClusterView(uuid(self.number), self.rows)

    def read(self, count: int) -> None:
        first = self.view.directory.next
        entries = self.world.log[first : first + count]
        self.view.take(first, entries, first + len(entries) == len(self.world.log))

    def ship(self) -> bool:
        """Ship all. A broker whose log was ended learns of it here, and stops."""
        if self.is_ended:
            self.is_dead = True
            return False
        own = self.rows.get(NAME)
        self.shipped = None if own is None else replace(own), tuple(self.log), self.end
        if self.serves:
            self.world.acknowledged |= {message for _, message in self.log}
        return True

    def restore(self) -> None:
        """Lose the disk, and go on with what the bucket has, as a standby does."""
        own, log, end = self.shipped
        if self.is_ended or own is None:  # without its row, the part would be another log
            return
        self.rows.clear()
        self.log, self.end = list(log), end + RESERVE
        if own is not None and own.state != TAKING:
            self.rows[NAME] = replace(own)
        self.begin()
        self.ship()

    @property
    def serves(self) -> bool:
        own = self.rows.get(NAME)
        return own is not None and own.state == "live" and not self.is_dead

    def publish(self) -> None:
        if self.serves and self.end < self.shipped[2] + RESERVE:
            message = self.world.messages = self.world.messages + 1
            assert self.world.given.setdefault(self.end, message) == message, "an offset names two"
            self.log.append((self.end, message))
            self.end += 1

    def act(self) -> None:
        for step in self.view.plan():
            if not self.is_dead:
                self._act(step)

    def _act(self, step: Step) -> None:
        own = self.rows.get(NAME)
        match step:
            case Open(hold=hold):
                self._have(hold.number, (), hold.reserves * RESERVE)
            case Prepare(entry=entry) | Confirm(entry=entry):
                if self.ship():
                    self.world.append(entry)
            case Release():
                assert own is not None
                if self.ship():
                    own.state = GIVEN
            case Give(entry=entry):
                if self.ship():
                    self.world.append(entry)
            case Resume(hold=hold):
                self._have(hold.number, tuple(self.log), self.end + hold.reserves * RESERVE)
            case Take(hold=hold, url=url):
                released, log, end = self.world.sites[int(url[-1])].shipped
                assert released is not None, "the other broker has lost it"
                assert released.state == GIVEN or hold.reserves
                self._have(hold.number, log, end + hold.reserves * RESERVE)
            case Reclaim():
                self.world.reclaim(self, step)
            case Delete():
                del self.rows[NAME]
                self.log, self.end = [], 0

    def _have(self, hold: int, log: tuple[tuple[int, int], ...], end: int) -> None:
        self.rows[NAME] = TopicRow(1, LOG, "always", 0, "live", part_of=TOPIC, hold=hold)
        self.log, self.end = list(log), end
        if self.world.chance.random() < 0.2:  # otherwise the bucket does not have it yet
            self.ship()


class World:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log: list[bytes] = []
        self.messages = self.ids = 0
        self.given: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        for number in range(BROKERS):
            self.append(BrokerEntry("", uuid(number), ("tcp://a:1",), f"s3://b/{number}"))
        self.append(TopicEntry("", "t", TOPIC, (0,), {}))
        self.sites = [Site(self, number) for number in range(BROKERS)]

    def append(self, entry: Entry) -> None:
        self.ids += 1
        self.log.append(encode_entry(entry._replace(id=uuid(1_000 + self.ids))))

    def directory(self) -> Directory:
        found = Directory()
        for number, raw in enumerate(self.log):
            found.apply(number, raw)
        return found

    def step(self) -> None:
        chance = self.chance
        site = chance.choice(self.sites)
        if site.is_dead:
            return
        if chance.random() < 0.5:
            site.read(chance.choice((1, 2, 1_000)))
        site.view.adopts_all = chance.random() < 0.3
        match chance.randrange(24):
            case 0 | 1:
                part = self.directory().topics["t"]
                target, hold = chance.randrange(BROKERS), part.hold(0).number
                self.append(MoveEntry("", TOPIC, 0, hold, target))
            case 3:
                site.begin()
            case 4:
                site.restore()
            case 2 | 5:
                at = self.directory().topics["t"].parts[0]
                self._forget(at if chance.random() < 0.8 else chance.randrange(BROKERS))
            case 6 | 7 | 8 | 9 | 10:
                site.publish()
            case 11 | 12:
                site.ship()
            case _:
                site.act()

    def _forget(self, number: int) -> None:
        directory = self.directory()
        tick = 1 if directory.has_parts(number) else NOBODY
        entry = ForgetEntry(uuid(1), number, tick)
        if sum(not one.gone for one in directory.brokers) > 2 and not directory.objection(entry):
            self.sites[number].is_ended = tick != NOBODY
            if self.chance.random() < 0.5:
                self.sites[number].is_dead = True
            self.append(entry)

    def reclaim(self, site: Site, step: Reclaim) -> None:
        hold, at = step.hold, step.topic.parts[step.part]
        own = self.sites[at].shipped[0]
        place = (LOG, 1, at)
        is_back = own is not None and own.state == GIVEN and hold.origin == NOBODY and hold.log
        if own is None or not (own.hold == hold.number or is_back):
            is_first = hold.origin == NOBODY
            place = ("0" * 32, 0, NOBODY) if is_first else (hold.log, 1, hold.origin)
        log, tick, source = place
        self.append(ReclaimEntry("", TOPIC, 0, hold.number + 1, site.number, log, tick, source))

    def check(self) -> None:
        serving = [site for site in self.sites if site.serves and not site.is_ended]
        assert len(serving) <= 1, "two brokers have the part"
        for site in serving:
            offsets = [offset for offset, _ in site.log]
            assert offsets == sorted({*offsets})
            assert self.acknowledged <= {message for _, message in site.log}


@given(st.integers(0, 1 << 32))
def test_what_a_forgotten_broker_acknowledged_is_kept_and_no_offset_names_two_messages(
    seed: int,
) -> None:
    world = World(random.Random(seed))
    for _ in range(200):
        world.step()
        world.check()
    for _ in range(15):
        for site in world.sites:
            if not site.is_dead:
                site.read(1_000)
                site.view.adopts_all = True
                site.act()
                site.ship()
                world.check()
    (site,) = [one for one in world.sites if one.serves]
    assert world.directory().topics["t"].parts == (site.number,)
