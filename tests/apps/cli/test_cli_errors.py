"""Tests of `zsq errors`, which shows why messages died, and of a redrive by these reasons, at a
pace.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.broker import wait_for
from support.zsq_command import run_text

import zsq
from local_setup.broker import LocalBroker, temporary_broker
from zsq.transport.client.core.letter_groups import LetterConditions
from zsq.transport.client.core.redrive import READY, Pace

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]
DEAD = "t.c.dead"


def fail(message: Any) -> None:
    number = int(message.body)
    if number % 2:
        message.reject("not JSON")
    else:
        raise KeyError(f"user {number}")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker with ten dead letters: five errors of a handler, and five rejected messages."""
    with temporary_broker("--no-listen", prefix="zsq-test-") as one:
        with zsq.Producer(one.url) as producer:
            bodies = [b"%d" % number for number in range(10)]
            producer.publish_many("t", bodies, keys=[b"k%d" % number for number in range(10)])
        with zsq.Consumer("t", "c", url=one.url, max_attempts=2, backoff_s=0) as consumer:
            seen: list[int] = []

            def handle(message: Any) -> None:
                seen.append(message.offset)
                if len(seen) == 15:
                    consumer.close()
                fail(message)

            consumer.run(handle, backoff=False, on_error=lambda *_: None, signals=False)
        with zsq.Reader(DEAD, url=one.url, patient=True) as reader:
            wait_for(lambda: letters(reader) == 10, 20, "the dead letters")
        yield one


def letters(reader: zsq.Reader) -> int:
    try:
        return reader.bounds()[1]
    except zsq.NotFound:
        return 0


@pytest.fixture
def run(broker: LocalBroker) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_text(*arguments, ZSQ_URL=broker.url, COLUMNS="80")

    return run


def test_errors_are_grouped_and_fit_into_80_columns(run: Run) -> None:
    lines = run("errors", DEAD).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["5", "5"]
    assert sorted(line[31:].split(maxsplit=1)[0] for line in lines) == ["max_attempts", "rejected"]
    assert sum("KeyError('user #')" in line for line in lines) == 1
    assert all(len(line) <= 80 for line in lines)
    rows = [json.loads(line) for line in run("errors", DEAD, "--json").stdout.splitlines()]
    assert [row["count"] for row in rows] == [5, 5]


def test_letters_are_sorted_and_selected(run: Run) -> None:
    def keys(*options: str) -> list[str]:
        found = run("errors", DEAD, "--list", "--json", *options).stdout.splitlines()
        return [json.loads(line)["key"] for line in found]

    assert sorted(keys()) == [f"k{number}" for number in range(10)]
    by_attempts = keys("--sort", "attempts")
    assert {int(key[1:]) % 2 for key in by_attempts[:5]} == {0}, "two attempts each"
    assert sorted(keys("--reason", "rejected")) == ["k1", "k3", "k5", "k7", "k9"]
    assert keys("--error", "user 4") == ["k4"]
    assert keys("--key", "k7", "--since", "1h") == ["k7"]
    assert keys("--since", "2099-01-01") == []
    assert len(keys("-n", "3")) == 3
    assert len(keys("--last", "4")) == 4
    assert run("errors", DEAD, "--reason", "other").stdout == "no dead letters\n"
    assert run("errors", DEAD, "--since", "earliest").returncode == 2
    lines = run("errors", DEAD, "--list").stdout.splitlines()
    assert len(lines) == 10
    assert all(len(line) <= 80 for line in lines)


def test_one_letter_is_shown_with_its_traceback(run: Run) -> None:
    [line] = run("errors", DEAD, "--list", "--error", "user 4").stdout.splitlines()
    shown = run("errors", DEAD, "--offset", line.split()[0]).stdout
    assert "attempts   2\nreason     max_attempts\nfrom       t/c, offset 4\n" in shown
    assert "key        k4\nerror      KeyError('user 4')\n" in shown
    assert 'raise KeyError(f"user {number}")' in shown
    assert shown.endswith("KeyError: 'user 4'\n")


