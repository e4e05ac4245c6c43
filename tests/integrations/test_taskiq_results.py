"""Tests of the result backend of taskiq, with its real worker and a real broker of ZSQ."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill
from support.topic_names import topic_name_of
from taskiq import AsyncTaskiqTask, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError, TaskiqResultTimeoutError
from taskiq.serializers import PickleSerializer

import zsq
from zsq.apps.integrations import taskiq_results
from zsq.apps.integrations.taskiq import ResultIsMissingError, ZsqBroker, ZsqResultBackend
from zsq.apps.integrations.taskiq_results import Known, Name, ResultIndex, ResultPlace

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
Backend = ZsqResultBackend[Any]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


@asynccontextmanager
async def opened(broker: Broker, topic: str, **options: Any) -> AsyncIterator[Backend]:
    """Open a backend, as a process of its own would have it."""
    backend: Backend = ZsqResultBackend(broker.tcp, topic=topic, **options)
    await backend.startup()
    try:
        yield backend
    finally:
        await backend.shutdown()


def of(value: Any, **fields: Any) -> TaskiqResult[Any]:
    return TaskiqResult(**{"is_err": False, "return_value": value, "execution_time": 0.5, **fields})


class Requests:
    """Counts the requests that a backend sends to read its topic."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.searches = 0
        reader = backend._reader
        assert reader is not None
        read, offset_at = reader.read, reader.offset_at

        async def counted_read(*given: Any) -> Any:
            self.reads += 1
            return await read(*given)

        async def counted_search(*given: Any) -> Any:
            self.searches += 1
            return await offset_at(*given)

        monkeypatch.setattr(reader, "read", counted_read)
        monkeypatch.setattr(reader, "offset_at", counted_search)


@pytest.mark.parametrize("serializer", [None, PickleSerializer()], ids=["json", "pickle"])
def test_another_process_gets_a_result_as_it_was_set(
    broker: Broker, topic: str, serializer: TaskiqSerializer | None
) -> None:
    async def main() -> None:
        async with (
            opened(broker, topic, serializer=serializer) as worker,
            opened(broker, topic, serializer=serializer) as client,
        ):
            assert not await client.is_result_ready("a")
            given = of({"sum": [1, 2.5, None, "ä"]}, labels={"delay": 5}, log="it ran")
            await worker.set_result("a", given)
            assert await client.is_result_ready("a")
            assert await client.get_result("a", with_logs=True) == given
            assert (await client.get_result("a")).log is None
            failed = of(None, is_err=True, error=ValueError("no", 3))
            await worker.set_result("b", failed)
            with pytest.raises(ValueError, match=r"\('no', 3\)"):
                (await client.get_result("b")).raise_for_error()
            await worker.set_result("a", of("again"))
            assert (await client.get_result("a")).return_value == "again"

    asyncio.run(main())


