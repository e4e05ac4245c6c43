"""The fake nsqlookupd in a separate thread, for tests that do not run in an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from .fake_lookupd import FakeLookupd


def _typed(answer: bytes | None) -> bytes | None:
    """Add the content type that nsqlookupd sends. gnsq parses only answers of this type as JSON."""
    return answer and answer.replace(
        b"\r\n", b"\r\nContent-Type: application/json; charset=utf-8\r\n", 1
    )


class LookupdThread:
    def __init__(self) -> None:
        self._lookupd = FakeLookupd()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._lookupd.__aenter__(), self._loop).result(10)
        plain = self._lookupd.web.answer
        self._lookupd.web.answer = lambda question: _typed(plain(question))
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._lookupd.__aexit__(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def tcp(self) -> str:
        return self._lookupd.address

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self._lookupd.web.port}"

    @property
    def connections(self) -> int:
        """The number of connections that were ever made."""
        return self._lookupd.connections

    def here(self) -> set[tuple[str, str]]:
        """Return the topics and channels that are registered now."""

        async def here() -> set[tuple[str, str]]:
            return self._lookupd.here()

        return asyncio.run_coroutine_threadsafe(here(), self._loop).result(10)

    def nodes_of(self, topic: str, channel: str = "") -> int:
        """Return how many nodes have registered this name."""

        async def count() -> int:
            return sum((topic, channel) in one for one in self._lookupd.registered.values())

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result(10)
