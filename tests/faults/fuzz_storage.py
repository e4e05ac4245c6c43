"""Fuzz target of the storage: a real store and its threads. Some peers may send anything, and a
topic, channels and writers behave correctly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import zmq
from faults.fuzz_actors import NOW, PEERS, Said, drain, rig
from faults.fuzz_port import FakePort, by_name, own_frames, stranger_says
from faults.fuzz_wire import BLOCKS, changed_header
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator
from support.fake_storage import Listener

from zsq.actors.runtime.actor import Actor
from zsq.actors.runtime.polling import Poller
from zsq.actors.settings.starts import ActorStart, StorageStart
from zsq.actors.storage.storage_actor import StorageActor
from zsq.transport.block.block import encode_header, pack
from zsq.transport.errors import ZsqError
from zsq.transport.settings import Retention
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import encode, frames_blocks

SHM: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
STAGES: Final = tuple(bytes([n]) * 16 for n in range(3))


class Host(Actor[Any]):
    """The process of a topic, but without the topic: its storage, and the actor that calls the
    storage.
    """

    storage: StorageActor

    def on_turn(self) -> None:
        self.storage.turn()

    def on_gone(self, who: str) -> None:
        self.storage.gone(who)

    def statistics(self) -> Mapping[str, object]:
        return self.storage.statistics()


class StorageRig:
    """A storage with a temporary store, in a process without its topic."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.folder = tempfile.mkdtemp(prefix="zsq-fuzz-", dir=SHM)
        self.told = StorageStart(
            front="front", reader="reader", stage="stage", push="push", scan="scan", directory=f"{self.folder}/t", name="t",
            uuid="00" * 16, base_offset=0,
            sync=mutator.one(("always", "interval", "never")), chunk_bytes=64 * 1024, create=True, stage_timeout_s=0.0, closed=False,
            retention=Retention(),
        )  # fmt: skip
        self._open()
        self.sequences = {77: 0, 88: 0}
        self.pushed = dict.fromkeys(STAGES, 0)
        self.sealed: dict[bytes, tuple[int, int, int, int]] = dict.fromkeys(STAGES, (0, 0, 0, 0))
        self.requests = 0

    def _open(self) -> None:
        self.host = Host(7, "topic t", ActorStart())
        self.ports = rig(self.host, self.mutator, ("front", "reader", "stage"))
        self.host.context = zmq.Context()
        self.poller = Poller()
        self.raw: dict[Any, Callable[[], object]] = {}

        def listen(source: Any, handle: Callable[[], object]) -> None:
            self.raw[source] = handle
            self.poller.register(source)

        def open_pull(endpoint: str, mark: int, take: Callable[[Any], None]) -> Any:
            self.ports[endpoint] = port = FakePort(self.mutator, endpoint)
            port.on_readable = take
            return port

        vars(self.host).update(
            {"listen_raw": listen, "ignore_raw": self.poller.unregister, "open_pull": open_pull}
        )
        self.topic = Listener()
        self.actor = self.host.storage = StorageActor(self.host, self.told, self.topic)

    def _restart(self) -> None:
        """Stop in an orderly way and start again. Nothing that a peer has sent may prevent the
        start.
        """
        self.host.stopping = True
        end = time.monotonic() + 10
        while not self.actor.stop():
            self._turn()
            assert time.monotonic() < end, "it does not stop"
        self.actor.end()
        self.host.context.destroy(linger=0)
        self._open()
        assert not self.actor.store.report.alarms, self.actor.store.report.alarms

    def draw(self) -> tuple[str, Said]:
        mutator = self.mutator
        if mutator.chance(200):
            return "restart", ((), b"", ())
        name = mutator.one(("front", "front", "topic", "reader", "stage", "stage", "push"))
        if mutator.chance(3):
            return name, self._right(name)
        if name == "topic":
            return name, self._right(name)
        peer = mutator.one(PEERS)
        words = by_name(self.ports[name].routes) or (p.Push,)
        end = self.actor.store.log.end
        known: dict[str, Sequence[Any]] = {
            "channel": ("c", "d", "e#ephemeral"), "stage": STAGES, "app": ("q",), "kind": ("app", "job"),
            "offset": (0, end - 1, end, end + 1), "start": (0, end), "end": (-1, end),
            "until_ns": (NOW, 2 * NOW), "holes_put": (((0, 1, 1, 0), (3, 2, 1, NOW)),), "row": ({"next": end}, {"next": 3, "paused": True}),
            "stages": (STAGES[:1], STAGES), "version": (1, 2),
        }  # fmt: skip
        return name, (peer, *stranger_says(mutator, words, known))

    def _right(self, name: str) -> Said:
        """Return what a correct topic, channel or writer sends. A topic has checked the columns of
        its blocks, but not all of their headers.
        """
        mutator, peer = self.mutator, PEERS[0]
        self.requests += 1
        request = self.requests
        producer = mutator.one(list(self.sequences))
        stage = mutator.one(STAGES)
        if name == "push":
            block = pack([b"pushed"] * 3, sequence=self.pushed[stage])
            self.pushed[stage] += 1
            return (), encode(p.Push(stage)), own_frames(block)
        if name == "stage":
            row = self.actor._stages.core._stages.get(stage)
            counts = (row.blocks, row.size_bytes, row.checksum) if row is not None else (0, 0, 0)
            if row is None:
                self.pushed[stage] = 0
            part = (stage, counts[0], row.messages if row is not None else 0, counts[1], counts[2])
            words: Sequence[p.Wire] = (
                p.OpenStage(request, stage, "q", 1 + request // 50, "app", 0), p.Seal(request, stage, *counts, mutator.chance(2)),
                p.Commit(request, "q", 1 + request // 50, "app", (part,)), p.Abort(request, "q", 1, (stage,)), p.Beat(),
            )  # fmt: skip
            return peer, encode(mutator.one(words)), ()
        if name == "reader":
            return (
                peer,
                encode(
                    mutator.one(
                        (
                            p.Fetch(request, 0, 4_096),
                            p.OffsetAt(request, NOW),
                            p.Measure(request, 0, -1, 1_000),
                        )
                    )
                ),
                (),
            )
        if name == "topic":
            block = pack(
                [b"x"] * (1 + mutator.below(5)),
                producer_id=producer,
                sequence=self.sequences[producer],
            )
            if mutator.chance(3):
                block = mutator.one(BLOCKS)
                header = changed_header(mutator, block.header)._replace(
                    length=block.length, columns_crc=block.header.columns_crc
                )
                return (), b"", (encode_header(header), bytes(block.columns))
            self.sequences[producer] += 1
            return (), b"", own_frames(block)
        words = (
            p.OpenChannel(request, mutator.one(("c", "d", "e#ephemeral")), {}), p.Fetch(request, 0, 4_096),
            p.Due(request, "c", 2 * NOW, 10),
            p.Save(request, "c", {"next": 1, "paused": False, "counters": {}}, ((0, 1, 1, 0),), (), False, False), p.Scan(request),
        )  # fmt: skip
        return peer, encode(mutator.one(words)), ()

    def _topic_hands(self, frames: Sequence[bytes]) -> bool:
        """Call the storage as its topic does. Whatever is in the block, it must be stored or
        refused.
        """
        self.requests += 1
        do = self.mutator.below(8)
        try:
            if do < 5:
                self.actor.append(self.requests, frames_blocks(list(frames)))
            elif do == 5:
                self.actor.append_delayed(
                    self.requests, frames_blocks(list(frames)), [1 + self.mutator.below(2_000)]
                )
            elif do == 6:
                self.actor.pause(self.mutator.chance(2), lambda end: None)
            else:
                self.actor.empty(lambda start, end: None)
        except ZsqError:
            return False
        return True

    def hear(self, given: tuple[str, Said]) -> bool:
        name, said = given
        if name == "restart":
            self._restart()
            return True
        if name == "topic":
            taken = self._topic_hands(said[2])
            self._turn()
            return taken
        port = self.ports[name]
        answered = len(port.sent)
        port.put(*said)
        drain(self.host, port)
        self._turn()
        if self.mutator.chance(50):
            self._wait()
        if self.mutator.chance(200):
            self.host.on_gone("gateway-5")
            self.host.pulse(3, detailed=True)
            for timer in self.host._timers:
                timer[2]()
        return len(port.sent) == answered or not isinstance(port.sent[-1][1], p.Failed)

    def _turn(self) -> None:
        for source in self.poller.poll(0):
            self.raw[source]()
        self.actor.turn()

    def _wait(self) -> None:
        """Wait until the threads have nothing to do."""
        end = time.monotonic() + 10
        while (
            self.actor.state.thread.pending
            or self.actor._stages.thread.pending
            or self.actor._sync_thread.pending
        ):
            for source in self.poller.poll(100):
                self.raw[source]()
            self.actor.turn()
            assert time.monotonic() < end, "a thread does not answer"

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.host.stopping = True
            self.actor.end()
            self.host.context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


TARGETS: Final[Sequence[Target]] = (Target("storage", with_rig(StorageRig), 4),)
