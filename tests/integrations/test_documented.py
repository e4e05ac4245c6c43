"""Tests of the examples in docs/task-queues.md: they are saved, run and do what the page says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.broker import Broker, wait_for

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
