"""The operator of the soak (see `run.py`). One action at a time, it moves channels, makes and
deletes topics and channels, and cancels delayed messages.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from support.soak.audit import Audit
from support.soak.clients import Group, Publishing, Worker
from support.soak.ledger import Channel, Topic, body_of

import zsq

Found = TypeVar("Found")

# Seconds for which a request is repeated while the processes that serve it restart.
ASKED_S: Final = 120.0
VISITS_MAX: Final = 3  # the most short-lived channels at the same time
VISIT_S: Final = (3.0, 25.0)
BRIEF_NAMES: Final = 4  # number of names that short-lived topics use in turn
CANCELS_MAX: Final = 20


def until_done(ask: Callable[[], Found]) -> Found:
    """Repeat a request until it is answered. The processes that serve it may be killed
    meanwhile.
    """
    deadline = time.monotonic() + ASKED_S
    while True:
        try:
            return ask()
        except (zsq.BrokerUnreachable, zsq.Refused):
            if time.monotonic() > deadline:
                raise
        threading.Event().wait(0.1)


def until_gone(delete: Callable[[], object]) -> None:
    """Repeat a deletion until it is answered. If the answer was lost, the next request finds
    nothing, and that counts as done.
    """
    with contextlib.suppress(zsq.NotFound):
        until_done(delete)


@dataclass
class Visit:
    """A short-lived channel."""

    group: Group
    until_s: float


class Operator(Worker):
    """Carries out actions until `ending` is set. A seeded random generator chooses them. While the
    operator is paused, it does nothing.
    """

    def __init__(
        self,
        audit: Audit,
        urls: Sequence[str],
        producers: Sequence[Publishing],
        movable: Sequence[Group],
        seed: int,
        pace_s: float,
    ) -> None:
        super().__init__(audit.ledger, "operator")
        self.urls = urls
        self.audit = audit
        self.producers = producers
        self.movable = movable
        self.topics = [group.channel.topic for group in movable]
        self.random = random.Random(seed)
        self.pace_s = pace_s
        self.visits: list[Visit] = []
        self._acts: deque[Callable[[zsq.Admin], None]] = deque()
        self._number = 0

    def work(self) -> None:
        with zsq.Admin(self.urls[0], timeout=10) as admin:
            while not self.ending.is_set():
                if self.pause.is_set():
                    self.idle.set()
                    self.ending.wait(0.05)
                    continue
                self.idle.clear()
                self._end_visits(admin)
                if not self._acts:
                    seeks = [self._seek_back, self._seek_under_load, self._seek_forward]
                    self._acts.extend(
                        self.random.sample(
                            all_acts := [self._visit, self._brief, self._cancel, *seeks],
                            len(all_acts),
                        )
                    )
                self._acts.popleft()(admin)
                self.ending.wait(self.random.uniform(0.5, 1.5) * self.pace_s)

    # Seeks

    def _place(self, topic: Topic) -> int | str:
        start, head = self.audit.head(topic)
        anywhere, near = (
            self.random.randint(start, head),
            self.random.randint(max(start, head - 500), head),
        )
        return self.random.choice(("earliest", "latest", anywhere, near))

    def _seek_back(self, admin: zsq.Admin) -> None:
        """Move a channel back while it has no consumers, so that it is certain which deliveries
        came before the move.
        """
        group = self.random.choice(self.movable)
        group.stop()
        self.ledger.seek_begins(group.channel, turbulent=False)
        self._seek(admin, group.channel, self._place(group.channel.topic))
        group.start()

    def _seek_under_load(self, admin: zsq.Admin) -> None:
        group = self.random.choice(self.movable)
        self.ledger.seek_begins(group.channel, turbulent=True)
        self._seek(admin, group.channel, self._place(group.channel.topic))
        group.renew()
        self.ledger.seek_settled(group.channel)
        self.ledger.counts["seeks under load"] += 1

    def _seek_forward(self, admin: zsq.Admin) -> None:
        """Move a channel forward, to skip the messages that wait."""
        group = self.random.choice(self.movable)
        group.stop()
        self.ledger.seek_begins(group.channel, turbulent=False)
        self._seek(admin, group.channel, "latest")
        group.start()

    def _seek(self, admin: zsq.Admin, channel: Channel, place: int | str) -> None:
        topic = channel.topic
        answer = until_done(lambda: admin.seek(topic.name, channel.name, place))
        self.audit.read(topic)
        self.ledger.seek_answered(channel, int(answer["offset"]))

    # Short-lived channels and topics

    def _visit(self, admin: zsq.Admin) -> None:
        if len(self.visits) >= VISITS_MAX:
            return
        topic = self.random.choice(self.topics)
        self._number += 1
        name, start = f"visit-{self._number % 8}", self.random.choice(("earliest", "latest"))
        if any(visit.group.channel.name == name for visit in self.visits):
            return
        before = self.audit.head(topic)
        until_done(lambda: admin.create_channel(topic.name, name, start=start))
        after = self.audit.head(topic)
        which = 0 if start == "earliest" else 1
        channel = self.ledger.add_channel(topic, name, (before[which], after[which]), 1)
        self.ledger.counts["channels made"] += 1
        group = Group(self.ledger, channel, self.urls[:1], self.random.randrange(1 << 30))
        group.start()
        self.visits.append(Visit(group, time.monotonic() + self.random.uniform(*VISIT_S)))

    def _end_visits(self, admin: zsq.Admin, all_of_them: bool = False) -> None:
        for visit in [
            visit for visit in self.visits if all_of_them or visit.until_s < time.monotonic()
        ]:
            channel = visit.group.channel
            visit.group.stop()
            self.ledger.delete_channel(channel)
            until_gone(partial(admin.delete_channel, channel.topic.name, channel.name, force=True))
            self.visits.remove(visit)

    def _brief(self, admin: zsq.Admin) -> None:
        """Make a topic, publish to it, consume some or all of it, and delete it. The next topic of
        this name continues after its last offset.
        """
        self._number += 1
        name = f"brief-{self._number % BRIEF_NAMES}"
        until_done(lambda: admin.create_topic(name))
        with zsq.Reader(name, url=self.urls[0], patient=True) as reader:
            first = until_done(reader.bounds)[1]
        topic = self.ledger.add_topic(name, first)
        until_done(lambda: admin.create_channel(name, "only", start="earliest"))
        channel = self.ledger.add_channel(topic, "only", (first, first), 1)
        group = Group(self.ledger, channel, self.urls[1:], self.random.randrange(1 << 30))
        group.start()
        numbers: list[range] = []
        with zsq.Producer(self.urls[0], timeout=ASKED_S) as producer:
            for delay in (None, None, 90.0):
                due_ns = 0 if delay is None else time.time_ns() + int(delay * 1000) * 1_000_000
                numbers.append(self.ledger.sent(topic, self.random.randint(1, 100), due_ns))
                receipt = producer.publish_many(
                    name, [body_of(number, 50) for number in numbers[-1]], delay=delay
                )
                self.ledger.acknowledged(numbers[-1], -1 if delay else receipt.wait())
        if self.random.random() < 0.7:
            self._await_finished(channel, sum(map(len, numbers[:2])))
        group.stop()
        self.ledger.delete_topic(topic)
        until_gone(partial(admin.delete_topic, name, force=True))

    def _await_finished(self, channel: Channel, count: int) -> None:
        deadline = time.monotonic() + ASKED_S
        while self.ledger.finished(channel) < count:
            if time.monotonic() > deadline:
                finished = self.ledger.finished(channel)
                self.ledger.complain(
                    f"{channel.topic.name}: of {count} messages {finished} were finished in "
                    f"{ASKED_S:g} s"
                )
                return
            self.ending.wait(0.05)

    # Delayed messages

    def _cancel(self, admin: zsq.Admin) -> None:
        producer = self.random.choice(self.producers)
        chosen: dict[str, list[tuple[int, str]]] = {}
        now_ns = time.time_ns()
        for _ in range(min(CANCELS_MAX, len(producer.keys))):
            topic, number, key, due_ns = producer.keys.pop()
            # Most messages are cancelled before their due time, and some at or after it.
            if due_ns - now_ns > 500_000_000 or self.random.random() < 0.2:
                chosen.setdefault(topic.name, []).append((number, key))
        for name, pairs in chosen.items():
            self.ledger.cancelling([number for number, _ in pairs])
            try:
                outcome = admin.delayed_cancel(name, [key for _, key in pairs])
            except (zsq.BrokerUnreachable, zsq.Refused):
                continue  # it is unknown whether the messages were cancelled
            self.ledger.cancelled([number for number, _ in pairs], outcome)

    def cancel_all(self, admin: zsq.Admin, topic: Topic) -> None:
        """Cancel all delayed messages at the end. Their number must agree with the ledger.

        A message that is due may wait for its move to the topic, and be cancelled or not. So only
        the messages that are not due when the answer comes must have been cancelled.
        """
        may = self.ledger.waiting(topic) + self.ledger.overdue(topic)
        in_doubt = self.ledger.in_doubt(topic)
        self.ledger.cancelling(may)
        count = admin.delayed_cancel_all(topic.name)
        must = self.ledger.not_due(may)
        if not len(must) <= count <= len(may) + in_doubt:
            self.ledger.complain(
                f"{topic.name}: {len(must)} to {len(may)} messages should be delayed (and "
                f"{in_doubt} in doubt), {count} were"
            )
        self.ledger.cancelled(must, [True] * len(must))

    def close(self, admin: zsq.Admin) -> None:
        self.ending.set()
        self.join(ASKED_S)
        self._end_visits(admin, all_of_them=True)

    @property
    def groups(self) -> list[Group]:
        return [visit.group for visit in self.visits]
