"""Tests of what depends on the operating system. Both variants of each class keep one contract."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import zsq
from zsq.transport import system
from zsq.transport.client.asyncio import aio
from zsq.transport.client.blocking import drive
from zsq.transport.client.link import link_host
from zsq.transport.client.link.engine import Engine
from zsq.transport.client.link.timeouts import FAR_NS
from zsq.transport.errors import E_UNSUPPORTED
from zsq.transport.system import (
    EpollSet,
    EventWaker,
    SelectSet,
    SignalFlag,
    SocketWaker,
    StopRequests,
)

WAIT_S = 20.0


@pytest.fixture(params=[EventWaker, SocketWaker])
def waker(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    made.close()


@pytest.fixture(params=["epoll", "poll", "select"])
def events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make each kind of set: of Linux, of macOS, and of Windows."""
    if request.param == "select":
        monkeypatch.setattr(system, "wait_readable", system._by_select)
    made: Any = EpollSet() if request.param == "epoll" else SelectSet()
    yield made
    made.close()


@pytest.fixture
def wakers() -> Iterator[list[Any]]:
    made = [SocketWaker() for _ in range(3)]
    yield made
    for one in made:
        one.close()


def ready(events: Any, timeout_s: float = 0) -> set[int]:
    return {fd for fd, _ in events.poll(timeout_s)}


def polled(events: Any, done: Callable[[set[int]], object]) -> set[int]:
    """Poll until this is true of what was found. `poll` may return early.

    If a change does not wake it, it takes so long that the test fails.
    """
    deadline = time.monotonic() + WAIT_S
    while not done(found := ready(events, 2 * WAIT_S)):
        assert time.monotonic() < deadline, f"only {found} was found"
    return found


# What is chosen


def test_linux_gets_the_fast_variants() -> None:
    assert system.EventSet is EpollSet
    assert system.Waker is EventWaker
    assert system.wait_readable is system._by_poll
    assert system.calls_on_signals is system._calls_of_loop
    assert system.SLEEP_NS_MAX == 3_600_000_000_000
    assert system.RUNS_BROKERS


def test_a_wait_on_linux_is_a_method_of_the_epoll_set_itself() -> None:
    """The fast path of a client must not contain another call."""
    events = EpollSet()
    assert events.poll.__self__ is events._epoll  # type: ignore[attr-defined]
    events.close()


# Wakers


def test_a_waker_is_readable_from_wake_until_drain(waker: Any) -> None:
    for _ in range(2):
        assert not system.wait_readable((waker.fileno(),), 0)
        waker.drain()  # does nothing, and does not wait
        waker.wake()
        waker.wake()
        assert system.wait_readable((waker.fileno(),), 0) == [waker.fileno()]
        waker.drain()


def test_a_waker_can_be_woken_any_number_of_times(waker: Any) -> None:
    for _ in range(20_000):  # more than the buffer of a socket holds
        waker.wake()
    assert system.wait_readable((waker.fileno(),), 0)
    waker.drain()
    assert not system.wait_readable((waker.fileno(),), 0)


def test_a_closed_waker_holds_no_descriptor(waker: Any) -> None:
    fd = waker.fileno()
    os.fstat(fd)
    waker.close()
    waker.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_wait_of_windows_ends_soon_so_that_it_notices_a_signal() -> None:
    begin = time.monotonic()
    assert system._by_select((), 3_600_000) == []
    assert time.monotonic() - begin < 10


# Sets


def test_a_set_returns_what_is_readable(events: Any, wakers: list[Any]) -> None:
    one, two, three = wakers
    assert ready(events) == set()
    for each in wakers:
        events.register(each.fileno())
    assert ready(events) == set()
    one.wake()
    three.wake()
    assert ready(events) == ready(events, WAIT_S) == {one.fileno(), three.fileno()}
    events.unregister(one.fileno())
    three.drain()
    two.wake()
    assert ready(events) == {two.fileno()}


def test_a_set_refuses_a_descriptor_twice_or_not_at_all(events: Any, wakers: list[Any]) -> None:
    fd = wakers[0].fileno()
    events.register(fd)
    with pytest.raises(FileExistsError):
        events.register(fd)
    events.unregister(fd)
    with pytest.raises(FileNotFoundError):
        events.unregister(fd)
    events.register(fd)


def test_a_wait_takes_its_time(events: Any, wakers: list[Any]) -> None:
    events.register(wakers[0].fileno())
    begin = time.monotonic()
    assert ready(events, 0.05) == set()
    assert 0.04 < time.monotonic() - begin < 10


