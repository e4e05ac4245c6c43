"""Tests of the resolver: how many threads it uses, and for how long it uses an answer."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from zsq.transport.resolver import (
    KEPT_S_MAX,
    NAMES_MAX,
    NotResolved,
    Resolver,
    connect,
    first_connection,
    resolve,
    resolver,
)


def row(address: str) -> tuple[Any, ...]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, 6, "", (address, 0))


class Names:
    """A name server, which a test lets answer when it wants, and a clock."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.goes = threading.Event()
        self.begun = threading.Semaphore(0)
        self.now_s = 0.0

    def __call__(self, host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        self.begun.release()
        assert self.goes.wait(20)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row(address) for address in self.known[host]]

    def wait_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=20)


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.goes.set()


def made(names: Names, threads_max: int = 2) -> Resolver:
    return Resolver(names, threads_max=threads_max, clock_s=lambda: names.now_s)


def test_all_addresses_of_a_name_come_once_and_in_order(names: Names) -> None:
    names.known["a"] = ["::1", "10.0.0.1", "::1"]
    names.goes.set()
    assert made(names).ask("a").wait(20) == ("::1", "10.0.0.1")


def test_an_error_names_the_host_and_dns(names: Names) -> None:
    names.goes.set()
    with pytest.raises(NotResolved) as caught:
        made(names).ask("nowhere").wait(20)
    assert "the name nowhere could not be resolved (DNS): Name or service" in str(caught.value)


def test_a_name_that_is_not_valid_is_an_error_too() -> None:
    with pytest.raises(NotResolved, match="DNS"):
        resolver().ask("a" * 70 + ".invalid").wait(20)


def test_a_slow_name_occupies_one_thread_and_others_are_resolved(names: Names) -> None:
    resolver = made(names)
    first = resolver.ask("slow")
    names.wait_begun(1)
    assert all(resolver.ask("slow") is first for _ in range(100))
    with pytest.raises(NotResolved, match=r"no answer within 0.01 s"):
        first.wait(0.01)
    names.known["good"] = ["10.0.0.1"]
    good = resolver.ask("good")
    names.wait_begun(1)
    names.goes.set()
    assert good.wait(20) == ("10.0.0.1",)
    assert names.asked == ["slow", "good"]


def test_threads_are_bounded_and_names_wait_for_one(names: Names) -> None:
    resolver = made(names)
    asked = [resolver.ask(f"slow-{number}") for number in range(10)]
    names.wait_begun(2)
    assert len(names.asked) == 2
    names.goes.set()
    for one in asked:
        with pytest.raises(NotResolved):
            one.wait(20)
    assert len(names.asked) == 10


def test_names_are_bounded(names: Names) -> None:
    resolver = made(names, threads_max=1)
    asked = [resolver.ask(f"slow-{number}") for number in range(NAMES_MAX + 1)]
    assert not asked[-2].done
    with pytest.raises(NotResolved, match="other names"):
        asked[-1].wait(0)
    names.goes.set()
    with pytest.raises(NotResolved):
        asked[-2].wait(20)


@pytest.mark.parametrize("took_s", [0.0, 8.0, 100.0])
def test_an_answer_is_used_for_as_long_as_it_took(names: Names, took_s: float) -> None:
    resolver = made(names)
    first = resolver.ask("a")
    names.wait_begun(1)
    names.now_s = took_s
    names.goes.set()
    with pytest.raises(NotResolved):
        first.wait(20)
    assert resolver.ask("a") is first
    names.now_s += min(max(took_s, 0.1), KEPT_S_MAX)
    assert resolver.ask("a") is not first


# It runs in a process of its own: if another thread looks for a name at the fork, the C library of
# the child may wait for ever.
FORKS: Final = """
import os
from zsq.transport.resolver import resolver

before = resolver()
assert before.ask("localhost").wait(20)
pid = os.fork()
if not pid:
    assert resolver() is not before
    os._exit(0 if resolver().ask("localhost").wait(20) else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_child_has_a_resolver_of_its_own() -> None:
    line = [sys.executable, "-c", FORKS]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_connections_go_to_the_address_that_answers(names: Names) -> None:
    """A name of which only the second address has a listener, for threads and for event loops."""
    names.known["two"] = ["::1", "127.0.0.1"]
    names.goes.set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with connect(("two", port), 10, names=made(names)) as connection:
            assert connection.getpeername()[0] == "127.0.0.1"

        async def main() -> None:
            _, writer = await first_connection(
                "two", 10, lambda address: asyncio.open_connection(address, port), made(names)
            )
            assert writer.get_extra_info("peername")[0] == "127.0.0.1"
            writer.close()
            await writer.wait_closed()
            with pytest.raises(NotResolved):
                await resolve("nowhere", 10, made(names))

        asyncio.run(main())


def test_a_name_that_is_late_ends_the_wait_of_an_event_loop(names: Names) -> None:
    with pytest.raises(NotResolved, match=r"no answer within 0.01 s"):
        asyncio.run(resolve("slow", 0.01, made(names)))
