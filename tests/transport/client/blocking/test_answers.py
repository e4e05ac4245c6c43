"""Tests of answers that cannot be given any more: to a closed consumer, or by a process that did
not receive the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import zsq
from zsq.transport.client.core.asking import Question
from zsq.transport.errors import Refused, UsageError
from zsq.transport.wire.protocol import OffsetAt

Broker = Any
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "finish": lambda one: one.finish(),
    "finish sync": lambda one: one.finish(sync=True),
    "requeue": lambda one: one.requeue(),
    "reject": lambda one: one.reject("why"),
    "touch": lambda one: one.touch(),
}


@contextlib.contextmanager
def a_child() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Return a function that runs something in a forked child and returns its exit code (0 if it
    raised nothing). The child must end within 20 s.
    """

    def run(work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()  # so that the report of the failed test shows it
                raise
            finally:
                os._exit(status)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            threading.Event().wait(0.01)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise AssertionError("the child hangs")

    yield run


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_a_forked_child_is_refused(answer: str, whole: bool, broker: Broker) -> None:
    """The answer is refused even if another thread of the parent held the consumer's lock at the
    fork.
    """
    broker.put(b"a", b"b")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    batch = consumer.receive_batch(5)
    assert batch is not None
    one: Any = batch if whole else batch.messages()[0]

    def work() -> None:
        with pytest.raises(Refused, match="only that process"):
            ANSWERS[answer](one)

    made = consumer._made
    assert made is not None
    with a_child() as run, made.lock:
        assert run(work) == 0
    batch.finish(sync=True)
    consumer.close()
    assert sorted(broker.finished) == [0, 1]
    assert broker.requeued == []


def test_a_forked_child_is_not_handed_what_the_parent_holds(broker: Broker) -> None:
    """The parent answers the messages that wait in its consumer. The child gets a separate
    subscription.
    """
    broker.put(b"a", b"b", b"c")
    consumer = zsq.Consumer("t", "c", url=broker.url, ready=3)
    first = consumer.receive(5)
    assert first is not None

    def work() -> None:
        assert consumer.receive(0.2) is None
        consumer.flush()
        assert consumer.stale_count == 0
        consumer.close()

    with a_child() as run:
        assert run(work) == 0
    assert [
        message.body
        for message in (consumer.receive(5), consumer.receive(5))
        if message is not None
    ] == [b"b", b"c"]
    consumer.close()


def test_every_client_can_be_used_and_closed_in_a_forked_child(broker: Broker) -> None:
    """Links, locks and threads of the parent do not exist in the child."""
    producer, admin, reader = (
        zsq.Producer(broker.url, linger_ms=60_000),
        zsq.Admin(broker.url),
        zsq.Reader("t", url=broker.url),
    )
    receipt = producer.publish("t", b"parent")
    admin.ping()
    reader.bounds()
    # Without this, an answer that arrived before the fork would be in the child too.
    broker.deaf_to.add(OffsetAt)
    request = reader._send(Question(lambda number: OffsetAt(number, 0)))

    def work() -> None:
        with pytest.raises(UsageError, match="process that published"):
            receipt.wait()
        producer.flush()  # there is nothing of this process to flush
        producer.publish("t", b"child").wait()
        assert admin.ping() == "OK"
        assert reader.bounds()[1] >= 1
        with pytest.raises(Refused, match="the request belongs to another process"):
            reader._reply(request)
        for client in (producer, admin, reader):
            client.close()

    made = producer._made
    assert made is not None
    with a_child() as run, made.lock:
        assert run(work) == 0
    receipt.wait()
    for client in (producer, admin, reader):
        client.close()
    assert broker.bodies() == [b"child", b"parent"]


# It runs in a process of its own, where no other thread holds a lock of Python at the fork.
FORKS_BELOW_PYTHON = """
import ctypes, os, sys
import zsq
from zsq.transport.block.block import pack

url = sys.argv[1]
producer, admin = zsq.Producer(url), zsq.Admin(url)
consumer, stage = zsq.Consumer("t", "c", url=url), zsq.StageWriter("t", "app", 1, url=url, timeout=0.1)


def push(text):
    try:
        stage.push(pack([b"row"]))
    except zsq.ZsqError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"it did not say: {text}")


producer.publish("t", b"parent")
admin.ping()
consumer.subscribe()
push("does not know the address of stage t")
pid = ctypes.PyDLL(None).fork()
if not pid:
    producer.publish("t", b"child")
    assert admin.ping() == "OK"
    consumer.subscribe()
    push("make a writer in each process")
    with zsq.Admin(url) as other:
        other.ping()
    for client in (producer, admin, consumer, stage):
        client.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
producer.publish("t", b"parent again")
for client in (producer, admin, consumer, stage):
    client.close()
"""


def test_clients_can_be_used_after_a_fork_that_python_does_not_know(broker: Broker) -> None:
    """Some servers (uWSGI) fork without the functions of `os.register_at_fork`."""
    line = [sys.executable, "-c", FORKS_BELOW_PYTHON, broker.url]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert broker.bodies() == [b"parent", b"child", b"parent again"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_after_close_is_refused(answer: str, whole: bool, broker: Broker) -> None:
    """Closing gave the message back. If the answer were accepted, the caller would think it was
    finished, and the work would be done a second time.
    """
    broker.put(b"a")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    batch = consumer.receive_batch(5)
    assert batch is not None
    one: Any = batch if whole else batch.messages()[0]
    consumer.close()
    with pytest.raises(Refused, match="E_CLOSING the consumer of this message is closed"):
        ANSWERS[answer](one)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_after_close_are_refused_with_asyncio(
    answer: str, whole: bool, broker: Broker
) -> None:
    broker.put(b"a")

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        batch = await consumer.receive_batch(5)
        assert batch is not None
        one: Any = batch if whole else batch.messages()[0]
        await consumer.close()
        with pytest.raises(Refused, match="E_CLOSING the consumer of this message is closed"):
            await ANSWERS[answer](one)
        with pytest.raises(Refused):
            await consumer.subscribe()
        assert await consumer.receive() is None

    asyncio.run(main())


def test_a_closed_consumer_opens_nothing_again(broker: Broker) -> None:
    consumer = zsq.Consumer("t", "c", url=broker.url)
    consumer.subscribe()
    consumer.close()
    with pytest.raises(Refused):
        consumer.subscribe()
    assert consumer.receive_batch() is None
    assert consumer.receive() is None
    assert list(consumer) == []
    assert broker.count(zsq.transport.wire.protocol.Sub) == 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_handler_may_close_its_consumer(concurrency: int, broker: Broker) -> None:
    """The message that it handles is finished nevertheless: `run` closes the consumer after its
    handlers have returned.
    """
    broker.put(*(b"%d" % number for number in range(20)))
    consumer = zsq.Consumer("t", "c", url=broker.url, ready=5)
    handled: list[int] = []

    def handle(message: zsq.Message) -> None:
        handled.append(message.offset)
        consumer.close()

    consumer.run(handle, concurrency=concurrency, signals=False)
    assert handled
    assert sorted(handled) == sorted(broker.finished)


def test_close_waits_for_a_handler_in_another_thread(broker: Broker) -> None:
    broker.put(b"a")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: zsq.Message) -> None:
        begun.set()
        assert may_end.wait(10)

    running = threading.Thread(target=lambda: consumer.run(handle, signals=False))
    running.start()
    assert begun.wait(5)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    broker.wait_for(lambda: broker.count(zsq.transport.wire.protocol.Ready) == 1)
    assert closing.is_alive()
    may_end.set()
    closing.join(10)
    running.join(10)
    assert broker.finished == [0]


def test_a_handler_may_close_its_asyncio_consumer(broker: Broker) -> None:
    broker.put(b"a", b"b")

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def handle(message: zsq.aio.Message) -> None:
            begun.set()
            await may_end.wait()
            if message.offset == 1:
                await consumer.close()  # called in its own handler, so it returns at once

        running = asyncio.create_task(consumer.run(handle, signals=False, concurrency=2))
        await begun.wait()
        closing = asyncio.create_task(consumer.close())
        assert not (await asyncio.wait({closing}, timeout=0.1))[0]
        may_end.set()
        await asyncio.gather(running, closing)

    asyncio.run(main())
    assert sorted(broker.finished) == [0, 1]


# Invalid handlers


class _Plain:
    def __call__(self, message: Any) -> None: ...


class _Awaited:
    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.both = asyncio.Event()

    async def __call__(self, message: zsq.aio.Message, more: int = 0) -> None:
        self.seen.append(message.body)
        if len(self.seen) == 2:
            self.both.set()


async def _coroutine(message: Any) -> None: ...


PLAIN: list[Any] = [
    lambda message: None,
    lambda message: _coroutine(message),
    _Plain(),
    partial(_Plain(), 1),
    print,
]
NOTHING: list[Any] = [None, 5, "handler", partial]


@pytest.mark.parametrize(
    "handler", [*PLAIN, *NOTHING[:-1]], ids=lambda one: getattr(one, "__name__", type(one).__name__)
)
def test_an_asyncio_consumer_refuses_a_handler_it_cannot_await(
    handler: Any, broker: Broker
) -> None:
    broker.put(b"precious")

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        with pytest.raises(UsageError, match="the handler must be"):
            await consumer.run(handler, signals=False)
        await consumer.close()

    asyncio.run(main())
    assert (broker.finished, broker.requeued, broker.leases) == ([], [], {})


@pytest.mark.parametrize(
    "handler", NOTHING[:-1], ids=lambda one: getattr(one, "__name__", type(one).__name__)
)
def test_a_blocking_consumer_refuses_a_handler_it_cannot_call(handler: Any, broker: Broker) -> None:
    broker.put(b"precious")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    with pytest.raises(UsageError, match="the handler must be callable"):
        consumer.run(handler, signals=False)
    for wrong in (partial(_Awaited(), more=1), partial(partial(_coroutine))):
        with pytest.raises(UsageError, match="coroutine function"):
            consumer.run(wrong, signals=False)
    with pytest.raises(UsageError, match="on_error must be callable"):
        consumer.run(print, on_error=5, signals=False)  # type: ignore[arg-type]
    consumer.close()
    assert (broker.finished, broker.requeued) == ([], [])


@pytest.mark.parametrize(
    "wrap", [lambda handler: handler, lambda handler: partial(handler, more=1)]
)
def test_an_object_with_an_async_call_and_a_partial_of_it_are_handlers(
    wrap: Any, broker: Broker
) -> None:
    broker.put(b"a", b"b")

    async def main() -> list[bytes]:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        handler = _Awaited()
        running = asyncio.create_task(consumer.run(wrap(handler), signals=False))
        await asyncio.wait_for(handler.both.wait(), 10)
        await consumer.close()
        await running
        return handler.seen

    assert asyncio.run(main()) == [b"a", b"b"]
