"""Tests of the broker of taskiq, with its real receiver and worker, and a real broker of ZSQ."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

import zsq
from zsq.apps.integrations.taskiq import ZsqBroker

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
LEASE_S = 1.0


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)[:30]


def left(broker: Broker, queue: str) -> int:
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(queue, "workers")["topics"][0]
        channel = row["channels"][0]
        return int(channel["depth"] + channel["in_flight_count"] + row["delayed_count"])


async def until(condition: asyncio.Event) -> None:
    await asyncio.wait_for(condition.wait(), WAIT_S)


def test_tasks_run_once_after_their_delay_and_beyond_their_lease(
    broker: Broker, queue: str
) -> None:
    with zsq.Admin(broker.tcp) as admin:  # somebody has made the channel before
        admin.create_topic(queue)
        admin.create_channel(queue, "workers")

    async def main() -> None:
        tasks = ZsqBroker(broker.tcp, queue=queue, message_timeout=LEASE_S)
        seen: list[tuple[str, float]] = []
        all_seen, go_on = asyncio.Event(), asyncio.Event()

        @tasks.task
        async def note(name: str) -> None:
            seen.append((name, time.monotonic()))
            if len(seen) == 3:
                all_seen.set()
            if name == "long":
                await go_on.wait()

        await tasks.startup()
        sent = time.monotonic()
        await note.kicker().with_labels(delay=0.5).kiq("late")
        await note.kiq("now")
        await note.kiq("long")
        receiver = asyncio.create_task(run_receiver_task(tasks))
        await until(all_seen)
        # The leases end meanwhile, unless they are extended.
        end = time.monotonic() + 4 * LEASE_S
        await asyncio.to_thread(wait_for, lambda: time.monotonic() > end, WAIT_S, "four leases")
        go_on.set()
        await asyncio.to_thread(wait_for, lambda: left(broker, queue) == 0, WAIT_S, "the end")
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await tasks.shutdown()
        assert sorted(name for name, _ in seen) == ["late", "long", "now"]
        assert dict(seen)["late"] >= sent + 0.49

    asyncio.run(main())
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(queue, "workers")["topics"][0]["channels"][0]
    assert (row["depth"], row["in_flight_count"], row["delivery_count"]) == (0, 0, 3)
    assert row["settings"]["max_hold_s"] == -1


def test_a_task_that_ends_without_its_lease_does_not_run_again(broker: Broker, queue: str) -> None:
    """Its channel is started again meanwhile, and delivers the message once more."""

    async def main() -> None:
        tasks = ZsqBroker(broker.tcp, queue=queue)
        seen: list[str] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        @tasks.task
        async def note(name: str) -> None:
            seen.append(name)
            begun.set()
            await go_on.wait()

        await tasks.startup()
        await note.kiq("first")
        receiver = asyncio.create_task(run_receiver_task(tasks))
        await until(begun)
        [message] = tasks._working.values()
        with zsq.Admin(broker.tcp) as admin:
            admin.pause(queue, "workers")  # the message comes back only after the task
            rows = admin.stats()["processes"]
        [pid] = [row["pid"] for row in rows if row["name"] == f"channel {queue}/workers"]
        kill(pid)
        # The event loop must run, so that the client notices.
        await asyncio.to_thread(wait_for, lambda: not message.leased, WAIT_S, "the loss")
        go_on.set()
        await asyncio.to_thread(wait_for, lambda: not tasks._working, WAIT_S, "the task")
        with zsq.Admin(broker.tcp) as admin:
            admin.unpause(queue, "workers")
        await asyncio.to_thread(wait_for, lambda: left(broker, queue) == 0, WAIT_S, "the end")
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await tasks.shutdown()
        assert seen == ["first"]

    asyncio.run(main())


def test_a_task_that_ended_just_before_the_broker_was_killed_does_not_run_again(
    tmp_path: Path,
) -> None:
    """The acknowledgement waits to be sent, or was sent, or was committed without a reply."""

    async def main(broker: Broker) -> None:
        tasks = ZsqBroker(broker.tcp, queue="tasks")
        seen: asyncio.Queue[int] = asyncio.Queue()
        runs: list[int] = []

        @tasks.task
        async def note(number: int) -> None:
            runs.append(number)
            seen.put_nowait(number)

        await tasks.startup()
        receiver = asyncio.create_task(run_receiver_task(tasks))
        for number in range(4):
            await note.kiq(number)
            assert await asyncio.wait_for(seen.get(), WAIT_S) == number
            broker.signal_all(signal.SIGKILL)
            await asyncio.to_thread(broker.start)
        await note.kiq(4)
        await asyncio.wait_for(seen.get(), WAIT_S)
        await asyncio.to_thread(wait_for, lambda: left(broker, "tasks") == 0, WAIT_S, "the end")
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await tasks.shutdown()
        assert runs == [0, 1, 2, 3, 4]

    broker = Broker(tmp_path / "data")
    try:
        asyncio.run(main(broker.start()))
    finally:
        broker.close()


@pytest.mark.parametrize(
    "given", [{"url": "127.0.0.1:4153"}, {"ready": 0}, {"message_timeout": 86_401}]
)
def test_wrong_options_are_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(zsq.UsageError, match="E_BAD_ARGUMENT"):
        ZsqBroker(**given)


def test_a_task_before_startup_is_refused(broker: Broker) -> None:
    tasks = ZsqBroker(broker.tcp)

    @tasks.task
    async def nothing() -> None:
        return

    async def send() -> None:
        await nothing.kiq()

    with pytest.raises(SendTaskError) as refused:
        asyncio.run(send())
    assert "broker.startup()" in str(refused.value.__cause__)


PROGRAM = """
import asyncio, os, sys
from zsq.apps.integrations.taskiq import ZsqBroker
broker = ZsqBroker(os.environ["TASKS_BROKER"], queue=os.environ["TASKS_QUEUE"], message_timeout=1)

@broker.task
async def work(name: str) -> None:
    with open(os.environ["TASKS_LOG"], "a") as log:
        log.write(name + "\\n")
    if name == "wait" and open(os.environ["TASKS_LOG"]).read().count("wait") == 1:
        await asyncio.sleep(60)

async def main():
    await broker.startup()
    for name in sys.argv[1:]:
        await work.kiq(name)
    await broker.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_command_line_worker_runs_a_task_of_a_killed_worker_again(
    broker: Broker, tmp_path: Path, queue: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "tasks.log"
    log.touch()
    environment = {
        "TASKS_BROKER": broker.tcp,
        "TASKS_LOG": str(log),
        "TASKS_QUEUE": queue,
        "PATH": "/usr/bin:/bin",
    }
    # The task is found by the name of the module that the worker imports.
    send = [sys.executable, "-c", "import program, asyncio; asyncio.run(program.main())", "wait"]
    subprocess.run(send, cwd=tmp_path, env=environment, check=True, timeout=200)

    def worker() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "taskiq", "worker", "program:broker", "-w", "1"]
        with (tmp_path / "worker.log").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    first = worker()
    try:
        wait_for(lambda: log.read_text().split() == ["wait"], WAIT_S, "the first run")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(WAIT_S)
    second = worker()
    try:
        wait_for(lambda: log.read_text().split() == ["wait", "wait"], WAIT_S, "the second run")
    finally:
        second.terminate()
        second.wait(WAIT_S)
    wait_for(lambda: left(broker, queue) == 0, WAIT_S, "the acknowledgement")
