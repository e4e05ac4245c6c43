"""Client of NSQ's protocol with the least possible cost: plain sockets and prebuilt frames.

So the measured rate is the server's and not the client's. But the client does all that a client
must do: it reads every answer, and finishes each message by the message's id. At the end it checks
that every message came exactly once.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..harness.crew import MemberFailed
from ..harness.loads import Shape, Start, make_bodies

CHANNEL: Final = "bench"
OK: Final = struct.pack(">ii2s", 6, 0, b"OK")
HEARTBEAT: Final = struct.pack(">ii11s", 15, 0, b"_heartbeat_")
CLOSE_WAIT: Final = struct.pack(">ii10s", 14, 0, b"CLOSE_WAIT")
HEAD: Final = struct.Struct(">iiqH16s")  # a message's size, type, time, attempts, id
NUMBER: Final = 16  # digits at the beginning of each body
READ: Final = 1 << 18  # bytes that one read of messages requests
# Bytes that one read of answers requests. It is small, because a read allocates what it requests.
ANSWERS: Final = 4096
CONNECT_S: Final = 15.0
WAIT_S: Final = 120.0
CUT_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Done:
    """The end time, the number of messages, and the processor time of this process.

    `waits` are the seconds for each answer, if they were measured.
    """

    end: float
    messages: int
    cpu_s: float
    waits: tuple[float, ...] = ()


class NsqFailed(MemberFailed):
    """A connection delivered something unexpected."""


def connect(port: int) -> socket.socket:
    """Connect to a port of this machine and send NSQ's magic. The server may still be starting."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            found = socket.create_connection(("127.0.0.1", port), WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.sendall(b"  V2")
        return found


