"""Tests of what the answer of a port to a plain request says about the program that listens
there.
"""

from __future__ import annotations

import socket

import pytest
from support.broker import wait_for

from zsq.transport.wire import sockets
from zsq.transport.wire.handshake import what_answers

URL = "tcp://h:4151"


@pytest.mark.parametrize(
    ("answer", "said", "sure"),
    [
        (
            b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\n\r\n{}",
            "the HTTP port of a ZSQ broker (or of nsqd)",
            True,
        ),
        (
            b"HTTP/1.0 404 Not Found\r\n\r\nx-nsq-content-type",
            "the HTTP port of another server",
            True,
        ),
        (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL", "for NSQ clients", True),
        (b"\x15\x03\x01\0\x02\x02\x46", "speaks TLS", True),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f", "the push port", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers b'SSH-2.0-OpenSSH_9.6", False),
    ],
)
def test_each_kind_of_port_is_known_by_its_answer(answer: bytes, said: str, sure: bool) -> None:
    text, certain = what_answers(answer, URL)
    assert said in text
    assert text.startswith(URL)
    assert text.endswith("by default 4153")
    assert certain is sure


def test_an_empty_answer_gives_no_text() -> None:
    assert what_answers(b"", URL) == ("", False)


def test_a_probe_reads_a_bounded_part_of_what_a_port_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe ends when it has read this part, although the connection stays open."""
    monkeypatch.setattr(sockets, "PROBE_BYTES_MAX", 8)
    monkeypatch.setattr(sockets, "PROBE_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = sockets.Probe(*server.getsockname())
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"x" * 20)
            wait_for(lambda: probe.answer is not None, 10, "the answer")
    assert probe.answer == b"x" * 8
