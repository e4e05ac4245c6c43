"""Tests of where `zsq serve` takes its options from (file, environment, flag), of what it refuses,
and of what `zsq config` shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zsq.actors.settings.options import AlarmOptions
from zsq.apps.cli import app
from zsq.apps.cli.run.config_options import options_of
from zsq.apps.cli.run.option_table import RELOADABLE
from zsq.apps.cli.run.serve import ConfigReload, serve
from zsq.transport.errors import UsageError

SECRET = "s3cr3t-t0ken"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZSQ_DATA_DIR", "ZSQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def config(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = app.run(["config", "--json", *arguments])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert SECRET not in said.out + said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "zsq.toml"
    lines = (
        'data-dir = "there"',
        "node-id = 1",
        'log-level = "debug"',
        "[alarm]",
        "depth = 5",
        'age = "1h"',
        'command = "true"',
    )
    file.write_text("\n".join([*lines, "[nsq]", "msg-timeout = 90"]))
    monkeypatch.setenv("ZSQ_SERVE_NODE_ID", "2")
    monkeypatch.setenv("ZSQ_SERVE_ALARM_DEPTH", "6")
    monkeypatch.setenv("ZSQ_ALARM_WEBHOOK", "http://a/x http://b/y")
    found = config("--config", "zsq.toml", "--alarm-depth", "7", capsys=capsys)
    options = found["options"]
    assert found["config_file"] == "zsq.toml"
    assert options["alarm-depth"] == {"value": 7, "from": "flag"}
    assert options["node-id"] == {"value": 2, "from": "environment variable ZSQ_SERVE_NODE_ID"}
    assert options["alarm-webhook"] == {
        "value": ["http://a/...", "http://b/..."],
        "from": "environment variable ZSQ_ALARM_WEBHOOK",
    }
    assert options["log-level"] == {"value": "debug", "from": "file zsq.toml"}
    assert options["alarm-age"] == {"value": 3600, "from": "file zsq.toml"}
    assert options["alarm-command"] == {"value": ["true"], "from": "file zsq.toml"}
    assert options["nsq-msg-timeout"] == {"value": 90, "from": "file zsq.toml"}
    assert options["nsq-max-msg-timeout"] == {"value": 900, "from": "default"}
    # Relative to the file's folder.
    assert options["data-dir"] == {
        "value": str(tmp_path / "there"),
        "from": "file zsq.toml",
    }


def test_the_environment_names_the_file_and_the_older_names_still_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "zsq.toml").write_text("no-nsq = true")
    monkeypatch.setenv("ZSQ_CONFIG", str(tmp_path / "zsq.toml"))
    monkeypatch.setenv("ZSQ_DATA_DIR", "/d")
    monkeypatch.setenv("ZSQ_SERVE_NO_HTTP", "1")
    monkeypatch.setenv("ZSQ_SERVE_ALARM_COMMAND", "true a b\nfalse c")
    options = config(capsys=capsys)["options"]
    assert options["data-dir"] == {"value": "/d", "from": "environment variable ZSQ_DATA_DIR"}
    assert (
        options["no-nsq"]["value"],
        options["no-http"]["value"],
        options["no-listen"]["value"],
    ) == (True, True, False)
    assert options["alarm-command"]["value"] == ["true ...", "false ..."]


@pytest.mark.parametrize(
    ("arguments", "keeps"),
    [
        ([], 1 << 30),
        (["--keep-time", "7d"], None),
        (["--keep-chunks", "3"], None),
        (["--keep-time", "none"], 1 << 30),
        (["--keep-time", "7d", "--keep-bytes", "5MiB"], 5 << 20),
    ],
)
def test_the_default_of_bytes_is_the_one_in_force(
    arguments: list[str], keeps: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config(*arguments, capsys=capsys)["options"]["keep-bytes"]["value"] == keeps


def test_no_secret_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZSQ_ALARM_WEBHOOK_TOKEN", SECRET)
    arguments = ["--alarm-webhook", f"https://h/{SECRET}", "--alarm-command", f"true {SECRET}"]
    found = config(*arguments, capsys=capsys)["secrets"]
    assert found["ZSQ_ALARM_WEBHOOK_TOKEN"] == {
        "set": True,
        "from": "environment variable ZSQ_ALARM_WEBHOOK_TOKEN",
    }
    monkeypatch.delenv("ZSQ_ALARM_WEBHOOK_TOKEN")
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setenv("ZSQ_ALARM_WEBHOOK_TOKEN_FILE", str(tmp_path / "token"))
    found = config(*arguments, capsys=capsys)["secrets"]
    assert found["ZSQ_ALARM_WEBHOOK_TOKEN"] == {"set": True, "from": f"file {tmp_path}/token"}
    assert app.run(["config", *arguments]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert "set, not shown" in said.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nod-id = 1", "nod-id: no such option; did you mean node-id?"),
        ("node_id = 1", "node_id: no such option; use node-id"),
        ("[alarms]\ndepth = 1", "alarms: no such option"),
        ("[alarm]\ndeep = 1", "alarm-deep: no such option; did you mean alarm-depth?"),
        ("[nsq.tsl]\ncert = 1", "nsq-tsl: no such option"),
        ("alarm-depth = 1\n[alarm]\ndepth = 2", "alarm-depth: set twice"),
        ("config = 'x'", "config: no such option"),
        ("node-id = 2000", "a whole number from 0 to 1023"),
        ('node-id = "1"', "node-id: '1' is not allowed; use a whole number from 0 to 1023"),
        ("node-id = true", "node-id: True is not allowed"),
        ("node-id = 1.0", "node-id: 1.0 is not allowed"),
        ("no-http = 1", "no-http: 1 is not allowed; use true or false"),
        ("no-http = 'yes'", "use true or false"),
        ("stage-timeout = nan", "use a number of 1 or more"),
        ("alarm-hold = inf", "'inf' is not a time"),
        ("stage-timeout = inf", "use a number of 1 or more"),
        ("sync = 'often'", '"always", "bucket", "interval", "never"'),
        ("alarm-age = 'soon'", "'soon' is not a time"),
        ("alarm-age = 1979-05-27", "alarm-age: datetime.date(1979, 5, 27) is not allowed"),
        ("keep-bytes = ['1MB']", "keep-bytes: ['1MB'] is not allowed"),
        ("nsq-listen = ['a:1', 5]", "nsq-listen: 5 is not allowed"),
        ("nsq-tls-cert = 'none.pem'", "nsq-tls-cert"),
        (
            f"alarm-webhook-token = '{SECRET}'",
            "secrets are not allowed in this file; set the variable ZSQ_ALARM_WEBHOOK_TOKEN",
        ),
        ("= 1", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
        ("\udcff", "not TOML"),
        ("#" * (1 << 20) + "\n#", "larger than 1 MiB"),
    ],
)
def test_a_wrong_configuration_file_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "zsq.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert app.run(["config", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"zsq: E_BAD_ARGUMENT {path}: ")
    assert said in error
    assert SECRET not in error


def test_a_wrong_value_is_reported_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text("node_id = 1")
    assert (
        app.run(["serve", "--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "bad")])
        == 2
    )
    assert "node_id: no such option" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert app.run(["serve", "--config", str(tmp_path / "none")]) == 2
    assert (
        f"{tmp_path}/none: No such file or directory; check --config or ZSQ_CONFIG"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("ZSQ_SERVE_NODE_IDS", "1")
    assert app.run(["config"]) == 0
    assert (
        "ZSQ_SERVE_NODE_IDS is set, but zsq serve has no such option; did you mean "
        "ZSQ_SERVE_NODE_ID?"
    ) in capsys.readouterr().err
    monkeypatch.setenv("ZSQ_SERVE_NODE_ID", "many")
    assert app.run(["config"]) == 2
    assert "zsq: E_BAD_ARGUMENT ZSQ_SERVE_NODE_ID: 'many'" in capsys.readouterr().err


def test_reading_again_says_what_changed_and_what_needs_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "zsq.toml"
    path.write_text("node-id = 1\n[alarm]\ndepth = 1\n")
    environment = {"ZSQ_ALARM_WEBHOOK_TOKEN": SECRET, "ZSQ_SERVE_NODE_ID": "5"}
    with serve.make_context(
        "serve", ["--data-dir", "d", "--config", str(path), "--no-http", "--alarm-hold", "3s"]
    ) as context:
        again = ConfigReload(context, environment)
    path.write_text("node-id = 2\nlog-level = 'warning'\n[alarm]\ndepth = 2\nhold = '9s'\n")
    fresh = again.read()
    # The flag goes before the file's value.
    assert set(fresh.changed) == {
        "--log-level",
        "--alarm-depth",
    }
    assert fresh.restart == ("--node-id",)
    alarms = fresh.options.of(AlarmOptions)
    assert alarms is not None
    assert (fresh.options.log_level, alarms.depth, alarms.hold_s) == ("warning", 2, 3)
    assert alarms.webhook_token == SECRET
    path.write_text("node-id = 'x'")
    with pytest.raises(UsageError, match="node-id"):
        again.read()
    path.write_text("node-id = 2\n[alarm]\nwebhook = 'ftp://x'")
    with pytest.raises(UsageError, match="webhook"):
        again.read()
    path.write_text("listen = 'x'")
    with pytest.raises(UsageError, match="HOST:PORT"):
        again.read()
    path.write_text("node-id = 1\nlog-level = 'warning'\n[alarm]\ndepth = 2\n")
    fresh = again.read()
    assert (fresh.changed, fresh.restart) == ((), ())


def test_each_option_may_stand_in_each_place() -> None:
    for option in options_of(serve):
        assert f"ZSQ_SERVE_{str(option.name).upper()}" in (option.envvar or ()), option.name
    assert len(RELOADABLE) > 10
