"""A topic whose channel is moved by an operator while its consumers finish messages: a real channel
and storage, on a simulated disk that loses unsynced data.

Requests reach the channel in one order, and the state store commits them in that order. So these
are the promises about seeks and finishes:

1. A finish that was confirmed is kept, unless a seek to an earlier offset was requested later. That
   seek may be answered, or it may be in effect without an answer.
2. A seek that was answered is in effect. A seek that was requested and not answered is in effect
   completely, or not at all.
3. A power cut may undo a seek only as long as no consumer has seen an effect of it. Once a message
   from the new position was delivered, the seek is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast
from unittest import mock

from support.routed import Routed

from zsq.actors.channel.channel import ChannelActor
from zsq.actors.channel.channel_opening import OpenedChannel, make_delivery
from zsq.actors.channel.core import UNKNOWN_DELIVERY
from zsq.actors.channel.lease import Subscriber
from zsq.actors.runtime.port import Envelope, Mail, Port
from zsq.actors.settings import options
from zsq.actors.settings.starts import ChannelStart
from zsq.actors.storage.channels import Channels
from zsq.actors.storage.commits import StateCommits
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block
from zsq.transport.settings import NONE
from zsq.transport.wire import protocol as p

from .life import Life

NAME: Final = "moved"
CONSUMER: Final = (b"consumer",)
READY: Final = 1_000
ROUNDS_MAX: Final = 100
FAR_NS: Final = 1 << 60


class Line(Routed):
    """A fake port: it keeps the messages that the channel sends until the rig (see below) takes
    them.
    """

    def __init__(self, before_poll: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.sent: list[tuple[p.Wire, Sequence[Block]]] = []
        self.coming: list[Mail] = []
        self.socket = self
        self._before_poll = before_poll

    def poll(self, timeout_ms: int = 0) -> bool:
        self._before_poll()
        return bool(self.coming)

    def receive(self, limit: int) -> list[Mail]:
        found, self.coming = self.coming[:limit], self.coming[limit:]
        return found

    def send(self, envelope: Envelope, message: p.Wire, blocks: Sequence[Block] = ()) -> bool:
        self.sent.append((message, blocks))
        return True

    def take(self) -> list[tuple[p.Wire, Sequence[Block]]]:
        found, self.sent = self.sent, []
        return found


class Jobs:
    """A fake for the thread of the state store: jobs wait for `run`."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Any, Callable[[], Any]]] = []
        self._done: list[tuple[Any, Any]] = []
        self.pending = 0

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self._jobs.append((tag, job))

    def run(self) -> None:
        jobs, self._jobs = self._jobs, []
        self._done += [(tag, job()) for tag, job in jobs]

    def results(self) -> list[tuple[Any, Any]]:
        found, self._done = self._done, []
        self.pending -= len(found)
        return found