class Waiting(threading.Thread):
    """A thread that waits for a set until it finds this descriptor."""

    def __init__(self, events: Any, wanted: int) -> None:
        super().__init__(daemon=True)
        self.events, self.wanted = events, wanted
        self.found: set[int] = set()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = polled(self.events, lambda found: self.wanted in found)
        except Exception as error:
            self.error = error

    def end(self) -> set[int]:
        self.join(WAIT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.found


def until_waiting(events: Any, count: int) -> None:
    """Wait until so many threads wait for the set. An epoll set does not say it, nor needs to."""
    deadline = time.monotonic() + WAIT_S
    while isinstance(events, SelectSet) and events._waiting < count:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_threads_that_wait_see_a_new_descriptor(events: Any, wakers: list[Any]) -> None:
    old, new, _ = wakers
    events.register(old.fileno())
    threads = [Waiting(events, new.fileno()) for _ in range(3)]
    until_waiting(events, 3)
    new.wake()
    events.register(new.fileno())
    assert [thread.end() for thread in threads] == [{new.fileno()}] * 3


def test_no_wait_is_shorter_after_changes_during_waits(events: Any, wakers: list[Any]) -> None:
    """A waker that stayed readable would make each later wait return at once."""
    one, two, _ = wakers
    for _ in range(50):
        threads = [Waiting(events, one.fileno()) for _ in range(2)]
        until_waiting(events, 2)
        events.register(two.fileno())
        events.register(one.fileno())
        one.wake()
        for thread in threads:
            thread.end()
        events.unregister(one.fileno())
        events.unregister(two.fileno())
        one.drain()
    begin = time.monotonic()
    assert ready(events, 0.05) == set()
    assert time.monotonic() - begin > 0.04


def test_a_descriptor_that_is_closed_during_a_wait_is_forgotten(
    events: Any, wakers: list[Any]
) -> None:
    gone, kept, _ = wakers
    events.register(gone.fileno())
    events.register(kept.fileno())
    thread = Waiting(events, kept.fileno())
    until_waiting(events, 1)
    events.unregister(gone.fileno())
    gone.close()
    kept.wake()
    assert thread.end() == {kept.fileno()}


def test_a_list_with_a_closed_socket_counts_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses a list with a socket that another thread closed before the call began."""
    events = SelectSet()
    waker = SocketWaker()
    events.register(waker.fileno())

    def wait(fds: Any, timeout_ms: float) -> list[int]:
        events.unregister(waker.fileno())  # as another thread does it
        raise OSError(10038, "an operation was attempted on something that is not a socket")

    with monkeypatch.context() as patched:
        patched.setattr(system, "wait_readable", wait)
        assert events.poll(0) == []
        with pytest.raises(FileNotFoundError):  # nothing has changed in this wait
            events.poll(0)

    def fail(fds: Any, timeout_ms: float) -> list[int]:
        raise OSError(10038, "an operation was attempted on something that is not a socket")

    monkeypatch.setattr(system, "wait_readable", fail)
    with pytest.raises(OSError, match="not a socket"):
        events.poll(0)
    events.close()
    waker.close()


def test_a_set_can_be_waited_for_beside_a_descriptor(events: Any, wakers: list[Any]) -> None:
    beside, inside, _ = wakers
    fd = beside.fileno()
    events.register(inside.fileno())
    assert events.wait_beside(fd, 0) == (False, False)
    beside.wake()
    assert events.wait_beside(fd, 1_000) == (True, False)
    inside.wake()
    assert events.wait_beside(fd, 1_000) == (True, True)
    beside.drain()
    assert events.wait_beside(fd, 1_000) == (False, True)
    assert ready(events) == {inside.fileno()}, "nothing was taken away"


def test_an_abandoned_set_closes_its_descriptors() -> None:
    events = SelectSet()
    fd = events._waker.fileno()
    del events
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# Event loops


async def turns_of_the_loop() -> None:
    """Let the event loop look three times at what is readable, and make its calls."""
    for _ in range(3):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


def test_an_event_loop_watches_a_set(events: Any, wakers: list[Any]) -> None:
    first, second, _ = wakers
    seen: asyncio.Queue[set[int]] = asyncio.Queue()

    def on_ready() -> None:
        found = ready(events)
        for one in wakers:
            if one.fileno() in found:
                one.drain()
        seen.put_nowait(found)

    async def main() -> None:
        events.register(first.fileno())
        events.attach(asyncio.get_running_loop(), on_ready)
        events.register(second.fileno())
        for one in (first, second, first):
            one.wake()
            assert await asyncio.wait_for(seen.get(), WAIT_S) == {one.fileno()}
        events.unregister(first.fileno())
        first.wake()
        second.wake()
        assert await asyncio.wait_for(seen.get(), WAIT_S) == {second.fileno()}
        events.detach()
        events.detach()
        second.wake()
        events.register(first.fileno())
        await turns_of_the_loop()
        assert seen.empty()

    asyncio.run(main())


def test_a_set_can_be_taken_from_a_closed_loop(events: Any, wakers: list[Any]) -> None:
    loop = asyncio.SelectorEventLoop()
    events.register(wakers[0].fileno())
    events.attach(loop, lambda: None)
    loop.close()
    events.detach()
    events.unregister(wakers[0].fileno())


class Proactor(asyncio.SelectorEventLoop):
    """Like the default loop of Windows: programs cannot let it watch sockets."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_a_loop_that_cannot_watch_sockets_is_refused(broker: Any, variant: None) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(broker.url) as producer:
            await producer.publish("clicks", b"hello")

    with (
        asyncio.Runner(loop_factory=Proactor) as runner,
        pytest.raises(
            zsq.UsageError, match=r"Proactor cannot watch sockets.*zsq\.aio\.run"
        ) as said,
    ):
        runner.run(main())
    assert said.value.code == E_UNSUPPORTED


def test_run_needs_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    woken = []

    class Woken:
        def __init__(self, loop: Any) -> None:
            self.loop = loop

        def __enter__(self) -> None:
            woken.append(self.loop)

        def __exit__(self, *_: object) -> None:
            assert not self.loop.is_closed(), "the waker is removed before the loop ends"

    monkeypatch.setattr(aio, "woken_by_signals", Woken)

    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = zsq.aio.run(main(), debug=True)
    assert isinstance(loop, asyncio.SelectorEventLoop)
    assert loop.get_debug()
    assert woken == [loop]


# Signals


@pytest.mark.parametrize("calls", [system._calls_of_loop, system._calls_of_handlers])
def test_signals_make_calls_in_the_loop(calls: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        with calls(loop, (signal.SIGTERM, signal.SIGUSR1), told.set):
            for number in (signal.SIGTERM, signal.SIGUSR1):
                os.kill(os.getpid(), number)
                await asyncio.wait_for(told.wait(), WAIT_S)
                told.clear()

    asyncio.run(main())
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("calls", [system._calls_of_loop, system._calls_of_handlers])
def test_signals_of_another_thread_than_the_main_one_are_left_alone(calls: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    errors: list[BaseException] = []

    def run() -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            with calls(loop, (signal.SIGTERM,), lambda: None), system._woken_by_signals(loop):
                assert signal.getsignal(signal.SIGTERM) is before

        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert not errors
    assert not thread.is_alive()


def test_a_signal_wakes_the_loop_of_windows() -> None:
    """There, the loop's own wait does not end when a signal arrives."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with system._woken_by_signals(loop):
            fd = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
            assert fd >= 0
            [waker] = [
                key.fileobj
                for key in loop._selector.get_map().values()  # type: ignore[attr-defined]
                if peer_of(key.fileobj, fd)
            ]
            os.kill(os.getpid(), signal.SIGUSR1)
            assert system.wait_readable((waker,), WAIT_S * 1000) == [waker]
            await turns_of_the_loop()
            assert not system.wait_readable((waker,), 0), "the loop has drained it"

    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert signal.set_wakeup_fd(-1) == -1


def peer_of(fd: int, other: int) -> bool:
    """Return True if a byte that is written to `other` arrives at `fd`."""
    with socket.socket(fileno=os.dup(other)) as writer:
        writer.send(b"?")
    with socket.socket(fileno=os.dup(fd)) as reader:
        reader.setblocking(False)
        try:
            return reader.recv(1) == b"?"
        except BlockingIOError:
            return False


# Whole clients


@pytest.fixture(params=["poll", "select"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients use the variants of other systems."""
    monkeypatch.setattr(link_host, "EventSet", SelectSet)
    monkeypatch.setattr(drive, "Waker", SocketWaker)
    if request.param == "select":
        monkeypatch.setattr(system, "wait_readable", system._by_select)
        monkeypatch.setattr(drive, "wait_readable", system._by_select)
        monkeypatch.setattr(drive, "SLEEP_NS_MAX", system.SIGNAL_MS * 1_000_000)


def test_blocking_clients_work_with_the_other_variants(broker: Any, variant: None) -> None:
    """Threads share the clients, so some drive, some follow, and the keeper takes turns."""
    bodies = [b"%d" % number for number in range(60)]
    received: list[bytes] = []
    with zsq.Producer(broker.url, linger_ms=1) as producer:

        def publish(part: list[bytes]) -> None:
            for body in part:
                producer.publish("clicks", body).wait(WAIT_S)

        threads = [threading.Thread(target=publish, args=(bodies[i::3],)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        late = producer.publish("clicks", b"late")
        wait_until(lambda: late.done)  # the keeper sends it
    with zsq.Consumer("clicks", "archive", url=broker.url) as consumer:
        while len(received) < 61 and (message := consumer.receive(WAIT_S)) is not None:
            received.append(bytes(message.body))
            message.finish()
        consumer.flush()
        begin = time.monotonic()
        assert consumer.receive(0.3) is None
        assert time.monotonic() - begin > 0.29
    assert sorted(received) == sorted([*bodies, b"late"])


def test_asyncio_clients_work_with_the_other_variants(broker: Any, variant: None) -> None:
    async def main() -> list[bytes]:
        async with zsq.aio.Producer(broker.url) as producer:
            await asyncio.gather(*(producer.publish("clicks", b"%d" % i) for i in range(20)))
        received: list[bytes] = []
        async with zsq.aio.Consumer("clicks", "archive", url=broker.url) as consumer:
            while len(received) < 20 and (message := await consumer.receive(WAIT_S)) is not None:
                received.append(bytes(message.body))
                await message.finish()
            await consumer.flush()
        return received

    assert sorted(asyncio.run(main())) == sorted(b"%d" % i for i in range(20))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_thread_that_follows_sleeps_for_an_hour_at_most() -> None:
    """Windows refuses to wait for a lock for more than 49 days."""

    class Lock:
        times: Final[list[float]] = []

        def acquire(self, timeout: float) -> None:
            self.times.append(timeout)

    made = drive.Drive(Engine())
    lock: Any = Lock()
    with made.lock:
        for pause_ns in (FAR_NS, 2_000_000_000, -5):
            made._follow(lock, pause_ns)
        made.stop()
    assert lock.times == [3600.0, 2.0, 0.0]


# Small facts


def test_a_system_without_these_calls_has_a_name_and_no_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert system.node_name() == os.uname().nodename
    assert system.user_id() == os.geteuid()
    for name in ("uname", "geteuid", "register_at_fork"):
        monkeypatch.delattr(os, name)
    assert system.node_name() == socket.gethostname()
    assert system.user_id() is None
    system.after_fork(lambda: None)


def test_a_forked_child_makes_the_call() -> None:
    """In a child of its own, because the call stays registered."""
    program = (
        "import os; from zsq.transport.system import after_fork;"
        "after_fork(lambda: os._exit(7)); pid = os.fork();"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    with os.popen(f"{sys.executable} -c '{program}'") as out:
        assert out.read().strip() == "7"


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_other_systems_run_no_broker(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    system.check_runs_brokers("zsq serve")
    monkeypatch.setattr(system, "RUNS_BROKERS", False)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(zsq.UsageError, match=f"zsq serve needs Linux, and this is {name}") as said:
        system.check_runs_brokers("zsq serve")
    assert said.value.code == E_UNSUPPORTED


# Flags for signal handlers

SIGNALLED: Final = """\
import signal, time
from zsq.transport.system import SignalFlag

flags = [SignalFlag()]
def handler(number, frame):
    flags[-1].set()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
until = time.monotonic() + 0.5
while time.monotonic() < until:
    flags[0].wait(1e-5)
    flags = [SignalFlag()]
assert flags[0].wait()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_handler_sets_a_flag_whatever_it_interrupts() -> None:
    """With `threading.Event`, the handler waits for a lock that its own thread holds."""
    ended = subprocess.run([sys.executable, "-c", SIGNALLED], timeout=WAIT_S, check=False)
    assert ended.returncode == 0


def test_a_flag_wakes_the_thread_that_waits_for_it() -> None:
    flag = SignalFlag()
    assert not flag.wait(0)
    thread = threading.Thread(target=flag.set)
    thread.start()
    assert flag.wait()
    thread.join()
    assert flag.is_set()
    assert flag.wait(0)


def test_signals_that_come_together_are_one_request_to_stop() -> None:
    times_s = iter([5.0, 5.001, 5.5, 5.6, 6.0])
    requests = StopRequests(lambda: next(times_s))
    assert [requests.is_second() for _ in range(5)] == [False, False, False, True, True]
