"""A consumer whose `run` is under way, blocking or with asyncio, for tests of both."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import zsq
import zsq.aio
from zsq.testing import Namespace

WAIT_S: Final = 30.0


class Running:
    """A consumer whose `run` is under way in a thread.

    `seen` counts the calls of its handler for each message, and `sizes` has the sizes of batches.
    """

    def __init__(
        self, kind: str, space: Namespace, handler: Callable[[Any], Any], **options: Any
    ) -> None:
        self.seen: Counter[bytes] = Counter()
        self.attempts: dict[bytes, int] = {}
        self.sizes: list[int] = []
        self._space = space
        self._handler = handler
        self._changed = threading.Condition()
        self._options = {"signals": False, "on_error": lambda message, error: None, **options}
        self._settings = self._options.pop("settings", {})
        self._close: Callable[[], Any] = lambda: None
        target = self._run_blocking if kind == "blocking" else self._run_asyncio
        self._opened = threading.Event()
        self._thread = threading.Thread(target=target)
        self._thread.start()
        assert self._opened.wait(WAIT_S)

    def _note(self, taken: Any) -> None:
        is_batch = isinstance(taken, zsq.MessageBatch)
        with self._changed:
            if is_batch:
                self.sizes.append(len(taken))
            for message in taken if is_batch else [taken]:
                self.seen[message.body] += 1
                self.attempts[message.body] = message.attempts
            self._changed.notify_all()

    def _run_blocking(self) -> None:
        def handle(message: Any) -> Any:
            self._note(message)
            return self._handler(message)

        with self._space.consumer("t", "c", **self._settings) as consumer:
            self._close = consumer.close
            self._opened.set()
            consumer.run(handle, **self._options)

    def _run_asyncio(self) -> None:
        async def handle(message: Any) -> Any:
            self._note(message)
            result = self._handler(message)
            return await result if asyncio.iscoroutine(result) else result

        async def main() -> None:
            loop, topic = asyncio.get_running_loop(), self._space.topic("t")
            settings = {"url": self._space.url, **self._settings}
            async with zsq.aio.Consumer(topic, "c", **settings) as consumer:
                closing = asyncio.Event()
                self._close = lambda: loop.call_soon_threadsafe(closing.set)
                self._opened.set()

                async def close() -> None:
                    await closing.wait()
                    await consumer.close()

                await asyncio.gather(consumer.run(handle, **self._options), close())

        asyncio.run(main())

    def wait_for(self, done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(done, WAIT_S), dict(self.seen)

    @property
    def calls(self) -> int:
        return sum(self.seen.values())

    def close(self) -> float:
        """Close the consumer, and return how many seconds its `run` took to end."""
        begun_s = time.monotonic()
        self._close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return time.monotonic() - begun_s
