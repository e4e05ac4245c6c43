"""Tests of the backend of `django.tasks`, with its worker in a process and a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker, kill, wait_for

import zsq

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
LEASE_S = 1
SETTINGS = """
import os
SECRET_KEY = "x"
USE_TZ = os.environ.get("TASKS_USE_TZ", "yes") == "yes"
TASKS = {"default": {
    "QUEUES": os.environ.get("TASKS_QUEUES", "default").split(),
    "BACKEND": "zsq.apps.integrations.django.ZsqBackend",
    "OPTIONS": {
        "url": os.environ["TASKS_BROKER"],
        "message_timeout": 1,
        "prefix": os.environ["TASKS_PREFIX"],
    },
}}
"""
PROGRAM = """
import asyncio, os, sys, time
from datetime import UTC, datetime, timedelta
import django
django.setup()
from django.utils import timezone
try:
    from django.tasks import task
    from django.tasks.signals import task_finished, task_started
except ImportError:
    from django_tasks import task
    from django_tasks.signals import task_finished, task_started

def log(line):
    with open(os.environ["TASKS_LOG"], "a") as file:
        file.write(line + "\\n")

@task
def note(name):
    log(f"{name} {time.time()}")

@task(takes_context=True)
async def later(context, name):
    log(f"{name} {context.attempt} {context.task_result.id}")

@task
def fails():
    raise ValueError("never")

@task
def gives(what):
    if what == "exit":
        sys.exit(3)
    return {"tuple": (1, 2), "object": object()}.get(what, what)

@task
def observed(what):
    return gives.func(what)

def notes(task_result, **kwargs):
    if task_result.task.name == "observed":
        value = task_result.return_value if task_result.status == "SUCCESSFUL" else None
        log(f"{task_result.status} {value} {sys.exc_info()[0]}")
        raise RuntimeError("a receiver that fails")

task_started.connect(notes)
task_finished.connect(notes)

@task
def gated():
    log("start")
    while not os.path.exists(os.environ["TASKS_GATE"]):
        time.sleep(0.02)
    log("end")

def send(*names):
    for name in names:
        if name == "late":
            note.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue("late")
        elif name == "aware":
            note.using(run_after=datetime.now(UTC) + timedelta(seconds=1)).enqueue("aware")
        elif name == "naive":
            note.using(run_after=datetime.now() + timedelta(seconds=1)).enqueue("naive")
        elif name.startswith("observed"):
            observed.enqueue(name.split()[1])
        elif name == "now":
            note.enqueue(name="now")
        elif name == "context":
            print(later.enqueue("context").id)
        else:
            globals()[name].enqueue()
