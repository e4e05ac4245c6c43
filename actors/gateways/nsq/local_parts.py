"""Parts at this broker, as the NSQ gateway needs them: which ones a consumer reads, and when they
change.

A broker that is asked for a topic with parts answers with the number of the broker of each part. So
the gateway must know its broker's own number. It asks for it when the first consumer needs it, and
keeps it, because it never changes.

The supervisor reports each change of names. If a consumer then does not read exactly the parts that
are here, it asks again. Without a report, it asks once a minute (`PARTS_ASKED_NS`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final

from ....transport.client.asyncio.aio import Admin
from ....transport.errors import ZsqError
from ....transport.names import part_of
from ....transport.wire.protocol import Spread
from .subscription import Subscription

log = logging.getLogger("zsq")

LOOK_PAUSE_S: Final = 1.0  # the pause between two comparisons


def parts_by_topic(names: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of the parts among these names, by their topic."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        if (part := part_of(name)) is not None:
            numbers.setdefault(part[0], set()).add(part[1])
    return numbers


class LocalParts:
    """`readers` returns the consumers of the gateway."""

    def __init__(
        self,
        admin: Admin,
        readers: Callable[[], Iterable[Subscription]],
        *,
        pause_s: float = LOOK_PAUSE_S,
    ) -> None:
        self._admin = admin
        self._readers = readers
        self._pause_s = pause_s
        self._me: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._changed = False

    def of(self, spread: Spread) -> Collection[int] | None:
        """Return the parts at this broker, or None if its number is not known yet. Ask later."""
        if self._me is None:
            if self._asking is None or self._asking.done():
                self._asking = self._start(self._ask_number())
            return None
        return [number for number, broker in spread.parts if broker == self._me]

    def look(self) -> None:
        """Compare what consumers read with the parts that are here, because these have changed."""
        self._changed = True
        if self._looking is None or self._looking.done():
            self._looking = self._start(self._look())

    async def close(self) -> None:
        for task in (self._asking, self._looking):
            if task is not None:
                task.cancel()

    async def _ask_number(self) -> None:
        try:
            brokers = (await self._admin.cluster())["brokers"]
        except ZsqError as error:
            log.debug("cannot ask for the number of this broker: %s", error)
            return
        self._me = next((broker["number"] for broker in brokers if broker["me"]), None)

    async def _look(self) -> None:
        while self._changed:
            self._changed = False
            if any(reader.parts is not None for reader in self._readers()):
                try:
                    local = parts_by_topic(await self._admin.topics())
                except ZsqError as error:
                    log.debug("cannot list the topics: %s", error)
                else:
                    for reader in list(self._readers()):
                        if reader.parts is not None and reader.parts != local.get(
                            reader.topic, frozenset()
                        ):
                            reader.look_for_parts()
            await asyncio.sleep(self._pause_s)

    @staticmethod
    def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)
