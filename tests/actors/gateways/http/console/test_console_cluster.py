"""Tests of the console's answer about the cluster: who may see what, and how often the brokers are
asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.console_site import BROKER, ConsoleSite

from zsq.actors.gateways.http.console.cluster import CACHE_S, ClusterPage
from zsq.actors.gateways.http.gateway import keys_for_others
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.policy import UNWELL, AccessPolicy
from zsq.actors.settings.options import SecurityOptions
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS
from zsq.transport.errors import E_STANDBY, E_UNREACHABLE, BrokerUnreachable, Refused

ACCESS = f"""
[users.some]
tokens = ["{token_hash("some")}"]
subscribe = ["t"]
[users.all]
tokens = ["{token_hash("all")}"]
view = ["*"]
[users.none]
tokens = ["{token_hash("none")}"]
"""
KEEPS: dict[str, Any] = {"draining": 0, "gone": False}
VALUES = {"state": "up", "health": "OK", "closed": "", "head": 5}
BUCKET = {
    "shipping": "open", "lag_s": 0.5, "epoch": 2, "standbys": 1, "addresses": "tcp://one:1", "standby_addresses": "tcp://secret:1",
}  # fmt: skip


class FakeOther:
    """A broker at another address. It is a standby."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def overview(self, since: int = 0, **more: bool) -> Any:
        if self.url == "tcp://two:1":
            raise BrokerUnreachable(E_UNREACHABLE, "nothing listens at tcp://two:1")
        raise Refused(E_STANDBY, "a standby")

    async def close(self) -> None:
        return


class FakeBroker:
    """The broker of the console. It counts how often it is asked, and may wait for `free`."""

    def __init__(self) -> None:
        self.asked = 0
        self.began = asyncio.Event()
        self.free: asyncio.Event | None = None

    async def overview(self, since: int = 0, **more: bool) -> Any:
        self.asked += 1
        self.began.set()
        if self.free is not None:
            await self.free.wait()
        row = tuple(VALUES.get(name, 0) for name in TOPIC_FIELDS)
        return {
            "version": 1,
            "whole": True,
            "topics": {"t#0": (row, {}), "other#0": (row, {})},
            "topic_fields": TOPIC_FIELDS,
            "channel_fields": CHANNEL_FIELDS,
            "broker": {**BROKER, "health": "topic t failed"},
            "bucket": BUCKET,
        }

    async def cluster(self, *, fresh: bool = False) -> Any:
        one = {"number": 0, "uuid": "u", "addresses": ("tcp://one:1",), "me": True} | KEEPS
        two = {"number": 1, "uuid": "v", "addresses": ("tcp://two:1",), "me": False} | KEEPS
        topics: list[Any] = [
            {"topic": name, "uuid": name, "parts": (0, 1), "closed": (), "moves": {}}
            for name in ("other", "t")
        ]
        known = {
            "directory": 4,
            "is_shared": True,
            "trouble": "part other#1",
            "auto": {"is_on": False},
            "moving": 0,
            "planned": 0,
        }
        return {"brokers": (one, two), "topics": topics, **known}


@pytest.fixture
def site() -> Iterator[ConsoleSite]:
    policy = AccessPolicy(Access.parse(ACCESS))
    made: Any = ConsoleSite(authority=HttpAuthority(policy=policy), open_admin=FakeOther)
    broker = FakeBroker()
    made.source.overview, made.source.cluster = broker.overview, broker.cluster
    yield made
    made.close()


def ask(site: ConsoleSite, who: str, query: str = "") -> Any:
    headers = {"authorization": f"Bearer {who}"} if who else {}
    return site.get(f"/api/cluster{query}", headers=headers)


def test_a_user_who_views_all_sees_brokers_roles_and_the_command_that_hands_over(
    site: ConsoleSite,
) -> None:
    found = ask(site, "all").json()
    one, two = found["brokers"]
    assert (one["role"], one["epoch"], one["lag_s"], one["health"]) == (
        "primary",
        2,
        0.5,
        "topic t failed",
    )
    assert one["handover"] == "zsq handover --url tcp://one:1,tcp://secret:1"
    assert [place["role"] for place in one["places"]] == ["primary", "standby"]
    assert (two["role"], two["why"]) == ("away", "nothing listens at tcp://two:1")
    assert [topic["topic"] for topic in found["topics"]] == ["other", "t"]
    assert [part["state"] for part in found["topics"][0]["parts"]] == ["up", "away"]
    assert found["trouble"] == "part other#1"


