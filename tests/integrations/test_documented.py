"""Tests of the examples in docs/task-queues.md: they are saved, run and do what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, free_port, wait_for

import zsq

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
PAGE = Path(__file__).parents[2] / "docs/task-queues.md"
CELERY = (
    "celery",
    "tasks.py",
    ("-m", "celery", "-A", "tasks", "worker", "-c", "1"),
    ("-c", "import tasks; print(tasks.add.delay(2, 3).get(timeout=100))"),
    "5",
)
DRAMATIQ = (
    "dramatiq",
    "greetings.py",
    ("-m", "dramatiq", "greetings", "-p", "1"),
    ("greetings.py",),
    "hello now\nhello later",
)
TASKIQ = (
    "taskiq",
    "greetings.py",
    ("-m", "taskiq", "worker", "greetings:broker", "-w", "1"),
    ("-c", "import asyncio, greetings; asyncio.run(greetings.main())"),
    "hello now\nhello later",
)


def block(framework: str, port: int) -> str:
    """Return the example in the section of a framework, for the broker on this port."""
    page = PAGE.read_text()
    section = next(part for part in page.split("\n## ") if part.lower().startswith(framework))
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1].replace("4153", str(port)).replace("file:///tmp", "file://results")


def said(line: str, printed: Path, sent: str) -> bool:
    """Return True if the worker or the sender has printed this line."""
    return line in (printed.read_text() + sent).splitlines()


@pytest.mark.parametrize(
    ("framework", "file", "worker", "send", "output"),
    [CELERY, DRAMATIQ, TASKIQ],
    ids=["celery", "dramatiq", "taskiq"],
)
def test_an_example_runs_as_it_stands(
    broker: Broker,
    tmp_path: Path,
    framework: str,
    file: str,
    worker: tuple[str, ...],
    send: tuple[str, ...],
    output: str,
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    (tmp_path / "results").mkdir()
    code = block(framework, broker.port).replace("file://results", f"file://{tmp_path}/results")
    (tmp_path / file).write_text(code)
    printed = tmp_path / "worker.log"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    with printed.open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, *worker], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        sent = subprocess.run(
            [sys.executable, *send],
            cwd=tmp_path,
            env=environment,
            timeout=WAIT_S,
            check=True,
            capture_output=True,
            text=True,
        )
        for line in output.splitlines():
            wait_for(partial(said, line, printed, sent.stdout), WAIT_S, line)
    finally:
        running.terminate()
        running.wait(WAIT_S)


def test_the_application_of_fastapi_publishes_and_consumes(broker: Broker, tmp_path: Path) -> None:
    if importlib.util.find_spec("fastapi") is None:
        assert "CI" not in os.environ, "install the extra test-integrations, as ./scripts/test does"
        pytest.skip("fastapi is not installed")
    (tmp_path / "shop.py").write_text(block("fastapi", broker.port))
    printed = tmp_path / "shop.log"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)]
    with printed.open("wb") as log:
        running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: "running on" in printed.read_text(), WAIT_S, "the application")
        with zsq.Producer(broker.tcp) as producer:
            producer.publish("orders", b"not an order")
        order = {"number": 7, "email": "ada@example.org"}
        sent = httpx.post(f"http://127.0.0.1:{port}/orders", json=order, timeout=WAIT_S)
        assert sent.status_code == 202
        wait_for(partial(said, "order 7 of ada@example.org", printed, ""), WAIT_S, "the order")

        def dead() -> bool:
            with zsq.Admin(broker.tcp) as admin:
                return "orders.mails.dead" in admin.topics()

        wait_for(dead, WAIT_S, "the dead letter")
    finally:
        running.terminate()
        assert running.wait(WAIT_S) in (0, -signal.SIGTERM)
    assert "Traceback" not in printed.read_text()
    assert "shutdown complete" in printed.read_text()


def test_the_settings_for_django_name_the_backend(broker: Broker) -> None:
    if importlib.util.find_spec("django") is None:
        pytest.skip("django is not installed")
    from zsq.apps.integrations.django import ZsqBackend

    settings: dict[str, dict[str, dict[str, object]]] = {}
    exec(block("django", broker.port), settings)
    [entry] = settings["TASKS"].values()
    module, _, name = str(entry["BACKEND"]).rpartition(".")
    assert getattr(importlib.import_module(module), name) is ZsqBackend
    assert str(broker.port) in str(entry["OPTIONS"])