def subscribe(port: int, topic: str, channel: str) -> socket.socket:
    found = connect(port)
    found.sendall(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
    _expect(found, OK)
    return found


def make_channel(port: int, topic: str, channel: str = CHANNEL) -> None:
    """Create a channel by subscribing, as clients of NSQ do."""
    subscribe(port, topic, channel).close()


def mpub_frames(topic: str, shape: Shape) -> list[bytes]:
    """Return all different frames. A load of more messages repeats them."""
    size = struct.pack(">i", shape.size)
    bodies = make_bodies(shape)
    frames = []
    for first in range(0, len(bodies), shape.block):
        block = bodies[first : first + shape.block]
        data = b"".join([size + body for body in block])
        frames.append(
            b"MPUB %s\n" % topic.encode() + struct.pack(">ii", 4 + len(data), len(block)) + data
        )
    return frames


def publish_blocks(
    start: Start, port: int, topic: str, shape: Shape, connections: int, ahead: int
) -> Done:
    """Publish on `connections`, each with at most `ahead` unanswered MPUBs."""
    frames = mpub_frames(topic, shape)
    sockets = {one.fileno(): one for one in (connect(port) for _ in range(connections))}
    poll = select.epoll()
    for fd in sockets:
        poll.register(fd, select.EPOLLIN)
    responses = {fd: Responses(one) for fd, one in sockets.items()}
    start()
    cpu = time.process_time()
    sent = answered = 0

    def send(to: socket.socket, count: int) -> None:
        nonlocal sent
        for _ in range(min(count, shape.blocks - sent)):
            to.sendall(frames[sent % len(frames)])
            sent += 1

    for one in sockets.values():
        send(one, ahead)
    while answered < shape.blocks:
        for fd in _ready(poll):
            count = responses[fd].read()
            answered += count
            send(sockets[fd], count)
    return _done(shape.blocks * shape.block, cpu, sockets)


def publish_singly(
    start: Start, port: int, topic: str, size: int, seconds: float, connections: int
) -> Done:
    """Publish single messages on each connection, and wait for each answer."""
    head = b"PUB %s\n" % topic.encode() + struct.pack(">i", size)
    padding = b"x" * (size - NUMBER)
    sockets = {one.fileno(): one for one in (connect(port) for _ in range(connections))}
    poll = select.epoll()
    for fd in sockets:
        poll.register(fd, select.EPOLLIN)
    responses = {fd: Responses(one) for fd, one in sockets.items()}
    since: dict[int, float] = {}
    waits: list[float] = []
    clock = time.monotonic
    end = start() + seconds
    cpu = time.process_time()
    sent = 0

    def send(fd: int) -> None:
        nonlocal sent
        since[fd] = clock()
        sockets[fd].send(b"%s%016d%s" % (head, sent, padding))
        sent += 1

    for fd in sockets:
        send(fd)
    while len(waits) < sent:
        for fd in _ready(poll):
            if responses[fd].read():
                now = clock()
                waits.append(now - since[fd])
                if now < end:
                    send(fd)
    return _done(sent, cpu, sockets, tuple(waits))


def consume(
    start: Start,
    port: int,
    topic: str,
    size: int,
    ready: int,
    expected: int,
    different: int,
    channel: str = CHANNEL,
) -> Done:
    """Finish `expected` messages with one FIN each.

    The messages are numbered from 0 to `different` - 1, and then from 0 again.
    """
    reader = Frames(size)
    link = subscribe(port, topic, channel)
    start()
    cpu = time.process_time()
    link.sendall(b"RDY %d\n" % ready)
    data = b""
    while len(reader.ids) < expected:
        part = link.recv(READ)
        if not part:
            raise NsqFailed(
                f"the connection ended after {len(reader.ids):,} of {expected:,} messages"
            )
        ids, data, beats = reader.take(data + part)
        if ids or beats:
            link.sendall(
                b"".join([b"FIN ", b"\nFIN ".join(ids), b"\n"] if ids else []) + b"NOP\n" * beats
            )
    link.sendall(b"CLS\n")
    _expect(link, CLOSE_WAIT, data)  # by then the server has received all FINs
    done = _done(expected, cpu, {0: link})
    reader.check(expected, different)
    return done


def consume_crowd(
    start: Start, port: int, topic: str, size: int, connections: int, expected: int, different: int
) -> Done:
    """Finish `expected` messages on many connections, each of which has one at a time."""
    reader = Frames(size)
    links = {
        link.fileno(): link
        for link in (subscribe(port, topic, CHANNEL) for _ in range(connections))
    }
    poll = select.epoll()
    rests = dict.fromkeys(links, b"")
    for fd in links:
        poll.register(fd, select.EPOLLIN)
    start()
    cpu = time.process_time()
    for link in links.values():
        link.sendall(b"RDY 1\n")
    while len(reader.ids) < expected:
        for fd in _ready(poll):
            if not (part := links[fd].recv(ANSWERS)):
                raise NsqFailed(f"a connection ended after {len(reader.ids):,} messages")
            ids, rests[fd], beats = reader.take(rests[fd] + part)
            links[fd].sendall(b"".join(b"FIN %s\n" % id for id in ids) + b"NOP\n" * beats)
    for fd, link in links.items():
        link.sendall(b"CLS\n")
        _expect(link, CLOSE_WAIT, rests[fd])
    done = _done(expected, cpu, links)
    reader.check(expected, different)
    return done


class Frames:
    """Parses messages with bodies of one size from a stream, many at a time.

    It keeps their ids and numbers for the check.
    """

    def __init__(self, size: int) -> None:
        self.size = HEAD.size + size
        self.ids: list[bytes] = []
        self.numbers: list[bytes] = []
        cut = f"{HEAD.size - 16}x16s{NUMBER}s{size - NUMBER}x"
        self._cuts = {
            1 << bits: struct.Struct(cut * (1 << bits)) for bits in range(CUT_MAX.bit_length())
        }
        self._begin = struct.pack(">ii", self.size - 4, 2)

    def take(self, data: bytes) -> tuple[list[bytes], bytes, int]:
        """Return the ids of complete messages, the remaining bytes, and the count of heartbeats."""
        ids: list[bytes] = []
        at = beats = 0
        while True:
            count = self._run(data, at)
            self._cut(data, at, count, ids)
            at += count * self.size
            if data.startswith(HEARTBEAT, at):
                at += len(HEARTBEAT)
                beats += 1
            elif len(data) - at >= self.size or (
                len(data) - at >= 8 and data[at : at + 8] != self._begin and data[at + 7] != 0
            ):
                raise NsqFailed(f"not a message of this load: {data[at : at + 80]!r}")
            else:
                return ids, data[at:], beats

    def _run(self, data: bytes, at: int) -> int:
        """Return how many complete messages follow one another from `at`."""
        count = (len(data) - at) // self.size
        stop = at + count * self.size
        if all(
            data[at + place : stop : self.size].count(value) == count
            for place, value in enumerate(self._begin)
        ):
            return count
        good = 0
        while good < count and data.startswith(self._begin, at + good * self.size):
            good += 1
        return good

    def _cut(self, data: bytes, at: int, count: int, ids: list[bytes]) -> None:
        while count:
            now = min(1 << count.bit_length() - 1, CUT_MAX)
            found = self._cuts[now].unpack_from(data, at)
            ids += found[::2]
            self.ids += found[::2]
            self.numbers += found[1::2]
            at += now * self.size
            count -= now

    def check(self, expected: int, different: int) -> None:
        """Raise `NsqFailed` unless every message came exactly once."""
        if len(self.ids) != expected or len(set(self.ids)) != expected:
            raise NsqFailed(
                f"{len(self.ids):,} messages arrived with {len(set(self.ids)):,} different ids; "
                f"{expected:,} were published"
            )
        times, more = divmod(expected, different)
        found = Counter(self.numbers)
        wrong = [
            number
            for number in range(different)
            if found.pop(b"%016d" % number, 0) != times + (number < more)
        ]
        if wrong or found:
            raise NsqFailed(
                f"not every message arrived exactly once: {[*wrong, *found][:5]} and others"
            )


def _ready(poll: select.epoll) -> list[int]:
    found = poll.poll(WAIT_S)
    if not found:
        raise NsqFailed(f"no answer within {WAIT_S:.0f} s")
    return [fd for fd, _ in found]


class Responses:
    """Responses of a server on one connection, which arrive in pieces of any size.

    `read` answers heartbeats.
    """

    def __init__(self, link: socket.socket, rest: bytes = b"") -> None:
        self.link = link
        self._rest = rest

    def read(self, answer: bytes = OK) -> int:
        """Read once, and return how many times `answer` came.

        Raises `NsqFailed` for any other frame, and at the end of the connection.
        """
        came = self.link.recv(ANSWERS)
        if not came:
            raise NsqFailed(f"the connection ended where {answer!r} was expected")
        data = self._rest + came
        count = at = beats = 0
        while True:
            if data.startswith(answer, at):
                at += len(answer)
                count += 1
            elif data.startswith(HEARTBEAT, at):
                at += len(HEARTBEAT)
                beats += 1
            else:
                break
        self._rest = data[at:]
        if not (answer.startswith(self._rest) or HEARTBEAT.startswith(self._rest)):
            raise NsqFailed(f"{answer!r} was expected, not {self._rest[:80]!r}")
        if beats:
            self.link.sendall(b"NOP\n" * beats)
        return count


def _expect(link: socket.socket, answer: bytes, rest: bytes = b"") -> None:
    """Wait for this response. No other frames may come, except heartbeats.

    `rest` is the beginning of a frame that was already read.
    """
    responses = Responses(link, rest)
    while not responses.read(answer):
        pass


def _done(
    messages: int, cpu: float, sockets: dict[int, socket.socket], waits: tuple[float, ...] = ()
) -> Done:
    done = Done(time.monotonic(), messages, time.process_time() - cpu, waits)
    for one in sockets.values():
        one.close()
    return done


Work = Callable[..., Done]
