"""Tests of what `Consumer.run` does when a handler or a callback fails, on a real broker, with one
and with four handlers at a time, blocking and with asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.broker import Broker, wait_for

import zsq
import zsq.aio

WAIT_S: Final = 60.0


class World(NamedTuple):
    """Either kind of consumer, and how many handlers it runs at a time."""

    name: str
    concurrency: int

    def run(self, url: str, topic: str, handler: Callable[[Any], Any], **options: Any) -> None:
        """Run the handler until it returns `CLOSE`."""
        settings: dict[str, Any] = {"url": url, "backoff_s": 0.02}
        if self.name == "blocking":
            consumer = zsq.Consumer(topic, "c", **settings)

            def handle(message: zsq.Message) -> Any:
                if (result := handler(message)) is CLOSE:
                    return consumer.close()
                return result

            consumer.run(handle, concurrency=self.concurrency, **options)
        else:
            asyncio.run(asyncio.wait_for(self._run(topic, handler, settings, options), WAIT_S))

    async def _run(self, topic: str, handler: Any, settings: Any, options: Any) -> None:
        consumer = zsq.aio.Consumer(topic, "c", **settings)

        async def handle(message: zsq.aio.Message) -> Any:
            if (result := handler(message)) is CLOSE:
                return await consumer.close()
            return result

        await consumer.run(handle, concurrency=self.concurrency, **options)


CLOSE: Final = object()
WORLDS: Final = [World(name, count) for name in ("blocking", "asyncio") for count in (1, 4)]


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world.name}-{world.concurrency}")
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.param
    return found


@pytest.fixture
def topic(world: World, request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname[:40]}-{world.name}-{world.concurrency}"


def publish(broker: Broker, topic: str, *bodies: bytes) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(topic, bodies)


def depth(broker: Broker, topic: str) -> int:
    with zsq.Admin(broker.ipc) as admin:
        return int(admin.stats(topic, "c")["topics"][0]["channels"][0]["depth"])


class Base(BaseException):
    """An error that `except Exception` does not catch."""


FAILURES: Final[dict[bytes, Callable[[], object]]] = {
    b"exit": sys.exit,
    b"exit with a text": lambda: sys.exit("configuration is missing"),
    b"interrupt": lambda: _raise(KeyboardInterrupt()),
    b"base": lambda: _raise(Base("base")),
    b"cancelled": lambda: _raise(asyncio.CancelledError()),
    b"error": lambda: _raise(ValueError("error")),
    b"of zsq": lambda: _raise(zsq.BrokerUnreachable("E_UNREACHABLE", "another broker")),
}


def _raise(error: BaseException) -> None:
    raise error


def failing_once(seen: Counter[bytes], bodies: Iterator[bytes]) -> Callable[[Any], Any]:
    """Return a handler that fails once for each body, and then ends `run`."""
    expected = dict.fromkeys(bodies, 2)

    def handle(message: Any) -> Any:
        seen[message.body] += 1
        if seen[message.body] == 1:
            FAILURES.get(message.body, lambda: None)()
        return CLOSE if seen == expected else None

    return handle


def test_an_error_of_a_handler_never_ends_run(shared: Broker, world: World, topic: str) -> None:
    publish(shared, topic, *FAILURES)
    seen: Counter[bytes] = Counter()
    failures: list[str] = []

    def note(message: Any, error: BaseException) -> None:
        failures.append(type(error).__name__)

    world.run(shared.ipc, topic, failing_once(seen, iter(FAILURES)), on_error=note)
    assert Counter(failures) == Counter(
        SystemExit=2,
        KeyboardInterrupt=1,
        Base=1,
        CancelledError=1,
        ValueError=1,
        BrokerUnreachable=1,
    )
    assert depth(shared, topic) == 0


def test_a_callback_that_fails_does_not_keep_the_message(
    shared: Broker, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(shared, topic, *FAILURES)
    seen: Counter[bytes] = Counter()

    def fail(message: Any, *error: BaseException) -> Any:
        FAILURES[message.body]()

    handle = failing_once(seen, iter(FAILURES))
    with caplog.at_level(logging.ERROR, "zsq"):
        world.run(shared.ipc, topic, handle, on_error=fail, requeue_delay=fail)
    assert depth(shared, topic) == 0
    for callback in ("on_error", "requeue_delay"):
        assert caplog.text.count(f"{callback} failed for ") == len(FAILURES)
    assert caplog.text.count("ValueError: error") >= 3, "the handler's error is logged, too"


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> None:
    raise AssertionError("never awaited")


@pytest.mark.parametrize(
    ("lazy", "text"),
    [
        (_coroutine, "returned a coroutine"),
        (_generator, "returned a generator"),
        (lambda: map(print, [1]), "returned an iterator"),
        (Future, "returned a future"),
    ],
)
def test_a_result_that_has_not_run_ends_run_and_loses_nothing(
    shared: Broker, world: World, topic: str, lazy: Callable[[], Any], text: str
) -> None:
    topic = f"{topic}-{text.split()[-1]}"
    publish(shared, topic, b"a", b"b", b"c", b"d", b"e")
    with pytest.raises(zsq.UsageError, match=text):
        world.run(shared.ipc, topic, lambda message: lazy())
    assert depth(shared, topic) == 5


PROGRAM: Final = """
import asyncio, signal, sys, time, zsq, zsq.aio

