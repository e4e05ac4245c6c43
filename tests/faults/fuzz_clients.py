"""Fuzz targets that are clients: the sessions of a producer, a consumer and a stage's writer. The
broker may send them anything.

After `UsageError` and `CorruptBlock` a link ends and is opened again. Any other exception would end
the thread for which the user's program waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from faults.fuzz_port import stranger_says
from faults.fuzz_wire import block_frames
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator

from zsq.transport.block.block import Block, pack
from zsq.transport.client.core.consumer_session import ConsumerSession
from zsq.transport.client.core.producer_session import PendingBlock, ProducerSession
from zsq.transport.client.core.stage_session import StageSession
from zsq.transport.errors import CorruptBlock, UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import block_frames as frames_of
from zsq.transport.wire.codec import decode, encode, frames_blocks

Said = tuple[bytes, tuple[bytes, ...]]


class ClientRig:
    """Base of the clients: messages arrive, and the link begins again after one that is not
    allowed.
    """

    words: tuple[type[p.Wire], ...]

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.now_ns = 10**12
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def right(self) -> tuple[p.Wire, Sequence[Block]]:
        """Return a message that a correct broker could send."""
        raise NotImplementedError

    def take(self, message: p.Wire, blocks: list[Block]) -> None:
        raise NotImplementedError

    def go_on(self) -> None:
        """Do what the link and the user's program do between two messages."""
        raise NotImplementedError

    def draw(self) -> Said:
        if self.mutator.chance(2):
            message, blocks = self.right()
            return encode(message), tuple(bytes(part) for part in frames_of(blocks))
        known = {
            "expected": (0, 1, 2),
            "token": (5, 6),
            "request": (1, 2, 3),
            "sequence": (0, 1, 2),
        }
        control, frames = stranger_says(self.mutator, self.words, known)
        return control, frames or (block_frames(self.mutator) if self.mutator.chance(2) else ())

    def hear(self, said: Said) -> bool:
        self.now_ns += 1_000_000
        try:
            self.take(decode(said[0]), frames_blocks(said[1]))
        except (UsageError, CorruptBlock):
            self.begin()
            self.go_on()
            return False
        self.go_on()
        return True

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ProducerRig(ClientRig):
    words = (p.Welcome, p.Stored, p.Stored, p.Unstored, p.Delayed)

    def begin(self) -> None:
        if not hasattr(self, "session"):
            self.session = ProducerSession(itertools.count(1), patient=self.mutator.chance(2))
        self.session.lost()
        self.session.begin(30_000)

    def right(self) -> tuple[p.Wire, Sequence[Block]]:
        first = next(iter(self.session.window), 0)
        message: p.Wire = self.mutator.one(
            (p.Welcome(1, first, 10**6, 30_000), p.Stored(((first, 5),)), p.Delayed(first, 5, 5))
        )
        return message, ()

    def take(self, message: p.Wire, blocks: list[Block]) -> None:
        self.session.on_word(message)

    def go_on(self) -> None:
        if len(self.session.queue) < 5:
            self.session.add(PendingBlock(pack([b"x"]), self.mutator.below(2)))
        while (pending := self.session.take()) is not None:
            pending.wire_header(self.session.producer_id)
        assert self.session.window_bytes >= 0
        assert 1_000 <= self.session.heartbeat_ms <= 60_000
        self.session.refused.clear()


class ConsumerRig(ClientRig):
    words = (p.Subscribed, p.Deliver, p.Deliver, p.Answer, p.Failed)

    def begin(self) -> None:
        if not hasattr(self, "session"):
            self.session = ConsumerSession(10)
        self.session.lost()
        self.session.begin(30_000)

    def right(self) -> tuple[p.Wire, Sequence[Block]]:
        request = next(iter(self.session.confirms), 0)
        if self.mutator.chance(3):
            return p.Subscribed(2, 1, 60_000, 30_000), ()
        if self.mutator.chance(2):
            return p.Answer(request, 5, ()), ()
        return p.Deliver(5 + self.mutator.below(2), ((10, 2, 1), (20, 1, 2)), 60_000), (
            pack([b"a", b"b", b"c"]),
        )

    def take(self, message: p.Wire, blocks: list[Block]) -> None:
        self.session.on_word(message, blocks, self.now_ns)

    def go_on(self) -> None:
        mutator, session = self.mutator, self.session
        for delivery in list(session.held.values())[:2]:
            dice = mutator.below(6)
            index = mutator.below(delivery.block.count)
            delivery.expired(index, self.now_ns)
            if dice == 0:
                delivery.finish(index)
            elif dice == 1:
                session.finish_sync(delivery, [index])
            elif dice == 2:
                session.requeue(delivery, [index], 5)
            elif dice == 3:
                delivery.take(index)
                session.report(self.now_ns)
            elif dice == 4:
                session.give_back(delivery, [index])
            delivery.offset(index)
            delivery.attempts(index)
        words = session.collect()
        while words:
            encode(words.popleft())
        session.arrived.clear()
        assert 1_000 <= session.heartbeat_ms <= 60_000


class StageRig(ClientRig):
    words = (p.Done, p.Staged, p.Missing, p.Failed)

    def begin(self) -> None:
        if not hasattr(self, "session") or self.session.ended:
            self.session: StageSession = self._new()
        self.session.lost()
        self.request = self.session.begin().request

    def _new(self) -> StageSession:
        return StageSession(bytes(16), "q", 1, "app", 0)

    def right(self) -> tuple[p.Wire, Sequence[Block]]:
        window = self.session.window
        opened = {
            "expected": window.received.blocks,
            "sealed": 0,
            "credit_bytes": 10**6,
            "committed": False,
        }
        words: Sequence[p.Wire] = (
            p.Done(self.request, opened),
            p.Staged(bytes(16), self.mutator.below(window.total.blocks + 1)),
            p.Missing(0, bytes(16), self.mutator.below(window.total.blocks + 1)),
        )
        return self.mutator.one(words), ()

    def take(self, message: p.Wire, blocks: list[Block]) -> None:
        self.session.on_word(message, self.now_ns)

    def go_on(self) -> None:
        session = self.session
        if session.ended:
            self.begin()
            return
        if session.window.total.blocks < 8 and session.window.has_room(200):
            session.add(pack([b"x"]))
        while session.take(self.now_ns) is not None:
            pass
        if self.mutator.chance(10):
            session.take_seal()
        session.on_time(self.now_ns)


TARGETS: Final[Sequence[Target]] = (
    Target("producer", with_rig(ProducerRig), 4),
    Target("consumer", with_rig(ConsumerRig), 4),
    Target("stage-writer", with_rig(StageRig), 4),
)