class Rig:
    """The channel and the parts of its storage, connected by fakes. Commits are as slow as
    possible: all other work is done before them.
    """

    def __init__(self, life: SeekLife) -> None:
        assert life.store is not None
        self.life = life
        self.jobs = Jobs()
        table = life.store.state.load()
        self.state = StateCommits(self.jobs, life.store.state, table, "topic clicks")
        self.harness = Channels(life.log, self.state, table, "always")
        self.back = Line()  # the answers of the storage
        self.harness.route(cast("Port", self.back))
        self.lines = {name: Line() for name in ("front", "topic", "scan", "supervisor")}
        self.lines["storage"] = Line(self._serve_and_commit)
        told = ChannelStart(
            channel=NAME, closed=False, topic_name="clicks", uuid="00" * 16, front="front", topic="topic", storage="storage", scan="scan"
        )  # fmt: skip
        self.channel = ChannelActor(7, f"channel clicks/{NAME}", told)
        parts: dict[str, Any] = {
            "open_dealer": self.lines.__getitem__,
            "open_router": self.lines.__getitem__,
            "supervisor": self.lines["supervisor"],
            "listen_raw": lambda source, handle: None,
        }
        vars(self.channel).update(parts)
        self.channel.on_start()
        self.say(p.Sub(1, p.PROTOCOL_VERSION, READY, 0, 30_000, "one"))

    def say(self, message: p.Wire, line: str = "front", blocks: Iterable[Block] = ()) -> None:
        frames = [part for block in blocks for part in (block.wire_header(), block.payload)]
        self.lines[line].hear(message, CONSUMER if line == "front" else (), frames)

    def seek(self, request: int, offset: int) -> None:
        log = self.life.log
        self.lines["supervisor"].hear(
            p.Seek(request, offset, log.start, log.synced_end, clamp=False, forward=False), ()
        )

    def turn(self) -> None:
        """Do everything that is possible without a commit."""
        for _ in range(ROUNDS_MAX):
            self.channel.on_turn()
            if not self._serve():
                return
        raise AssertionError("the channel does not come to rest")

    def pump(self) -> None:
        """Do everything that is possible, including commits."""
        for _ in range(ROUNDS_MAX):
            self.turn()
            if not self._commit():
                return
        raise AssertionError("the channel has more and more to commit")

    def _serve(self) -> bool:
        """Answer the requests that the channel sent. Return True if there was one."""
        found = False
        for message, _ in self.lines["topic"].take():
            if isinstance(message, p.Attach) and message.next_offset < self.life.log.synced_end:
                self.say(p.Behind(self.life.log.synced_end), "topic")
                found = True
        for message, _ in self.lines["storage"].take():
            found = True
            if isinstance(message, p.Fetch):
                blocks = [
                    block for block in self.life.read_all() if block.next_offset > message.offset
                ]
                end = self.life.log.synced_end
                self.say(
                    p.Blocks(message.request, self.life.log.start, end, end), "storage", blocks
                )
            else:
                self.back.hear(message)
        self._heard()
        found = self._answers() or found
        self.lines["scan"].take()
        return found

    def _heard(self) -> None:
        """Pass messages on to the consumers and the operator."""
        for message, _ in self.lines["front"].take():
            if isinstance(message, p.Deliver):
                self.life.was_delivered(message.token, message.runs)
            elif isinstance(message, p.Answer):
                self.life.was_answered(message.request, message.refused)
        for message, _ in self.lines["supervisor"].take():
            if isinstance(message, p.Position):
                self.life.was_moved(message.offset)

    def _answers(self) -> bool:
        answers = self.back.take()
        for message, _ in answers:
            self.say(message, "storage")
        return bool(answers)

    def _commit(self) -> bool:
        """Commit, or read. Return True if there was something to do."""
        life = self.life
        if self.state.may_commit() and not self.state.waits_for_log(life.log.synced_end):
            counted = life.counted(StateBatch())
            self.state.commit(life.log.synced_end, counted.producers)
            self.jobs.run()
            life.facts.append(life.facts_now())
            life.commits += 1
        elif self.jobs.pending:
            self.jobs.run()
        else:
            return False
        self.state.on_results()
        self._answers()
        self._heard()
        return True

    def _serve_and_commit(self) -> None:
        """Serve the channel while it starts and waits for its row."""
        for message, _ in self.lines["storage"].take():
            assert isinstance(message, p.OpenChannel)
            self.back.hear(message)
        while self.state.may_commit() or self.jobs.pending:
            counted = self.life.counted(StateBatch())
            if self.state.may_commit():
                self.state.commit(self.life.log.synced_end, counted.producers)
                self.jobs.run()
                self.life.facts.append(self.life.facts_now())
                self.life.commits += 1
            self.jobs.run()
            self.state.on_results()
        self.lines["storage"].coming += [Mail((), message, []) for message, _ in self.back.take()]


