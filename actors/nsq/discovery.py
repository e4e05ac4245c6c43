"""This node among others: what is here is told to the nsqlookupds, and a new topic begins with the channels that it has elsewhere.

A channel of NSQ's sees what comes after it was made. So where a topic is new here and its channels exist on other nodes, they are made
before its first message is taken: else a consumer that is on its way here would miss what came meanwhile.

That holds for what NSQ's TCP clients publish. A topic that came to be in another way (HTTP, a client of ZSQ's own, a command) is seen a
second later; its channels are made then, from its first message on, which comes to the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from ...transport.errors import ZsqError
from ...transport.names import is_ephemeral
from ..acting import ActingAdmin
from .registering import Registrar

log = logging.getLogger("zsq")

LOOK_S: Final = 1.0
ASK_S: Final = 10.0


class Discovery:
    def __init__(self, url: str, registrar: Registrar) -> None:
        self._admin = ActingAdmin(url, timeout=ASK_S, via="nsqlookupd")
        self._registrar = registrar
        self._known: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        registrar.start()
        self._start(self._watch())

    def knows(self, topic: str) -> bool:
        return topic in self._known

    def prepare(self, topic: str, then: Callable[[], None]) -> None:
        """`then` is called once the topic is here with its channels, or could not be made: publishing says why."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[topic] = [then]
        self._start(self._prepare(topic))

    async def _prepare(self, topic: str) -> None:
        try:
            if topic not in await self._admin.topics():
                channels = [name for name in await self._registrar.channels_of(topic) if not is_ephemeral(name)]
                await self._admin.create_topic(topic)
                for channel in channels:
                    await self._admin.create_channel(topic, channel)
            self._known.add(topic)
        except ZsqError as error:
            log.warning("topic %s could not be made with the channels that it has elsewhere: %s", topic, error)
        finally:
            for then in self._waiting.pop(topic):
                then()

    async def _follow(self, topic: str, there: Collection[str]) -> None:
        """Of a topic that is new, and was not prepared."""
        for channel in await self._registrar.channels_of(topic):
            if channel in there or is_ephemeral(channel):
                continue
            if topic not in self._known:
                return  # it was deleted while nsqlookupd was asked, which may take long: it shall not come back
            try:
                await self._admin.create_channel(topic, channel, start="earliest")
            except ZsqError as error:
                log.warning("channel %s/%s, which is elsewhere, could not be made: %s", topic, channel, error)

    async def _watch(self) -> None:
        began = False
        while True:
            try:
                topics = await self._admin.topics()
            except ZsqError as error:
                log.debug("the topics could not be asked for: %s", error)
            else:
                for topic in (set(topics) - self._known - set(self._waiting)) if began else ():
                    self._start(self._follow(topic, topics[topic]))
                self._known, began = set(topics), True
                self._registrar.update(topics)
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._registrar.close()
        await self._admin.close()

    def statistics(self) -> list[dict[str, Any]]:
        return self._registrar.statistics()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
