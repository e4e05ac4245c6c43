"""Tests of a real broker with hostile clients: random bytes on its ports, incomplete greetings, and
complete links with random messages. The broker continues and serves other clients.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import zmq
from faults.fuzz_port import said, stranger_says
from faults.fuzz_wire import message_frames, typed_word
from faults.mutation import Mutator, deep_frame
from support.broker import Broker, wait_for
from support.memory import Peak

import zsq
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode

GROWTH_MAX: Final = 64 * 1024 * 1024
CONNECTIONS: Final = 300
MESSAGES: Final = 10_000
GREETING: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".ljust(64, b"\0")
READY: Final = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
WORDS: Final[dict[str, tuple[type[p.Wire], ...]]] = {
    "supervisor": (p.Lookup, p.Manage, p.Manage, p.Stats, p.Beat, p.Bye),
    "topic": (p.Hello, p.Pub, p.PubDelayed, p.Beat, p.Bye, p.Attach, p.Credit),
    "channel": (p.Sub, p.Ready, p.Fin, p.Req, p.Touch, p.Beat, p.Bye, p.Scan),
    "reader": (p.Fetch, p.OffsetAt, p.Measure, p.Beat, p.Bye),
    "stage": (p.OpenStage, p.Seal, p.Commit, p.Abort, p.Beat, p.Bye),
}


class Neighbour(threading.Thread):
    """A client that publishes and receives all the time, one message after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.count = 0
        self.failure: Exception | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            with (
                zsq.Producer(self.url) as producer,
                zsq.Consumer("quiet", "mine", url=self.url) as consumer,
            ):
                while not self.over.is_set():
                    producer.publish("quiet", b"%d" % self.count)
                    message = consumer.receive(30)
                    assert message is not None
                    assert message.body == b"%d" % self.count
                    message.finish(sync=True)
                    self.count += 1
        except Exception as error:
            self.failure = error


@pytest.fixture
def neighbour(own_broker: Broker) -> Iterator[Neighbour]:
    one = Neighbour(own_broker.tcp)
    one.start()
    try:
        wait_for(lambda: one.count > 3 or one.failure, what="the neighbour's first messages")
        yield one
    finally:
        one.over.set()
        one.join(60)


def push_port(broker: Broker) -> int:
    """Return the push port that the ready line of the log names."""
    return int(broker.log.read_text().partition("push port ")[2].partition(")")[0])


