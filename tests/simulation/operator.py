"""A client that sends commands: it pauses and unpauses, peeks, seeks, and makes and deletes
channels. At the end it unpauses everything and deletes its channels.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.transport import errors

from .world import MS

if TYPE_CHECKING:
    from .ledger import ChannelLedger
    from .workload import Crew

ACTIONS: Final = ("pause_channel", "pause_topic", "look", "make_channel", "seek", "configure")
IDLE: Final = ("idle0", "idle1")


class Operator:
    """One life of the operator: it sends `calls` commands."""

    def __init__(self, crew: Crew, calls: int, moves: bool, name: str, dice: random.Random) -> None:
        self.crew, self.calls, self.name, self.dice = crew, calls, name, dice
        self.actions = ACTIONS if moves else tuple(action for action in ACTIONS if action != "seek")

    def run(self) -> None:
        world = self.crew.world
        with zsq.Admin(self.crew.url, timeout=15) as admin:
            for _ in range(self.calls):
                world.pause(10 * MS, 400 * MS)
                action = self.dice.choice(self.actions)
                row = self.dice.choice(list(self.crew.ledger.channels.values()))
                world.note(f"{self.name}: {action} {row.topic}/{row.name}")
                self._try(lambda action=action, row=row: getattr(self, action)(admin, row))  # type: ignore[misc]
            self.settle(admin)
        self.crew.publishing -= 1

    def settle(self, admin: Any) -> None:
        """Unpause everything, and delete the channels without consumers."""
        rows = self.crew.ledger.channels.values()
        for row in rows:
            self._insist(lambda row=row: admin.unpause(row.topic, row.name))  # type: ignore[misc]
        for topic in sorted({row.topic for row in rows}):
            self._insist(lambda topic=topic: admin.unpause(topic))  # type: ignore[misc]
            for name in IDLE:
                self._insist(lambda topic=topic, name=name: self._delete(admin, topic, name))  # type: ignore[misc]

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except errors.ZsqError as error:
            self.crew.noted(self.name, error)
            return False
        return True

    def _insist(self, call: Callable[[], object]) -> None:
        while not self._try(call):
            self.crew.world.pause(50 * MS, 200 * MS)

    def pause_channel(self, admin: Any, row: ChannelLedger) -> None:
        admin.pause(row.topic, row.name)
        self.crew.world.pause(10 * MS, 600 * MS)
        admin.unpause(row.topic, row.name)

    def pause_topic(self, admin: Any, row: ChannelLedger) -> None:
        admin.pause(row.topic)
        self.crew.world.pause(10 * MS, 600 * MS)
        admin.unpause(row.topic)

    def look(self, admin: Any, row: ChannelLedger) -> None:
        """Peek at a channel, and check that every message in it was sent to its topic."""
        found = admin.peek(row.topic, row.name, count=5)
        for peeked in found.messages:
            if peeked.message is not None:
                self.crew.ledger.number(row.topic, bytes(peeked.message.body))

    def make_channel(self, admin: Any, row: ChannelLedger) -> None:
        """Make a channel that has no consumers, and delete it again."""
        name = self.dice.choice(IDLE)
        admin.create_channel(row.topic, name)
        self.crew.world.pause(MS, 300 * MS)
        self._delete(admin, row.topic, name)

    def _delete(self, admin: Any, topic: str, name: str) -> None:
        try:
            admin.delete_channel(topic, name, force=True)
        except errors.NotFound:
            return  # an earlier call, whose answer was lost, has deleted the channel

    def configure(self, admin: Any, row: ChannelLedger) -> None:
        admin.configure_channel(row.topic, row.name, backoff_s=self.dice.choice((0.1, 1.0, None)))

    def seek(self, admin: Any, row: ChannelLedger) -> None:
        """Move a channel back to the beginning. From the call on, before and after the answer,
        finished messages may be delivered again.
        """
        self._seek(admin, row, "earliest")

    def _seek(self, admin: Any, row: ChannelLedger, place: str | int) -> None:
        known = len(row.moves)
        answer = admin.seek(row.topic, row.name, place)
        self.crew.world.note(f"{self.name}: {row.name} is at {answer['offset']}")
        self.crew.ledger.move_answered(row, known, answer["offset"])

    def move(self) -> None:
        """Send many seeks in quick succession: back, forward, and to the position of the
        consumers.
        """
        world, ledger = self.crew.world, self.crew.ledger
        with zsq.Admin(self.crew.url, timeout=15) as admin:
            for _ in range(self.calls):
                world.pause(5 * MS, 250 * MS)
                row = self.dice.choice(list(ledger.channels.values()))
                place = self.dice.choice(
                    ("earliest", "earliest", "latest", self.dice.randrange(200))
                )
                world.note(f"{self.name}: seek {row.topic}/{row.name} {place}")
                self._try(lambda row=row, place=place: self._seek(admin, row, place))  # type: ignore[misc]
        self.crew.publishing -= 1
