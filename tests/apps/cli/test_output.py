"""Tests of what all commands have in common: JSON for programs, bars and colours only in terminals,
and completion with the TAB key.
"""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from zsq.apps.cli import app, completion, options
from zsq.apps.cli.output import tell, tell_line
from zsq.apps.cli.progress import bar
from zsq.storage.files import Files
from zsq.transport.errors import NotFound

# These commands answer with an exit code and print text only if something differs from what was
# asked, or they run until they are stopped.
SHOW_NOTHING = {
    "serve", "standby", "handover", "forward",
    "completion", "topic create", "topic add-parts", "topic move-part", "topic remove-part", "topic close", "topic open",
    "topic retire",
    "topic delete", "topic pause", "topic unpause", "topic empty", "channel create",
    "channel delete", "channel pause", "channel unpause", "channel empty",
    "schedule remove", "schedule pause", "schedule resume", "schedule run", "channel disconnect", "alarms ack", "alarms unack",
}  # fmt: skip
# These commands may lack JSON output.
NOT_YET = {"keys server", "keys client", "keys token", "top"}


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for one in command.list_commands(context):
        found = command.get_command(context, one)
        assert found is not None
        yield from leaves(found, f"{name} {one}".strip())


def test_each_command_that_shows_something_does_so_in_json() -> None:
    without = {
        name
        for name, command in leaves(app.app)
        if not any(param.name == "as_json" for param in command.params)
    }
    assert without - NOT_YET == SHOW_NOTHING


def test_each_command_says_what_it_does_and_each_option_too() -> None:
    for name, command in leaves(app.app):
        assert command.get_short_help_str(), name
        for param in command.params:
            assert not isinstance(param, click.Option) or param.help or param.name == "help", (
                name,
                param.name,
            )


def test_answers_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"a": Path("b")})
    tell_line({"a": 1})
    assert capsys.readouterr().out == '{\n  "a": "b"\n}\n{"a": 1}\n'


PROGRAM = """
import sys
from zsq.apps.cli.progress import bar
with bar("working", 4000, unit=sys.argv[1]) as advance:
    advance(1000)
    print("an answer")
    advance(2000)
"""


def drawn(unit: str, **environment: str) -> tuple[str, str]:
    """Run the program. Return its stdout, and what it wrote to the terminal on its stderr."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm"} | environment
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, unit],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=environ,
    ) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=20)
    seen = b""
    while True:
        try:
            found = os.read(ours, 1 << 16)
        except OSError:  # the other end was closed
            break
        seen += found
    os.close(ours)
    return out, seen.decode()


def test_a_bar_is_drawn_on_a_terminal_and_leaves_the_answer_alone() -> None:
    out, seen = drawn("bytes")
    assert out == "an answer\n"
    assert "working" in seen
    assert "\x1b[3" in seen  # it has colours
    assert "answer" not in seen
    assert seen.endswith("\x1b[2K")  # it is erased when the work is done


def test_no_colour_is_used_when_unwanted_and_no_bar_on_dumb_terminals() -> None:
    out, seen = drawn("messages", NO_COLOR="1")
    assert "of 4,000 messages" in seen
    assert "\x1b[3" not in seen
    assert drawn("bytes", TERM="dumb") == (out, "")


def test_no_bar_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("working", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_work_on_files_is_counted(tmp_path: Path) -> None:
    from zsq.apps.cli.files.counted_files import CountedFiles
    from zsq.apps.cli.progress import bytes_below

    read: list[int] = []
    written: list[int] = []
    files: Files = CountedFiles(read=read.append, written=written.append)
    fd = files.open_new(str(tmp_path / "a.chunk"))
    files.writev(fd, [b"abc", b"de"], 0)
    assert files.pread(fd, 10, 1) == b"bcde"
    files.close(fd)
    assert (
        read,
        written,
        bytes_below(tmp_path, "*.chunk"),
        bytes_below(tmp_path / "none", "*"),
    ) == ([4], [5], 5, 0)


def words(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the words that the TAB key offers after `line`."""
    monkeypatch.setenv(completion.VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    with pytest.raises(SystemExit):
        app.run([])
    return [one.partition(",")[2] for one in capsys.readouterr().out.split()]


def test_a_tab_offers_commands_options_topics_and_channels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def known(url: object) -> dict[str, list[str]]:
        asked.append(str(url))
        return {"clicks": ["archive", "audit"], "orders": []}

    monkeypatch.setattr(completion, "known_names", known)
    for line, offered in (
        ("zsq topi", ["topic"]),
        ("zsq topic sh", ["show"]),
        ("zsq serve --no-l", ["--no-listen"]),
        ("zsq serve --sync i", ["interval"]),
        ("zsq topic show ", ["clicks", "orders"]),
        ("zsq sub clicks a", ["archive", "audit"]),
        ("zsq --url ipc:///d/run channel set clicks au", ["audit"]),
        ("zsq redrive --to o", ["orders"]),
        ("zsq seek orders ", []),
    ):
        assert words(line, monkeypatch, capsys) == offered, line
    assert set(asked) == {"tcp://127.0.0.1:4153", "ipc:///d/run"}


def test_a_tab_without_a_broker_offers_nothing_and_says_nothing() -> None:
    assert completion.known_names("tcp://127.0.0.1:1") == completion.known_names("nonsense") == {}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["completion", shell]) == 0
    assert f"_ZSQ_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_slips_of_the_pen_are_told_with_what_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (
            ["serve"],
            "Give --data-dir DIR, set ZSQ_DATA_DIR, or set data-dir in the file of --config.",
        ),
        (
            ["serve", "--data-dir", str(tmp_path), "--stage-timeout", "nan"],
            "'nan' is not a number of at least 1",
        ),
        (["stats", "--timeout", "x"], "'x' is not a number from 0.05 to 3600"),
        (["stats", "--timeout", "nan"], "'nan' is not a number from 0.05 to 3600"),
    ):
        assert app.run(arguments) == 2
        assert said in capsys.readouterr().err, arguments


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("supervisor", ["stats"]),
        ("topic t", ["pub", "t", "body"]),
        ("supervisor", ["sub", "t", "c"]),
    ],
)
def test_a_user_who_waits_for_a_broker_is_told_why_once(
    what: str, command: list[str], capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        assert app.run([*command, "--url", url, "--timeout", "1.5"]) == 3
    (line,) = caplog.messages
    assert line == f"{what}: no broker at {url} for 1 s (nothing listens); waiting for it"
    (error,) = capfd.readouterr().err.splitlines()
    assert error.startswith("zsq: E_TIMEOUT")
    assert error.count("Check that `zsq serve` runs") == 1


def test_work_in_many_steps_draws_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    now = [0.0]
    monkeypatch.setattr("zsq.apps.cli.progress.shown", lambda: True)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "rich.progress.Progress.advance", lambda self, task, amount: told.append(amount)
    )
    with bar("working", 1_000, unit="messages") as advance:
        for _ in range(1_000):
            now[0] += 0.001
            advance(1)
    assert 4 <= len(told) <= 5
    assert sum(told) >= 800


def test_a_missing_name_stays_an_error_if_the_broker_does_not_list_its_names() -> None:
    @click.command()
    @click.argument("topic")
    @options.with_broker
    def look(topic: str, url: str, timeout: float) -> None:
        raise NotFound("E_NOT_FOUND", f"topic {topic!r} does not exist")

    with pytest.raises(NotFound, match=r"E_NOT_FOUND topic 'x' does not exist$"):
        look.main(["x", "--url", "tcp://127.0.0.1:1"], standalone_mode=False)
