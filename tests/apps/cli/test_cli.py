"""Tests of the command line without a broker: exit codes, lines of input and output, and tables.
The client is a fake.
"""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zsq.apps.cli import app, options, output
from zsq.apps.cli.inspect import stats
from zsq.apps.cli.messages import consume, publish, tail
from zsq.apps.cli.options import Stopping
from zsq.transport.block import block
from zsq.transport.block.block import Block, pack
from zsq.transport.client.core.message import Fetched
from zsq.transport.errors import BrokerUnreachable, NotFound, Refused, UsageError
from zsq.transport.system import SignalFlag
from zsq.transport.wire import protocol


def zsq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zsq", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_repeated_constants_agree() -> None:
    assert options.DEFAULT_URL == protocol.DEFAULT_URL
    assert options.BLOCK_COUNT_MAX == block.BLOCK_COUNT_MAX
    assert options.MESSAGE_BYTES_MAX == block.MESSAGE_BYTES_MAX
    assert options.MESSAGE_BYTES_LARGEST == block.MESSAGE_BYTES_LARGEST


def test_help_imports_nothing_heavy() -> None:
    heavy = {"zmq", "rich", "msgpack", "lmdb"}
    program = (
        f"import sys; from zsq.apps.cli import app; app.run(['--help']); print(sorted({heavy!r} "
        "& set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.endswith("\n[]\n")
    codes = "0 done, 1 failed, 2 wrong usage, 3 broker not reached, 4 messages are lost."
    assert codes in " ".join(ended.stdout.split())


def test_version_is_shown_and_wrong_usage_exits_with_2() -> None:
    version = zsq("--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "zsq")
    assert zsq("nothing").returncode == 2
    assert zsq("sub", "topic").returncode == 2
    assert zsq("serve").returncode == 2
    assert "--listen" in zsq("serve", "--data-dir", "/nowhere", "--listen", "4153").stderr
    assert (
        "--listen-push" in zsq("serve", "--data-dir", "/nowhere", "--listen-push", "here:0").stderr
    )
    assert zsq("serve", "--data-dir", "/nowhere", "--stage-timeout", "0").returncode == 2
    wrong = zsq("stats", "--url", "http://localhost")
    assert wrong.returncode == 2
    assert "use tcp://HOST:PORT or ipc://" in wrong.stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("E_BAD_NAME", "no\nsuch name"), 2, "zsq: E_BAD_NAME no such name\n"),
        (BrokerUnreachable("E_UNREACHABLE", "nobody"), 3, "zsq: E_UNREACHABLE nobody\n"),
        (NotFound("E_NOT_FOUND", "topic"), 1, "zsq: E_NOT_FOUND topic\n"),
        (Refused("E_DISK_FULL", "full"), 1, "zsq: E_DISK_FULL full\n"),
        (
            PermissionError(13, "Permission denied", "/data"),
            1,
            "zsq: EACCES Permission denied: /data\n",
        ),
        (KeyboardInterrupt(), 1, "\nzsq: E_INTERRUPTED interrupted\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(stats.stats, "callback", fail)
    assert app.run(["stats"]) == code
    assert capsys.readouterr().err == line


def test_the_url_comes_from_the_command_then_the_root_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []
    monkeypatch.setattr(stats.stats, "callback", lambda url, **_: found.append(url))
    monkeypatch.delenv("ZSQ_URL", raising=False)
    app.run(["stats"])
    monkeypatch.setenv("ZSQ_URL", "tcp://c:3")
    app.run(["stats"])
    app.run(["--url", "tcp://b:2", "stats"])
    app.run(["--url", "tcp://b:2", "stats", "--url", "ipc:///data/run"])
    assert found == [protocol.DEFAULT_URL, "tcp://c:3", "tcp://b:2", "ipc:///data/run"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, Any]]:
    read, write = os.pipe()
    with os.fdopen(write, "wb", buffering=0) as out:
        yield read, out
    os.close(read)


def test_lines_come_as_they_arrive(pipe: tuple[int, Any]) -> None:
    read, out = pipe
    found = publish.lines(read)
    out.write(b"one\ntwo\nthr")
    assert next(found) == [b"one", b"two"]
    out.write(b"ee\n\n")
    assert next(found) == [b"three", b""]
    out.write(b"no newline")
    out.close()
    assert list(found) == [[b"no newline"]]


def test_lines_end_when_stopped_though_nothing_arrives(pipe: tuple[int, Any]) -> None:
    stopping = SignalFlag()
    timer = threading.Timer(0.05, stopping.set)
    timer.start()
    assert list(publish.lines(pipe[0], stopping.is_set)) == []
    timer.join()


def test_a_line_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"a" * (8 << 20))
    with path.open("rb") as source, pytest.raises(UsageError, match="E_TOO_BIG"):
        list(publish.lines(source.fileno()))


