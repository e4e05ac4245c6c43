"""Tests of what the answer of a port to a plain request says about the program that listens
there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from support.broker import wait_for

import zsq
from zsq.transport.client.link import link
from zsq.transport.wire import sockets
from zsq.transport.wire.handshake import mechanism_of, what_answers

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


@contextmanager
def router(*, curve: bool) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.linger = 0
        if curve:
            made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
            made.curve_server = True
        yield made


@pytest.mark.parametrize("curve", [True, False])
def test_a_probe_learns_the_mechanism_of_a_server(curve: bool) -> None:
    with router(curve=curve) as made:
        probe = sockets.Probe("127.0.0.1", made.bind_to_random_port("tcp://127.0.0.1"))
        wait_for(lambda: probe.answer is not None, 30, "the answer")
        assert probe.answer is not None
        assert "speaks ZeroMQ's protocol" in what_answers(probe.answer, URL)[0]
        assert probe.mechanism == (b"CURVE" if curve else b"NULL")


def test_half_a_greeting_has_no_mechanism() -> None:
    whole = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE".ljust(32, b"\0")
    assert mechanism_of(whole) == b"CURVE"
    assert mechanism_of(whole[:31]) == b""
    assert mechanism_of(b"GET " + whole) == b""


@pytest.mark.parametrize("curve", [True, False])
def test_the_reason_is_known_if_zeromq_does_not_report_it(
    curve: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a busy machine, it reports only that the other side closed the connection."""
    monkeypatch.setattr(link, "verdict", lambda events, address: None)
    key = None
    if not curve:
        public, secret = (one.decode() for one in zmq.curve_keypair())
        key = tmp_path / "key"
        key.write_text(f'public = "{public}"\nsecret = "{secret}"\nserver = "{public}"\n')
        key.chmod(0o600)
    with router(curve=curve) as made:
        port = made.bind_to_random_port("tcp://127.0.0.1")
        said = "requires a key, and none was given" if curve else "does not encrypt"
        with (
            zsq.Producer(f"tcp://127.0.0.1:{port}", key_file=key, timeout=60) as producer,
            pytest.raises(zsq.UsageError, match=f"E_BAD_KEY.*{said}"),
        ):
            producer.publish("clicks", b"x")
