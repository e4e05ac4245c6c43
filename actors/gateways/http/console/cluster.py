"""The console's page of the cluster: the report about all brokers, for several pages at once.

One report is made at a time, and all pages that wait for it share it. It is used for `CACHE_S`.
A user who may not view all topics sees the brokers and the parts of permitted topics, without the
values that belong to a broker as a whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Admin
from .....transport.wire.actions import Action
from ....security.policy import UNWELL, Principal
from ....statistics.cluster import BrokerRow, Report
from ...cluster_survey import ClusterSurvey
from ..web.authority import principal_of
from ..web.responses import ApiError, api_error
from .answers import answer, parameters_of

CACHE_S: Final = 2.0
OpenAdmin = Callable[[str], Admin]


def no_admin(url: str) -> Admin:
    raise AssertionError(f"this console cannot ask {url}")


class ClusterPage:
    """The handler of the path. It opens no client before the first request."""

    def __init__(
        self,
        source: Admin,
        open_admin: OpenAdmin,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asking = ClusterSurvey(source, open_admin)
        self._now = now
        self._report: Report | None = None
        self._made_s = 0.0
        self._making: asyncio.Task[Report] | None = None

    async def answer(self, request: Request) -> Response:
        parameters = parameters_of(request)
        if any(parameters.count(name) > 1 for name in ("topic", "channel")):
            raise api_error("INVALID_REQUEST")
        topic = parameters.get("topic") or ""
        report = seen_by(principal_of(request), await self._fresh())
        if topic:
            report = {
                **report,
                "topics": [row for row in report["topics"] if row["topic"] == topic],
            }
            if not report["topics"]:
                raise ApiError(404, f"E_NOT_FOUND topic {topic!r} has no parts in this cluster")
        return answer(report)

    async def _fresh(self) -> Report:
        if self._report is not None and self._now() - self._made_s < CACHE_S:
            return self._report
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        # A page that leaves must not end the report that others wait for.
        return await asyncio.shield(self._making)

    async def _make(self) -> Report:
        try:
            self._report = await self._asking.report()
            self._made_s = self._now()
            return self._report
        finally:
            self._making = None

    async def close(self) -> None:
        if (making := self._making) is not None:
            making.cancel()
            await asyncio.wait((making,))
        await self._asking.close()


def seen_by(principal: Principal, report: Report) -> Report:
    """Return the report without what the principal may not see."""
    if principal.may(Action.SEE_ALL):
        return report
    return {
        **report,
        "brokers": [_plain(row) for row in report["brokers"]],
        "topics": [row for row in report["topics"] if principal.may(Action.SEE, row["topic"])],
        "trouble": "",
    }


def _plain(row: BrokerRow) -> BrokerRow:
    return {
        **row,
        "epoch": None,
        "lag_s": None,
        "standbys": None,
        "free_bytes": None,
        "health": row["health"] if row["health"] in ("", "OK") else UNWELL,
        "why": "",
        "handover": "",
        "places": [{**place, "epoch": None, "why": ""} for place in row["places"]],
    }
