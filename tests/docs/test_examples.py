"""Tests that this version understands the files in docs/examples."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from zsq.actors.statistics.schema import METRICS
from zsq.apps.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def understood(words: list[str]) -> click.Context:
    """Parse a command line of `zsq` with click, without running it. An unknown command or option
    raises an error.
    """
    command = app.get_command(click.Context(app), words[0])
    assert command is not None, words[0]
    return command.make_context(words[0], words[1:])


def unit(name: str = "zsq.service") -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(EXAMPLES / name)
    return found


def test_the_unit_starts_what_there_is() -> None:
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].endswith("/bin/zsq")
    given = understood(words[1:]).params
    assert str(given["data_dir"]).startswith(f"/var/lib/{service['StateDirectory']}/")
    assert given["log_format"] == "json"
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert int(service["WatchdogSec"]) >= 10


def test_the_unit_of_a_mirror_forwards() -> None:
    service = unit("zsq-forward.service")["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].endswith("/bin/zsq")
    assert understood(words[1:]).params["source"] == "clicks/mirror"
    assert service["Restart"] == "on-failure"


@pytest.mark.parametrize("name", ["zsq.service", "zsq-forward.service", "zsq-consumer.service"])
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd on this machine")
    text = re.sub(r"/opt/\w+/bin/\w+", sys.executable, (EXAMPLES / name).read_text())
    (tmp_path / name).write_text(text)
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in (ended.stdout + ended.stderr).splitlines() if name in line]
    assert said == []


def instructions() -> list[tuple[str, str]]:
    """Return the keyword and text of each instruction, with continued lines joined."""
    text = re.sub(
        r"\\\n\s*",
        "",
        re.sub(r"^#.*\n", "", (EXAMPLES / "Containerfile").read_text(), flags=re.MULTILINE),
    )
    return [
        (line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line.strip()
    ]


def test_the_container_starts_what_there_is() -> None:
    found = dict(instructions())
    command = json.loads(found["CMD"])
    environment = dict(word.split("=", 1) for word in shlex.split(found["ENV"]))
    given = understood([*command, "--data-dir", environment["ZSQ_DATA_DIR"]]).params
    listens = [given["listen"], given["listen_push"], *given["nsq_listen"], given["http_listen"]]
    assert sorted(place.rpartition(":")[2] for place in listens) == sorted(found["EXPOSE"].split())
    assert json.loads(found["ENTRYPOINT"]) == ["zsq"]
    assert "http://127.0.0.1:4151/health" in found["HEALTHCHECK"]
    assert found["VOLUME"] == environment["ZSQ_DATA_DIR"]


def test_the_container_has_all_that_the_wheel_is_made_of() -> None:
    copied = {
        name
        for word, text in instructions()
        if word == "COPY"
        for name in text.split()[:-1]
        if not name.startswith("-")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {
        name.removeprefix("zsq.").split(".")[0]
        for name in project["tool"]["setuptools"]["packages"]
        if name != "zsq"
    }
    files = {"__init__.py", "__main__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE"}
    assert copied - {"/wheels"} == folders | files
    extras = re.findall(r"\[([\w,]+)\]'", (EXAMPLES / "Containerfile").read_text())
    assert {extra for text in extras for extra in text.split(",")} <= set(
        project["project"]["optional-dependencies"]
    )


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((EXAMPLES / "prometheus-alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_alerts_use_metrics_that_exist_with_their_labels() -> None:
    families = {one.metric: one for one in METRICS}
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        names = re.findall(r"\bzsq_\w+", rule["expr"])
        assert names
        assert set(names) <= set(families), rule["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - {"instance"}
        assert all(labels <= set(families[name].labels) for name in names), rule["alert"]
        assert all(
            families[name].kind == "counter"
            for name in re.findall(r"increase\((\w+)", rule["expr"])
        ), rule["alert"]


def test_the_alerts_that_the_docs_name_exist() -> None:
    assert {"ZsqAlarms", "ZsqBacklog", "ZsqBacklogOld"} <= {rule["alert"] for rule in rules()}
    routes = yaml.safe_load((EXAMPLES / "alertmanager.yml").read_text())
    assert routes["route"]["receiver"] in {receiver["name"] for receiver in routes["receivers"]}
    assert routes["receivers"][0]["email_configs"][0]["auth_password_file"], (
        "no password stands in the example"
    )