url, kind, error = sys.argv[1:]

def on_signal(number, frame):
    raise SystemExit(7) if error == "SystemExit" else KeyboardInterrupt()

if error:
    signal.signal(signal.SIGTERM, on_signal)

def handle(message):
    print("handling", flush=True)
    while True:
        time.sleep(0.05)  # signal.pause() would miss a signal that comes just before it

async def handle_async(message):
    handle(message)

if kind == "blocking":
    zsq.Consumer("t", "c", url=url).run(handle, signals=False)
else:
    asyncio.run(zsq.aio.Consumer("t", "c", url=url).run(handle_async, signals=False))
"""


@pytest.mark.parametrize(
    ("kind", "error", "number", "code"),
    [
        ("blocking", "SystemExit", signal.SIGTERM, 7),
        ("blocking", "KeyboardInterrupt", signal.SIGTERM, -signal.SIGINT),
        ("blocking", "", signal.SIGINT, -signal.SIGINT),
        ("asyncio", "SystemExit", signal.SIGTERM, 7),
    ],
)
def test_a_signal_that_interrupts_a_handler_ends_the_program(
    own_broker: Broker, tmp_path: Path, kind: str, error: str, number: int, code: int
) -> None:
    """It must not count as a failure of the message."""
    publish(own_broker, "t", b"a")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), own_broker.ipc, kind, error]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"handling\n"
            process.send_signal(number)
            assert process.wait(WAIT_S) == code
        finally:
            process.kill()
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        assert message.body == b"a", "it was returned"
        message.finish(sync=True)


SIGNALLED: Final = """
import asyncio, sys, time, zsq, zsq.aio

url, kind, work_s = sys.argv[1:]

def handle(message):
    print("handling", flush=True)
    deadline_s = time.monotonic() + float(work_s)
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
    print("handled")

async def handle_async(message):
    print("handling", flush=True)
    await asyncio.sleep(float(work_s))
    print("handled")

if kind == "blocking":
    zsq.Consumer("t", "c", url=url).run(handle)
else:
    asyncio.run(zsq.aio.Consumer("t", "c", url=url).run(handle_async))
"""


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("work_s", "pause_s", "code", "said"),
    [(1.0, 0.0, 0, b"handled\n"), (60.0, 0.7, -signal.SIGTERM, b"")],
)
def test_a_signal_that_comes_twice_at_once_is_one_request_to_stop(
    own_broker: Broker,
    tmp_path: Path,
    kind: str,
    work_s: float,
    pause_s: float,
    code: int,
    said: bytes,
) -> None:
    """`timeout` sends SIGTERM to the process and to its group. A later one ends the program."""
    publish(own_broker, "t", b"a")
    program = tmp_path / "program.py"
    program.write_text(SIGNALLED)
    command = [sys.executable, str(program), own_broker.ipc, kind, str(work_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"handling\n"
            process.send_signal(signal.SIGTERM)
            second_s = time.monotonic() + pause_s
            wait_for(lambda: time.monotonic() >= second_s, WAIT_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == code
            assert process.stdout.read() == said
        finally:
            process.kill()


REQUEST: Final = contextvars.ContextVar("request", default="none")


def test_a_context_variable_of_a_handler_ends_with_its_message(
    shared: Broker, world: World, topic: str
) -> None:
    publish(shared, topic, b"a", b"b", b"c", b"d", b"e", b"f")
    found: list[str] = []
    failed: list[str] = []
    done: set[bytes] = set()

    def handler(message: Any) -> Any:
        found.append(REQUEST.get())
        REQUEST.set(message.body.decode())
        if message.attempts == 1:
            raise ValueError
        done.add(message.body)
        return CLOSE if len(done) == 6 else None

    def on_error(message: Any, error: BaseException) -> None:
        failed.append(REQUEST.get())

    token = REQUEST.set("caller")
    try:
        world.run(shared.ipc, topic, handler, on_error=on_error)
    finally:
        REQUEST.reset(token)
    assert set(found) == {"caller"}
    assert sorted(failed) == ["a", "b", "c", "d", "e", "f"]


def test_a_context_variable_lasts_while_a_coroutine_waits(shared: Broker) -> None:
    """Also when what it awaits fails or is cancelled."""
    publish(shared, "waits", b"a", b"b", b"c")
    found: list[str] = []

    async def main() -> None:
        consumer = zsq.aio.Consumer("waits", "c", url=shared.ipc)

        async def handle(message: zsq.aio.Message) -> None:
            REQUEST.set(body := message.body.decode())
            await asyncio.create_task(read())
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                found.append(body + REQUEST.get())
            found.append(body + await asyncio.create_task(read()))
            if len(found) == 6:
                await consumer.close()

        await consumer.run(handle, concurrency=3)

    async def read() -> str:
        return REQUEST.get()

    asyncio.run(main())
    assert sorted(found) == ["aa", "aa", "bb", "bb", "cc", "cc"]
