"""Tests of the benchmark of NSQ's protocol: its client must notice a message that is missing, comes
twice, or is no message at all.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.crew import Crew
from benchmarks.harness.loads import Shape
from benchmarks.measures import nsq
from benchmarks.peers import nsq_client, nsq_peers
from local_setup import environment

pytestmark = pytest.mark.slow

SIZE = 40


def message(number: int, *, id: int | None = None) -> bytes:
    body = b"%016d" % number + bytes(SIZE - 16)
    return (
        nsq_client.HEAD.pack(
            nsq_client.HEAD.size - 4 + SIZE, 2, 1, 1, b"%016x" % (number if id is None else id)
        )
        + body
    )


def taken(stream: bytes, piece: int) -> tuple[nsq_client.Frames, list[bytes], int]:
    frames = nsq_client.Frames(SIZE)
    rest, ids, beats = b"", [], 0
    for at in range(0, len(stream), piece):
        some, rest, more = frames.take(rest + stream[at : at + piece])
        ids += some
        beats += more
    assert rest == b""
    return frames, ids, beats


@pytest.mark.parametrize("piece", [1, 7, 74, 1000, 100_000])
def test_messages_are_taken_out_of_any_pieces(piece: int) -> None:
    stream = b"".join(
        message(number) + nsq_client.HEARTBEAT * (number % 50 == 20) for number in range(200)
    )
    frames, ids, beats = taken(stream, piece)
    assert ids == [b"%016x" % number for number in range(200)]
    assert beats == 4
    frames.check(200, 200)


def test_wrong_messages_and_error_frames_fail_the_benchmark() -> None:
    for numbers, ids in (
        ((0, 1, 1), (0, 1, 2)),
        ((0, 1, 2), (0, 1, 1)),
        ((0, 1), (0, 1)),
        ((0, 1, 3), (0, 1, 2)),
    ):
        frames, _, _ = taken(
            b"".join(message(number, id=id) for number, id in zip(numbers, ids, strict=True)), 1000
        )
        with pytest.raises(nsq_client.NsqFailed):
            frames.check(3, 3)
    error = struct.pack(">ii", 4 + 20, 1) + b"E_INVALID" + bytes(11)
    for stream in (error, message(0) + error, struct.pack(">ii", 500, 2) + bytes(600)):
        with pytest.raises(nsq_client.NsqFailed):
            nsq_client.Frames(SIZE).take(stream)


class FakeNsqd:
    """The other end of a connection. Its stream comes in pieces of any size, and it keeps what the
    client sends.
    """

    def __init__(self, stream: bytes, piece: int) -> None:
        self.ours, self.theirs = socket.socketpair()
        self._stream, self._piece = stream, piece

    def feed(self) -> bool:
        """Send one more piece. Return False if there is none."""
        part, self._stream = self._stream[: self._piece], self._stream[self._piece :]
        if part:
            self.theirs.sendall(part)
        return bool(part)

    def close(self) -> bytes:
        """Return what the client has sent."""
        self.ours.shutdown(socket.SHUT_WR)
        said = b""
        while part := self.theirs.recv(4096):
            said += part
        self.ours.close()
        self.theirs.close()
        return said


RESPONSES = (
    nsq_client.HEARTBEAT
    + nsq_client.OK * 2
    + nsq_client.HEARTBEAT * 2
    + nsq_client.OK
    + nsq_client.HEARTBEAT
)


@pytest.mark.parametrize("piece", range(1, len(RESPONSES) + 1))
def test_responses_and_heartbeats_are_told_apart_at_every_split(piece: int) -> None:
    """The stream contains heartbeats. An nsqd sends one after 30 s without a command."""
    nsqd = FakeNsqd(RESPONSES, piece)
    responses, count = nsq_client.Responses(nsqd.ours), 0
    while nsqd.feed():
        count += responses.read()
    assert count == 3
    assert nsqd.close() == b"NOP\n" * 4


@pytest.mark.parametrize("cut", range(len(nsq_client.HEARTBEAT) + len(nsq_client.OK) + 1))
def test_an_answer_is_waited_for_behind_a_heartbeat_that_comes_in_two_reads(cut: int) -> None:
    stream = nsq_client.HEARTBEAT + nsq_client.OK
    nsqd = FakeNsqd(stream[cut:], len(stream))
    if cut:
        nsqd.theirs.sendall(stream[:cut])
    responses = nsq_client.Responses(nsqd.ours)
    found = responses.read() if cut else 0
    if nsqd.feed():
        found += responses.read()
    assert found == 1
    assert nsqd.close() == b"NOP\n"


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_an_error_among_the_responses_is_an_error(piece: int) -> None:
    error = struct.pack(">ii", 4 + 12, 1) + b"E_PUB_FAILED"
    nsqd = FakeNsqd(nsq_client.OK + nsq_client.HEARTBEAT + error, piece)
    responses = nsq_client.Responses(nsqd.ours)

    def read_all() -> None:
        while nsqd.feed():
            responses.read()

    with pytest.raises(nsq_client.NsqFailed, match="expected, not"):
        read_all()
    nsqd.close()


def test_the_end_of_the_connection_is_an_error_and_no_empty_answer() -> None:
    nsqd = FakeNsqd(b"", 1)
    nsqd.theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(nsq_client.NsqFailed, match="the connection ended"):
        nsq_client.Responses(nsqd.ours).read()
    nsqd.close()


def test_the_bare_loop_answers_like_a_server() -> None:
    shape = Shape(2_000, 200, 200)
    frame = len(nsq_client.mpub_frames("t", Shape(200, 200, 200))[0])
    port, another = nsq_peers.free_port(), nsq_peers.free_port()
    for works in (
        ((nsq_peers.sink, port, 2, frame), (nsq_client.publish_blocks, port, "t", shape, 2, 3)),
        (
            (nsq_peers.source, another, shape),
            (nsq_client.consume, another, "t", 200, 2500, 2_000, 2_000),
        ),
    ):
        with Crew() as crew:
            for work in works:
                crew.add(*work)
            crew.go()
            assert crew.results()[-1].messages == 2_000


def test_the_nsq_benchmark_also_measures_an_nsqd_on_path(tmp_path: Path) -> None:
    """A broker of ZSQ plays the role of the nsqd on PATH."""
    program = tmp_path / "bin" / "nsqd"
    program.parent.mkdir()
    serve = (
        f'exec {sys.executable} -P -m zsq serve --no-listen --no-http --data-dir "${{data#*=}}" '
        f'--nsq-listen "${{tcp#*=}}"'
    )
    program.write_text(
        "#!/bin/sh\nfor one; do case $one in --tcp-*) tcp=$one;; --data-*) data=$one/data;; "
        f"esac; done\n{serve}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "data"
    folder.mkdir()
    line = [
        sys.executable,
        "-P",
        "-m",
        "benchmarks",
        "all",
        "--only",
        "nsq",
        "--rounds",
        "1",
        "--scale",
        "0.02",
        "--json",
        "--folder",
        str(folder),
    ]
    variables = environment(PATH=f"{program.parent}:{os.environ['PATH']}")
    ended = subprocess.run(
        line, capture_output=True, text=True, timeout=400, check=False, env=variables
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)["groups"]["nsq"]
    measures = {measure["name"]: measure for measure in report["measures"]}
    for kind in ("MPUB of 200", "consume, RDY 2500, a FIN each", "64 connections, PUB"):
        assert measures[f"{kind}: zsq"]["median"] > 0
        assert {f"{kind}: uvloop alone", f"{kind}: nsqd", f"{kind}: nsqd, synced"} <= set(
            measures[f"{kind}: zsq"]["ratios"]
        )
        assert f"{kind}: CPU of nsq_gateway" in measures
    assert measures["1 connection, PUB, p99: zsq"]["median"] > 0
    assert measures["1 connection, PUB: zsq"]["ratios"]["1 connection, PUB: nsqd"] > 0
    assert {f"{nsq.CROWD}: CPU of {server}" for server in ("zsq", "nsqd")} <= set(measures)
    assert list(folder.iterdir()) == []