def test_a_user_of_one_topic_sees_no_other_topic_and_no_values_of_brokers(
    site: ConsoleSite,
) -> None:
    answer = ask(site, "some")
    found = answer.json()
    assert [topic["topic"] for topic in found["topics"]] == ["t"]
    for one in found["brokers"]:
        assert (one["epoch"], one["lag_s"], one["standbys"]) == (None, None, None)
        assert (one["handover"], one["why"]) == ("", "")
        assert all((place["epoch"], place["why"]) == (None, "") for place in one["places"])
    assert [one["role"] for one in found["brokers"]] == ["primary", "away"]
    assert [one["health"] for one in found["brokers"]] == [UNWELL, ""]
    assert found["trouble"] == ""
    assert "other" not in answer.text


def test_a_topic_is_shown_alone_or_is_missing(site: ConsoleSite) -> None:
    assert [one["topic"] for one in ask(site, "all", "?topic=t").json()["topics"]] == ["t"]
    for who, topic in (("all", "nothing"), ("some", "other")):
        answer = ask(site, who, f"?topic={topic}")
        assert (answer.status_code, "E_NOT_FOUND" in answer.text) == (404, True)


@pytest.mark.parametrize(("who", "status"), [("", 401), ("none", 403), ("wrong", 403)])
def test_a_client_without_a_permission_sees_nothing(
    site: ConsoleSite, who: str, status: int
) -> None:
    assert ask(site, who).status_code == status


# How often the brokers are asked


class Pages:
    """A page of the cluster with a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.broker = FakeBroker()
        made: Any = ClusterPage
        self.page = made(self.broker, FakeOther, lambda: self.now_s)


def test_an_answer_is_used_for_some_seconds() -> None:
    async def run() -> list[int]:
        pages, asked = Pages(), []
        for later_s in (0.0, CACHE_S * 0.9, CACHE_S * 0.2):
            pages.now_s += later_s
            await pages.page._fresh()
            asked.append(pages.broker.asked)
        await pages.page.close()
        return asked

    assert asyncio.run(run()) == [1, 1, 2]


def test_pages_that_wait_share_one_question_and_one_that_leaves_does_not_end_it() -> None:
    async def run() -> tuple[int, str]:
        pages = Pages()
        pages.broker.free = asyncio.Event()
        leaves, stays = (asyncio.ensure_future(pages.page._fresh()) for _ in range(2))
        await pages.broker.began.wait()
        leaves.cancel()
        await asyncio.wait((leaves,))
        pages.broker.free.set()
        return pages.broker.asked, (await stays)["brokers"][0]["role"]

    assert asyncio.run(run()) == (1, "primary")


def test_after_an_error_the_next_page_asks_again() -> None:
    async def run() -> str:
        pages: Any = Pages()
        right, pages.broker.overview = pages.broker.overview, _refuse
        with pytest.raises(Refused):
            await pages.page._fresh()
        pages.broker.overview = right
        return str((await pages.page._fresh())["brokers"][0]["role"])

    async def _refuse(since: int = 0, **more: bool) -> Any:
        raise Refused(E_UNREACHABLE, "no answer")

    assert asyncio.run(run()) == "primary"


def test_the_end_of_the_gateway_ends_a_question() -> None:
    async def run() -> bool:
        pages = Pages()
        pages.broker.free = asyncio.Event()
        waits: asyncio.Future[object] = asyncio.ensure_future(pages.page._fresh())
        await pages.broker.began.wait()
        await pages.page.close()
        await asyncio.wait((waits,))
        return waits.cancelled()

    assert asyncio.run(run())


def test_the_end_of_the_console_closes_the_clients_of_other_brokers() -> None:
    closed: list[str] = []

    class Answers(FakeBroker):
        async def close(self) -> None:
            closed.append("one")

    made: Any = ConsoleSite(open_admin=lambda url: Answers())
    broker = FakeBroker()
    made.source.overview, made.source.cluster = broker.overview, broker.cluster
    try:
        assert made.get("/api/cluster").status_code == 200
        assert not closed
        made.within(made.console.close)
        assert closed == ["one", "one"]
    finally:
        made.close()


def test_every_user_knows_that_there_is_a_cluster(site: ConsoleSite) -> None:
    """The navigation shows the page only then."""
    headers = {"authorization": "Bearer some"}
    assert site.get("/api/overview", headers=headers).json()["broker"]["clustered"] is False


def test_without_keys_of_the_broker_no_other_keys_are_used() -> None:
    assert keys_for_others(SecurityOptions()) == ""
