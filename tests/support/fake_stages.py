"""A small fake of a topic's storage in a thread. It keeps stages in memory by the rules of
PROTOCOL.md. A test can order failures.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import zmq
from support.router import make_router

from zsq.transport.block.block import Block, check_block
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets
from zsq.transport.wire.codec import frames_blocks

CREDIT: Final = 256 * 1024


class FakeStages:
    """Serves three endpoints in a thread: RUN/supervisor, RUN/1 (stages) and RUN/2 (PULL). RUN is a
    folder. Sealed stages survive `die` followed by `start`.

    Faults: `lose` (numbers of pushes to drop, by their order of arrival), `failures` (error codes
    with which the next pushes are answered), `hold` (pushes are not read while it is set),
    `deaf_to` (kinds of protocol messages that are ignored).
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.url = f"ipc://{run}"
        self.stages: dict[bytes, list[Block]] = {}
        self.sealed: dict[bytes, int] = {}
        self.final: set[bytes] = set()
        self.committed: dict[tuple[str, int], dict[str, Any]] = {}
        self.lose: set[int] = set()
        self.failures: deque[str] = deque()
        self.refuse_open: deque[str] = deque()
        self.hold = False
        self.is_behind = False  # True: commits are carried out, and not answered
        self.deaf_to: set[type[p.Wire]] = set()
        self.heard: list[p.Wire] = []
        self.pushes = 0
        self.out_max = 0
        self.news = threading.Condition()
        self._seals: list[tuple[list[bytes], p.Seal]] = []
        self._owners: dict[bytes, list[bytes]] = {}
        self._told: dict[bytes, int] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._wake = os.eventfd(0)
        self._stop = threading.Event()
        up = threading.Event()
        self._thread = threading.Thread(target=self._loop, args=(up,), daemon=True)
        self._thread.start()
        assert up.wait(5)

    def die(self, keep: int = 0) -> None:
        """End as a process does after `kill -9`. The first `keep` blocks that were not sealed
        survive.
        """
        if self._thread is None:
            return
        self._stop.set()
        self.wake()
        self._thread.join(5)
        os.close(self._wake)
        self._thread = None
        for stage, blocks in self.stages.items():
            del blocks[self.sealed.get(stage, 0) + keep :]
        self._seals.clear()
        self._owners.clear()
        self._told.clear()

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def let_go(self) -> None:
        self.hold = False
        self.wake()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        with self.news:
            assert self.news.wait_for(condition, timeout), "it did not come to that"

    def count(self, kind: type[p.Wire]) -> int:
        return sum(type(message) is kind for message in self.heard)

    def bodies(self, stage: bytes) -> list[bytes]:
        return [
            body for block in self.stages[stage] for body in block.body.values() if body is not None
        ]

    def _loop(self, up: threading.Event) -> None:
        self._router = {
            name: make_router(f"ipc://{self.run}/{name}") for name in ("supervisor", "1")
        }
        pull: Any = sockets.context().socket(zmq.PULL)
        pull.bind(f"ipc://{self.run}/2")
        poller = zmq.Poller()
        for end in (*self._router.values(), self._wake):
            poller.register(end, zmq.POLLIN)
        poller.register(pull, zmq.POLLIN)
        up.set()
        while not self._stop.is_set():
            if self.hold:
                poller.modify(pull, 0)
            else:
                poller.modify(pull, zmq.POLLIN)
            if any(end == self._wake for end, _ in poller.poll()):
                os.eventfd_read(self._wake)
            for end in self._router.values():
                while (frames := sockets.recv_frames(end)) is not None:
                    self._take(end, *sockets.open_frames(frames))
            while not self.hold and (frames := sockets.recv_frames(pull)) is not None:
                self._pushed(frames)
            self._answer_seals()
            with self.news:
                self.news.notify_all()
        for end in (*self._router.values(), pull):
            end.close(linger=0)
        for name in ("supervisor", "1", "2"):
            (self.run / name).unlink(missing_ok=True)

    def _say(self, envelope: list[bytes] | None, message: p.Wire) -> None:
        if envelope is not None:
            try:
                sockets.send_word(self._router["1"], envelope, message)
            except zmq.ZMQError:  # the peer has disconnected
                return

    def _take(self, end: Any, envelope: list[bytes], message: p.Wire, _: list[Any]) -> None:
        self.heard.append(message)
        if type(message) in self.deaf_to:
            return
        if isinstance(message, p.Lookup):
            places = {"stage": f"ipc://{self.run}/1", "push": f"ipc://{self.run}/2", "uuid": "0"}
            with contextlib.suppress(zmq.ZMQError):  # the peer has disconnected
                sockets.send_word(end, envelope, p.Done(message.request, places))
        elif isinstance(message, p.OpenStage):
            self._open(envelope, message)
        elif isinstance(message, p.Seal):
            self._seals.append((envelope, message))
        elif isinstance(message, p.Commit):
            key = (message.app, message.version)
            repeated = key in self.committed
            self.committed.setdefault(
                key, {"first_offset": 0, "messages": sum(part[2] for part in message.parts)}
            )
            if not self.is_behind:  # the bucket does not have it yet
                data = {**self.committed[key], "repeated": repeated}
                self._say(envelope, p.Done(message.request, data))
        elif isinstance(message, p.Abort):
            dropped = sum(self.stages.pop(stage, None) is not None for stage in message.stages)
            versions = [version for app, version in self.committed if app == message.app]
            data = {"dropped": dropped, "committed": False, "version": max(versions, default=-1)}
            self._say(envelope, p.Done(message.request, data))
        elif isinstance(message, p.Beat):
            self._say(envelope, p.Beat())

    def _open(self, envelope: list[bytes], message: p.OpenStage) -> None:
        if self.refuse_open:
            self._say(
                envelope,
                p.Failed(message.request, self.refuse_open.popleft(), "as the test wants it"),
            )
            return
        blocks = self.stages.setdefault(message.stage, [])
        self._owners[message.stage] = envelope
        self._told.pop(message.stage, None)
        committed = (message.app, message.version) in self.committed
        data = {
            "expected": len(blocks),
            "sealed": self.sealed.get(message.stage, 0),
            "credit_bytes": CREDIT,
            "committed": committed,
        }
        self._say(envelope, p.Done(message.request, data))

    def _pushed(self, frames: list[Any]) -> None:
        assert frames[0].bytes == b"-"
        _, message, payload = sockets.open_frames(frames)
        assert isinstance(message, p.Push)
        self.pushes += 1
        if (
            self.pushes in self.lose
            or message.stage not in self.stages
            or message.stage in self.final
        ):
            return
        block = frames_blocks([bytes(frame.buffer) for frame in payload])[0]
        check_block(block)
        blocks, owner = self.stages[message.stage], self._owners.get(message.stage)
        number = block.header.sequence
        if number > len(blocks):
            if self._told.get(message.stage) != len(blocks):
                self._told[message.stage] = len(blocks)
                self._say(owner, p.Missing(0, message.stage, len(blocks)))
        elif number == len(blocks):
            if self.failures:
                self._say(owner, p.Failed(0, self.failures.popleft(), "as the test wants it"))
                return
            blocks.append(block)
            self._say(owner, p.Staged(message.stage, len(blocks)))

    def _answer_seals(self) -> None:
        for envelope, seal in list(self._seals):
            blocks = self.stages.get(seal.stage)
            if blocks is None:
                self._seals.remove((envelope, seal))
                continue
            if len(blocks) < seal.blocks:
                if self._told.get(seal.stage) == len(blocks) or self.hold:
                    continue
                self._say(envelope, p.Missing(seal.request, seal.stage, len(blocks)))
                self._seals.remove((envelope, seal))
                continue
            self._seals.remove((envelope, seal))
            checksum = 0
            for block in blocks[: seal.blocks]:
                checksum = p.checksum_after(checksum, block.header.columns_crc)
            assert (seal.checksum, seal.size_bytes) == (
                checksum,
                sum(b.length for b in blocks[: seal.blocks]),
            )
            self.sealed[seal.stage] = seal.blocks
            if seal.final:
                self.final.add(seal.stage)
            self._say(
                envelope,
                p.Done(seal.request, {"messages": sum(b.count for b in blocks[: seal.blocks])}),
            )
