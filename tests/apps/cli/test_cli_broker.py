"""Tests of the command line with a real broker: what is published is received once, and each kind
of failure has its exit code.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.zsq_command import run

import zsq
from local_setup.broker import LocalBroker, temporary_broker

pytestmark = pytest.mark.slow

LINES = b"".join(b"line %d\n" % number for number in range(5_000))


class Shell:
    """A shell that runs `zsq` with a broker's URL."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.environment = os.environ | {"ZSQ_URL": broker.url}

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> bytes:
        ended = run(*arguments, stdin=stdin, ZSQ_URL=self.broker.url)
        assert ended.returncode == code, ended.stderr.decode()
        return ended.stdout if code == 0 else ended.stderr

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "zsq", *arguments]

    def open(self, *arguments: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.line(*arguments), env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        found = json.loads(self("stats", topic, channel, "--json"))
        return dict(found["topics"][0]["channels"][0])


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as broker:
        yield Shell(broker)


def test_published_lines_come_out_of_sub_and_tail(shell: Shell, tmp_path: Path) -> None:
    shell("channel", "create", "all", "archive")
    source = tmp_path / "lines"
    source.write_bytes(LINES)
    shell("pub", "all", "--file", str(source), "--batch", "300")
    assert shell("sub", "all", "archive", "-n", "2") == b"line 0\nline 1\n"
    assert shell("sub", "all", "archive", "-n", "4998") == LINES.removeprefix(b"line 0\nline 1\n")
    assert shell.channel("all", "archive")["depth"] == 0
    assert shell("tail", "all", "--no-follow") == LINES
    assert shell("tail", "all", "--from", "4998", "-n", "1") == b"line 4998\n"
    assert b"archive" in shell("stats")
    assert b"archive" in shell("stats", "all", "archive")


def test_a_closed_pipe_gives_back_what_was_not_written(shell: Shell) -> None:
    shell("pub", "pipe", stdin=LINES)
    with shell.open("sub", "pipe", "archive") as sub:
        assert sub.stdout is not None
        # With a larger pipe, all lines might fit into it if this process is slow.
        fcntl.fcntl(sub.stdout, fcntl.F_SETPIPE_SZ, 4096)
        sub.stdout.readline()
        sub.stdout.close()
        assert sub.wait(30) == 0
        assert sub.stderr is not None
        assert (
            sub.stderr.read()
            == b"zsq: channel 'archive' of topic 'pipe' does not exist; creating it\n"
        )
    got = shell("sub", "pipe", "archive", "-n", str(shell.channel("pipe", "archive")["depth"]))
    # Messages that were given back wait for a commit, so new ones may overtake them.
    lines = set(got.splitlines(keepends=True))
    assert len(lines) == got.count(b"\n")
    assert lines <= set(LINES.splitlines(keepends=True))
    assert b"line 4999\n" in lines
    assert lines == set(LINES.splitlines(keepends=True)[-len(lines) :]), (
        "all that was not written, delivered to the closed pipe or not"
    )
    assert shell.channel("pipe", "archive")["in_flight_count"] == 0


def test_one_message_is_published_with_key_and_headers(shell: Shell) -> None:
    shell("pub", "single", "hello", "--key", "k", "--header", "a=1", "--header", "b=x=y")
    found = json.loads(shell("tail", "single", "--no-follow", "--json"))
    assert (found["body"], found["key"], found["headers"]) == ("hello", "k", {"a": "1", "b": "x=y"})
    assert b"not NAME=VALUE" in shell("pub", "single", "hello", "--header", "nothing", code=2)
    assert b"give one of them" in shell("pub", "single", "hello", "--file", "/dev/null", code=2)


def test_json_lines_of_tail_can_be_published_again(shell: Shell) -> None:
    bodies = [
        b"plain",
        b"\xff\x00\x9b binary \n lines",
        "caf\u00e9 \U0001f600".encode(),
        b"",
        b'{"json": "inside"}',
    ]
    headers: list[Any] = [
        {"text": "x", "bytes": b"\xff\x01", "number": 7, "flag": True, "none": None},
        None,
        None,
        {"a": b"plain"},
        None,
    ]
    with zsq.Producer(shell.broker.url) as producer:
        producer.publish_many(
            "copied",
            bodies,
            keys=["k", b"\xfe", None, None, "k"],
            tags=["t", None, None, None, "u"],
            headers=headers,
        )
    lines = shell("tail", "copied", "--no-follow", "--json")
    shell("pub", "copy", "--json-lines", stdin=lines)
    shell("pub", "copy", "--json-lines", "--tag", "usual", "--header", "number=8", stdin=lines)
    with (
        zsq.Reader("copied", url=shell.broker.url) as reader,
        zsq.Reader("copy", url=shell.broker.url) as copy,
    ):
        for offset in range(len(bodies)):
            one, other, third = (
                reader.message(offset),
                copy.message(offset),
                copy.message(len(bodies) + offset),
            )
            assert (one.body, one.key, one.tag) == (other.body, other.key, other.tag)
            assert {
                name: bytes(value) if isinstance(value, bytes) else value
                for name, value in one.headers.items()
            } == other.headers
            assert (third.body, third.tag) == (one.body, one.tag or "usual"), (
                "an option fills what the line does not say"
            )
            assert third.headers == {"number": "8"} | one.headers
    assert shell("tail", "copy", "--no-follow", "-n", "5") == shell("tail", "copied", "--no-follow")
    got = shell("sub", "copied", "again", "-n", "5", "--json")
    shell("pub", "copy3", "--json-lines", stdin=got)
    assert shell("tail", "copy3", "--no-follow") == shell("tail", "copied", "--no-follow")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", b"line 2 is not a message as zsq tail --json writes it: "), (b"[]", b"it is not a JSON object"),
        (b"{}", b"body or body_base64 is missing"),
        (b'{"body": 1}', b"body must be a string"), (b'{"body": "a", "body_base64": "YQ=="}', b"give one of them"),
        (b'{"body_base64": "?"}', b"line 2"), (b'{"body": "a", "tags": "b"}', b"unknown field 'tags'"),
        (b'{"body": "a", "headers": []}', b"objects"),
        (b'{"body": "\\ud800"}', b"line 2"), (b'{"body": ' + b"[" * 100_000, b"line 2"),
        (b'{"body": "a", "tag": 1}', b"tag, only_channel and dedupe_id must be strings"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_message(shell: Shell, line: bytes, why: bytes) -> None:
    said = shell("pub", "wrong", "--json-lines", stdin=b'{"body": "good"}\n' + line + b"\n", code=2)
    assert said.startswith(b"1 message stored in wrong"), "what stands before it is stored"
    assert why in said


def test_tail_shows_what_has_a_pattern(shell: Shell) -> None:
    shell("pub", "searched", stdin=LINES)
    assert (
        shell("tail", "searched", "--no-follow", "--grep", "^line [12]99$")
        == b"line 199\nline 299\n"
    )
    assert (
        shell("tail", "searched", "--no-follow", "--grep", "(?i)LINE 4", "-n", "3", "--from", "3")
        == b"line 4\nline 40\nline 41\n"
    )
    assert (
        json.loads(shell("tail", "searched", "--no-follow", "--grep", "4999", "--json"))["offset"]
        == 4999
    )
    assert shell("tail", "searched", "--no-follow", "--grep", "nothing") == b""
    assert b"is not a regular expression" in shell("tail", "searched", "--grep", "(", code=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sub_with_everything_finished(shell: Shell, number: signal.Signals) -> None:
    topic = f"drain-{number.name}"
    shell("pub", topic, stdin=LINES)
    with shell.open("sub", topic, "archive") as sub:
        assert sub.stdout is not None
        seen = b""
        while not seen.endswith(b"line 4999\n"):
            assert select.select([sub.stdout], [], [], 30)[0]
            seen += os.read(sub.stdout.fileno(), 1 << 20)
        sub.send_signal(number)
        sub.send_signal(number)  # `timeout` sends it to the process and to its group
        assert sub.wait(30) == 0
    assert seen == LINES
    channel = shell.channel(topic, "archive")
    assert (channel["depth"], channel["in_flight_count"], channel["finish_count"]) == (0, 0, 5000)


def test_lines_typed_slowly_are_stored_at_once(shell: Shell) -> None:
    shell("channel", "create", "slow", "archive")
    with shell.open("pub", "slow") as pub, shell.open("sub", "slow", "archive") as sub:
        assert pub.stdin is not None
        assert sub.stdout is not None
        for line in (b"one\n", b"two\n"):
            pub.stdin.write(line)
            pub.stdin.flush()
            assert select.select([sub.stdout], [], [], 30)[0]
            assert sub.stdout.readline() == line  # the publisher is still running
        sub.terminate()
        _, said = pub.communicate(timeout=30)
        assert said.startswith(b"2 messages stored in slow")
        assert pub.returncode == 0


def test_topics_and_channels_are_managed_by_command(shell: Shell) -> None:
    shell("topic", "create", "made", "--sync", "interval")
    shell("topic", "create", "made")  # creating it once more is no error
    shell("channel", "create", "made", "archive")
    shell("channel", "pause", "made", "archive")
    shell("pub", "made", stdin=b"one\ntwo\n")
    assert shell.channel("made", "archive")["paused"] is True
    assert shell("topic", "delete", "made", code=1).startswith(b"zsq: E_")
    assert b"would clear 2 unfinished messages of made/archive. Use --yes" in shell(
        "channel", "empty", "made", "archive", code=2
    )
    assert shell.channel("made", "archive")["depth"] == 2
    assert (
        shell("channel", "empty", "made", "archive", "--yes")
        == b"cleared 2 messages of made/archive\n"
    )
    assert shell.channel("made", "archive")["depth"] == 0
    shell("channel", "unpause", "made", "archive")
    shell("topic", "pause", "made")
    shell("topic", "unpause", "made")
    assert shell("channel", "delete", "made", "archive") == b"deleted channel made/archive\n"
    asked = shell("topic", "delete", "made", code=2)
    assert b"would delete topic made with 2 messages" in asked, "they can still be read again"
    assert b"They cannot be read again. Use --yes" in asked
    assert shell("topic", "delete", "made", "--yes") == b"deleted topic made with 2 messages\n"
    assert b"made" not in shell("stats")
    assert shell("stats", "made", code=1).startswith(b"zsq: E_NOT_FOUND")


def test_each_failure_has_its_code(shell: Shell, tmp_path: Path) -> None:
    assert shell("pub", "bad name", code=2).startswith(b"zsq: E_BAD_NAME")
    # The output does not begin with a count of 0 messages.
    assert shell("pub", "big", stdin=b"a" * (2 << 20), code=2).startswith(b"zsq: E_TOO_BIG")
    nobody = shell("stats", "--url", f"ipc://{tmp_path}/run", "--timeout", "0.3", code=3)
    assert nobody.startswith((b"zsq: E_UNREACHABLE", b"zsq: E_TIMEOUT"))
    assert shell("tail", "nowhere", "--no-follow", code=1).startswith(b"zsq: E_NOT_FOUND")


def test_serve_says_why_it_cannot_start(shell: Shell, tmp_path: Path) -> None:
    second = shell("serve", "--no-listen", "--data-dir", str(shell.broker.data_dir), code=1)
    assert str(shell.broker.process.pid).encode() in second
    assert b"does not exist; create it (mkdir -p)" in shell(
        "serve", "--no-listen", "--data-dir", str(tmp_path / "none/data"), code=1
    )


def test_lines_before_one_that_is_too_long_are_stored_and_counted(shell: Shell) -> None:
    said = shell("pub", "long", stdin=b"one\n" + b"x" * (1 << 20) + b"x\nafter\n", code=2)
    assert b"1 message stored" in said
    assert b"E_TOO_BIG" in said
    assert shell("tail", "long", "--no-follow") == b"one\n"


def test_tail_into_a_closed_pipe_is_done(shell: Shell) -> None:
    shell("pub", "closed", stdin=LINES)
    with shell.open("tail", "closed", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stdin is not None
        tail.stdout.close()
        assert tail.wait(30) == 0


@pytest.mark.parametrize("arguments", [("sub", "topic", "channel"), ("tail", "topic")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_at_once_what_waits_for_a_broker(
    shell: Shell, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    with shell.open("--url", "ipc:///nowhere/run", *arguments) as waiting:
        catches = 0
        # Wait until the command has installed its signal handlers.
        while not catches >> (number - 1) & 1:
            status = Path(f"/proc/{waiting.pid}/status").read_text()
            catches = int(
                next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1],
                16,
            )
            if number == signal.SIGINT and not catches >> (signal.SIGTERM - 1) & 1:
                catches = 0  # this handler is Python's own
        waiting.send_signal(number)
        assert waiting.wait(5) == 0


def test_a_topic_that_is_there_says_what_was_not_changed(shell: Shell) -> None:
    shell("topic", "create", "there", "--sync", "never")
    with shell.open("topic", "create", "there") as again:
        assert (
            again.communicate(timeout=30)[1]
            == b"zsq: topic 'there' exists already with --sync never; this was not changed\n"
        )
    assert again.returncode == 0


def test_pub_without_standard_input_publishes_nothing(shell: Shell) -> None:
    line = " ".join(shell.line("pub", "closed-input")) + " <&-"
    ended = subprocess.run(
        ["sh", "-c", line], env=shell.environment, capture_output=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stderr[:17]) == (0, b"0 messages stored")


@pytest.fixture(scope="module")
def strict() -> Iterator[Shell]:
    """Return a shell of a broker that creates nothing by itself, with one topic and channel."""
    with temporary_broker("--no-listen", "--auto-create", "never", prefix="zsq-test-") as broker:
        shell = Shell(broker)
        shell("channel", "create", "clicks", "archive")
        yield shell


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("stats clikcs", "clicks"),
        ("stats clicks archve", "archive"),
        ("stats --chunks clikcs", "clicks"),
        ("pub clikcs hello", "clicks"),
        ("sub clikcs archive", "clicks"),
        ("sub clicks archve", "archive"),
        ("tail clikcs", "clicks"),
        ("peek clikcs", "clicks"),
        ("peek clicks archve", "archive"),
        ("message clikcs 0", "clicks"),
        ("seek clicks archve earliest", "archive"),
        ("redrive clikcs --all", "clicks"),
        ("delayed list clikcs", "clicks"),
        ("delayed count clikcs", "clicks"),
        ("delayed cancel clikcs --all", "clicks"),
        ("topic show clikcs", "clicks"),
        ("topic set clikcs --max-age 1h", "clicks"),
        ("topic pause clikcs", "clicks"),
        ("topic unpause clikcs", "clicks"),
        ("topic empty clikcs", "clicks"),
        ("topic close clikcs", "clicks"),
        ("topic retire clikcs", "clicks"),
        ("topic delete clikcs --yes", "clicks"),
        ("channel list clikcs", "clicks"),
        ("channel show clicks archve", "archive"),
        ("channel show clikcs archve", "clicks"),
        ("channel set clicks archve --max-attempts 3", "archive"),
        ("channel pause clicks archve", "archive"),
        ("channel delete clicks archve", "archive"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_name_that_was_meant(
    strict: Shell, line: str, meant: str
) -> None:
    said = strict(*line.split(), code=1).decode().splitlines()[-1]
    assert said.startswith("zsq: E_NOT_FOUND "), said
    assert said.endswith(f". Did you mean '{meant}'?"), said


def test_an_error_about_something_else_suggests_no_name(strict: Shell) -> None:
    assert b"Did you mean" not in strict("message", "clicks", "77", code=1)
    assert b"Did you mean" not in strict("topic", "show", "quite-different", code=1)


def test_sub_says_that_the_channel_or_the_topic_is_paused(shell: Shell) -> None:
    shell("channel", "create", "held", "archive")
    for order, said in (
        (("topic", "pause", "held"), "zsq topic unpause held continues it"),
        (("channel", "pause", "held", "archive"), "zsq channel unpause held archive continues it"),
    ):
        shell(*order)
        with shell.open("sub", "held", "archive", "-n", "1") as sub:
            assert sub.stderr is not None
            assert sub.stderr.readline().decode().endswith(f"{said}\n")
            shell(order[0], "unpause", *order[2:])
            shell("pub", "held", "hello")
            assert sub.communicate(timeout=30) == (b"hello\n", b"")
            assert sub.returncode == 0
    with shell.open("sub", "held", "archive", "--idle", "2") as sub:
        assert sub.communicate(timeout=30) == (b"", b""), "nothing is paused"


def test_show_and_peek_say_that_the_topic_is_paused(shell: Shell) -> None:
    lines = ("channel show slow c", "topic show slow", "peek slow c", "peek slow")
    shell("channel", "create", "slow", "c")

    def said(line: str) -> str:
        ended = run(*line.split(), ZSQ_URL=shell.broker.url)
        assert ended.returncode == 0
        return (ended.stdout + ended.stderr).decode()

    assert not any("paused" in said(line) for line in lines)
    shell("topic", "pause", "slow")
    assert ["topic paused" in said(line) for line in lines] == [True, False, True, False]
    assert all(", paused" in said(line) for line in lines[1::2])
    assert json.loads(shell("channel", "show", "slow", "c", "--json"))["topic_paused"] is True
    shell("channel", "pause", "slow", "c")
    assert all(", paused, topic paused" in said(line) for line in lines[::2])


def test_pub_prints_the_offset_of_a_single_message_as_json(shell: Shell) -> None:
    def published(*arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            shell("pub", "counted", *arguments, "--json", stdin=stdin)
        )
        assert found.pop("seconds") >= 0
        return found

    one = {"topic": "counted", "messages": 1}
    assert published("hello") == one | {"offset": 0}
    assert published(stdin=b"line\n") == one | {"offset": 1}
    assert published(stdin=b"a\nb\n") == {"topic": "counted", "messages": 2}
    assert published(stdin=b"") == {"topic": "counted", "messages": 0}
    key = published("later", "--delay", "1h")["delayed_key"]
    assert shell("delayed", "cancel", "counted", key) == b"1 cancelled\n"


def test_stats_of_one_topic_fit_on_a_small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with temporary_broker("--no-listen", prefix="zsq-test-") as broker:
        shell = Shell(broker)
        for channel in ("archive", "billing"):
            shell("channel", "create", "clicks", channel)
        shell("pub", "clicks", "hello")
        with zsq.Consumer("clicks", "archive", url=broker.url) as consumer:
            message = consumer.receive(20)
            assert message is not None
            lines = shell("stats", "clicks").decode().splitlines()
            message.finish()
    assert len(lines) < 24, "with the prompt"
    assert max(map(len, lines)) <= 80
    assert "topic clicks: OK, sync always" in lines
    assert not [line for line in lines if "of 2)" in line], "no table is split"
    heads = [line.split("  ") for line in lines if line.startswith(("channel ", "consumer "))]
    assert len(heads) == 3
    assert all(len(names) == len(set(filter(None, names))) for names in map(_stripped, heads))


def _stripped(names: list[str]) -> list[str]:
    return [name.strip() for name in names if name.strip()]


def test_stats_of_a_new_broker_have_no_empty_tables() -> None:
    with temporary_broker("--no-listen", prefix="zsq-test-") as broker:
        shell = Shell(broker)
        said = shell("stats").decode()
        assert "There are no topics to show." in said
        assert "in flight" not in said
        assert json.loads(shell("stats", "--json"))["topics"] == []
        shell("pub", "alone", "hello")
        assert "Topic alone has no channels." in shell("stats", "alone").decode()


def test_a_key_and_a_tag_may_be_any_bytes(shell: Shell) -> None:
    line = [
        *map(os.fsencode, shell.line("pub", "bytes", "x")),
        b"--key",
        b"\xff",
        b"--tag",
        b"\xfe",
    ]
    subprocess.run(line, env=shell.environment, check=True, capture_output=True)
    found = json.loads(shell("tail", "bytes", "--no-follow", "--json"))
    assert (found["key_base64"], found["tag"]) == ("/w==", "\ufffd")


def test_messages_may_end_in_null_bytes(shell: Shell) -> None:
    shell("pub", "nulls", "-0", stdin=b"a\nb\0c\0\0d")
    lines = shell("tail", "nulls", "--no-follow", "--json").splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["a\nb", "c", "", "d"]
    assert b"give one of them" in shell("pub", "nulls", "x", "-0", code=2)
    assert b"give one of them" in shell("pub", "nulls", "-0", "--json-lines", code=2)


def test_headers_of_a_line_must_be_values_that_a_message_can_have(shell: Shell) -> None:
    line = b'{"body": "a", "headers": {"x": [1]}}\n'
    said = shell("pub", "lists", "--json-lines", stdin=line, code=2).decode()
    assert "header 'x' must be text, bytes, a number, a boolean or None, not list" in said


@pytest.mark.parametrize(
    "line", ["tail closed --no-follow", "sub closed c -n 1", "stats", "--help"]
)
def test_a_command_whose_output_is_closed_says_so_in_a_line(shell: Shell, line: str) -> None:
    shell("channel", "create", "closed", "c")
    shell("pub", "closed", "kept")
    script = f"exec {sys.executable} -P -m zsq {line} >&-"
    ended = subprocess.run(
        ["sh", "-c", script], env=shell.environment, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "zsq: EBADF Bad file descriptor\n")


def test_a_data_directory_whose_name_is_no_text_is_refused_in_a_line(
    shell: Shell, tmp_path: Path
) -> None:
    line = [*map(os.fsencode, shell.line("serve", "--data-dir")), os.fsencode(tmp_path) + b"/\xff"]
    ended = subprocess.run(line, env=shell.environment, capture_output=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"zsq: E_BAD_ARGUMENT --data-dir must be UTF-8, not ")
    assert ended.stderr.count(b"\n") == 1
