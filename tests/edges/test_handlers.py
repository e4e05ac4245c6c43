"""Tests of handlers that do something unusual. In the long suite, they run with each prefetch and
each concurrency, and otherwise with some.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.broker import Broker, wait_for

import zsq

from .handlers import (
    BAD,
    COUNT,
    HANDLERS,
    MAX_ATTEMPTS,
    READIES,
    handler_program,
)

pytestmark = pytest.mark.timeout(300)

WAIT_S: Final = 120.0
Pairs = Callable[[tuple[int, ...]], Iterable[tuple[int | None, int]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("handlers") / "data") as broker:
        yield broker


class Way(NamedTuple):
    """How a handler runs."""

    is_async: bool
    ready: int | None
    concurrency: int

    def __str__(self) -> str:
        kind = "asyncio" if self.is_async else "threads"
        return f"{kind}, ready {self.ready}, concurrency {self.concurrency}"


class Running:
    """A program, which is started again when it ends if `starts_again`."""

    def __init__(self, folder: Path, text: str, *, starts_again: bool) -> None:
        folder.mkdir()
        self._program = folder / "program.py"
        self._program.write_text(text)
        self._out = folder / "out"
        self._errors = folder / "errors"
        self._starts_again = starts_again
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._out.open("ab") as out, self._errors.open("ab") as errors:
            return subprocess.Popen([sys.executable, str(self._program)], stdout=out, stderr=errors)

    def look(self) -> None:
        if self.process.poll() is not None and self._starts_again:
            self.process = self._start()

    @property
    def begun(self) -> Counter[int]:
        return Counter(map(int, self._out.read_text().split()))

    @property
    def errors(self) -> str:
        return self._errors.read_text()[-3_000:]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def rows(admin: zsq.Admin, topic: str) -> dict[str, dict[str, Any]]:
    return {row["channel_name"]: row for row in admin.stats(topic)["topics"][0]["channels"]}


def left(row: dict[str, Any]) -> int:
    names = ("depth", "in_flight_count", "deferred_count", "dying_count")
    return sum(int(row[name]) for name in names)


def some(concurrencies: tuple[int, ...]) -> tuple[tuple[int | None, int], ...]:
    """Return two pairs of a prefetch and a concurrency."""
    return (1, concurrencies[-1]), (None, concurrencies[0])


def each(concurrencies: tuple[int, ...]) -> Iterator[tuple[int | None, int]]:
    return product(READIES, concurrencies)


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("pairs", [some, pytest.param(each, marks=pytest.mark.long)])
def test_a_handler_has_the_same_outcome_in_each_way(
    name: str, pairs: Pairs, broker: Broker, tmp_path: Path
) -> None:
    handler = HANDLERS[name]
    topic = f"{pairs.__name__}-{list(HANDLERS).index(name)}"
    ways = {
        f"c{number}": Way(is_async, *pair)
        for number, (is_async, pair) in enumerate(
            product((False, True), pairs(handler.concurrencies))
        )
        if (handler.asyncio if is_async else handler.threads)
    }
    with zsq.Admin(broker.tcp, timeout=60) as admin:
        admin.create_topic(topic)
        for channel in ways:
            admin.create_channel(
                topic,
                channel,
                max_attempts=MAX_ATTEMPTS,
                backoff_s=0.1,
            )
        with zsq.Producer(broker.tcp) as producer:
            producer.publish_many(topic, [b"%d" % number for number in range(COUNT)])
        running = {
            channel: Running(
                tmp_path / channel,
                handler_program(
                    broker.tcp,
                    topic,
                    channel,
                    name,
                    way.ready,
                    way.concurrency,
                    is_async=way.is_async,
                ),
                starts_again=handler.starts_again,
            )
            for channel, way in ways.items()
        }
        last: dict[str, dict[str, Any]] = {}

        def all_are_done() -> bool:
            for program in running.values():
                program.look()
            last.update(rows(admin, topic))
            return all(not left(row) for row in last.values())

        try:
            wait_for(all_are_done, WAIT_S, name)
        finally:
            for program in running.values():
                program.close()
    for channel, way in ways.items():
        begun, row, said = (
            running[channel].begun,
            last[channel],
            f"{way}: {running[channel].errors}",
        )
        concerned = range(COUNT) if handler.is_always else (BAD,)
        assert begun.keys() == {*range(COUNT)}, said
        for offset, times in begun.items():
            if offset in concerned:
                assert handler.runs <= times <= max(handler.runs, handler.runs_max), said
            else:
                assert 1 <= times <= handler.others_max, said
        assert row["dead_letter_count"] == (len(concerned) if handler.is_dead else 0), said
        assert row["timeout_count"] == handler.timeouts, said