def test_a_missing_result_has_taskiqs_error(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with opened(broker, topic) as backend:
            with pytest.raises(ResultIsMissingError, match="no result of task nothing"):
                await backend.get_result("nothing")
            task: AsyncTaskiqTask[Any] = AsyncTaskiqTask("nothing", backend)
            with pytest.raises(ResultGetError):
                await task.get_result()
            with pytest.raises(TaskiqResultTimeoutError):
                await task.wait_result(0.01, 0.05)
            assert await backend.get_progress("nothing") is None

    asyncio.run(main())


def test_messages_of_others_in_the_topic_are_no_results(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with opened(broker, topic) as backend:
            with zsq.Producer(broker.tcp) as producer:
                producer.publish(topic, b"{}", key="a", tag="other")
                producer.publish(topic, b"{}", key="a")
                producer.publish(topic, b"{}", tag="result")
            assert not await backend.is_result_ready("a")

    asyncio.run(main())


def test_many_processes_with_little_memory_find_the_newest_results(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taskiq_results, "WINDOW", 2)
    monkeypatch.setattr(taskiq_results, "WINDOW_MAX", 8)
    monkeypatch.setattr(taskiq_results, "READ_BYTES", 600)
    dice = random.Random(7)
    names = [f"task-{number}" for number in range(25)]

    async def main() -> None:
        results: dict[str, int] = {}
        progress: dict[str, int] = {}
        backends: list[Backend] = []
        async with opened(broker, topic) as worker:
            for step in range(600):
                if len(backends) < 6 and dice.random() < 0.05:
                    # A process that starts later, with another limit.
                    backend: Backend = ZsqResultBackend(
                        broker.tcp, topic=topic, remembered=(1, 3, 10, 1000)[len(backends) % 4]
                    )
                    await backend.startup()
                    backends.append(backend)
                name = dice.choice(names)
                if dice.random() < 0.4:
                    await worker.set_result(name, of(step))
                    results[name] = step
                elif dice.random() < 0.3:
                    await worker.set_progress(name, TaskProgress(state="AT", meta=step))
                    progress[name] = step
                elif backends:
                    one = dice.choice(backends)
                    ready = await one.is_result_ready(name)
                    assert ready is (name in results)
                    if ready:
                        assert (await one.get_result(name)).return_value == results[name]
                    found = await one.get_progress(name)
                    assert (None if found is None else found.meta) == progress.get(name)
                    limit = one._index._rows_max
                    assert len(one._index) <= 2 * limit
        assert len(backends) == 6
        for one in backends:
            await one.shutdown()

    asyncio.run(main())


def test_an_index_never_answers_for_messages_that_it_does_not_have() -> None:
    dice = random.Random(3)
    names: list[Name] = [(False, b"%d" % number) for number in range(12)]
    for rows_max in (1, 2, 5, 9, 12):
        index = ResultIndex(rows_max)
        topic: list[Name] = []

        def newest(name: Name, first: int, end: int) -> ResultPlace | None:
            found = [at for at in range(first, end) if topic[at] == name]  # noqa: B023
            return ResultPlace(found[-1], 0, False) if found else None

        for _ in range(3_000):
            if dice.random() < 0.02:
                index.reset(len(topic))
            if dice.random() < 0.4:
                topic += dice.choices(names, k=dice.randint(1, 3))
            end = dice.randint(index.high, len(topic))
            rows = [(topic[at], ResultPlace(at, 0, False)) for at in range(index.high, end)]
            index.follow(rows, end)
            if dice.random() < 0.3:
                # Meanwhile the index may have lost its oldest rows.
                end = max(0, index.low - dice.choice((0, 0, 1)))
                first = max(0, end - dice.randint(1, 3))
                window = {topic[at]: ResultPlace(at, 0, False) for at in range(first, end)}
                index.extend(window, first, end)
            name = dice.choice(names)
            if not index.complete(name):
                index.note(name, Known(index.low, newest(name, 0, index.low)))
            assert index.complete(name)
            assert index.find(name) == newest(name, 0, index.high)
            assert len(index) <= 2 * rows_max


def test_a_result_expires(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(broker, topic, result_ex_time=60) as worker:
            await worker.set_result("a", of(1))
            await worker.set_progress("a", TaskProgress(state="AT", meta=1))
            now = time.time_ns

            async with (
                opened(broker, topic, result_ex_time=60) as early,
                opened(broker, topic, result_ex_time=60) as late,
            ):
                assert await early.is_result_ready("a")
                monkeypatch.setattr(time, "time_ns", lambda: now() + 61 * 10**9)
                for backend in (early, late, worker):
                    assert not await backend.is_result_ready("a")
                    assert await backend.get_progress("a") is None
                monkeypatch.undo()

    asyncio.run(main())
    with zsq.Admin(broker.tcp) as admin:
        kept = admin.stats(topic)["topics"][0]["settings"]
    assert (kept["max_age_s"], kept["keep_time_s"], kept["when_full"]) == (60, 60, "drop-oldest")


def test_a_process_does_not_search_the_past_for_tasks_that_it_has_sent(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(broker, topic) as worker:
            for number in range(50):
                await worker.set_result(f"old-{number}", of(number))
            backend: Backend = ZsqResultBackend(broker.tcp, topic=topic)
            tasks = ZsqBroker(broker.tcp, queue=f"{topic}.queue"[-40:])
            tasks.with_result_backend(backend)

            @tasks.task
            async def work() -> None:
                return

            await tasks.startup()
            requests = Requests(backend, monkeypatch)
            task = await work.kiq()
            assert not await task.is_ready()
            await worker.set_result(task.task_id, of("done"))
            assert (await task.wait_result(0.01)).return_value == "done"
            assert requests.searches == 0
            # An unknown task is searched for once, and with room the index then has the others.
            assert not await backend.is_result_ready("unknown")
            assert requests.searches == 1
            assert not await backend.is_result_ready("unknown")
            assert not await backend.is_result_ready("another")
            assert await backend.is_result_ready("old-7")
            assert requests.searches == 1
            await tasks.shutdown()

    asyncio.run(main())


def test_calls_of_the_same_time_share_reads(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(broker, topic) as backend:
            await backend.set_result("a", of(1))
            requests = Requests(backend, monkeypatch)
            ready = await asyncio.gather(*(backend.is_result_ready("a") for _ in range(200)))
            assert all(ready)
            assert requests.reads <= 20, "a read serves many calls, also on a machine that is busy"

    asyncio.run(main())


def test_a_result_that_is_not_kept_is_removed_for_all(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with (
            opened(broker, topic, keep_results=False) as one,
            opened(broker, topic, keep_results=False) as other,
        ):
            await one.set_result("a", of(1))
            assert await other.is_result_ready("a")
            assert (await one.get_result("a")).return_value == 1
            for backend in (one, other):
                assert not await backend.is_result_ready("a")
                with pytest.raises(ResultIsMissingError):
                    await backend.get_result("a")
            async with opened(broker, topic) as late:
                assert not await late.is_result_ready("a")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "error"),
    [(object(), "Unable to serialize"), ("x" * (1 << 20), "E_TOO_BIG")],
    ids=["unknown", "large"],
)
def test_a_result_that_cannot_be_stored_is_an_error_for_both_sides(
    broker: Broker, topic: str, value: Any, error: str
) -> None:
    async def main() -> None:
        async with opened(broker, topic) as worker, opened(broker, topic) as client:
            with pytest.raises(Exception, match=error):
                await worker.set_result("a", of(value))
            with pytest.raises(RuntimeError, match=error):
                (await client.get_result("a")).raise_for_error()

    asyncio.run(main())


@pytest.mark.parametrize(
    "given",
    [
        {"url": "127.0.0.1:4153"},
        {"result_ex_time": 0},
        {"result_ex_time": float("nan")},
        {"remembered": 0},
        {"topic": "a topic"},
    ],
)
def test_wrong_options_are_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(zsq.UsageError, match="E_BAD_"):
        ZsqResultBackend(**given)


def test_a_backend_that_is_not_started_says_so(broker: Broker) -> None:
    backend: Backend = ZsqResultBackend(broker.tcp)
    with pytest.raises(RuntimeError, match=r"broker\.startup"):
        asyncio.run(backend.is_result_ready("a"))
    with pytest.raises(RuntimeError, match=r"broker\.startup"):
        asyncio.run(backend.set_result("a", of(1)))


def test_a_broker_that_is_restored_from_a_backup_gives_no_wrong_results(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    topic = "results"

    async def set_all(*names: str) -> None:
        async with opened(broker, topic) as worker:
            for name in names:
                await worker.set_result(name, of(name))

    def restore() -> None:
        broker.stop()
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(tmp_path / "copy", tmp_path / "data")
        broker.start()

    async def main() -> None:
        await set_all("first")
        broker.stop()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        broker.start()
        await set_all("lost", "lost too")
        async with opened(broker, topic) as client:
            assert await client.is_result_ready("lost too")
            restore()
            # The topic has fewer messages than the client has read.
            assert not await client.is_result_ready("lost too")
            await set_all("lost", "lost too")
            assert await client.is_result_ready("lost")
            restore()
            # The topic has other messages at the same offsets.
            await set_all("new", "newer", "newest")
            for name in ("lost", "lost too"):
                with pytest.raises(ResultIsMissingError):
                    await client.get_result(name)
            for name in ("first", "new", "newer", "newest"):
                assert (await client.get_result(name)).return_value == name

    try:
        broker.start()
        asyncio.run(main())
    finally:
        broker.close()


def test_a_process_that_waits_does_not_notice_that_the_topic_is_started_again(
    broker: Broker, topic: str
) -> None:
    def killed() -> None:
        [pid] = [one["pid"] for one in broker.actors() if one["name"] == f"topic {topic}"]
        kill(pid)
        broker.wait_gone([pid])

    async def main() -> None:
        async with opened(broker, topic) as worker, opened(broker, topic) as client:
            await worker.set_result("a", of(1))
            assert client._reader is not None
            assert client._reader._patient
            for _ in range(3):
                await asyncio.to_thread(killed)
                assert (await AsyncTaskiqTask[Any]("a", client).wait_result()).return_value == 1

    asyncio.run(main())


PROGRAM = """
import asyncio, json, os, sys
from taskiq import TaskiqDepends
from taskiq.depends.progress_tracker import ProgressTracker
from zsq.apps.integrations.taskiq import ZsqBroker, ZsqResultBackend
broker = ZsqBroker(os.environ["TASKS_BROKER"], queue="q").with_result_backend(
    ZsqResultBackend(os.environ["TASKS_BROKER"])
)

@broker.task
async def divide(x: int, y: int, tracker: ProgressTracker[int] = TaskiqDepends()) -> float:
    await tracker.set_progress("DIVIDING", x)
    return x / y

async def main():
    await broker.startup()
    tasks = [await divide.kiq(6, 4), await divide.kiq(1, 0)]
    if "wait" in sys.argv:
        for task in tasks:
            result = await task.wait_result(0.05, timeout=100)
            print(json.dumps([result.return_value, repr(result.error)]))
    print(json.dumps([task.task_id for task in tasks]))
    await broker.shutdown()
"""


def test_results_of_a_real_worker_outlive_the_worker_and_a_restart_of_the_broker(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {"PATH": "/usr/bin:/bin"}

    def sent(*options: str) -> list[Any]:
        code = "import program, asyncio; asyncio.run(program.main())"
        printed = subprocess.run(
            [sys.executable, "-c", code, *options],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=WAIT_S,
            capture_output=True,
            text=True,
        ).stdout
        return [json.loads(line) for line in printed.splitlines()]

    async def read(quotient: str, error: str) -> None:
        # Another process, which has started after the tasks ran.
        async with opened(broker, "taskiq.results") as backend:
            task: AsyncTaskiqTask[Any] = AsyncTaskiqTask(quotient, backend)
            assert (await task.wait_result(0.05, timeout=WAIT_S)).return_value == 1.5
            progress = await task.get_progress()
            assert progress is not None
            assert (progress.state, progress.meta) == ("DIVIDING", 6)
            failed = await AsyncTaskiqTask[Any](error, backend).wait_result(0.05, timeout=WAIT_S)
            with pytest.raises(ZeroDivisionError, match="division by zero"):
                failed.raise_for_error()

    try:
        broker.start()
        environment["TASKS_BROKER"] = broker.tcp
        with (tmp_path / "worker.log").open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "taskiq", "worker", "program:broker", "-w", "1"],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=output,
            )
        try:
            quotient, error, _ = sent("wait")
            assert quotient == [1.5, "None"]
            assert error == [None, "ZeroDivisionError('division by zero')"]
            [ids] = sent()
            asyncio.run(read(*ids))
        finally:
            worker.terminate()
            worker.wait(WAIT_S)
        broker.stop()
        broker.start()
        asyncio.run(read(*ids))
    finally:
        broker.close()


def test_a_worker_waits_with_its_result_for_a_broker_that_is_away(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")

    async def main() -> None:
        async with opened(broker, "results") as worker:
            await worker.set_result("a", of(1))
            assert worker._producer is not None
            assert worker._producer._timeout is None
            broker.stop()
            waiting = asyncio.create_task(worker.set_result("b", of(2)))
            await asyncio.to_thread(broker.start)
            await asyncio.wait_for(waiting, WAIT_S)
            assert (await worker.get_result("b")).return_value == 2
            assert (await worker.get_result("a")).return_value == 1

    try:
        broker.start()
        asyncio.run(main())
    finally:
        broker.close()