class BatchDouble:
    """A delivery that records how each message was answered."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self.finished: list[int] = []

    def __len__(self) -> int:
        return len(self.bodies)

    def finish(self) -> None:
        self.finished = list(range(len(self.bodies)))

    def messages(self) -> Iterator[Any]:
        for index in range(len(self.bodies)):
            yield MessageDouble(self, index)


class MessageDouble:
    def __init__(self, batch: BatchDouble, index: int) -> None:
        self.batch, self.index = batch, index

    def finish(self) -> None:
        self.batch.finished.append(self.index)


class ConsumerDouble:
    def __init__(self, *batches: BatchDouble) -> None:
        self.batches = list(batches)

    @staticmethod
    def of(*batches: BatchDouble) -> Any:
        return ConsumerDouble(*batches)

    def receive_batch(self, timeout: float) -> BatchDouble | None:
        return self.batches.pop(0) if self.batches else None


def test_sub_finishes_only_the_messages_that_it_wrote() -> None:
    first, second = BatchDouble([b"a", b"b"]), BatchDouble([b"c", b"d", b"e"])
    out = io.BytesIO()
    written = consume.drain(ConsumerDouble.of(first, second), out, 4, SignalFlag())
    assert (written, out.getvalue()) == (4, b"a\nb\nc\nd\n")
    assert (first.finished, second.finished) == ([0, 1], [0, 1])


def test_sub_stops_when_no_message_has_arrived_for_some_time() -> None:
    out = io.BytesIO()
    assert (
        consume.drain(ConsumerDouble.of(BatchDouble([b"a"])), out, None, SignalFlag(), idle_s=0.0)
        == 1
    )
    assert out.getvalue() == b"a\n"


def test_sub_looks_for_a_pause_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 0.5)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    asked: list[float] = []

    def quiet() -> bool:
        asked.append(next(now))
        return len(asked) == 2

    batches = ConsumerDouble.of(BatchDouble([b"a"]))
    consume.drain(batches, io.BytesIO(), None, SignalFlag(), idle_s=90.0, quiet=quiet)
    assert len(asked) == 2
    assert asked[1] - asked[0] >= consume.LOOK_AGAIN_S


def test_sub_ends_quietly_at_a_broken_pipe() -> None:
    read, write = os.pipe()
    batch = BatchDouble([b"a"])
    with os.fdopen(write, "wb") as out:
        assert not consume.pipe_broken(out)
        os.close(read)
        assert consume.pipe_broken(out)
        assert consume.drain(ConsumerDouble.of(batch), out, None, SignalFlag()) == 0

    class Broken(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    assert consume.drain(ConsumerDouble.of(batch), Broken(), None, SignalFlag()) == 0
    assert batch.finished == []


class ReaderDouble:
    """A topic of blocks. The blocks of `later` are appended when a reader has reached
    the end once.
    """

    def __init__(self, *counts: int, start: int = 0, later: int = 0) -> None:
        self.start, self.later = start, later
        self.blocks: list[Block] = []
        self.end = start
        for count in counts:
            self.add(count)

    def add(self, count: int) -> None:
        self.blocks.append(
            pack([b"%d" % (self.end + i) for i in range(count)], first_offset=self.end)
        )
        self.end += count

    def bounds(self) -> tuple[int, int]:
        return self.start, self.end

    def read(self, offset: int, max_bytes: int = 0) -> Any:
        found = [b for b in self.blocks if b.next_offset > offset]
        if not found and self.later and offset >= self.end:
            self.add(self.later)
            self.later = 0
        reads_on = found[-1].next_offset if found else offset
        return Fetched(self.start, self.end, found, reads_on)


def log_of(reader: Any, where: str) -> tail.TailedLog:
    return tail.TailedLog("t", reader, tail.beginning(where), tail.bodies_from)


@pytest.mark.parametrize(
    ("where", "count", "expected"),
    [
        ("earliest", None, range(10, 20)),
        ("12", 3, range(12, 15)),
        ("0", None, range(10, 20)),
        ("19", None, range(19, 20)),
        ("latest", None, range(0)),
    ],
)
def test_tail_without_following_ends_at_the_head(
    where: str, count: int | None, expected: range
) -> None:
    out = io.BytesIO()
    reader: Any = ReaderDouble(4, 6, start=10)
    tail.follow_logs([log_of(reader, where)], out, count, Stopping(), follow=False)
    assert out.getvalue() == b"".join(b"%d\n" % i for i in expected)


def test_tail_follows_new_messages() -> None:
    out = io.BytesIO()
    reader: Any = ReaderDouble(4, later=2)
    tail.follow_logs([log_of(reader, "latest")], out, 2, Stopping(), follow=True)
    assert out.getvalue() == b"4\n5\n"


@pytest.mark.parametrize("arguments", [["--help"], ["pub", "--help"]])
def test_help_into_a_closed_pipe_is_done(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-P", "-m", "zsq", *arguments]
    ended = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, timeout=30, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_tail_refuses_a_strange_offset() -> None:
    ended = zsq("tail", "topic", "--from", "yesterday")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (
        "Invalid value for '--from': 'yesterday' is not a position; use earliest, latest, an offset"
        in ended.stderr
    )


STATS: Any = {
    "version": "1.0.0",
    "node": 0,
    "start_time": 0,
    "health": "OK",
    "pid": 7,
    "topics": [
        {
            "topic_name": "clicks",
            "depth": 1234567,
            "message_count": 5,
            "message_bytes": 6,
            "paused": True,
            "sync": "always",
            "head": 5,
            "start": 0,
            "health": "E_TOPIC_FAILED",
            "channels": [
                {
                    "channel_name": "archive",
                    "depth": 3,
                    "in_flight_count": 2,
                    "paused": False,
                    "clients": [
                        {"client_id": "worker-1", "ready_count": 100, "in_flight_count": 2}
                    ],
                }
            ],
        }
    ],
    "processes": [
        {
            "name": "zsq: topic clicks",
            "pid": 8,
            "kind": "topic",
            "restarts": 0,
            "uptime_s": 7300,
            "private_bytes": 4_600_000,
        }
    ],
}


def test_tables_show_what_there_is() -> None:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(stats.head(STATS | {"start_time": time.time() - 300}))
    for table in stats.tables(STATS, processes=True):
        console.print(table)
    text = out.getvalue()
    for shown in (
        "up 5 min",
        "1,234,567",
        "paused, E_TOPIC_FAILED",
        "archive",
        "worker-1",
        "zsq: topic clicks",
        "4.6 MB",
        "2 h",
    ):
        assert shown in text
    assert len(stats.tables(STATS, processes=False)) == 4
    assert "staged" not in text


def test_a_topic_that_works_is_shown_as_ok() -> None:
    from rich.console import Console

    out = io.StringIO()
    topics = [STATS["topics"][0] | {"paused": False, "health": "OK"}]
    Console(file=out, width=160).print(*stats.tables(STATS | {"topics": topics}, processes=False))
    assert "state" not in out.getvalue()
    topics.append(topics[0] | {"topic_name": "other", "asleep": True, "sync": "never"})
    Console(file=out, width=160).print(*stats.tables(STATS | {"topics": topics}, processes=False))
    assert "asleep, sync never" in out.getvalue()
    assert "OK" in out.getvalue()


def test_stats_say_in_a_sentence_that_there_is_nothing() -> None:
    bare = [STATS["topics"][0] | {"channels": []}]
    assert len(stats.tables(STATS | {"topics": []}, processes=True)) == 1, "the processes"
    assert len(stats.tables(STATS | {"topics": bare}, processes=False)) == 1, "the topics"
    assert stats.nothing(STATS, None) == ""
    assert stats.nothing(STATS | {"topics": []}, None).startswith("There are no topics to show.")
    assert stats.nothing(STATS | {"topics": bare}, None).startswith("These topics have no channels")
    assert "zsq channel create clicks CHANNEL" in stats.nothing(STATS | {"topics": bare}, "clicks")


def test_stages_are_shown_where_there_are_any() -> None:
    from rich.console import Console

    out = io.StringIO()
    topics = [STATS["topics"][0] | {"stages": 3, "staged_bytes": 4_711_000}]
    for table in stats.tables(STATS | {"topics": topics}, processes=False):
        Console(file=out, width=160).print(table)
    assert "staged bytes" in out.getvalue()
    assert "4,711,000" in out.getvalue()


def test_speed_age_and_latency_are_readable() -> None:
    from rich.console import Console

    channel = STATS["topics"][0]["channels"][0] | {
        "finish_count": 12_345,
        "expired_count": 17,
        "oldest_message_age_s": 90.0,
        "drain_s": 7_200.0,
        "rates": {"finish_count": 1_234.5},
        "e2e_processing_latency": {
            "count": 5,
            "percentiles": [
                {"quantile": 0.5, "value": 7},
                {"quantile": 0.99, "value": 61 * 10**9},
            ],
        },
    }
    quick = {"count": 5, "percentiles": [{"quantile": 0.99, "value": 1_250_000}]}
    stuck = {
        "channel_name": "stuck",
        "depth": 9,
        "oldest_message_age_s": None,
        "drain_s": None,
        "rates": {"finish_count": 0.25},
    }
    own = {"oldest_message_age_s": 0.5, "e2e_processing_latency": quick}
    topics = [STATS["topics"][0] | {"channels": [channel, stuck]} | own]
    out = io.StringIO()
    for table in stats.tables(STATS | {"topics": topics}, processes=False):
        Console(file=out, width=160).print(table)
    text = out.getvalue()
    for shown in (
        "1,234",
        "90 s",
        "2 h",
        "1.25 ms",
        "61 s",
        "expired",
        "17",
        "never",
        "0.25",
        " ? ",
        "0.5 s",
    ):
        assert shown in text, shown
    assert "dead" not in text, "a column that is all 0"


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_control_characters_of_bodies_and_a_pipe_gets_the_bytes() -> None:
    body = b"\x1b]0;owned\x07 caf\xc3\xa9 \xff"
    for out, line in (
        (Terminal(), b"\\x1b]0;owned\\x07 caf\xc3\xa9 \\xff\n"),
        (io.BytesIO(), body + b"\n"),
    ):
        consume.write_lines(out, [body])
        assert out.getvalue() == line


def test_errors_and_alarms_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["\x1b[31mstats"]) == 2
    assert "\x1b" not in capsys.readouterr().err
    output.say("trouble: \x1b[31m\u202e")
    assert capsys.readouterr().out == "trouble: \\x1b[31m\\u202e\n"


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        (
            "archve",
            (
                "zsq: channel 'archve' of topic 't' does not exist; creating it. Did you mean "
                "'archive'?\n"
            ),
        ),
        ("other", "zsq: channel 'other' of topic 't' does not exist; creating it\n"),
        ("archive", ""),
        ("archve#ephemeral", ""),
    ],
)
def test_sub_says_that_a_channel_is_new(
    channel: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    consume.note_new("t", channel, ["archive", "mail"])
    assert capsys.readouterr() == ("", said)
