"""A small fake broker in a thread: one topic, one channel, the rules of sequences and leases, and
faults that a test can order.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from support.fake_stages import FakeStages
from support.router import make_router

from zsq.transport.block.block import Block, check_block, cut, missing, pack, with_place
from zsq.transport.errors import E_HELLO, E_NOT_FOUND, E_SEQUENCE
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets
from zsq.transport.wire.codec import frames_blocks

Envelope = tuple[bytes, ...]
CREDIT_BYTES: Final = 4 * 1024 * 1024


class FakeBroker:
    """A broker that listens on RUN/supervisor, RUN/1 (topic), RUN/2 (reader) and RUN/3 (channel).
    What it has stored survives `die` and `start`.

    Faults that a test can set: `refuse` (error codes for the next blocks), `lose_answers` (store
    the next blocks without an answer), `silent` (answer nothing), `deaf_to` (kinds of messages that
    are ignored), `forgotten` (links that are ignored), `lookup_error`, `fetch_errors` (errors of
    the next fetches). `heard` lists every message that arrived, and `news` is notified when one
    arrives.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.url = f"ipc://{run}"
        self.log: list[Block] = []
        self.head = 0
        self.uuid = "0"  # the same for every topic
        self.expected: dict[int, int] = {}
        self.places: dict[tuple[int, int], int] = {}
        self.refuse: deque[str] = deque()
        self.lose_answers = 0
        self.silent = False
        self.deaf_to: set[type[p.Wire]] = set()
        self.known: set[Envelope] = set()  # the links that have sent anything
        self.forgotten: set[Envelope] = set()  # the links that are ignored from now on
        self.lookup_error: tuple[str, str] | None = None
        self.fetch_errors: deque[tuple[str, str]] = deque()
        self.manage_data: dict[str, Any] = {}
        self.hold_stored = False  # if True, blocks are stored, and not answered
        self.heard: list[p.Wire] = []
        self.news = threading.Condition()
        self.consumers: dict[Envelope, p.Sub] = {}
        self.given: dict[Envelope, int] = {}  # consumer -> number of messages that it holds
        self.leases: dict[int, tuple[Envelope, set[int]]] = {}
        self.todo: deque[tuple[Block, int]] = deque()  # (block, attempts)
        self.finished: list[int] = []
        self.requeued: list[tuple[int, int]] = []
        self._token = 100
        self._stop = threading.Event()
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._wake = -1

    # Life

    def start(self) -> None:
        self._stop.clear()
        self._wake = os.eventfd(0)
        up = threading.Event()
        self._thread = threading.Thread(target=self._loop, args=(up,), daemon=True)
        self._thread.start()
        assert up.wait(5)

    def die(self) -> None:
        """End as by kill -9: sockets are closed, links and leases are forgotten, the log stays."""
        if self._thread is not None:
            self._stop.set()
            os.eventfd_write(self._wake, 1)
            self._thread.join(5)
            os.close(self._wake)
            self._thread = None

    def call(self, function: Callable[[], object]) -> None:
        """Run a function in the broker's thread."""
        self._calls.append(function)
        os.eventfd_write(self._wake, 1)

    def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        with self.news:
            assert self.news.wait_for(condition, timeout), "the broker did not hear it"

    def count(self, kind: type[p.Wire]) -> int:
        return sum(type(message) is kind for message in self.heard)

    def bodies(self) -> list[bytes]:
        return [body for block in self.log for body in block.body.values() if body is not None]

    def _loop(self, up: threading.Event) -> None:
        ends = {
            name: make_router(f"ipc://{self.run}/{name}") for name in ("supervisor", "1", "2", "3")
        }
        self.ends = ends
        poller = zmq.Poller()
        for end in ends.values():
            poller.register(end, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        up.set()
        while not self._stop.is_set():
            for ready, _ in poller.poll():
                if isinstance(ready, int):
                    os.eventfd_read(self._wake)
                    while self._calls:
                        self._calls.popleft()()
            for end in ends.values():
                while (frames := sockets.recv_frames(end)) is not None:
                    self._take(end, *sockets.open_frames(frames))
            with self.news:
                self.news.notify_all()
        for end in ends.values():
            end.close(linger=0)
        for name in ends:
            (self.run / name).unlink(missing_ok=True)
        self.consumers.clear()
        self.given.clear()
        for _, offsets in self.leases.values():
            self._again(sorted(offsets))
        self.leases.clear()

    # Messages

    def _take(self, end: Any, envelope: list[bytes], message: p.Wire, payload: list[Any]) -> None:
        self.heard.append(message)
        self.known.add(tuple(envelope))
        if self.silent or type(message) in self.deaf_to or tuple(envelope) in self.forgotten:
            return
        handler = getattr(self, f"on_{type(message).__name__.lower()}", None)
        answer = handler(tuple(envelope), message, payload) if handler is not None else None
        if answer is not None:
            self.say(end, tuple(envelope), answer)

    def say(
        self, end: Any, envelope: Envelope, message: p.Wire, blocks: tuple[Block, ...] = ()
    ) -> bool:
        try:
            return sockets.send_word(end, envelope, message, blocks)
        except zmq.ZMQError:  # the peer has disconnected
            return False

    def on_lookup(self, _: Envelope, message: p.Lookup, __: Any) -> p.Wire:
        if self.lookup_error is not None:
            return p.Failed(message.request, *self.lookup_error)
        places = {
            "topic": f"ipc://{self.run}/1",
            "reader": f"ipc://{self.run}/2",
            "channel": f"ipc://{self.run}/3",
        }
        return p.Done(message.request, {**places, "uuid": self.uuid})

    def on_manage(self, _: Envelope, message: p.Manage, __: Any) -> p.Wire:
        if message.topic == "absent":
            return p.Failed(message.request, E_NOT_FOUND, "there is no topic 'absent'")
        return p.Done(message.request, self.manage_data)

    def on_stats(self, _: Envelope, message: p.Stats, __: Any) -> p.Wire:
        return p.Done(message.request, {"health": "OK", "topics": []})

    def on_beat(self, _: Envelope, __: p.Beat, ___: Any) -> p.Wire:
        return p.Beat()

    def on_hello(self, envelope: Envelope, message: p.Hello, _: Any) -> p.Wire:
        return p.Welcome(
            1, self.expected.get(message.producer_id, 0), CREDIT_BYTES, message.heartbeat_ms
        )

    def on_pub(self, _: Envelope, __: p.Pub, payload: list[Any]) -> p.Wire | None:
        block = frames_blocks([bytes(frame.buffer) for frame in payload])[0]
        check_block(block)
        producer, sequence = block.header.producer_id, block.header.sequence
        expected = self.expected.get(producer, 0)
        if sequence > expected:
            return p.Unstored(sequence, expected, E_SEQUENCE, "a gap")
        if sequence == expected:
            if self.refuse:
                code = self.refuse.popleft()
                return (
                    p.Unstored(sequence, expected, code, "as the test wants it") if code else None
                )
            self.expected[producer] = expected + 1
            self.places[producer, sequence] = self.head
            placed = with_place(block, self.head, 1_700_000_000_000_000_000 + self.head)
            self.log.append(placed)
            self.head += block.count
            self.todo.append((placed, 1))
            self._deliver()
        if self.hold_stored:
            return None
        if self.lose_answers:
            self.lose_answers -= 1
            return None
        return p.Stored(((sequence, self.places[producer, sequence]),))

    def on_fetch(self, envelope: Envelope, message: p.Fetch, _: Any) -> None:
        if self.fetch_errors:
            error = p.Failed(message.request, *self.fetch_errors.popleft())
            self.say(self.ends["2"], envelope, error)
            return
        blocks = tuple(block for block in self.log if block.next_offset > message.offset)[:10]
        start = self.log[0].first_offset if self.log else self.head
        next_offset = blocks[-1].next_offset if blocks else message.offset
        lost = tuple(missing(max(message.offset, start), blocks, next_offset))
        self.say(
            self.ends["2"],
            envelope,
            p.Blocks(message.request, start, self.head, next_offset, lost),
            blocks,
        )

    def on_offsetat(self, _: Envelope, message: p.OffsetAt, __: Any) -> p.Wire:
        offset = next(
            (block.first_offset for block in self.log if block.header.time_ns >= message.time_ns),
            self.head,
        )
        return p.Done(message.request, {"offset": offset, "start": 0, "head": self.head})

    def on_measure(self, _: Envelope, message: p.Measure, __: Any) -> p.Wire:
        end = self.head if message.end < 0 else message.end
        within = [block for block in self.log if message.start <= block.first_offset < end]
        fitting = [
            block
            for i, block in enumerate(within)
            if not i or sum(b.length for b in within[: i + 1]) <= message.max_bytes
        ]
        offset = fitting[-1].next_offset if fitting else message.start
        return p.Done(
            message.request,
            {
                "bytes": sum(b.length for b in within),
                "offset": offset,
                "start": 0,
                "head": self.head,
                "messages": end - message.start,
            },
        )

    # Consumers

    def on_sub(self, envelope: Envelope, message: p.Sub, _: Any) -> None:
        self.consumers[envelope] = message
        self.given[envelope] = 0
        self.say(
            self.ends["3"],
            envelope,
            p.Subscribed(
                message.request, 1, message.message_timeout_ms or 60_000, message.heartbeat_ms
            ),
        )
        self._deliver()

    def on_ready(self, envelope: Envelope, message: p.Ready, _: Any) -> None:
        old = self.consumers.get(envelope)
        if old is None:
            return  # it has sent Bye meanwhile
        self.consumers[envelope] = p.Sub(
            old.request, 1, message.ready, 0, old.heartbeat_ms, old.label
        )
        self._deliver()

    def on_bye(self, envelope: Envelope, _: p.Bye, __: Any) -> None:
        self.consumers.pop(envelope, None)
        for token in [token for token, (owner, _) in self.leases.items() if owner == envelope]:
            self._again(sorted(self.leases.pop(token)[1]))
        self._deliver()

    def on_fin(self, envelope: Envelope, message: p.Fin, _: Any) -> p.Wire | None:
        return self._settle(
            envelope,
            message.request,
            message.token,
            message.ranges,
            lambda offsets: self.finished.extend(offsets),
        )

    def on_req(self, envelope: Envelope, message: p.Req, _: Any) -> p.Wire | None:
        def again(offsets: list[int]) -> None:
            self.requeued.extend((offset, message.delay_ms) for offset in offsets)
            self._again(offsets)

        return self._settle(envelope, message.request, message.token, message.ranges, again)

    def _settle(
        self,
        envelope: Envelope,
        request: int,
        token: int,
        ranges: tuple[p.Range, ...],
        what: Callable[[list[int]], object],
    ) -> p.Wire | None:
        if envelope not in self.consumers:
            return p.Failed(request, E_HELLO, "subscribe first")
        refused: tuple[p.Range, ...] = ()
        if token:
            _, offsets = self.leases.get(token, (envelope, set()))
            wanted = (
                {o for first, count in ranges for o in range(first, first + count)}
                if ranges
                else set(offsets)
            )
            refused = tuple((offset, 1) for offset in sorted(wanted - offsets))
            taken = sorted(wanted & offsets)
            offsets.difference_update(taken)
            self.given[envelope] -= len(taken)
            what(taken)
            self._deliver()
        return p.Answer(request, token, refused) if request or refused else None

    def expire(self) -> None:
        """End all leases, as the scan does."""
        for owner, offsets in self.leases.values():
            self.given[owner] = self.given.get(owner, 0) - len(offsets)
            self._again(sorted(offsets))
            offsets.clear()
        self._deliver()

    def _again(self, offsets: list[int]) -> None:
        for offset in offsets:
            block = next(b for b in self.log if b.first_offset <= offset < b.next_offset)
            start = offset - block.first_offset
            self.todo.append(
                (with_place(cut(block, start, start + 1), offset, block.header.time_ns), 2)
            )

    def _deliver(self) -> None:
        for envelope, sub in self.consumers.items():
            while self.todo and (room := sub.ready - self.given[envelope]) > 0:
                block, attempts = self.todo.popleft()
                if block.count > room:
                    rest = cut(block, room, block.count)
                    self.todo.appendleft((rest, attempts))
                    block = cut(block, 0, room)
                self._token += 1
                self.leases[self._token] = (
                    envelope,
                    set(range(block.first_offset, block.next_offset)),
                )
                self.given[envelope] += block.count
                run = (block.first_offset, block.count, attempts)
                if not self.say(
                    self.ends["3"],
                    envelope,
                    p.Deliver(self._token, (run,), sub.message_timeout_ms or 60_000),
                    (block,),
                ):
                    self.on_bye(envelope, p.Bye(), ())
                    return

    def put(self, *bodies: bytes) -> None:
        """Store messages as if they were published. Call it before `start`, or through `call`."""
        block = with_place(pack(list(bodies)), self.head, 1_700_000_000_000_000_000)
        self.log.append(block)
        self.head += block.count
        self.todo.append((block, 1))
        if self._thread is not None:
            self._deliver()


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBroker]:
    run = tmp_path_factory.mktemp("run")
    made = FakeBroker(run)
    made.start()
    yield made
    made.die()


@pytest.fixture
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeStages]:
    made = FakeStages(tmp_path_factory.mktemp("run"))
    made.start()
    yield made
    made.die()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Check that no client leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("zsq") and thread not in before
    ]
    for thread in left:
        thread.join(2)

    assert not [thread for thread in left if thread.is_alive()]
