"""Tests of the examples in docs/task-queues.md: they are saved, run and do what the page says."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

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


@contextlib.contextmanager
def shop(broker: Broker, folder: Path) -> Iterator[tuple[httpx.Client, Path]]:
    """Run the example of FastAPI. Yield a client for it, and the file with its output."""
    if importlib.util.find_spec("fastapi") is None:
        assert "CI" not in os.environ, "install the extra test-integrations, as ./scripts/test does"
        pytest.skip("fastapi is not installed")
    (folder / "shop.py").write_text(block("fastapi", broker.port))
    printed = folder / "shop.log"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)]
    with printed.open("wb") as log:
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: "running on" in printed.read_text(), WAIT_S, "the application")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            yield client, printed
    finally:
        running.terminate()
        assert running.wait(WAIT_S) in (0, -signal.SIGTERM)


ORDER: Final = {"number": 7, "email": "ada@example.org"}


def test_the_application_of_fastapi_publishes_and_consumes(broker: Broker, tmp_path: Path) -> None:
    with shop(broker, tmp_path) as (client, printed):
        with zsq.Producer(broker.tcp) as producer:
            producer.publish("orders", b"not an order")
        assert client.post("/orders", json=ORDER).status_code == 202
        wait_for(partial(said, "order 7 of ada@example.org", printed, ""), WAIT_S, "the order")
        with zsq.Admin(broker.tcp) as admin:
            wait_for(lambda: "orders.mails.dead" in admin.topics(), WAIT_S, "the dead letter")
            admin.close_topic("orders", to="consumers")
            wait_for(
                lambda: "refused by the broker for" in printed.read_text(), WAIT_S, "a warning"
            )
            admin.open_topic("orders")
        assert client.post("/orders", json=ORDER | {"number": 8}).status_code == 202
        wait_for(partial(said, "order 8 of ada@example.org", printed, ""), WAIT_S, "the order")
        assert client.get("/health").status_code == 200
    assert "Traceback" not in printed.read_text()
    assert "shutdown complete" in printed.read_text()


def test_the_application_of_fastapi_is_not_healthy_without_its_consumer(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "data", "--auto-create", "publishers") as broker,
        zsq.Producer(broker.tcp) as producer,
        zsq.Admin(broker.tcp) as admin,
    ):
        producer.publish("orders", b"not an order")
        with shop(broker, tmp_path) as (client, printed):
            assert client.get("/health").status_code == 200
            admin.delete_topic("orders", force=True)
            wait_for(lambda: client.get("/health").status_code == 503, WAIT_S, "the status")
            assert "orders/mails: run ends: NotFound: E_NOT_FOUND" in printed.read_text()
            assert client.post("/orders", json=ORDER).status_code == 202


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