class SeekLife(Life):
    """A life with a record of the answers to the consumers and to the operator of the channel, and
    of the messages that they received.
    """

    def __init__(self, *arguments: Any) -> None:
        self.leases: dict[int, int] = {}
        """Offset -> token of the lease of the last delivery."""
        self.attempts: dict[int, int] = {}
        """Offset -> the highest attempt number since the last answered seek to this offset or an
        earlier one.
        """
        self.told: set[int] = set()
        """Offsets whose finish was requested. They may be delivered again."""
        self.confirmed: set[int] = set()
        """Offsets whose finish was confirmed. They must not be delivered again."""
        self.requests = 100
        self.asked: dict[int, tuple[int, ...]] = {}
        """Request -> offsets, for finishes that are not answered."""
        self.seeks: list[int] = []
        """Targets of the seeks that were requested and not answered, in order."""
        self.seen = False
        """True if a consumer received a message that only the first seek in `seeks` explains."""
        self.floor = 0
        """Messages below this offset need not be delivered, because a seek has passed them. This
        does not hold for messages that were delivered since then.
        """
        self.rig: Rig | None = None
        super().__init__(*arguments)

    # Actions

    def start(self) -> Rig:
        self.rig = Rig(self)
        self.rig.pump()
        return self.rig

    def finish(self, *offsets: int) -> None:
        """Request a finish, with confirmation, for each lease that contains one of these
        offsets.
        """
        assert self.rig is not None
        for token in sorted({self.leases[offset] for offset in offsets}):
            mine = tuple(offset for offset in offsets if self.leases[offset] == token)
            self.requests += 1
            self.asked[self.requests] = mine
            self.told.update(mine)
            self.rig.say(p.Fin(self.requests, token, tuple((offset, 1) for offset in mine)))

    def requeue(self, *offsets: int) -> None:
        assert self.rig is not None
        for offset in offsets:
            self.rig.say(p.Req(0, self.leases[offset], ((offset, 1),), 0, "again"))

    def seek(self, place: int) -> None:
        assert self.rig is not None
        self.seeks.append(place)
        self.rig.seek(9, place)

    def abandon(self) -> None:
        self.rig = None
        super().abandon()

    # What the clients receive

    def was_delivered(self, token: int, runs: Sequence[tuple[int, int, int]]) -> None:
        for start, count, attempts in runs:
            for offset in range(start, start + count):
                self.leases[offset] = token
                if self.seeks:
                    # The channel had accepted the seek before it sent this message.
                    self.seen = True
                else:
                    self.attempts[offset] = max(attempts, self.attempts.get(offset, 0))

    def was_answered(self, request: int, refused: Sequence[tuple[int, int]]) -> None:
        offsets = self.asked.pop(request, ())
        gone = {offset for start, count in refused for offset in range(start, start + count)}
        taken = set() if UNKNOWN_DELIVERY in refused else set(offsets) - gone
        self.confirmed |= taken
        self.told -= set(offsets) - taken

    def was_moved(self, place: int) -> None:
        """Record that the oldest seek was answered. A finish without an answer may have reached the
        channel before the seek or after it.
        """
        assert self.seeks.pop(0) == place
        self._moved(place)

    def _moved(self, place: int) -> None:
        self.confirmed = {offset for offset in self.confirmed if offset < place}
        self.told = {offset for offset in self.told if offset < place}
        self.attempts = {
            offset: attempts for offset, attempts in self.attempts.items() if offset < place
        }
        self.floor, self.seen = place, False

    # What must hold

    def given(self) -> dict[int, int]:
        """Return the messages that the channel would deliver from now on: offset -> attempt number.
        Write nothing.
        """
        assert self.store is not None
        table = self.store.state.load()
        if NAME not in table.channels:
            return {}
        holes = [*self.store.state.holes(NAME)]
        row, start, end = table.channels[NAME], self.log.start, self.log.end
        opened = OpenedChannel(row, holes, (0, 0, 0), start, end, (), NONE)
        delivery = make_delivery(8, NAME, opened)
        delivery.subscribe(Subscriber(CONSUMER, "one", READY, FAR_NS, FAR_NS, 0, 0))
        blocks = self.read_all()
        for block in blocks:
            delivery.supply.offer(block, from_storage=True)
        found: dict[int, int] = {}
        for _ in range(ROUNDS_MAX):
            delivery.changes()
            delivery.supply.committed()
            for block in blocks if delivery.supply.wanted else ():
                delivery.supply.shelve(block)
            while (pending := delivery.next_delivery(1, 1)) is not None:
                found.update(
                    (offset, attempts)
                    for start, count, attempts in pending.runs
                    for offset in range(start, start + count)
                )
            if not delivery.supply.wanted and not delivery.supply.waiting_rows:
                return found
        raise AssertionError("the channel holds back what it should give out")

    def check(self, lost_max: int = 0) -> list[int]:
        found = super().check(lost_max)
        self.moves_in_effect()
        return found

    def moves_in_effect(self) -> int:
        """Return how many of the unanswered seeks are in effect. Fail if no number explains what
        the channel delivers.
        """
        assert self.store is not None
        if NAME not in self.store.state.load().channels:
            assert not self.attempts, "the channel is gone"
            return 0
        given = self.given()
        wrong = []
        for number in range(len(self.seeks), 0, -1):
            if given.keys() == set(range(self.seeks[number - 1], self.log.synced_end)) and set(
                given.values()
            ) <= {1, 2}:
                return number
        wrong += [
            f"{offset} comes again (attempt {given[offset]}), its finish was confirmed"
            for offset in self.confirmed & given.keys()
        ]
        wrong += [
            f"{offset} comes as attempt {given[offset]} after {attempts}"
            for offset, attempts in self.attempts.items()
            if given.get(offset, attempts) < attempts
        ]
        wanted = set(range(self.floor, self.log.synced_end)) - self.told
        wrong += [f"{offset} does not come" for offset in sorted(wanted - given.keys())]
        if self.seen:
            wrong.append(f"a seek to {self.seeks[0]} was undone, and consumers had seen it")
        assert not wrong, f"{'; '.join(wrong[:5])} (seeks asked for: {self.seeks})"
        return 0

    def settle(self) -> None:
        super().settle()
        for _ in range(self.moves_in_effect()):
            self._moved(self.seeks.pop(0))
        self.seeks, self.asked, self.seen = [], {}, False