"""


class Project:
    """A Django project in a folder, and its workers."""

    def __init__(self, folder: Path, broker: Broker, prefix: str) -> None:
        (folder / "project_settings.py").write_text(SETTINGS)
        (folder / "project_tasks.py").write_text(PROGRAM)
        self.folder = folder
        self.log = folder / "tasks.log"
        self.log.touch()
        self.gate = folder / "gate"
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "project_settings",
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "TASKS_BROKER": broker.tcp,
            "TASKS_LOG": str(self.log),
            "TASKS_GATE": str(self.gate),
            "TASKS_PREFIX": prefix,
            "PATH": "/usr/bin:/bin",
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def send(self, *names: str) -> str:
        program = f"import project_tasks; project_tasks.send(*{names!r})"
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            check=True,
            timeout=200,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "zsq.apps.integrations.django", "--threads", "2", *options]
        with (self.folder / "worker.log").open("ab") as output:
            worker = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        self.workers.append(worker)
        return worker

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait(WAIT_S)


@pytest.fixture
def project(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Project]:
    found = Project(tmp_path, broker, f"{request.node.name[5:13]}.")
    try:
        yield found
    finally:
        found.close()


def test_tasks_run_at_their_time_and_a_failed_one_is_a_dead_letter(
    project: Project, broker: Broker
) -> None:
    sent = time.time()
    id = project.send("late", "now", "fails", "context")
    worker = project.start()
    wait_for(lambda: len(project.lines()) == 3, WAIT_S, "three tasks")
    found = {line.split()[0]: line.split()[1:] for line in project.lines()}
    assert float(found["late"][0]) >= sent + 1
    assert found["context"] == ["1", id]
    assert "now" in found
    topic = f"{project.environment['TASKS_PREFIX']}default.workers.dead"
    with zsq.Consumer(topic, "look", url=broker.tcp) as dead:
        message = dead.receive(WAIT_S)
        assert message is not None
        assert message.json()["task"] == "project_tasks.fails"
        assert "never" in str(message.headers["zsq-dead-error"])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_S) == 0


def test_receivers_see_the_end_of_a_task_and_do_not_decide_about_it(
    project: Project, broker: Broker
) -> None:
    project.send("observed text", "observed tuple", "observed object", "observed exit")
    worker = project.start()
    wait_for(lambda: len(project.lines()) == 8, WAIT_S, "two signals of each task")
    assert project.lines().count("RUNNING None None") == 4
    assert sorted(set(project.lines()) - {"RUNNING None None"}) == [
        "FAILED None <class 'SystemExit'>",
        "FAILED None <class 'TypeError'>",
        "SUCCESSFUL [1, 2] None",
        "SUCCESSFUL text None",
    ]
    topic = f"{project.environment['TASKS_PREFIX']}default"
    with zsq.Consumer(f"{topic}.workers.dead", "look", url=broker.tcp) as dead:
        errors = set()
        for _ in range(2):
            message = dead.receive(WAIT_S)
            assert message is not None
            errors.add(str(message.headers["zsq-dead-error"])[:9])
    assert errors == {"SystemExi", "TypeError"}
    # All threads of the worker go on.
    project.send("gated", "gated")
    wait_for(lambda: project.lines().count("start") == 2, WAIT_S, "both threads")
    project.gate.touch()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_S) == 0


def test_times_may_be_aware_or_naive_without_time_zones(project: Project) -> None:
    project.environment |= {"TASKS_USE_TZ": "no", "TZ": "UTC"}
    sent = time.time()
    project.send("aware", "naive")
    project.start()
    wait_for(lambda: len(project.lines()) == 2, WAIT_S, "two tasks")
    found = {line.split()[0]: float(line.split()[1]) for line in project.lines()}
    assert found.keys() == {"aware", "naive"}
    assert all(sent + 1 <= ran < sent + WAIT_S for ran in found.values())


def test_a_worker_without_queues_says_what_to_do(project: Project) -> None:
    project.environment["TASKS_QUEUES"] = ""
    worker = project.start()
    assert worker.wait(WAIT_S) == 2
    assert "name them with --queue" in (project.folder / "worker.log").read_text()


@pytest.mark.parametrize(
    ("options", "settings", "reason"),
    [
        (["--backend", "other"], "project_settings", "has no backend 'other'"),
        (["--queue", "other"], "project_settings", "queue 'other' is not one of the backend's"),
        ([], "", "DJANGO_SETTINGS_MODULE=: Requested setting"),
    ],
)
def test_a_worker_with_wrong_options_says_what_is_wrong(
    project: Project, options: list[str], settings: str, reason: str
) -> None:
    project.environment["DJANGO_SETTINGS_MODULE"] = settings
    worker = project.start(*options)
    assert worker.wait(WAIT_S) == 2
    said = (project.folder / "worker.log").read_text()
    assert reason in said
    assert "Traceback" not in said


def test_a_task_of_a_killed_worker_runs_again_and_one_longer_than_its_lease_does_not(
    project: Project, broker: Broker
) -> None:
    topic = f"{project.environment['TASKS_PREFIX']}default"
    with zsq.Admin(broker.tcp) as admin:  # somebody has made the channel before
        admin.create_topic(topic)
        admin.create_channel(topic, "workers")
    project.send("gated")
    first = project.start()
    wait_for(lambda: project.lines() == ["start"], WAIT_S, "the first run")
    first.kill()
    first.wait(WAIT_S)
    second = project.start()
    wait_for(lambda: project.lines() == ["start", "start"], WAIT_S, "the second run")
    # The killed worker may have got a delivery more.
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(topic, "workers")["topics"][0]["channels"][0]
        deliveries = row["delivery_count"]
    until = time.monotonic() + 3 * LEASE_S
    wait_for(lambda: time.monotonic() > until, WAIT_S, "three leases")
    second.send_signal(signal.SIGTERM)
    project.gate.touch()
    assert second.wait(WAIT_S) == 0
    assert project.lines() == ["start", "start", "end"]
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(topic, "workers")["topics"][0]["channels"][0]
    assert row["delivery_count"] == deliveries, "the lease was extended: the task never came back"
    assert row["settings"]["max_hold_s"] == -1


def test_a_task_that_comes_back_to_its_worker_runs_once(project: Project, broker: Broker) -> None:
    """The lease is lost with the channel's process. The other thread of the worker is idle."""
    project.send("gated")
    worker = project.start()
    wait_for(lambda: project.lines() == ["start"], WAIT_S, "the task")
    topic = f"{project.environment['TASKS_PREFIX']}default"
    with zsq.Admin(broker.tcp) as admin:

        def in_flight() -> int:
            row = admin.stats(topic, "workers")["topics"][0]["channels"][0]
            return int(row["in_flight_count"])

        [pid] = [
            row["pid"]
            for row in admin.stats()["processes"]
            if row["name"] == f"channel {topic}/workers"
        ]
        kill(pid)
        wait_for(lambda: _restarted(admin, topic, pid), WAIT_S, "the channel")
        wait_for(lambda: in_flight() == 1, WAIT_S, "the second delivery")
        project.gate.touch()
        wait_for(lambda: in_flight() == 0, WAIT_S, "the end of the task")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_S) == 0
    assert project.lines() == ["start", "end"]


def _restarted(admin: zsq.Admin, topic: str, pid: int) -> bool:
    rows = admin.stats()["processes"]
    pids = [row["pid"] for row in rows if row["name"] == f"channel {topic}/workers"]
    return bool(pids) and pids[0] not in (0, None, pid)
