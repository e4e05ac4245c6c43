"""Tests that a new topic gets the channels that it has on other nodes, however it was created, and
that a SUB without an answer times out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from zsq.actors.gateways.nsq.registration import Discovery
from zsq.actors.gateways.nsq.subscription import Subscription
from zsq.actors.gateways.nsq.trunks import Trunks
from zsq.transport.errors import E_EXISTS, UsageError


class Here:
    """A replacement for the broker of this node."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.there: dict[str, tuple[str, ...]] = {"old": ()}
        self.made: list[tuple[str, str, str]] = []
        self.looked = asyncio.Event()

    async def topics(self) -> dict[str, tuple[str, ...]]:
        self.looked.set()
        return dict(self.there)

    async def create_topic(self, topic: str) -> None:
        self.there[topic] = ()

    async def create_channel(self, topic: str, channel: str, start: str = "") -> None:
        self.made.append((topic, channel, start))

    async def close(self) -> None: ...

    async def look(self) -> None:
        """Wait until the topics were requested once more and the following work is done."""
        for _ in range(2):
            self.looked.clear()
            await asyncio.wait_for(self.looked.wait(), 10)


class Elsewhere:
    """A replacement for the nsqlookupds."""

    def start(self) -> None: ...

    def update(self, topics: Any) -> None: ...

    async def channels_of(self, topic: str) -> list[str]:
        return ["archive", "mail"]

    async def close(self) -> None: ...


class Slow(Elsewhere):
    """A replacement for nsqlookupds that answer only when `let` is set."""

    def __init__(self) -> None:
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def channels_of(self, topic: str) -> list[str]:
        self.asked.set()
        await self.let.wait()
        return await super().channels_of(topic)


def test_a_topic_that_is_deleted_meanwhile_does_not_come_back() -> None:
    async def run() -> None:
        slow = Slow()
        here = Here()
        found = Discovery(cast("Any", here), cast("Any", slow), look_s=0.01)
        await here.look()
        here.there["brief"] = ()
        await asyncio.wait_for(slow.asked.wait(), 10)
        del here.there["brief"]
        await here.look()
        slow.let.set()
        await here.look()
        assert here.made == []
        await found.close()

    uvloop.run(run())


def test_a_new_topic_gets_the_channels_that_it_has_on_other_nodes() -> None:
    async def run() -> None:
        here = Here()
        found = Discovery(cast("Any", here), cast("Any", Elsewhere()), look_s=0.01)
        await here.look()
        assert here.made == [], "what was here at the start is as it was left"
        here.there["by-http"] = ("mail",)
        await here.look()
        assert here.made == [("by-http", "archive", "earliest")], (
            "also what was published before it was seen"
        )
        prepared = asyncio.Event()
        found.prepare("by-tcp", prepared.set)
        await asyncio.wait_for(prepared.wait(), 10)
        await here.look()
        assert here.made[1:] == [("by-tcp", "archive", ""), ("by-tcp", "mail", "")], "once"
        await found.close()

    uvloop.run(run())


def test_a_sub_without_an_answer_times_out(tmp_path: Path) -> None:
    async def run() -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        trunks = Trunks("gateway")
        one = Subscription(
            trunks,
            f"ipc://{tmp_path}",
            "t",
            "c",
            "label",
            60_000,
            900_000,
            0,
            lambda *_: None,
            said.set_result,
            lambda *_: None,
            lambda *_: None,
            open_s=0.05,
        )
        assert (await asyncio.wait_for(said, 10)).startswith(
            "E_TIMEOUT channel t/c was not ready within 0.05 s"
        )
        one.stop()
        trunks.close()

    uvloop.run(run())


def test_changed_names_are_read_at_once_and_not_only_once_a_second() -> None:
    async def run() -> None:
        told: list[set[str]] = []
        updated = asyncio.Event()

        class Lookupds(Elsewhere):
            def update(self, topics: Any) -> None:
                told.append(set(topics))
                updated.set()

        here = Here()
        found = Discovery(cast("Any", here), cast("Any", Lookupds()), look_s=3_600.0)
        await asyncio.wait_for(updated.wait(), 10)
        for name in ("one", "two"):
            updated.clear()
            here.there[name] = ()
            found.look()
            found.look()
            await asyncio.wait_for(updated.wait(), 10)
        assert told[-1] == {"old", "one", "two"}
        await found.close()

    uvloop.run(run())


def test_a_topic_with_parts_here_is_registered_and_known() -> None:
    async def run() -> None:
        told: list[dict[str, set[str]]] = []
        updated = asyncio.Event()

        class Lookupds(Elsewhere):
            def update(self, topics: Any) -> None:
                told.append(topics)
                updated.set()

        here = Here()
        found = Discovery(cast("Any", here), cast("Any", Lookupds()), look_s=0.01)
        here.there = {"t#0": ("c",), "t#1": ("d",)}
        await asyncio.wait_for(updated.wait(), 10)
        assert told[0] == {"t": {"c", "d"}}
        assert found.knows("t")
        assert found.knows("t#0")
        await found.close()

    uvloop.run(run())


@pytest.mark.parametrize("topic", ["parted", "parted#1"])
def test_a_topic_with_parts_is_not_prepared(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """The cluster creates it with its parts. Only then may a publish find it."""

    class InCluster(Here):
        async def create_topic(self, topic: str) -> None:
            assert topic == "parted"
            raise UsageError(E_EXISTS, "it has parts")

    async def run() -> None:
        here = InCluster()
        found = Discovery(cast("Any", here), cast("Any", Elsewhere()), look_s=3_600.0)
        prepared = asyncio.Event()
        found.prepare(topic, prepared.set)
        await asyncio.wait_for(prepared.wait(), 10)
        assert found.knows(topic)
        assert here.made == []
        await found.close()

    uvloop.run(run())
    assert not caplog.records
