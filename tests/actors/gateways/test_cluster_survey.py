"""Tests of how the brokers of a cluster are asked: all at once, each address alone, and without
waiting for one that does not answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from zsq.actors.gateways.cluster_survey import LATE_S, PLACES_MAX, ClusterSurvey, OtherAdmin
from zsq.actors.statistics.cluster import Report
from zsq.transport.errors import (
    E_STANDBY,
    E_TIMEOUT,
    BrokerUnreachable,
    Refused,
    ZsqError,
)


class FakeAdmin:
    """A broker that answers with an overview, an error, or not at all (`hangs`)."""

    def __init__(self, uuid: str, error: ZsqError | None = None, **bucket: Any) -> None:
        self.uuid, self.error = uuid, error
        self.bucket = {"epoch": 1, "standbys": 0, **bucket}
        self.hangs = False
        self.closed = 0
        self.brokers: Any = ()
        self.no_cluster: ZsqError | None = None
        self.is_shared = True

    async def overview(self, since: int = 0, **more: bool) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        broker = {"uuid": self.uuid, "health": "OK"}
        return {"topics": {}, "broker": broker, "bucket": self.bucket}

    async def stats(self) -> Any:
        raise AssertionError("statistics are not asked for")

    async def cluster(self, *, fresh: bool = False) -> Any:
        if self.no_cluster is not None:
            raise self.no_cluster
        known = {
            "directory": 1,
            "is_shared": self.is_shared,
            "trouble": "",
            "auto": {"is_on": False},
            "moving": 0,
            "planned": 0,
        }
        return {"brokers": self.brokers, "topics": (), **known}

    async def close(self) -> None:
        self.closed += 1


class World:
    """Brokers by their addresses. `opened` has the addresses of the clients that were made."""

    def __init__(self, late_s: float = LATE_S, /, **brokers: FakeAdmin) -> None:
        self.brokers = {f"tcp://{name}": one for name, one in brokers.items()}
        self.me = FakeAdmin("u0", addresses="tcp://me")
        self.me.brokers = [row(0, "me", me=True)]
        self.opened: list[str] = []
        self.asking = ClusterSurvey(cast("Any", self.me), cast("Any", self.open), late_s=late_s)

    def open(self, url: str) -> FakeAdmin:
        self.opened.append(url)
        return self.brokers[url]

    def report(self, times: int = 1) -> Report:
        async def run() -> Report:
            for _ in range(times - 1):
                await self.asking.report()
            return await self.asking.report()

        return asyncio.run(run())


def row(number: int, *names: str, me: bool = False) -> Any:
    urls = tuple(f"tcp://{name}" for name in names)
    return {
        "number": number,
        "uuid": f"u{number}",
        "addresses": urls,
        "me": me,
        "draining": 0,
        "gone": False,
    }


def roles(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (one["role"], [(place["url"], place["role"]) for place in one["places"]])
        for one in report["brokers"]
    ]


def test_each_address_of_other_brokers_is_asked_and_none_of_this_one() -> None:
    standby = FakeAdmin("", Refused(E_STANDBY, "a standby"))
    world = World(one=FakeAdmin("u1"), two=standby)
    world.me.brokers = [row(0, "me", me=True), row(1, "one", "two")]
    assert roles(world.report()) == [
        ("primary", [("tcp://me", "primary")]),
        ("primary", [("tcp://one", "primary"), ("tcp://two", "standby")]),
    ]
    assert sorted(world.opened) == ["tcp://one", "tcp://two"]


def test_a_broker_that_hangs_is_away_and_the_others_are_shown() -> None:
    world = World(0.01, one=FakeAdmin("u1"), two=FakeAdmin("u2"))
    world.brokers["tcp://two"].hangs = True
    world.me.brokers = [row(1, "one"), row(2, "two")]
    found = world.report()
    assert [one["role"] for one in found["brokers"]] == ["primary", "away"]
    assert "tcp://two did not answer" in found["brokers"][1]["why"]
    assert world.brokers["tcp://two"].closed == 1, "its request does not pile up"


@pytest.mark.parametrize("number", [0, 1])
def test_the_addresses_of_standbys_are_asked_too(number: int) -> None:
    """They are in no directory. The primary says them."""
    standby = FakeAdmin("", Refused(E_STANDBY, "a standby"))
    primary = FakeAdmin("u1", standbys=1, standby_addresses="tcp://three", addresses="tcp://one")
    world = World(one=primary, three=standby)
    if number == 0:
        world.me.bucket |= {"standbys": 1, "standby_addresses": "tcp://three"}
    else:
        world.me.brokers = [row(0, "me", me=True), row(1, "one")]
    found = world.report()["brokers"][number]
    assert found["places"][-1]["url"] == "tcp://three"
    assert found["places"][-1]["role"] == "standby"
    assert found["handover"] == f"zsq handover --url {found['addresses'][0]},tcp://three"


def test_a_stranger_at_an_address_does_not_name_more_addresses() -> None:
    world = World(one=FakeAdmin("u9", standby_addresses="tcp://three"))
    world.me.brokers = [row(1, "one")]
    assert roles(world.report()) == [("other", [("tcp://one", "other")])]


def test_a_broker_with_very_many_addresses_is_asked_at_some() -> None:
    names = [f"n{number}" for number in range(PLACES_MAX + 5)]
    world = World(**{name: FakeAdmin("u1") for name in names})
    world.me.brokers = [row(1, *names)]
    world.report()
    assert len(world.opened) == PLACES_MAX


def test_a_client_is_kept_while_its_broker_answers() -> None:
    silent = FakeAdmin("u2", BrokerUnreachable(E_TIMEOUT, "no answer"))
    world = World(one=FakeAdmin("u1"), two=silent)
    world.me.brokers = [row(1, "one"), row(2, "two")]
    world.report(times=2)
    assert sorted(world.opened) == ["tcp://one", "tcp://two", "tcp://two"]
    assert (world.brokers["tcp://one"].closed, silent.closed) == (0, 2)
    asyncio.run(world.asking.close())
    assert world.brokers["tcp://one"].closed == 1


def test_a_broker_of_no_cluster_is_shown_alone() -> None:
    world = World()
    world.me.is_shared, world.me.brokers = False, [row(0, me=True)]
    world.me.brokers[0]["uuid"] = "u0"
    found = world.report()
    assert (found["is_cluster"], roles(found)) == (
        False,
        [("primary", [("tcp://me", "primary")])],
    )


def test_an_error_of_this_broker_is_raised() -> None:
    world = World()
    world.me.no_cluster = Refused(E_TIMEOUT, "no answer")
    with pytest.raises(Refused, match="no answer"):
        world.report()


def test_a_broker_that_is_away_is_not_in_the_log_again_and_again() -> None:
    """It is in the report, and a page asks every few seconds."""

    async def run() -> bool:
        async with OtherAdmin("tcp://127.0.0.1:1", timeout=0.05) as admin:
            with pytest.raises(ZsqError):
                await admin.cluster()
            assert admin._made is not None
            return admin._made.engine.tells

    assert asyncio.run(run()) is False
