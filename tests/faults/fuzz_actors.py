"""Fuzz targets that are actors: a topic and a channel whose peers may send anything, beside peers
that behave correctly.

An exception ends an actor, and with it the connections of all its clients. Only `ZsqError` does
not: the loop answers it. So a peer's message may cause no other exception. The storage behind these
actors is a small fake that always behaves correctly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from faults.fuzz_port import FakePort, by_name, own_frames, stranger_says
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator
from support.fake_storage import STORAGE, FakeStorage

from zsq.actors.channel.channel import ChannelActor
from zsq.actors.runtime.actor import Actor
from zsq.actors.settings.starts import ChannelStart, TopicStart
from zsq.actors.storage.storage_actor import Recovered
from zsq.actors.topic.topic import TopicActor
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.errors import Refused
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import encode

Said = tuple[tuple[bytes, ...], bytes, tuple[bytes, ...]]
PEERS: Final[Sequence[tuple[bytes, ...]]] = (
    (b"a",),
    (b"b",),
    (b"gateway-5", b"client"),
    (b"gateway-5", b"other"),
)
NOW: Final = 10**18


def rig(
    actor: Actor[Any], mutator: Mutator, deaf: Sequence[str] = ("front",)
) -> dict[str, FakePort]:
    """Give the actor fake ports. Each is made when the actor opens it. Return them by endpoint."""
    ports: dict[str, FakePort] = {}
    raw: list[Any] = []

    def open_port(endpoint: str, **_: Any) -> FakePort:
        return ports.setdefault(endpoint, FakePort(mutator, endpoint, deaf=endpoint in deaf))

    ports["supervisor"] = FakePort(mutator, "supervisor")
    parts: dict[str, Any] = {
        "open_dealer": lambda endpoint, routing_id=b"": open_port(endpoint), "open_router": open_port,
        "open_pull": lambda endpoint, mark, take: open_port(endpoint), "supervisor": ports["supervisor"],
        "listen_raw": lambda source, handle: raw.append(source), "ignore_raw": raw.remove, "close_port": lambda port: None,
    }  # fmt: skip
    vars(actor).update(parts)
    # This replaces the timer that sends pulses.
    actor._timers.append([1 << 62, 1_000_000_000, lambda: None])
    return ports


def drain(actor: Actor[Any], port: Any) -> None:
    """Process what has arrived at the port, as the loop does."""
    actor._drain(port)


class TopicRig:
    """A topic whose storage answers only sometimes."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.actor = TopicActor(7, "topic t", TopicStart(front="front", storage=STORAGE))
        self.ports = rig(self.actor, mutator)
        self.storage = FakeStorage(
            Recovered({77: (3, ((2, 100),)), 88: (1, ((0, NOW, 5),))}, 1000, -1)
        )
        vars(self.actor)["_open_storage"] = lambda: self.storage
        self.actor.on_start()
        self.head = 1000
        self.serial = 0

    def draw(self) -> Said:
        mutator = self.mutator
        peer = mutator.one(PEERS)
        if mutator.chance(3):  # a correct producer
            producer = mutator.one((77, 88, 99))
            row = self.actor.ordering._producers.get(producer)
            sequence = row.expected if row is not None else 0
            block = pack(
                [b"x"] * (1 + mutator.below(4)),
                producer_id=producer,
                sequence=max(0, sequence - mutator.below(2)),
            )
            words: Sequence[p.Wire] = (
                p.Hello(p.PROTOCOL_VERSION, producer, 30_000), p.Pub(), p.Pub(), p.PubDelayed(1 + mutator.below(1_000)), p.Bye(),
                p.Attach("c", self.head - mutator.below(20), 10**6), p.Credit(10**6 + mutator.below(10**6)),
            )  # fmt: skip
            message = mutator.one(words)
            return (
                peer,
                encode(message),
                own_frames(block) if isinstance(message, (p.Pub, p.PubDelayed)) else (),
            )
        known = {
            "version": (1,),
            "producer_id": (77, 88, 99),
            "next_offset": (self.head, self.head - 3, 0),
            "credit_bytes": (10**6, 10**7),
        }
        return peer, *stranger_says(
            mutator,
            (*by_name(self.ports["front"].routes), *(p.Pub, p.PubDelayed, p.Attach) * 3),
            known,
        )

    def hear(self, said: Said) -> bool:
        answered = len(self.ports["front"].sent)
        self.ports["front"].put(*said)
        drain(self.actor, self.ports["front"])
        self.storage.refusal = Refused("E_DISK_FULL", "full") if self.mutator.chance(10) else None
        self.actor.on_turn()
        if self.mutator.chance(4):
            self._storage_answers()
            self.actor.on_turn()
        if self.mutator.chance(100):
            self.actor.on_gone("gateway-5")
            self.actor.pulse(3, detailed=True)
            for timer in self.actor._timers:
                timer[2]()
        front = self.ports["front"]
        return len(front.sent) == answered or not isinstance(front.sent[-1][1], p.Failed)

    def close(self) -> None:
        """Do nothing: nothing real is open."""

    def _storage_answers(self) -> None:
        appends, self.storage.appends = self.storage.appends, []
        for request, blocks in appends:
            self.actor.appended(request, self.head, NOW)
            self.head += sum(block.count for block in blocks)
        delayed, self.storage.delayed = self.storage.delayed, []
        for request, blocks, delays_ms in delayed:
            assert len(delays_ms) == len(blocks)
            if self.mutator.chance(10):
                self.actor.delayed_failed(request, "E_DISK_FULL", "full")
                continue
            self.actor.delayed_stored(
                request, [(NOW, self.serial + number) for number in range(len(blocks))]
            )
            self.serial += sum(block.count for block in blocks)
        if self.mutator.chance(20):
            self.head += 5
            self.actor.head_moved(self.head)


