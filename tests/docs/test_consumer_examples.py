"""Tests of the consumer in docs/examples, and of the files that run it as a service."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.broker import Broker, wait_for

import zsq

from .test_examples import unit
from .walking import ROOT

EXAMPLES: Final = ROOT / "docs" / "examples"
PROGRAM: Final = EXAMPLES / "consumer.py"
KUBERNETES: Final = "1.31"
WAIT_S: Final = 60


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as broker:
        yield broker


@pytest.mark.slow
def test_the_consumer_handles_messages_and_ends_with_code_0(
    own_broker: Broker, tmp_path: Path
) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("orders", b"hello")
    log = tmp_path / "log"
    with log.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=os.environ | {"ZSQ_URL": own_broker.ipc}, stderr=out
        )
    try:
        wait_for(lambda: "offset 0, attempt 1: b'hello'" in log.read_text(), WAIT_S)
        program.send_signal(signal.SIGTERM)
        assert program.wait(WAIT_S) == 0
    finally:
        program.kill()
        program.wait()
    with zsq.Admin(own_broker.ipc) as admin:
        [topic] = admin.stats("orders", "billing")["topics"]
        assert topic["channels"][0]["finish_count"] == 1


def deployment() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "kubernetes-consumer.yaml").read_text())
    return found


def test_each_service_runs_the_program_and_gives_it_time_to_end() -> None:
    service = unit("zsq-consumer.service")["Service"]
    compose = yaml.safe_load((EXAMPLES / "compose-consumer.yaml").read_text())
    container = compose["services"]["consumer"]
    pod = deployment()["spec"]["template"]["spec"]
    commands = [
        service["ExecStart"].split(),
        container["entrypoint"],
        pod["containers"][0]["command"],
    ]
    assert {Path(words[-1]).name for words in commands} == {PROGRAM.name}
    times = [service["TimeoutStopSec"], container["stop_grace_period"].rstrip("s")]
    assert {int(text) for text in (*times, pod["terminationGracePeriodSeconds"])} == {60}
    brokers = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    assert container["depends_on"].keys() <= brokers.keys()
    assert container["volumes"] == [f"./{PROGRAM.name}:/program/{PROGRAM.name}:ro"]


def test_the_deployment_fits_together() -> None:
    spec = deployment()["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    mounts = {row["name"] for row in pod["containers"][0]["volumeMounts"]}
    assert mounts == {row["name"] for row in pod["volumes"]}


def test_kubernetes_accepts_the_deployment() -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    validate = importlib.import_module("kubernetes_validate").validate
    validate(deployment(), KUBERNETES, strict=True)
