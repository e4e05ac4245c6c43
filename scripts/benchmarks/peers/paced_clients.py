"""Publishers and consumers of single messages for Redis and nsqd, and the loop that a publisher
runs.

Each message is one command and has one answer. A publisher never waits for an answer before it
sends a message that is due. Bytes that the socket does not accept stay in memory. So a broker that
stalls does not slow down the timetable.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from array import array
from collections.abc import Callable
from typing import Final

from ..harness.crew import MemberFailed
from ..harness.loads import Start
from ..harness.pace import BURST, LEAD_S, Arrivals, Load, Sent
from . import nsq_client, redis
from .nsq_peers import READY

GROUP: Final = b"bench"
IDENTITY: Final = b'{"heartbeat_interval": -1}'
READ: Final = 1 << 18
WAIT_S: Final = 1.0  # a consumer waits this long for messages before it checks for the run's end


def send_paced(
    link: socket.socket,
    load: Load,
    begin: float,
    command: Callable[[int], bytes],
    read: Callable[[], int],
) -> Sent:
    """Send `command(number)` for each message when it is due.

    `read` reads once from the link, and returns the number of answers in it.
    """
    clock = time.monotonic
    lags = array("d")
    out = bytearray()
    sent = answered = 0
    link.setblocking(False)
    while answered < load.count and (passed := clock() - begin) < load.end_s:
        allowed = load.allowed(passed, answered)
        for number in range(sent, min(allowed, sent + BURST)):
            out += command(number)
            lags.append(clock() - begin - load.due_s(number))
            sent += 1
        if out:
            with contextlib.suppress(BlockingIOError):
                del out[: link.send(out)]
        next_due = begin + load.due_s(sent) if load.rate and sent < load.count else clock() + WAIT_S
        pause = max(0.0, next_due - clock()) if sent >= allowed else 0.0
        readable, _, _ = select.select([link], [link] if out else [], [], pause)
        if readable:
            answered += read()
    return Sent(lags, answered == load.count)


# Redis: a stream and a group, XADD and XREADGROUP with XACK


def prepare_stream(path: str, topic: str) -> None:
    with redis.Client(path) as client:
        client.ask([(b"XGROUP", b"CREATE", topic.encode(), GROUP, b"0", b"MKSTREAM")])


def remove_stream(path: str, topic: str) -> None:
    with redis.Client(path) as client:
        client.ask([(b"DEL", topic.encode())])


class Added:
    """Counts the answers to XADD: a line with the length of the id, and a line with the id."""

    def __init__(self) -> None:
        self._rest = b""
        self._id_follows = False

    def take(self, data: bytes) -> int:
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        count = 0
        for line in lines:
            if not self._id_follows and not line.startswith(b"$"):
                raise MemberFailed(line.decode(errors="replace"))
            count += self._id_follows
            self._id_follows = not self._id_follows
        return count


def publish_redis(start: Start, path: str, topic: str, load: Load) -> Sent:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        answers = Added()
        head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n" % (
            len(topic),
            topic.encode(),
            load.size,
        )
        command = lambda number: head + load.body(number) + b"\r\n"  # noqa: E731
        return send_paced(
            link, load, start() + LEAD_S, command, lambda: answers.take(received(link))
        )


def consume_redis(start: Start, path: str, topic: str, load: Load) -> array[float]:
    stream = topic.encode()
    read = (
        b"XREADGROUP",
        b"GROUP",
        GROUP,
        b"me",
        b"COUNT",
        b"1000",
        b"BLOCK",
        b"%d" % int(WAIT_S * 1000),
        b"STREAMS",
        stream,
        b">",
    )
    with redis.Client(path) as client:
        arrivals = Arrivals(load, start() + LEAD_S)
        done: list[tuple[bytes, ...]] = []
        while not arrivals.over:
            *_, found = client.ask([*done, read])
            done = []
            if found:
                for _, fields in (entries := found[0][1]):
                    arrivals.add(fields[1])
                done = [(b"XACK", stream, GROUP, *(id for id, _ in entries))]
        client.ask(done)
    return arrivals.times


# nsqd: PUB, and a FIN for each message


def prepare_channel(port: str, topic: str) -> None:
    nsq_client.make_channel(int(port), topic)


def publish_nsq(start: Start, port: str, topic: str, load: Load) -> Sent:
    with nsq_client.connect(int(port)) as link:
        responses = nsq_client.Responses(link)
        # Heartbeats are switched off, because a NOP could get between two parts of a PUB.
        link.sendall(b"IDENTIFY\n" + len(IDENTITY).to_bytes(4, "big") + IDENTITY)
        responses.read()
        head = b"PUB %s\n%s" % (topic.encode(), load.size.to_bytes(4, "big"))
        return send_paced(
            link, load, start() + LEAD_S, lambda number: head + load.body(number), responses.read
        )


def consume_nsq(start: Start, port: str, topic: str, load: Load) -> array[float]:
    reader = nsq_client.Frames(load.size)
    with nsq_client.subscribe(int(port), topic, nsq_client.CHANNEL) as link:
        arrivals = Arrivals(load, start() + LEAD_S)
        link.sendall(b"RDY %d\n" % READY)
        data = b""
        while not arrivals.over:
            if not select.select([link], [], [], WAIT_S)[0]:
                continue
            seen = len(reader.numbers)
            ids, data, beats = reader.take(data + received(link))
            for number in reader.numbers[seen:]:
                arrivals.add(number)
            if ids or beats:
                link.sendall(
                    b"".join([b"FIN ", b"\nFIN ".join(ids), b"\n"] if ids else [])
                    + b"NOP\n" * beats
                )
    return arrivals.times


def received(link: socket.socket) -> bytes:
    data = link.recv(READ)
    if not data:
        raise MemberFailed("the broker closed the connection")
    return data