class ChannelRig:
    """A channel of a log with about a hundred messages. Its storage and its topic behave
    correctly.
    """

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        settings: dict[str, Any] = mutator.one(
            ({}, {}, {"ordered": True}, {"tags": "a||b"}, {"max_attempts": 2}, {"max_age_s": 5.0})
        )
        self.blocks = self._log()
        row = {"next": 5, "paused": False, "counters": {}, "settings": settings}
        data = {
            "row": row,
            "end": 90,
            "start": 0,
            "deferred": (0, 0, 0),
            "holes": ((2, 2, 1, 0),),
            "more": False,
            "gaps": (),
        }
        told = ChannelStart(
            channel="c", closed=False, topic_name="t", uuid="00" * 16, front="front", topic="topic", storage="storage", scan="scan"
        )  # fmt: skip
        self.actor = ChannelActor(7, "channel t/c", told)
        self.ports = rig(self.actor, mutator)
        self.storage = self.ports["storage"] = FakePort(mutator, "storage")
        self.storage.say((), p.Done(1, data))
        self.actor.on_start()
        self.leases: list[tuple[tuple[bytes, ...], int]] = [(PEERS[0], 7 << 32)]

    @staticmethod
    def _log() -> list[Block]:
        keys, tags = (
            [b"k%d" % (n % 3) for n in range(10)],
            [(b"a", b"b", None)[n % 3] for n in range(10)],
        )
        made = [pack([b"body %d" % n for n in range(10)], keys=keys, tags=tags) for _ in range(9)]
        return [with_place(block, number * 10, time.time_ns()) for number, block in enumerate(made)]

    def draw(self) -> Said:
        mutator = self.mutator
        peer, token = mutator.one(self.leases) if mutator.chance(2) else (mutator.one(PEERS), 5)
        if not mutator.chance(3):
            # Sometimes all ranges have the same start. A message that is in two ranges must be
            # refused in the second one.
            start = mutator.whole()
            ranges = tuple(
                (start if mutator.chance(2) else mutator.whole(), mutator.whole())
                for _ in range(1 + mutator.below(4))
            )
            known = {
                "ranges": (ranges,),
                "token": (token,),
                "version": (1,),
                "message_timeout_ms": (0, 1_000),
                "ready": (1, 100),
                "sample_rate": (0, 0, 50),
            }
            return peer, *stranger_says(
                mutator, (*by_name(self.ports["front"].routes), *(p.Fin, p.Req, p.Touch) * 5), known
            )
        ranges = tuple((mutator.below(90), mutator.below(5)) for _ in range(mutator.below(4)))
        delay_ms = mutator.one((0, 0, 1, 1_000, p.BACKOFF, p.DEAD))
        words: Sequence[p.Wire] = (
            p.Fin(mutator.below(2), token, ranges), p.Req(mutator.below(2), token, ranges, delay_ms, "why"),
            p.Touch(mutator.below(2), token), p.Ready(mutator.below(20)), p.Beat(), p.Scan(1), p.Bye(),
        )  # fmt: skip
        if peer not in self.actor.core.consumers or mutator.chance(20):
            return (
                peer,
                encode(p.Sub(1, p.PROTOCOL_VERSION, mutator.below(20), 0, 30_000, "me")),
                (),
            )
        return peer, encode(mutator.one(words)), ()

    def hear(self, said: Said) -> bool:
        front = self.ports["front"]
        front.put(*said)
        drain(self.actor, front)
        self.actor.on_turn()
        taken = True
        while front.sent:
            peer, message, blocks = front.sent.popleft()
            taken = taken and not isinstance(message, p.Failed)
            if isinstance(message, p.Deliver):
                self.leases = [*self.leases[-9:], (peer, message.token)]
                assert sum(run[1] for run in message.runs) == blocks[0].count
        if self.mutator.chance(3):
            self._others_answer()
        if self.mutator.chance(100):
            self.actor.on_gone("gateway-5")
            self.actor.pulse(3, detailed=True)
        return taken

    def close(self) -> None:
        # This closes its connection to the dead-letter topic, which is a real one.
        self.actor.on_end()

    def _others_answer(self) -> None:
        while self.storage.sent:
            _, message, _ = self.storage.sent.popleft()
            if isinstance(message, p.Fetch):
                found = [block for block in self.blocks if block.next_offset > message.offset][:3]
                self.storage.say(
                    (),
                    p.Blocks(message.request, 0, 90, found[-1].next_offset if found else 90),
                    found,
                )
            elif isinstance(message, p.Due):
                self.storage.say(
                    (), p.Done(message.request, {"rows": (), "next_due_ns": 0, "deferred": 0})
                )
            elif isinstance(message, p.Save) and not message.more:
                self.storage.say((), p.Done(message.request, {}))
        drain(self.actor, self.storage)
        topic = self.ports.get("topic")
        if topic is not None:
            while topic.sent:
                if isinstance(topic.sent.popleft()[1], p.Attach):
                    topic.say((), p.Behind(90))
            drain(self.actor, topic)
        self.actor.on_turn()


TARGETS: Final[Sequence[Target]] = (
    Target("topic", with_rig(TopicRig), 8),
    Target("channel", with_rig(ChannelRig), 8),
)
