"""Tests of the load by a fixed timetable: when each message is due, which percentiles can be given,
and that a broker that hangs does not slow the publisher down.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.crew import Crew, MemberFailed
from benchmarks.harness.pace import (
    CLOSED_S_MAX,
    GRACE_S,
    LEAD_S,
    OUTSTANDING,
    Arrivals,
    Load,
    Sent,
    known,
    latencies,
)
from benchmarks.measures.paced import COLUMNS, PacedReport
from benchmarks.peers import jetstream, nsq_peers, paced_clients, redis
from local_setup import environment
from local_setup.broker import temporary_broker

pytestmark = pytest.mark.slow

SIZE = 40


def test_a_message_is_allowed_from_the_time_at_which_it_is_due() -> None:
    load = Load(5, SIZE, rate=8.0)
    assert [load.due_s(number) for number in range(5)] == [0.0, 0.125, 0.25, 0.375, 0.5]
    assert [load.allowed(passed, 0) for passed in (-0.1, 0.0, 0.124, 0.125, 0.3, 0.5, 9.0)] == [
        0,
        1,
        1,
        2,
        3,
        5,
        5,
    ]


def test_a_timetable_does_not_wait_for_answers_but_a_closed_loop_does() -> None:
    many = 10 * OUTSTANDING
    assert Load(many, SIZE, rate=many).allowed(0.5, answered=0) == many // 2 + 1
    assert Load(many, SIZE).allowed(0.5, answered=0) == OUTSTANDING
    assert Load(many, SIZE).allowed(0.5, answered=7) == OUTSTANDING + 7
    assert Load(many, SIZE).allowed(0.5, answered=many) == many


def test_a_run_ends_some_time_after_its_last_message_is_due() -> None:
    assert Load(100, SIZE, rate=10.0).end_s == 10.0 + GRACE_S
    assert Load(100, SIZE).end_s == CLOSED_S_MAX + GRACE_S


def test_bodies_have_their_number_and_their_size() -> None:
    assert Load(5, SIZE).body(3) == b"0000000000000003" + bytes(24)


def test_latency_counts_from_the_time_at_which_a_message_was_due() -> None:
    """The third of four messages arrives last. Its latency counts from the time when it was due, so
    it is the largest.
    """
    load = Load(4, SIZE, rate=10.0)
    times = iter([100.01, 100.12, 100.7, 100.71])
    arrivals = Arrivals(load, 100.0, clock=lambda: next(times))
    for number in (0, 1, 3, 2):
        arrivals.add(load.body(number))
    assert arrivals.over
    assert latencies(load, 100.0, arrivals.times) == pytest.approx([0.01, 0.02, 0.4, 0.51])


def test_the_first_arrival_of_a_message_counts() -> None:
    load = Load(2, SIZE, rate=10.0)
    now = 100.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    arrivals = Arrivals(load, 100.0, clock)
    arrivals.add(load.body(0))
    arrivals.add(load.body(0))
    assert (arrivals.count, list(arrivals.times), arrivals.over) == (1, [101.0, 0.0], False)
    now += load.end_s
    assert arrivals.over


def test_a_percentile_is_known_when_ten_messages_lie_beyond_it() -> None:
    assert known(19) == {}
    assert [list(known(count)) for count in (20, 999, 1_000)] == [["p50"], ["p50"], ["p50", "p99"]]
    assert [list(known(count))[-1] for count in (9_999, 10_000, 99_999, 100_000)] == [
        "p99",
        "p99.9",
        "p99.9",
        "p99.99",
    ]


def test_a_stalled_broker_does_not_slow_the_publisher_down() -> None:
    """The broker reads nothing and answers nothing before the last message has been sent."""
    load = Load(200, 20_000, rate=1_000.0)
    ours, theirs = socket.socketpair()
    last_was_sent = threading.Event()

    def command(number: int) -> bytes:
        if number == load.count - 1:
            last_was_sent.set()
        return load.body(number)

    def broker() -> None:
        left = load.count * load.size if last_was_sent.wait(20) else 0
        while left:
            left -= len(theirs.recv(1 << 20))
        theirs.sendall(b"." * load.count)

    thread = threading.Thread(target=broker)
    thread.start()
    with ours, theirs:
        sent = paced_clients.send_paced(
            ours, load, time.monotonic(), command, lambda: len(ours.recv(1 << 16))
        )
        thread.join()
    assert last_was_sent.is_set()
    assert (len(sent.lags), sent.answered) == (load.count, True)
    assert min(sent.lags) >= 0


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_answers_of_redis_are_counted_in_any_pieces(piece: int) -> None:
    stream = b"$15\r\n1795435818088-0\r\n" * 20
    answers = paced_clients.Added()
    assert sum(answers.take(stream[at : at + piece]) for at in range(0, len(stream), piece)) == 20
    with pytest.raises(MemberFailed, match="OOM"):
        answers.take(b"-OOM command not allowed\r\n")


@pytest.mark.parametrize("piece", [1, 3, 50, 1000])
def test_deliveries_of_nats_are_taken_out_of_any_pieces(piece: int) -> None:
    stream = (
        b'INFO {"a": 1}\r\nPONG\r\nMSG t 1 $JS.ACK.1 6\r\n12\r\n56\r\nPING\r\nMSG answers 1 '
        b"0\r\n\r\n+OK\r\n"
    )
    parser = jetstream.Parser()
    found = [
        one for at in range(0, len(stream), piece) for one in parser.take(stream[at : at + piece])
    ]
    assert found == [jetstream.Delivery(b"12\r\n56", b"$JS.ACK.1"), jetstream.Delivery(b"", b"")]
    assert parser.pongs == 1


def test_errors_of_nats_fail_the_benchmark() -> None:
    with pytest.raises(MemberFailed, match="Authorization Violation"):
        jetstream.Parser().take(b"-ERR 'Authorization Violation'\r\n")
    with pytest.raises(MemberFailed, match="too many"):
        jetstream.accepted(
            [
                jetstream.Delivery(
                    b'{"error": {"code": 429, "description": "too many requests"}}', b""
                )
            ]
        )


def run(publish: Callable[..., Sent], consume: Callable[..., Any], place: str, load: Load) -> None:
    with Crew() as crew:
        crew.add(consume, place, "paced", load)
        crew.add(publish, place, "paced", load)
        begin = crew.go() + LEAD_S
        times, sent = crew.results()
    assert sent.answered
    assert len(sent.lags) == load.count
    assert all(times)
    assert not load.rate or latencies(load, begin, times)[0] > 0


@pytest.mark.parametrize(
    "load", [Load(200, SIZE, rate=400.0), Load(2_000, SIZE)], ids=["open", "closed"]
)
def test_the_client_of_an_nsqd_is_paced(tmp_path: Path, load: Load) -> None:
    """The client is meant for nsqd. ZSQ's own gateway speaks the same protocol."""
    port = nsq_peers.free_port()
    with temporary_broker(
        "--no-listen", "--no-http", "--nsq-listen", f"127.0.0.1:{port}", under=tmp_path
    ):
        paced_clients.prepare_channel(str(port), "paced")
        run(paced_clients.publish_nsq, paced_clients.consume_nsq, str(port), load)


