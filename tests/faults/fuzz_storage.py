"""The fuzz target that is a storage: its actor with a real store and its threads, strangers beside a topic, channels and writers."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

import zmq
from faults.fuzz_actors import NOW, PEERS, Said, drain, rig
from faults.fuzz_port import by_name, own_frames, stranger_says
from faults.fuzz_wire import BLOCKS, changed_header
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator

from zsq.actors.settings.starts import StorageStart
from zsq.actors.storage.storage_actor import StorageActor
from zsq.transport.block.block import encode_header, pack
from zsq.transport.settings import Retention
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import encode

SHM: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
STAGES: Final = tuple(bytes([n]) * 16 for n in range(3))


class StorageRig:
    """A storage actor on a store of its own."""

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
        self.actor = StorageActor(7, "storage t", self.told)
        self.ports = rig(self.actor, self.mutator, ("front", "reader", "stage"))
        self.actor.context = zmq.Context()
        self.poller = zmq.Poller()
        sources: dict[str, Any] = {
            "listen_raw": lambda source: self.poller.register(source, zmq.POLLIN), "ignore_raw": self.poller.unregister,
        }  # fmt: skip
        vars(self.actor).update(sources)
        self.actor.on_start()

    def _restart(self) -> None:
        """In order; and what strangers have said must not keep it from coming up again."""
        self.actor.stopping = True
        end = time.monotonic() + 10
        while not self.actor.on_stop():
            self._turn()
            assert time.monotonic() < end, "it does not stop"
        self.actor.on_end()
        self.actor.context.destroy(linger=0)
        self._open()
        assert not self.actor.store.report.alarms, self.actor.store.report.alarms

    def draw(self) -> tuple[str, Said]:
        mutator = self.mutator
        if mutator.chance(200):
            return "restart", ((), b"", ())
        name = mutator.one(("front", "front", "front", "reader", "stage", "stage", "push"))
        if mutator.chance(3):
            return name, self._right(name)
        peer = mutator.one(PEERS)
        words = by_name(self.ports[name].routes) or (p.Push,)
        end = self.actor.store.log.end
        known: dict[str, Sequence[Any]] = {
            "channel": ("c", "d", "e#ephemeral"), "epoch": (self.actor._epoch,), "stage": STAGES, "app": ("q",), "kind": ("app", "job"),
            "offset": (0, end - 1, end, end + 1), "start": (0, end), "end": (-1, end), "delays_ms": ((1,), (5, 5)),
            "until_ns": (NOW, 2 * NOW), "holes_put": (((0, 1, 1, 0), (3, 2, 1, NOW)),), "row": ({"next": end}, {"next": 3, "paused": True}),
            "stages": (STAGES[:1], STAGES), "version": (1, 2),
        }  # fmt: skip
        control, frames = stranger_says(mutator, words, known)
        if control[1:2] in (
            bytes([p.Append.op]),
            bytes([p.AppendDelayed.op]),
        ):  # columns are the topic's to check, which nobody can be for it
            block = mutator.one(BLOCKS)
            header = changed_header(mutator, block.header)._replace(length=block.length, columns_crc=block.header.columns_crc)
            frames = encode_header(header), bytes(block.columns)
        return name, (peer, control, frames)

    def _right(self, name: str) -> Said:
        """What topic, channels and writers say."""
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
            return peer, encode(mutator.one((p.Fetch(request, 0, 4_096), p.OffsetAt(request, NOW), p.Measure(request, 0, -1, 1_000)))), ()
        block = pack([b"x"] * (1 + mutator.below(5)), producer_id=producer, sequence=self.sequences[producer])
        epoch = min(self.actor._epoch, 1 << 62)  # a stranger's may be too large to be said again
        words = (
            p.Append(request, epoch), p.Append(request, epoch), p.AppendDelayed(request, epoch, (1 + mutator.below(2_000),)),
            p.OpenChannel(request, mutator.one(("c", "d", "e#ephemeral")), {}), p.Fetch(request, 0, 4_096),
            p.Due(request, "c", 2 * NOW, 10),
            p.Save(request, "c", {"next": 1, "paused": False, "counters": {}}, ((0, 1, 1, 0),), (), False, False), p.Scan(request),
            p.OpenTopic(request), p.Pause(request, mutator.chance(2)), p.Empty(request, -1),
        )  # fmt: skip
        message = mutator.one(words)
        if not isinstance(message, (p.Append, p.AppendDelayed)):
            return peer, encode(message), ()
        self.sequences[producer] += 1
        return peer, encode(message), own_frames(block)

    def hear(self, given: tuple[str, Said]) -> bool:
        name, said = given
        if name == "restart":
            self._restart()
            return True
        port = self.ports[name]
        answered = len(port.sent)
        port.put(*said)
        drain(self.actor, port)
        self._turn()
        if self.mutator.chance(50):
            self._wait()
        if self.mutator.chance(200):
            self.actor.on_gone("gateway-5")
            self.actor.pulse(3, detailed=True)
            for timer in self.actor._timers:
                timer[2]()
        return len(port.sent) == answered or not isinstance(port.sent[-1][1], p.Failed)

    def _turn(self) -> None:
        for source, _ in self.poller.poll(0):
            self.actor.on_raw(source)
        self.actor.on_turn()

    def _wait(self) -> None:
        """Until the threads have nothing to do."""
        end = time.monotonic() + 10
        while self.actor._state.thread.pending or self.actor._stages.thread.pending or self.actor._sync_thread.pending:
            for source, _ in self.poller.poll(100):
                self.actor.on_raw(source)
            self.actor.on_turn()
            assert time.monotonic() < end, "a thread does not answer"

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.actor.stopping = True
            self.actor.on_end()
            self.actor.context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


TARGETS: Final[Sequence[Target]] = (Target("storage", with_rig(StorageRig), 4),)
