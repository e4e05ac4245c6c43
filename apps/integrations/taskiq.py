"""Broker of taskiq on ZSQ: `broker = ZsqBroker("tcp://127.0.0.1:4153")`.

A queue is a topic, and all workers share its channel. A message with the label `delay` waits on the
broker's disk. A worker extends the lease of each message until taskiq acknowledges it. So a task
may run for any time, and runs again only if its worker dies.

`broker.with_result_backend(ZsqResultBackend(URL))` stores the results on ZSQ too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from ... import aio
from ...transport.client.blocking.client import Admin
from ...transport.client.blocking.consumer import check_ready
from ...transport.client.core.answer_memory import AnswerMemory, AnswerPlace, place_of
from ...transport.client.core.consumer_backoff import (
    Backoff,
    ConsumerBackoff,
    Outcome,
    backoff_of,
)
from ...transport.errors import NotFound, ZsqError
from ...transport.wire.addresses import Url, parse_all
from ...transport.wire.credentials import KeyFile
from .naming import CHANNEL, TOPIC_CHARS_MAX, check_lease, legal
from .queues import SETTINGS, make_queue
from .taskiq_backoff import TaskOutcomes
from .taskiq_results import ResultIsMissingError, ZsqResultBackend

__all__ = ["ResultIsMissingError", "ZsqBroker", "ZsqResultBackend"]

log = logging.getLogger("zsq")

LEASE_S: Final = 60.0
TOUCH_SHARE: Final = 3  # a lease is renewed after this part of it
READY: Final = 10
CLOSE_S: Final = 5.0


class ZsqBroker(AsyncBroker):
    """A broker of taskiq.

    - `url`, `key_file`, `transport`: See `zsq.Producer`.
    - `queue`: The name of the queue, and of its topic.
    - `ready`: How many messages a worker process holds that are not acknowledged. The options
      `--max-async-tasks` and `--max-prefetch` of taskiq limit how many of them run. The smaller
      number counts.
    - `message_timeout`: The seconds after which a message of a killed worker goes to another one. A
      worker extends this time while it runs.
    - `backoff`: With True or a `zsq.Backoff`, a worker process backs off as a whole when tasks fail
      in a row, as `zsq.aio.Consumer.run` does.
    """

    def __init__(
        self,
        url: Url = None,
        *,
        queue: str = "taskiq",
        ready: int = READY,
        message_timeout: float = LEASE_S,
        key_file: KeyFile = None,
        transport: str | None = None,
        backoff: bool | Backoff = False,
    ) -> None:
        super().__init__()
        self.topic = legal(queue, TOPIC_CHARS_MAX)
        self._client: Any = {"url": url, "key_file": key_file, "transport": transport}
        parse_all(url, key_file, transport)  # so that an error comes here, and not in a worker
        check_ready(ready, 1)
        self._ready = ready
        self._lease_s = check_lease(message_timeout)
        self._producer: aio.Producer | None = None
        self._consumer: aio.Consumer | None = None
        self._toucher: asyncio.Task[None] | None = None
        self._working: dict[AnswerPlace, aio.Message] = {}
        self._answers = AnswerMemory()
        self._is_checked = False  # True if the channel has what a worker needs
        self._wants_backoff = backoff
        self._backoff: ConsumerBackoff | None = backoff_of(backoff)
        self._outcomes = TaskOutcomes(self._ticket, self._note_outcome)
        if self._backoff is not None:
            self.add_middlewares(self._outcomes)

    async def startup(self) -> None:
        """Create the topic and its channel, if they do not exist, and open the producer."""
        await super().startup()
        await asyncio.to_thread(self._make, works=self.is_worker_process)
        self._producer = aio.Producer(**self._client)

    def _make(self, *, works: bool) -> None:
        with Admin(**self._client) as admin:
            make_queue(admin, self.topic, works=works)
        self._is_checked = works

    async def shutdown(self) -> None:
        """Close the clients. Messages that are not acknowledged go to other workers at once."""
        if self._toucher is not None:
            self._toucher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._toucher
            self._toucher = None
        if self._consumer is not None:
            await self._consumer.close(CLOSE_S)
            self._consumer = None
        if self._producer is not None:
            await self._producer.close()
            self._producer = None
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task. It is on disk when this returns. The label `delay` is in seconds."""
        if self._producer is None:
            raise RuntimeError("call `await broker.startup()` before you send tasks")
        if isinstance(self.result_backend, ZsqResultBackend):
            self.result_backend.sent(message.task_id)
        delay = message.labels.get("delay")
        seconds = None if delay is None else float(delay)
        try:
            await self._producer.publish(self.topic, message.message, delay=seconds)
        except NotFound:  # it was deleted meanwhile, and begins anew as at its first use
            await asyncio.to_thread(self._make, works=False)
            await self._producer.publish(self.topic, message.message, delay=seconds)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        if not self._is_checked:
            await asyncio.to_thread(self._make, works=True)
        consumer = self._consumer = aio.Consumer(
            self.topic,
            CHANNEL,
            ready=self._ready,
            message_timeout=self._lease_s,
            **SETTINGS,
            **self._client,
        )
        self._backoff = backoff_of(self._wants_backoff)
        consumer._back_off_with(self._backoff)
        self._toucher = asyncio.create_task(self._touch())
        try:
            # Messages that wait here have no lease, and go to another worker if that one is idle.
            while (message := await consumer._receive()) is not None:
                place, ticket = place_of(message), self._ticket()
                if place in self._working:
                    # With the connection, a lease ends. So the message has come back, although it
                    # is being worked on.
                    self._working[place] = message
                elif self._answers.take(message) is not None:
                    await self._finish(message)
                else:
                    self._working[place] = message
                    ack = functools.partial(self._ack, place, ticket)
                    yield AckableMessage(data=message.body, ack=ack)
                    continue
                self._note_outcome(ticket, Outcome.NEITHER)  # it was no probe
        finally:
            # Tasks that run still need their leases. `shutdown` closes the consumer.
            consumer.set_ready(0)

    async def _ack(self, place: AnswerPlace, ticket: int) -> None:
        if not self._outcomes.is_running:
            # taskiq acknowledges what is no task that it knows.
            self._note_outcome(ticket, Outcome.NEITHER)
        message = self._working.pop(place, None)
        if message is not None:
            await self._finish(message)

    async def _finish(self, message: aio.Message) -> None:
        with self._answers.answering(message):
            await message.finish()

    def _ticket(self) -> int:
        """Return the ticket of the backoff with which a task begins now."""
        return 0 if self._backoff is None else self._backoff.ticket

    def _note_outcome(self, ticket: int, outcome: Outcome) -> None:
        if self._backoff is not None and self._consumer is not None:
            self._consumer._note_outcome(ticket, outcome)

    async def _touch(self) -> None:
        """Extend the leases of all messages that are not acknowledged."""
        while True:
            await asyncio.sleep(self._lease_s / TOUCH_SHARE)
            for message in list(self._working.values()):
                try:
                    await message.touch()
                except ZsqError as error:
                    log.warning("%s: could not extend the lease: %s", message, error)
