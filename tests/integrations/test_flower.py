"""Tests of Flower, the dashboard of Celery, with a broker of ZSQ: what it shows and controls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from support.broker import free_port, wait_for
from support.celery_workers import APP, WAIT_S, Workers

pytestmark = pytest.mark.timeout(400)
ANSWER_S: Final = 20.0  # how long Flower waits for a worker


class Flower:
    """A process of Flower, and its HTTP interface."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S)
        options = [
            "--address=127.0.0.1", f"--port={port}", f"--inspect-timeout={ANSWER_S * 1000:.0f}"
        ]  # fmt: skip
        with (workers.folder / "flower.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", APP, "flower", *options],
                env={**workers.environment, "FLOWER_UNAUTHENTICATED_API": "true"},
                cwd=workers.folder,
                stdout=log,
                stderr=log,
            )

    def is_up(self) -> bool:
        assert self.process.poll() is None, (self.workers.folder / "flower.log").read_text()
        try:
            return self.http.get("/healthcheck").text == "OK"
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def states(self) -> set[tuple[str, str]]:
        """Return the tasks that it shows: their arguments, as Python writes them, and state."""
        return {(task["args"], task["state"]) for task in self.get("/api/tasks").values()}

    def wait_states(self, **expected: str) -> None:
        """Wait for the states of tasks, which are named by their only argument."""
        wanted = {(f"({name!r},)", state) for name, state in expected.items()}
        wait_for(lambda: wanted <= self.states(), WAIT_S, f"{wanted}")

    def close(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait(WAIT_S)


@pytest.fixture
def worker(workers: Workers) -> subprocess.Popen[bytes]:
    return workers.start("one")


@pytest.fixture
def flower(workers: Workers, worker: subprocess.Popen[bytes]) -> Iterator[Flower]:
    """Return a Flower that receives events and knows the worker."""
    one = Flower(workers)
    name = f"one@{workers.queue}"
    try:
        wait_for(one.is_up, WAIT_S, "Flower")
        alive = {name: True}
        wait_for(lambda: one.get("/api/workers?status=1") == alive, WAIT_S, "a heartbeat")
        assert name in one.get(f"/api/workers?refresh=1&workername={name}")
        yield one
    finally:
        one.close()


def test_it_shows_workers_and_the_states_of_their_tasks(flower: Flower, workers: Workers) -> None:
    workers.send("note", "later", countdown=3600.0)
    workers.send("note", "done")
    workers.send("fails", "broken")
    workers.send("flaky", "flaky")
    workers.send("gated", "running")
    flower.wait_states(done="SUCCESS", broken="FAILURE", flaky="SUCCESS", running="STARTED")
    counted = flower.http.get("/metrics").text
    assert f'{{task="{APP}.flaky",type="task-retried",worker="one@{workers.queue}"}} 2.0' in counted
    assert "later" not in f"{flower.states()}", "it waits at the broker, and no worker knows it"
    workers.gate.touch()
    flower.wait_states(running="SUCCESS")

    name = f"one@{workers.queue}"
    found = flower.get(f"/api/workers?refresh=1&workername={name}")[name]
    assert [queue["name"] for queue in found["active_queues"]] == [workers.queue]
    assert f"{APP}.gated" in found["registered"]
    assert found["stats"]["total"][f"{APP}.flaky"] == 3
    for page, text in (("/workers", name), (f"/worker/{name}", name), ("/tasks", "Tasks")):
        assert text in flower.http.get(page).raise_for_status().text
    uuid = next(iter(flower.get(f"/api/tasks?taskname={APP}.fails")))
    assert "ValueError(&#x27;broken&#x27;)" in flower.http.get(f"/task/{uuid}").text


def test_it_sends_and_revokes_tasks_and_stops_workers(
    flower: Flower, workers: Workers, worker: subprocess.Popen[bytes]
) -> None:
    name = f"one@{workers.queue}"

    def post(path: str, **body: Any) -> Any:
        return flower.http.post(f"/api/{path}", json=body).raise_for_status().json()

    post(f"task/async-apply/{APP}.note", args=["sent"], queue=workers.queue)
    workers.wait_line("sent ")
    workers.send("gated", "stuck")
    flower.wait_states(stuck="STARTED")
    uuid = next(iter(flower.get(f"/api/tasks?taskname={APP}.gated")))
    post(f"task/revoke/{uuid}?terminate=true&signal=SIGKILL")
    flower.wait_states(stuck="REVOKED")
    post(f"worker/shutdown/{name}")
    assert worker.wait(WAIT_S) == 0
    wait_for(lambda: flower.get("/api/workers?status=1") == {name: False}, WAIT_S, "its end")


def test_it_shows_no_queues(flower: Flower) -> None:
    """It has code for the brokers that it knows, and none that a transport could add."""
    for path in ("/broker", "/api/queues/length"):
        answer = flower.http.get(path)
        assert (answer.status_code, "broker is not supported" in answer.text) == (404, True)
