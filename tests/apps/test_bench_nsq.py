"""The benchmark of NSQ's protocol: its client must see what is missing, twice there, or not a message at all."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from zsq.apps.bench import nsq_client, nsq_peers
from zsq.apps.bench.crew import Crew
from zsq.apps.bench.loads import Shape

SIZE = 40


def message(number: int, *, id: int | None = None) -> bytes:
    body = b"%016d" % number + bytes(SIZE - 16)
    return nsq_client.HEAD.pack(nsq_client.HEAD.size - 4 + SIZE, 2, 1, 1, b"%016x" % (number if id is None else id)) + body


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
    stream = b"".join(message(number) + nsq_client.HEARTBEAT * (number % 50 == 20) for number in range(200))
    frames, ids, beats = taken(stream, piece)
    assert ids == [b"%016x" % number for number in range(200)]
    assert beats == 4
    frames.check(200, 200)


def test_what_is_wrong_is_seen() -> None:
    for numbers, ids in (((0, 1, 1), (0, 1, 2)), ((0, 1, 2), (0, 1, 1)), ((0, 1), (0, 1)), ((0, 1, 3), (0, 1, 2))):
        frames, _, _ = taken(b"".join(message(number, id=id) for number, id in zip(numbers, ids, strict=True)), 1000)
        with pytest.raises(nsq_client.NsqFailed):
            frames.check(3, 3)
    error = struct.pack(">ii", 4 + 20, 1) + b"E_INVALID" + bytes(11)
    for stream in (error, message(0) + error, struct.pack(">ii", 500, 2) + bytes(600)):
        with pytest.raises(nsq_client.NsqFailed):
            nsq_client.Frames(SIZE).take(stream)


def test_the_bare_loop_answers_like_a_server() -> None:
    shape = Shape(2_000, 200, 200)
    frame = len(nsq_client.mpub_frames("t", Shape(200, 200, 200))[0])
    port, another = nsq_peers.free_port(), nsq_peers.free_port()
    for works in (
        ((nsq_peers.sink, port, 2, frame), (nsq_client.publish_blocks, port, "t", shape, 2, 3)),
        ((nsq_peers.source, another, shape), (nsq_client.consume, another, "t", 200, 2500, 2_000, 2_000)),
    ):
        with Crew() as crew:
            for work in works:
                crew.add(*work)
            crew.go()
            assert crew.results()[-1].messages == 2_000


@pytest.mark.slow
def test_it_runs_beside_an_nsqd(tmp_path: Path) -> None:
    """One of ours plays the nsqd on PATH."""
    program = tmp_path / "bin" / "nsqd"
    program.parent.mkdir()
    serve = f'exec {sys.executable} -P -m zsq serve --no-listen --no-http --data-dir "${{data#*=}}" --nsq-listen "${{tcp#*=}}"'
    program.write_text(f"#!/bin/sh\nfor one; do case $one in --tcp-*) tcp=$one;; --data-*) data=$one/data;; esac; done\n{serve}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "data"
    folder.mkdir()
    line = [sys.executable, "-P", "-m", "zsq.apps.bench", "nsq", "--rounds", "1", "--json", "--folder", str(folder)]
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    small = ["--messages", "4000", "--seconds", "0.3", "--connections", "8"]
    ended = subprocess.run([*line, *small], capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    measures = {measure["name"]: measure for measure in json.loads(ended.stdout)["measures"]}
    for kind in ("MPUB of 200", "consume, RDY 2500, a FIN each", "8 connections, PUB"):
        assert measures[f"{kind}: zsq"]["median"] > 0
        assert {f"{kind}: uvloop alone", f"{kind}: nsqd", f"{kind}: nsqd, synced"} <= set(measures[f"{kind}: zsq"]["ratios"])
        assert f"{kind}: CPU of nsq_gateway" in measures
    assert measures["1 connection, PUB, p99: zsq"]["median"] > 0
    assert list(folder.iterdir()) == []
