"""Tests of tasks of Celery that are revoked while no worker runs: the broker cancels them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from kombu import pools
from support.broker import Broker, wait_for
from support.celery_workers import WAIT_S, Workers

import zsq
from zsq.apps.integrations.kombu.revokes import revoke_key_of, revoked_ids

pytestmark = pytest.mark.timeout(300)


def test_tasks_that_are_revoked_without_a_worker_never_run(
    workers: Workers, broker: Broker
) -> None:
    """A plain `app.control.revoke` is enough, for one that waits and for one with an ETA."""
    gone = workers.send("note", "gone")
    later = workers.send("note", "later", countdown=3)
    others = [workers.send("note", "more"), workers.send("note", "others")]
    workers.app.control.revoke(gone.id)
    workers.app.control.revoke([later.id, *(task.id for task in others)])
    workers.send("note", "kept")
    workers.send("note", "last", countdown=4)
    with zsq.Admin(broker.tcp) as admin:
        assert admin.delayed_count(workers.queue)["messages"] == 1
    workers.start("one")

    def names() -> list[str]:
        return sorted(line.split()[0] for line in workers.lines())

    wait_for(lambda: names() == ["kept", "last"], WAIT_S, "the tasks that were not revoked")


def test_a_revoked_task_has_the_state_revoked(broker: Broker, tmp_path: Path) -> None:
    """Nobody waits for its result for ever, although no worker has seen it."""
    app = Celery("states", broker=f"zsq://127.0.0.1:{broker.port}/", backend=f"file://{tmp_path}")
    app.set_current()
    try:
        waiting = app.send_task("any", queue="states")
        done = app.send_task("any", queue="states")
        app.backend.store_result(done.id, 7, "SUCCESS")
        begun = app.send_task("any", queue="states")
        app.backend.store_result(begun.id, {"done": 3}, "PROGRESS")  # a state of the task's own
        app.control.revoke([begun.id, waiting.id, done.id])
        with pytest.raises(TaskRevokedError):
            waiting.get(timeout=WAIT_S)
        assert done.get(timeout=WAIT_S) == 7
        assert begun.state == "PROGRESS"
    finally:
        app.close()
        pools.reset()


def test_without_the_option_the_broker_is_not_asked(broker: Broker) -> None:
    app = Celery("off", broker=f"zsq://127.0.0.1:{broker.port}/")
    app.conf.broker_transport_options = {"revokes": False}
    try:
        task = app.send_task("any", queue="off")
        app.control.revoke(task.id)
        with zsq.Admin(broker.tcp) as admin, zsq.Consumer("off", "workers", url=broker.tcp) as one:
            message = one.receive(WAIT_S)
            assert message is not None
            assert "zsq-revoke-key" not in message.headers
            assert admin.unfinished("off", "workers") == 1
    finally:
        app.close()
        pools.reset()


def pidbox(**body: Any) -> dict[str, Any]:
    return {"body": json.dumps(body)}


@pytest.mark.parametrize(
    ("exchange", "message", "ids"),
    [
        ("celery.pidbox", pidbox(method="revoke", arguments={"task_id": "a"}), ["a"]),
        ("celery.pidbox", pidbox(method="revoke", arguments={"task_id": ["a", "b"]}), ["a", "b"]),
        ("celery.pidbox", pidbox(method="revoke", arguments={"task_id": [1, "", "a"]}), ["a"]),
        ("other", pidbox(method="revoke", arguments={"task_id": "a"}), []),
        ("celery.pidbox", pidbox(method="ping", arguments={}), []),
        (
            "celery.pidbox",
            pidbox(method="revoke", arguments={"task_id": "a"}, destination=["one@host"]),
            [],
        ),
        ("celery.pidbox", {"body": "no JSON"}, []),
        ("celery.pidbox", {}, []),
    ],
)
def test_only_a_revoke_for_all_workers_revokes(
    exchange: str, message: dict[str, Any], ids: list[str]
) -> None:
    assert revoked_ids(exchange, message) == ids


def test_only_a_task_has_a_revoke_key() -> None:
    assert revoke_key_of({"headers": {"id": "a", "task": "t"}}) == "a"
    assert revoke_key_of({"headers": {"id": "a"}}) is None
    assert revoke_key_of({"headers": {"id": "a" * 257, "task": "t"}}) is None
    assert revoke_key_of({}) is None
