"""Tests that the compose file, the workflow and the issue templates follow the schemas of the
programs that read them.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from .test_examples import instructions, understood
from .walking import ROOT

COMPOSE: Final = ROOT / "docs" / "examples" / "compose.yaml"
CONSUMER: Final = ROOT / "docs" / "examples" / "compose-consumer.yaml"
PAIR: Final = ROOT / "docs" / "examples" / "compose-standby.yaml"
SCHEMAS: Final = {
    COMPOSE: "vendor.compose-spec",
    CONSUMER: "vendor.compose-spec",
    PAIR: "vendor.compose-spec",
    ROOT / ".github/workflows/ci.yml": "vendor.github-workflows",
    ROOT / ".github/ISSUE_TEMPLATE/bug.yml": "vendor.github-issue-forms",
    ROOT / ".github/ISSUE_TEMPLATE/feature.yml": "vendor.github-issue-forms",
    ROOT / ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
}


def said_of(file: Path, schema: str) -> str:
    """Return the errors that check-jsonschema finds, or "". The schemas are part of its package, so
    nothing is downloaded.
    """
    line = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        schema,
        "--color",
        "never",
        str(file),
    ]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


@pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_follows_its_schema(file: Path) -> None:
    assert said_of(file, SCHEMAS[file]) == ""


def test_the_schema_can_fail(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {broker: {no_such_key: 1}}\n")
    assert "no_such_key" in said_of(tmp_path / "compose.yaml", "vendor.compose-spec")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_every_file_and_volume_of_the_compose_file_exists() -> None:
    document = compose()
    folder = COMPOSE.parent
    build = document["services"]["broker"]["build"]
    assert (folder / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for service in document["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (
                (folder / source).is_file()
                if source.startswith("./")
                else source in document["volumes"]
            ), volume


def test_the_compose_file_publishes_the_ports_of_the_image_to_this_machine_only() -> None:
    document = compose()
    exposed = dict(instructions())["EXPOSE"].split()
    published = [place.split(":") for place in document["services"]["broker"]["ports"]]
    assert sorted(port for _, port, _ in published) == sorted(exposed)
    for service in document["services"].values():
        assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", place) for place in service["ports"])


def test_the_compose_file_uses_options_and_commands_that_exist() -> None:
    broker = compose()["services"]["broker"]
    check = broker["healthcheck"]["test"]
    assert check[:3] == ["CMD", "python", "-c"]
    assert "urlopen('http://127.0.0.1:4151/health'" in check[3]
    names = {name.removeprefix("ZSQ_SERVE_").lower() for name in broker.get("environment", ())}
    command = json.loads(dict(instructions())["CMD"])
    environment = dict(word.split("=", 1) for word in shlex.split(dict(instructions())["ENV"]))
    assert names <= understood([*command, "--data-dir", environment["ZSQ_DATA_DIR"]]).params.keys()
    assert broker["volumes"] == [f"data:{environment['ZSQ_DATA_DIR']}"]


def test_the_pair_uses_options_and_commands_that_exist_and_waits_for_its_bucket() -> None:
    services = yaml.safe_load(PAIR.read_text())["services"]
    image = dict(word.split("=", 1) for word in shlex.split(dict(instructions())["ENV"]))
    for name, command in (("one", "serve"), ("two", "standby")):
        broker = services[name]
        assert broker["command"] == [command]
        assert broker["volumes"] == [f"{name}:{image['ZSQ_DATA_DIR']}"]
        settings = {
            key.removeprefix("ZSQ_SERVE_").lower(): value
            for key, value in broker["environment"].items()
            if key.startswith("ZSQ_SERVE_")
        }
        line = [command, "--data-dir", image["ZSQ_DATA_DIR"], "--bucket", settings["bucket"]]
        given = understood(line).params
        assert settings.keys() - {"no_nsq"} <= given.keys()
        assert broker["depends_on"] == {"bucket": {"condition": "service_completed_successfully"}}
        assert all(place.startswith("127.0.0.1:") for place in broker["ports"])
    compile(services["bucket"]["command"][0], "bucket", "exec")
    assert settings["bucket"].startswith("s3://zsq/")
    assert '"/zsq"' in services["bucket"]["command"][0]
    assert broker["environment"]["AWS_ENDPOINT_URL"] == "http://store:8333"
