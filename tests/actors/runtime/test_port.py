"""Tests of a port whose peers send too many frames: a message that is too long is dropped
completely, and the next message is received.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from zsq.actors.runtime.port import _ENVELOPE_MAX, Mail, Port
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode


class Line:
    """A port, and a peer that can send it any frames."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.port = Port(self.context, zmq.PULL)
        self.port.socket.bind(f"ipc://{folder}/port")
        self.peer = self.context.socket(zmq.PUSH)
        self.peer.connect(f"ipc://{folder}/port")

    def send(self, *frames: bytes) -> None:
        self.peer.send_multipart(frames)

    def taken(self) -> list[tuple[tuple[bytes, ...], int]]:
        """Return (envelope, number of frames behind the protocol message) of each mail that was
        received. A last mail is sent to mark the end.
        """
        self.send(b"last", b"", encode(p.Beat()))
        found: list[tuple[tuple[bytes, ...], int]] = []
        while not found or found[-1][0] != (b"last",):
            assert self.port.socket.poll(20_000)
            for mail in self.port.receive(100):
                assert isinstance(mail, Mail)
                assert mail.message == p.Beat()
                found.append((mail.envelope, len(mail.frames)))
        return found[:-1]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path)
    yield made
    made.peer.close(linger=0)
    made.port.close()
    made.context.destroy(linger=0)


def test_the_number_of_frames_of_an_envelope_is_bounded(line: Line) -> None:
    """The port keeps the envelope and sends it back with each answer, so a peer must not choose its
    size.
    """
    longest = tuple(b"%d" % number for number in range(_ENVELOPE_MAX))
    line.send(*longest, b"", encode(p.Beat()))
    line.send(*longest, b"more", b"", encode(p.Beat()))
    line.send(*longest, *[b"x"] * 1_000)
    assert line.taken() == [(longest, 0)]


def test_a_message_with_too_many_frames_is_dropped(line: Line) -> None:
    line.send(b"a", b"", encode(p.Beat()), *[b"x"] * p.FRAMES_MAX)
    line.send(b"b", b"", encode(p.Beat()), *[b"x"] * (p.FRAMES_MAX + 1))
    line.send(b"c", b"", encode(p.Beat()), *[b"x"] * (3 * p.FRAMES_MAX))
    assert line.taken() == [((b"a",), p.FRAMES_MAX)]


def test_an_invalid_message_is_reported_with_its_sender(line: Line) -> None:
    found: list[Any] = []
    for frames in ([b"a"], [b"a", b""], [b"a", b"", b"\xc1"], [b"a", b"", b"\x92\x7f\x07"]):
        line.send(*frames)
    while len(found) < 2:
        assert line.port.socket.poll(20_000)
        found += line.port.receive(100)
    assert [envelope for envelope, _ in found] == [(b"a",)] * 2
    # An unknown word has its request first, here 7.
    assert [(answer.request, answer.code) for _, answer in found] == [
        (0, "E_BAD_COMMAND"),
        (7, "E_BAD_COMMAND"),
    ]


def test_an_answer_over_the_limit_for_a_frame_becomes_an_error_and_the_connection_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The peer would close the connection if it received such a frame."""
    sent: list[list[bytes]] = []
    port = object.__new__(Port)
    port.send_frames = lambda frames: sent.append(list(frames)) or True  # type: ignore[method-assign,func-returns-value]
    large = {"x": b"x" * p.FRAME_BYTES_MAX}
    assert port.send((b"a",), p.Done(7, large))
    assert port.send((b"a",), p.Pulse(3, 8, large, large))
    assert not port.send((b"a",), p.ConfigureChannel(9, cast("Any", large)))
    first, second = (decode(frames[-1]) for frames in sent)
    assert isinstance(first, p.Failed)
    assert (first.request, first.code) == (7, "E_TOO_BIG")
    assert second == p.Pulse(3, 8, {}, {})
    assert "Done was not sent: it is 16777" in caplog.text


def test_a_port_is_due_for_a_check_after_a_send() -> None:
    """libzmq may process the port's commands in a send, and its descriptor is silent then."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    port, peer = Port(context, zmq.DEALER), context.socket(zmq.ROUTER)
    try:
        peer.bind("inproc://peer")
        port.socket.connect("inproc://peer")
        assert not port.readable()
        assert not port.unchecked
        assert port.send((), p.Beat())
        assert port.unchecked
    finally:
        context.destroy(linger=0)
