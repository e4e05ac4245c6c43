"""Tests of the console's sampler and its streams: how often the broker is asked, what a page
receives, and how a stream ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, ClassVar, cast

import pytest
from support.console_site import ConsoleSite, Visitor

from zsq.actors.gateways.http.console import console as live
from zsq.actors.gateways.http.console import sampler
from zsq.actors.gateways.http.console.redrive_jobs import KEPT, RedriveJob, RedriveJobs
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.responses import ApiError
from zsq.actors.security.access import Access
from zsq.actors.security.policy import EVERYBODY, NOBODY, AccessPolicy, Principal
from zsq.transport.client.core.redrive import ChannelName, LetterRoute, Origin
from zsq.transport.errors import E_CLOSING, Refused, ZsqError


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleSite]:
    monkeypatch.setattr(sampler, "HURRIED_S", 0.0)
    monkeypatch.setattr(sampler, "WATCHED_S", 0.01)
    site = ConsoleSite()
    site.console.sampler._watched_each_s = 0.01
    yield site
    site.close()


async def stream(
    site: ConsoleSite, query: str = "", visitor: Visitor | None = None
) -> AsyncIterator[bytes]:
    request = (visitor or Visitor()).request(site, "GET", query)
    answer: Any = await site.console.live.live(request)

    async def events() -> AsyncIterator[bytes]:
        with answer.place:
            async with aclosing(answer.body_iterator) as pieces:
                async for one in pieces:
                    yield one

    return events()


async def heard(events: AsyncIterator[bytes]) -> tuple[str, Any]:
    kind, _, data = (await anext(events)).decode().partition("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")) if data.startswith(
        "data: "
    ) else None


def test_a_stream_tells_all_and_then_what_changes(site: ConsoleSite) -> None:
    async def listen() -> None:
        await site.console.sampler.fresh()
        events = await stream(site, "channels=true")
        kind, data = await heard(events)
        assert (kind, [*data["topics"]["t"]["channels"]]) == ("snapshot", ["c"])
        site.source.values = {"head": 7}
        kind, data = await heard(events)
        assert (kind, {name: data[name] for name in ("topics",)}) == (
            "changes",
            {"topics": {"t": {"head": 7}}},
        )
        site.source.topics = {"u": []}
        kind, data = await heard(events)
        assert (kind, data["gone"], [*data["topics"]]) == (
            "changes",
            {"topics": ["t"], "channels": []},
            ["u"],
        )
        site.source.broker |= {"alarms": 1, "alarmed_ns": 5}
        assert [(await heard(events))[0] for _ in range(2)] == ["changes", "alarms"]
        site.console.jobs.version += 1
        site.console.jobs._jobs.append(RedriveJob(1, "u", None, None, None, Visitor().rights))
        site.source.values = {"head": 8}
        assert [(await heard(events))[0] for _ in range(2)] == ["changes", "jobs"]
        assert site.limiters.live_views.taken == 1
        site.console.sampler.close()
        assert (await heard(events))[0] == "again"
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert site.limiters.live_views.taken == 0

    site.within(listen)


def test_a_stream_tells_nothing_more_under_old_rules(site: ConsoleSite) -> None:
    async def listen() -> None:
        await site.console.sampler.fresh()
        visitor = Visitor()
        events = await stream(site, visitor=visitor)
        assert (await heard(events))[0] == "snapshot"
        visitor.renew()
        site.source.topics = {"secret": []}
        assert (await heard(events))[0] == "again"
        visitor = Visitor()
        changing = await stream(site, visitor=visitor)
        assert (await heard(changing))[0] == "snapshot"
        coming = asyncio.ensure_future(heard(changing))
        await asyncio.wait((coming,), timeout=0.001)  # the stream waits for a change
        visitor.renew()
        site.source.topics = {"another": []}
        assert (await coming)[0] == "again"

    site.within(listen)


def test_an_idle_stream_sends_signs_of_life_and_ends_in_time(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEEP_S", 0.05)

    async def listen() -> None:
        await site.console.sampler.fresh()
        events = await stream(site)
        assert (await heard(events))[0] == "snapshot"
        assert await anext(events) == b": keep\n\n"
        monkeypatch.setattr(live, "STREAM_S", 0.0)
        short = await stream(site)
        assert [(await heard(short))[0] for _ in range(2)] == ["snapshot", "again"]

    site.within(listen)


def test_a_stream_of_a_topic_that_is_not_there(site: ConsoleSite) -> None:
    assert site.get("/api/live?topic=none").status_code == 404

    async def listen() -> bytes:
        events = await stream(site, "topic=t")
        first = await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return first

    assert (
        json.loads(site.within(listen).partition(b"data: ")[2])["topics"]["t"]["channels"]["c"][
            "depth"
        ]
        == 0
    )


def test_a_stream_is_no_request_that_must_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAM_S", 0.3)
    site = ConsoleSite(limits=HttpLimits(request_s=0.1))
    try:
        answer = site.get("/api/live")
        assert (answer.status_code, answer.text.endswith("event: again\ndata: {}\n\n")) == (
            200,
            True,
        )
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        monkeypatch.setattr(live, "STREAM_S", 600.0)
        assert site.call("HEAD", "/api/live").content == b""
    finally:
        site.close()


def test_the_broker_is_asked_seldom_while_no_page_is_open(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LINGERS_S", 0.0)

    async def look() -> None:
        await site.console.sampler.fresh()
        with site.console.sampler.watch():
            tick = site.console.sampler.board.tick
            assert await site.console.sampler.after(tick + 3, 5)
        await asyncio.wait_for(_still(site), 5)

    site.within(look)


async def _still(site: ConsoleSite) -> None:
    """Wait until a tenth of a second (ten ticks) passes in which the broker is not asked."""
    while True:
        before = site.source.overviews
        if not await site.console.sampler.after(site.console.sampler.board.tick, 0.1):
            assert site.source.overviews == before
            return


def test_a_broker_that_does_not_answer_is_an_error_and_no_end(site: ConsoleSite) -> None:
    async def ask() -> None:
        await site.console.sampler.fresh()
        site.source.fails = Refused(E_CLOSING, "gone")
        site.console.sampler._sampled_s -= 100
        with pytest.raises(ZsqError, match="gone"):
            await site.console.sampler.fresh()
        site.source.fails = ValueError("a defect")
        with pytest.raises(ZsqError, match="a defect"):
            await site.console.sampler.fresh()
        site.source.fails = None
        assert (await site.console.sampler.fresh()).topics.keys() == {"t"}

    site.within(ask)


@pytest.mark.parametrize(("rows", "each_s"), [(0, 1.0), (400, 1.0), (1_000, 2.5), (100_000, 5.0)])
def test_a_busy_broker_is_asked_more_seldom(rows: int, each_s: float) -> None:
    class Busy:
        async def overview(self, since: int = 0, **asked: bool) -> Any:
            names = ("messages", "bytes", "pulsed_ms")
            topics: dict[str, Any] = {str(number): ((1, 1, 1), {}) for number in range(rows)}
            fields = {
                "topic_fields": names,
                "channel_fields": ("finished", "requeued", "timed_out", "pulsed_ms"),
            }
            return {
                "version": 1,
                "whole": True,
                "topics": topics,
                "broker": {"alarms": 0, "alarmed_ns": 0},
                "alarms": {},
                **fields,
            }

    async def sample() -> float:
        one = sampler.Sampler(cast("Any", Busy()))
        await one._sample()
        return one._watched_each_s

    assert asyncio.run(sample()) == each_s


# Redrives


SOME = Principal(
    "some", AccessPolicy(Access.parse('[users.some]\nadmin = ["t"]\nsubscribe = ["t"]'))
)


def test_redrives_are_bounded_and_one_a_topic(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = site.console.jobs
    over, most = asyncio.Event(), HttpLimits().redrives.each

    async def work(self: RedriveJobs, job: RedriveJob) -> None:
        await over.wait()

    monkeypatch.setattr(RedriveJobs, "_redrive", work)

    async def start() -> None:
        rights = Visitor().rights
        for number in range(most):
            jobs.start(str(number), None, None, None, rights, "a visitor")
        with pytest.raises(ZsqError, match=f"limit of {most} running redrives for a visitor"):
            jobs.start("another", None, None, None, rights, "a visitor")
        with pytest.raises(ApiError, match="is running; stop it"):
            jobs.start("0", None, None, None, rights, "another visitor")
        over.set()
        await asyncio.wait(set(jobs._tasks))
        for _ in range(KEPT + 3):
            jobs.start("t", None, None, None, rights, "a visitor")
            await asyncio.wait(set(jobs._tasks))
        assert [row["id"] for row in jobs.rows(EVERYBODY)] == list(
            range(KEPT + 3 + most, 3 + most, -1)
        )
        assert {row["state"] for row in jobs.rows(SOME)} == {"done"}
        assert jobs.rows(NOBODY) == []
        last = jobs.rows(SOME)[0]["id"]
        with pytest.raises(ApiError, match=r"job \d+ does not exist"):
            jobs.stop(last, NOBODY)
        assert jobs.stop(last, SOME).stopping.is_set()

    site.within(start)


def test_letters_go_only_where_their_sender_may_publish(site: ConsoleSite) -> None:
    class Letter:
        offset = 0
        headers: ClassVar = {
            "zsq-dead-topic": "secret",
            "zsq-dead-channel": "c",
            "zsq-dead-uuid": "u",
        }

    job = RedriveJob(1, "t", None, None, None, Visitor(SOME).rights)
    job.plan._end = 5
    site.within(lambda: site.console.jobs._send(job, [Letter()], None, None))  # type: ignore[arg-type, type-var]
    assert (job.plan.sent, [*job.row(SOME)["reasons"]]) == (
        {},
        ["some may not publish to topic 'secret': that needs publish in the broker's access file"],
    )
    assert job.plan._known[
        LetterRoute(ChannelName("secret", "c"), Origin("secret", "u", "c"), False)
    ]
