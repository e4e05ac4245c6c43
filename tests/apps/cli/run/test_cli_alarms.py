"""Tests of the alarm options of `zsq serve` and of the command `zsq alarms`: options that cannot
work are refused at the start, and secrets are not shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from zsq.actors.settings.options import RECEIVERS_MAX, AlarmOptions, shown_url
from zsq.apps.cli.app import app, run
from zsq.apps.cli.inspect.alarms import describe_alarms
from zsq.apps.cli.run.broker_options import given_alarms, secret
from zsq.apps.cli.run.option_table import ROWS, TOKEN, GivenOptions, key
from zsq.apps.cli.run.serve import serve
from zsq.transport.errors import UsageError
from zsq.transport.reports import RaisedAlarm

pytestmark = pytest.mark.slow


def given(environment: dict[str, str] | None = None, **options: Any) -> AlarmOptions:
    return given_alarms(GivenOptions(**options), {} if environment is None else environment)


def test_without_alarm_options_there_are_no_receivers_and_no_bounds() -> None:
    assert given() == AlarmOptions()
    assert not given().tells
    assert (given().depth, given().age_s, given().hold_s) == (-1, -1, 10.0)


def test_every_alarm_option_is_taken_and_no_secret_shown() -> None:
    environment = {TOKEN: "t0ken", "OTHER": "stays"}
    found = given(
        environment, alarm_depth=5, alarm_age=60.0, alarm_hold=0.0, alarm_webhook=("https://x/y",),
        alarm_command=(f"{sys.executable} -c 'a b' $HOME",),
    )  # fmt: skip
    assert (found.depth, found.age_s, found.hold_s) == (5, 60.0, 0.0)
    assert found.commands == ((sys.executable, "-c", "a b", "$HOME"),), (
        "no shell: words as they are"
    )
    assert found.webhook_token == "t0ken"
    assert found.tells
    assert "t0ken" not in repr(found)
    assert environment == {"OTHER": "stays"}, "no child inherits them"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"alarm_webhook": ("ftp://x/y",)}, "the URL of a webhook must be http"),
        ({"alarm_webhook": ("x",)}, "the URL of a webhook must be http"),
        ({"alarm_webhook": ("http://",)}, "the URL of a webhook must be http"),
        ({"alarm_webhook": ("http://x:0/",)}, "the URL of a webhook must be http"),
        ({"alarm_webhook": ("http://x/a b",)}, "the URL of a webhook must be http"),
        ({"alarm_webhook": ("https://u:secret@x/y",)}, "must not contain a user or password"),
        ({"alarm_command": ("/nowhere/program",)}, "does not exist or is not executable"),
        ({"alarm_command": ("",)}, "does not exist or is not executable"),
        ({"alarm_command": ("'open",)}, "No closing quotation"),
        ({"alarm_hold": 1e9}, "hold time of alarms must be 0 to 86400 s"),
        ({"alarm_webhook": ("http://x/",) * (RECEIVERS_MAX + 1)}, "at most 16 receivers"),
    ],
)
def test_alarm_options_that_cannot_work_are_refused_at_the_start(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        given(**options)
    assert "secret" not in str(caught.value)


def test_a_secret_is_read_from_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t0ken\nmore\n")
    environment = {f"{TOKEN}_FILE": str(path)}
    assert secret(TOKEN, environment) == "t0ken"
    assert environment == {}
    assert secret(TOKEN, {}) == ""


@pytest.mark.parametrize(
    ("content", "environment", "why"),
    [
        (None, {}, "cannot be read"),
        (b"", {}, "is empty"),
        (b"\xff\xfe", {}, "cannot be read"),
        (b"a\x07b", {}, "may hold only printable ASCII characters"),
        (b"x", {TOKEN: "y"}, "unset one of them"),
    ],
)
def test_each_bad_secret_is_refused(
    tmp_path: Path, content: bytes | None, environment: dict[str, str], why: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        secret(TOKEN, environment | {f"{TOKEN}_FILE": str(path)})


def test_serve_refuses_wrong_options_before_it_creates_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--data-dir", str(tmp_path / "data"), "--alarm-webhook", "nonsense"]) == 2
    assert "the URL of a webhook must be http" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_webhook_is_shown_by_its_host() -> None:
    assert shown_url("https://hooks.example.org/services/T00/secret") == "https://hooks.example.org"
    assert shown_url("https://u:p@host:1/x") == "https://host:1"
    assert shown_url("https://host:1?token=secret") == "https://host:1"
    assert shown_url("https://host#secret") == "https://host"
    assert "secret" not in shown_url("secret-without-a-scheme")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_configuration_shows_no_secret(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, command = "https://hooks.example.org?token=s3cret", f"{sys.executable}\ts3cret"
    assert (
        run(
            [
                "config",
                *form,
                "--alarm-webhook",
                url,
                "--alarm-command",
                command,
                "--data-dir",
                "data",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "s3cret" not in shown
    assert "https://hooks.example.org/..." in shown


def test_a_command_of_alarms_needs_no_key_file_of_the_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The commands have `--key-file` and `--url` of their own."""
    monkeypatch.setenv("ZSQ_KEY_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("ZSQ_URL", "tcp://127.0.0.1")
    for command in ("ack", "unack"):
        result = CliRunner().invoke(app, ["alarms", command, "--help"])
        assert result.exit_code == 0
        assert f" alarms {command} [OPTIONS]" in result.output


def test_alarms_events_and_receivers_are_shown_one_a_line() -> None:
    raised: Any = {
        "topic": "t",
        "channel": "c",
        "kind": "depth",
        "value": 1_234,
        "threshold": 1_000,
        "raised_ns": 10**18,
        "text": "t/c: depth 1,234 (alarm above 1,000)",
    }
    age = raised | {"kind": "age_s", "text": "t/c: oldest message 90 s old (alarm above 60 s)"}
    event: Any = {"time_ns": 10**18, "text": "raised: t/c: depth 1,234 (alarm above 1,000)"}
    receiver: Any = {
        "name": "command tee",
        "sent_count": 3,
        "waiting": 2,
        "failed_count": 1,
        "trouble": "ended with exit code 1",
    }
    lines = describe_alarms(
        {"raised": [raised, age], "recent": [event], "receivers": [receiver]}
    ).splitlines()
    assert lines[0].endswith("t/c: depth 1,234 (alarm above 1,000)")
    assert lines[1].endswith("t/c: oldest message 90 s old (alarm above 60 s)")
    assert lines[4].endswith("raised: t/c: depth 1,234 (alarm above 1,000)")
    assert (
        lines[-1]
        == "command tee: sent 3, 2 waiting, 1 given up; last error: ended with exit code 1"
    )
    assert describe_alarms({"raised": [], "recent": [], "receivers": []}) == "no alarm is raised"


def test_an_alarm_about_a_full_disk_is_shown_with_its_own_text() -> None:
    row: RaisedAlarm = {
        "topic": "",
        "channel": "",
        "kind": "free_bytes",
        "value": 1,
        "threshold": 2,
        "raised_ns": 0,
        "text": "the disk is full: /data",
    }
    assert "the disk is full: /data" in describe_alarms(
        {"raised": [row], "recent": [], "receivers": []}
    )


def test_every_option_is_in_the_help() -> None:
    text = CliRunner().invoke(serve, ["--help"]).output
    assert all(f"--{key(name)}" in text for name in ROWS)
