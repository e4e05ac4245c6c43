"""Questions to all brokers of a cluster, for the console, `zsq top` and `zsq cluster`.

Every address is asked at the same time, with its own client, and for at most `ASK_S`. A broker that
does not answer therefore delays the report, but it never blocks it. A standby's address costs the
same time, because a client waits for a standby to become primary.

A client is kept while its broker answers, and is closed after an error. Otherwise the requests of
a broker that hangs would pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...transport.client.asyncio.aio import Admin
from ...transport.client.blocking.asker import named_by
from ...transport.errors import ZsqError
from ...transport.wire.answers import ClusterBroker
from ..statistics.cluster import (
    Answer,
    Report,
    Seen,
    alone,
    merge,
    seen_in_overview,
)

ASK_S: Final = 2.0  # the time limit of a client of another broker
LATE_S: Final = 3.0  # the client has failed before; this is for one that does not
PLACES_MAX: Final = 16  # addresses of one broker that are asked


class OtherAdmin(Admin):
    """A client of another broker. A broker that does not answer is in the report, so that it need
    not be in the log every few seconds.
    """

    _tells = False


def open_other(admin: Admin, url: str) -> Admin:
    """Return the client of another broker, which the broker of `admin` has named."""
    return OtherAdmin(named_by(admin, [url]), timeout=ASK_S)


Look = Callable[[Admin], Awaitable[Seen]]


async def by_overview(admin: Admin) -> Seen:
    """Ask only the supervisor, which answers from memory."""
    return seen_in_overview(await admin.overview(processes=True))


class ClusterSurvey:
    """Asks the brokers of the cluster to which the broker of `admin` belongs.

    `open_admin` makes a client of another address. Its time limit is `ASK_S`. With `fresh`, the
    broker reads the directory of the cluster first.
    """

    def __init__(
        self,
        admin: Admin,
        open_admin: Callable[[str], Admin],
        look: Look = by_overview,
        *,
        fresh: bool = False,
        late_s: float = LATE_S,
    ) -> None:
        self._admin = admin
        self._open = open_admin
        self._look = look
        self._fresh = fresh
        self._late_s = late_s
        self._clients: dict[str, Admin] = {}

    async def report(self) -> Report:
        """Ask all, and return the report. Raises `ZsqError` only for the broker of `admin`."""
        mine = await self._look(self._admin)
        cluster = await self._admin.cluster(fresh=self._fresh)
        if not cluster["is_shared"]:
            cluster = alone(cluster, mine)
        asked = [broker for broker in cluster["brokers"] if not broker["gone"]]
        answers = await asyncio.gather(*(self._ask(broker, mine) for broker in asked))
        numbers = [broker["number"] for broker in asked]
        return merge(cluster, dict(zip(numbers, answers, strict=True)))

    async def _ask(self, broker: ClusterBroker, mine: Seen) -> Sequence[Answer]:
        """Return the answers at the addresses of a broker, and at those of its standbys."""
        answers: list[Answer] = []
        known: set[str] = set()
        urls = list(broker["addresses"])
        if broker["me"]:
            answers.append(Answer("", mine))
            known.update(mine.addresses("addresses"))
            urls += mine.addresses("standby_addresses")
        asking: set[asyncio.Task[Answer]] = set()
        try:
            while urls or asking:
                for url in dict.fromkeys(urls):
                    if url not in known and len(known) < PLACES_MAX:
                        known.add(url)
                        asking.add(asyncio.ensure_future(self._ask_at(url)))
                urls = []
                if asking:
                    done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                    for answer in (item.result() for item in done):
                        answers.append(answer)
                        if answer.seen is not None and answer.seen.uuid == broker["uuid"]:
                            urls += answer.seen.addresses("standby_addresses")
        finally:
            for task in asking:
                task.cancel()
        return sorted(answers, key=lambda item: item.url)

    async def _ask_at(self, url: str) -> Answer:
        try:
            client = self._clients.get(url)
            if client is None:
                client = self._clients[url] = self._open(url)
            async with asyncio.timeout(self._late_s):
                return Answer(url, await self._look(client))
        except TimeoutError:
            await self._drop(url)
            return Answer(url, why=f"{url} did not answer within {self._late_s:g} s")
        except ZsqError as error:
            await self._drop(url)
            return Answer(url, code=error.code, why=error.text)

    async def _drop(self, url: str) -> None:
        if (client := self._clients.pop(url, None)) is not None:
            await client.close()

    async def close(self) -> None:
        for url in list(self._clients):
            await self._drop(url)