def test_a_redrive_takes_the_same_conditions_and_a_rate(run: Run, broker: LocalBroker) -> None:
    begun_s = time.monotonic()
    done = run("redrive", DEAD, "--all", "--reason", "rejected", "--since", "1h", "--rate", "2/s")
    assert done.stdout == "5 to t, for channel c\n5 not selected\n"
    assert time.monotonic() - begun_s > 2, "the last of five messages was sent after 2 s"
    done = run("redrive", DEAD, "--all", "--since", "2099-01-01")
    assert done.stdout == "5 not selected\n"
    for wrong in (["--rate", "0"], ["--rate", "fast"], ["--rate", "5/y"]):
        assert run("redrive", DEAD, "--all", *wrong).returncode == 2
    assert run("redrive", DEAD, "--offset", "1", "--rate", "5").returncode == 2
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        back = [consumer.receive(10) for _ in range(5)]
        assert sorted(message.body for message in back if message) == [
            b"1",
            b"3",
            b"5",
            b"7",
            b"9",
        ]
        assert not [name for name in back[0].headers if "traceback" in name] if back[0] else False
        assert consumer.receive(0.2) is None
        for message in back:
            assert message is not None
            message.finish()


def test_a_slow_redrive_keeps_its_letters_and_can_be_stopped(run: Run, broker: LocalBroker) -> None:
    command = [sys.executable, "-m", "zsq", "redrive", DEAD, "--all", "--rate", "1/h"]
    environment = {**os.environ, "ZSQ_URL": broker.url}
    with (
        zsq.Admin(broker.url) as admin,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):

        def held() -> list[float]:
            found = admin.peek(DEAD, "redrive").messages
            return [one.left_s for one in found if one.state == "in flight"]

        wait_for(lambda: len(held()) == 4, 30, "one letter was sent, and the others are held")
        assert min(held()) > 80_000, "no lease ends before the next letter may be sent"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "1 to t, for channel c\n"
        assert process.returncode == 0
    begun_s = time.monotonic()
    done = run("redrive", DEAD, "-n", "1", "--rate", "1/h")
    assert done.stdout == "1 to t, for channel c\n", "it goes on"
    assert time.monotonic() - begun_s < 60, "and does not wait after its last letter"
    assert run("redrive", DEAD, "--all").stdout == "3 to t, for channel c\n"


def test_a_pace_neither_hurries_nor_makes_up_for_a_break() -> None:
    pace = Pace(10, 100.0)
    assert pace.size == 10
    assert pace.wait_s(100.0) == 0, "it waits before letters are sent, not after the last ones"
    pace.sent(10, 100.0)
    assert pace.wait_s(100.0) == pytest.approx(1.0)
    assert pace.wait_s(160.0) == 0
    pace.sent(10, 160.0)
    assert pace.wait_s(160.0) == pytest.approx(1.0), "it does not make up for a break"
    pace.sent(10, 160.0)
    assert pace.wait_s(160.0) == pytest.approx(2.0), "it hurries not either"
    slow, unbound = Pace(0.5, 0.0), Pace(None, 0.0)
    assert slow.size == 1
    slow.sent(1, 0.0)
    unbound.sent(5, 0.0)
    assert slow.wait_s(0.0) == pytest.approx(2.0)
    assert unbound.wait_s(0.0) == 0
    assert (Pace(None, 0.0).size, Pace(1e6, 0.0).size) == (READY, READY)


def test_headers_that_are_no_texts_match_nothing() -> None:
    assert not LetterConditions(error="x").fit({"zsq-dead-error": 5}, 0)
    assert LetterConditions(since_ns=5).fit({"zsq-dead-time": "late"}, 7)
    assert LetterConditions().fit({}, 0)