@pytest.mark.skipif(redis.find() is None, reason="redis-server is not on PATH")
@pytest.mark.parametrize(
    "load", [Load(200, SIZE, rate=400.0), Load(2_000, SIZE)], ids=["open", "closed"]
)
def test_redis_is_paced(tmp_path: Path, load: Load) -> None:
    program = redis.find()
    assert program is not None
    with redis.running(program, tmp_path) as path:
        paced_clients.prepare_stream(path, "paced")
        run(paced_clients.publish_redis, paced_clients.consume_redis, path, load)
        paced_clients.remove_stream(path, "paced")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(jetstream.find() is None, reason="nats-server is not on PATH")
@pytest.mark.parametrize(
    "load", [Load(200, SIZE, rate=400.0), Load(2_000, SIZE)], ids=["open", "closed"]
)
def test_jetstream_is_paced(tmp_path: Path, load: Load) -> None:
    program = jetstream.find()
    assert program is not None
    with jetstream.jetstream(program, tmp_path) as port:
        jetstream.prepare_jetstream(str(port), "paced")
        run(jetstream.publish_jetstream, jetstream.consume_jetstream, str(port), load)
        jetstream.remove_jetstream(str(port), "paced")
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_row_for_each_broker_and_rate() -> None:
    report = PacedReport("paced", {}, {"cpu": "one"})
    report.add("zsq, saturated: rate", "messages/s", 1_000.0)
    report.add("zsq, 10 %: rate", "messages/s", 100.0)
    report.add("zsq, 10 %: p50", "ms", 3.0, 1.0, 2.0)
    table = report.table()
    cells = [list(column.cells) for column in table.columns]
    assert [column.header for column in table.columns[:3]] == [
        "broker, rate",
        "messages/s",
        "p50, ms",
    ]
    assert cells[:4] == [["zsq, saturated", "zsq, 10 %"], ["1,000", "100"], ["", "2"], ["", ""]]
    assert len(cells) == 2 + len(COLUMNS)


def test_the_command_measures_a_given_rate_and_leaves_no_files(tmp_path: Path) -> None:
    options = [
        "--rate",
        "100",
        "--seconds",
        "0.5",
        "--rounds",
        "1",
        "--json",
        "--folder",
        str(tmp_path),
    ]
    line = [sys.executable, "-P", "-m", "benchmarks", "paced", *options]
    variables = environment(PATH=str(tmp_path))
    ended = subprocess.run(
        line, capture_output=True, text=True, timeout=100, check=False, env=variables
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    names = [measure["name"] for measure in found["measures"]]
    wanted = ["rate", "p50", "publisher late, p99", "publisher late, most"]
    assert names == [
        f"{peer}, 100/s: {column}" for peer in ("zsq", "zsq, linger 1 ms") for column in wanted
    ]
    assert "redis-server is not on PATH: nothing is compared with it" in found["notes"]
    assert list(tmp_path.iterdir()) == []