def moved(life: Life) -> None:
    """Overlap finishes and seeks in each way: a finish before a seek, after it, in one commit with
    it, and while a commit is running.
    """
    assert isinstance(life, SeekLife)
    # Commits begin when they are requested, not by the clock.
    with mock.patch.object(options, "SAVE_INTERVAL_MS", 1 << 40):
        life.publish(blocks=4)
        life.sync()
        rig = life.start()
        life.finish(0, 1, 2, 3)
        rig.pump()
        life.requeue(4, 5)
        rig.pump()
        life.finish(6)
        life.seek(2)  # in one commit with the finish before it
        rig.pump()
        life.finish(2, 3)
        rig.turn()  # the commit of these finishes is running
        life.seek(1)
        rig.pump()
        old = dict(life.leases)
        life.seek(5)
        life.leases = old
        life.finish(1)  # too late: its lease has ended
        rig.pump()
        life.requeue(7)
        life.publish(blocks=2)
        life.sync()
        rig.say(p.Behind(life.log.synced_end), "topic")
        life.seek(life.log.synced_end)
        rig.pump()
        life.seek(8)
        life.seek(3)  # two seeks in one commit
        rig.pump()
        life.finish(3, 4, 5, 6)
        rig.pump()
        life.abandon()
        life.open()
        rig = life.start()
        life.finish(*sorted(life.leases)[-2:])
        life.seek(0)
        rig.pump()