def throw(port: int, data: bytes) -> None:
    """Send data on a new connection, which may be closed in the middle."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 10) as connection,
    ):
        connection.settimeout(0.2)
        connection.sendall(data)
        connection.recv(64)


def garbage(mutator: Mutator) -> bytes:
    """Return random bytes, a greeting followed by random bytes, or an almost complete beginning of
    a link.
    """
    noise = mutator.random.randbytes(mutator.below(500))
    frame = bytes([mutator.one((0, 1, 2, 3, 4, 5, 6)), mutator.below(256)]) + noise
    return bytes(
        mutator.one(
            (
                noise,
                GREETING + noise,
                GREETING + READY + frame,
                mutator.changed(GREETING + READY) + frame,
            )
        )
    )


class Stranger:
    """Raw sockets that are connected to the gateway, one for each kind of link, or to the actors
    themselves.
    """

    def __init__(self, broker: Broker, direct: bool, seed: int) -> None:
        self.mutator = Mutator(Random(seed))
        self.broker = broker
        self.direct = direct
        self.context: zmq.Context[Any] = zmq.Context()
        self.found: dict[str, Any] = {}
        if direct:
            asking = self._dial(f"{broker.ipc}/supervisor")
            asking.send_multipart([b"", encode(p.Lookup(1, "fuzzed", "c", True))])
            assert asking.poll(30_000)
            word = decode(asking.recv_multipart()[1])
            assert isinstance(word, p.Done)
            self.found = word.data | {"supervisor": f"{broker.ipc}/supervisor"}
            asking.close(linger=0)
        self.links: dict[str, Any] = {}

    def _dial(self, endpoint: str, kind: int = zmq.DEALER) -> Any:
        made = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDTIMEO, 10_000)
        made.connect(endpoint)
        return made

    def link(self, kind: str) -> Any:
        if kind not in self.links or self.mutator.chance(50):
            if kind in self.links:
                self.links.pop(kind).close(linger=0)
            made = self.links[kind] = self._dial(
                self.found[kind] if self.direct else self.broker.tcp
            )
            if not self.direct:
                made.send_multipart([b"", encode(p.Open(1, kind, "fuzzed", "c", True))])
                assert made.poll(30_000), f"no answer to Open {kind}"
                made.recv_multipart()
        return self.links[kind]

    def say_deep(self, kind: str) -> None:
        """Send each message of that kind of link with a value that is nested as deeply as msgpack
        permits. Such a message once ended each process that decoded it.
        """
        words: tuple[type[p.Wire], ...] = (*WORDS[kind], p.Open)
        for word in words:
            count = max(1, len(fields(word)))
            for at in range(count):
                self.link(kind).send_multipart([b"", deep_frame(word.op, count, 1_020, at)])

    def say(self, kind: str) -> None:
        """Send a message of that kind of link. Read the answer or ignore it."""
        mutator = self.mutator
        link = self.link(kind)
        known: dict[str, Sequence[Any]] = {
            "topic": ("fuzzed",),
            "channel": ("c", ""),
            "version": (1,),
            "request": (0, 5),
            "create": (False,),
        }
        if mutator.chance(10):
            parts = message_frames(mutator)
        else:
            words: Sequence[type[p.Wire]] = WORDS[kind] if self.direct else (p.Open, *WORDS[kind])
            control, frames = stranger_says(mutator, words, known)
            parts = (b"", self._tamed(control), *frames)
        if parts:
            link.send_multipart(parts)
        while mutator.chance(2) and link.poll(0):
            link.recv_multipart()

    def _tamed(self, control: bytes) -> bytes:
        """Let all messages that would create a topic name the same topic. Each topic needs more
        processes, so many topics would exceed the limits although the broker works correctly.
        """
        with contextlib.suppress(zsq.UsageError):
            word = decode(control)
            if isinstance(word, (p.Lookup, p.Open, p.Manage)):
                return said(replace(word, topic="fuzzed", channel=self.mutator.one(("c", ""))))
        return control

    def push(self) -> None:
        link = self.links.get("push") or self._dial(
            self.found["push"] if self.direct else f"tcp://127.0.0.1:{push_port(self.broker)}",
            zmq.PUSH,
        )
        self.links["push"] = link
        route = [] if self.direct else [self.mutator.random.randbytes(self.mutator.below(4))]
        link.send_multipart(
            [*route, b"", said(typed_word(self.mutator, p.Push.op)), *message_frames(self.mutator)]
        )

    def close(self) -> None:
        self.context.destroy(linger=0)


def unharmed(broker: Broker, before: dict[str, int], neighbour: Neighbour) -> None:
    """Check that the processes that serve other clients are still the same. Only processes of the
    topic `fuzzed` may be gone, because a random message can tell the broker to end them.
    """
    count = neighbour.count
    wait_for(
        lambda: neighbour.count > count + 3 or neighbour.failure,
        what="the neighbour's next messages",
    )
    assert neighbour.failure is None
    after = {actor["name"]: actor["pid"] for actor in broker.actors()}
    assert {name: pid for name, pid in before.items() if name in after and after[name] != pid} == {}
    assert {name for name in before.keys() - after.keys() if "fuzzed" not in name} == set()
    assert "Traceback" not in broker.log.read_text()
    assert " ended" not in broker.log.read_text()


def test_garbage_on_the_ports_disturbs_no_client(own_broker: Broker, neighbour: Neighbour) -> None:
    mutator = Mutator(Random(1))
    before = {actor["name"]: actor["pid"] for actor in own_broker.actors()}
    peak = Peak(before.values())
    ports = own_broker.port, push_port(own_broker)
    for number in range(CONNECTIONS):
        throw(ports[number % 2], garbage(mutator))
    unharmed(own_broker, before, neighbour)
    grown = peak.close()
    print(
        f"{CONNECTIONS} connections of garbage; the neighbour had {neighbour.count} messages; "
        f"most growth {max(grown.values()) >> 20} MiB"
    )
    assert max(grown.values()) < GROWTH_MAX, grown


@pytest.mark.parametrize("direct", [False, True], ids=["gateway", "actors"])
def test_links_with_random_messages_disturb_no_client(
    own_broker: Broker, neighbour: Neighbour, direct: bool
) -> None:
    stranger = Stranger(own_broker, direct, 2)
    try:
        for kind in WORDS:
            stranger.link(kind)
        before = {actor["name"]: actor["pid"] for actor in own_broker.actors()}
        peak = Peak(before.values())
        for kind in WORDS:
            stranger.say_deep(kind)
        for _ in range(MESSAGES // 2):
            kind = stranger.mutator.one((*WORDS, "push"))
            if kind == "push":
                stranger.push()
            else:
                stranger.say(kind)
        unharmed(own_broker, before, neighbour)
        grown = peak.close()
        told = (
            f"{MESSAGES // 2} messages of a stranger; the neighbour had {neighbour.count}; most "
            f"growth {max(grown.values()) >> 20} MiB"
        )
        print(told)
        assert max(grown.values()) < GROWTH_MAX, grown
    finally:
        stranger.close()
    assert Path(own_broker.data_dir).exists()
