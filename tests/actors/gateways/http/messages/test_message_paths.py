"""Tests of the paths for search, download and live tail, on a fake log: what they find, where a
next step continues, what they refuse, and how they end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import msgpack
import pytest
from starlette.requests import ClientDisconnect, Request
from support.console_site import ConsoleSite, Visitor

from zsq.actors.gateways.http.console import console as live
from zsq.actors.gateways.http.messages import scan, search_handlers, tail_handlers
from zsq.actors.gateways.http.messages.pace import BEHIND_MAX, BURST
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.limiter import Limiter
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.policy import AccessPolicy
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core import message_search as matching
from zsq.transport.client.core.message import Fetched
from zsq.transport.errors import E_NOT_FOUND, NotFound
from zsq.transport.wire.codec import UNREADABLE, pack_headers

SECOND_NS = 1_000_000_000
ACCESS = f"""
[users.reader]
tokens = ["{token_hash("reader")}"]
subscribe = ["other", "t/c"]
publish = ["t"]
view = ["*"]
"""


@pytest.fixture(scope="module")
def module_site() -> Iterator[ConsoleSite]:
    site = ConsoleSite()
    yield site
    site.close()


@pytest.fixture
def site(module_site: ConsoleSite, monkeypatch: pytest.MonkeyPatch) -> ConsoleSite:
    """Return a site with blocks of three messages, one block for each second."""
    source = module_site.source
    source.calls, source.topics = [], {"t": []}
    source.blocks = [
        placed(number * 3, number + 1, *(b"m%d" % (number * 3 + one) for one in range(3)))
        for number in range(4)
    ]

    async def offset_at(time_ns: int) -> int:
        for block in source.blocks:
            if block.header.time_ns >= time_ns:
                return block.first_offset
        return (await source.bounds())[1]

    monkeypatch.setattr(source, "offset_at", offset_at)
    return module_site


def placed(first: int, second: int, *bodies: bytes, **more: Any) -> Block:
    return with_place(pack(list(bodies), **more), first, second * SECOND_NS)


def search(site: ConsoleSite, query: str = "") -> Any:
    answer = site.get(f"/api/search?topic=t&{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def offsets(found: Any) -> list[int]:
    return [one["offset"] for one in found["messages"]]


# Search


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [*range(12)]),
        ("text=m1", [1, 10, 11]),
        ("text=M1", []),
        ("text=M1&ignore_case=1", [1, 10, 11]),
        ("from_ms=2000", [*range(3, 12)]),
        ("from_ms=1001&to_ms=3000", [3, 4, 5]),
        ("to_ms=500", []),
        ("from_ms=9000", []),
        ("offset=4&end=6", [4, 5]),
        ("offset=99", []),
        ("offset=10&from_ms=1000", [10, 11]),  # the offset of a next step counts more
        ("text=m1&key=", [1, 10, 11]),
        ("key=x", []),
    ],
)
def test_a_search_finds_messages_by_time_and_text(
    site: ConsoleSite, query: str, found: list[int]
) -> None:
    answer = search(site, query)
    assert (offsets(answer), answer["done"]) == (found, True)
    assert answer["next_offset"] == answer["end"] >= answer["first"]


def test_a_search_continues_where_it_stopped(site: ConsoleSite) -> None:
    found, at = [], 0
    for _ in range(10):
        answer = search(site, f"text=m1&count=1&offset={at}&end=12")
        found += offsets(answer)
        at = answer["next_offset"]
        if answer["done"]:
            break
    assert found == [1, 10, 11]
    assert search(site, "count=2")["searched_to_ms"] is None  # it is still in the first block
    assert search(site, "count=4")["searched_to_ms"] == 1000


def test_a_step_is_bounded_and_always_advances(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_handlers, "STEP_S", 0.0)
    at, steps = 0, []
    while True:
        answer = search(site, f"text=nothing&offset={at}")
        at = answer["next_offset"]
        steps.append((at, answer["searched_to_ms"]))
        if answer["done"]:
            break
    assert steps == [(3, 1000), (6, 2000), (9, 3000), (12, 4000)]
    monkeypatch.setattr(search_handlers, "STEP_S", 60.0)
    monkeypatch.setattr(search_handlers, "STEP_BYTES", 1)
    assert search(site)["next_offset"] == 3


def test_a_search_lets_other_requests_run(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SLICE_S", -1.0)
    site.source.blocks = [placed(0, 1, *[b"x"] * 10_000, headers=[pack_headers({"a": 1})] * 10_000)]
    turns = 0

    async def both() -> None:
        loop = asyncio.get_running_loop()
        searched = False

        def turn() -> None:
            nonlocal turns
            turns += 1
            if not searched:
                loop.call_soon(turn)

        turn()
        answer = await site.acall("GET", "/api/search?topic=t&header=b")
        searched = True
        assert answer.json()["done"]

    site.within(both)
    assert turns >= 10_000 // matching.CHECKED_MESSAGES


def test_bodies_are_cut_and_shown_as_everywhere(site: ConsoleSite) -> None:
    body = json.dumps({"user": {"id": 7}, "text": "<script>"}).encode()
    headers = [pack_headers({"h": "x"})]
    site.source.blocks = [placed(5, 1, body, keys=[b"k"], tags=[b"t"], headers=headers)]
    for query in ("field=user.id=7", "header=h=x", "key=k", "tag=t", "key=k&tag=t&text=script"):
        [one] = search(site, f"{query}&body_max=9")["messages"]
        assert (one["offset"], one["id"], one["body"]["text"]) == (
            5,
            "0040000000000005",
            '{"user": ',
        )
        assert (one["body"]["cut"], one["tag"], one["key"]["text"]) == (True, "t", "k")
    assert search(site, "field=user.id=8")["messages"] == []
    site.source.blocks = [placed(0, 1, b'{"a": "' + b"x" * 70_000 + b'"}')]
    assert search(site, "field=a")["undecoded"] == 1


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("header==x", "header must be NAME or NAME=VALUE"),
        ("field==", "field must be PATH or PATH=VALUE"),
        (f"text={'x' * 1001}", "text must have at most 1000 characters, not 1001"),
        ("from_ms=2&to_ms=1", "from_ms must not be later than to_ms"),
        ("offset=x", "offset must be a number"),
        ("from_ms=now", "from_ms must be a number"),
    ],
)
@pytest.mark.parametrize("path", ["search", "download"])
def test_a_wrong_search_is_refused(site: ConsoleSite, path: str, query: str, text: str) -> None:
    answer = site.get(f"/api/{path}?topic=t&{query}")
    assert (answer.status_code, text in answer.json()["message"]) == (400, True), answer.text


@pytest.mark.parametrize("path", ["search", "download", "tail"])
def test_a_topic_must_exist(site: ConsoleSite, path: str) -> None:
    assert site.get(f"/api/{path}?topic=none").status_code == 404


@pytest.mark.parametrize("path", ["search", "download", "tail"])
def test_messages_are_shown_only_to_users_who_may_read_the_whole_topic(path: str) -> None:
    """The user may subscribe to another topic, and to one channel of this one."""
    site = ConsoleSite(authority=HttpAuthority(policy=AccessPolicy(Access.parse(ACCESS))))
    try:
        site.source.blocks = [placed(0, 1, b"secret")]
        site.source.topics = {"t": [], "other": []}
        authorization = {"headers": {"authorization": "Bearer reader"}}
        answer = site.get(f"/api/{path}?topic=t", **authorization)
        assert (answer.status_code, answer.json()) == (403, {"message": "UNAUTHORIZED"})
        assert site.source.reads == []
        if path != "tail":
            assert site.get(f"/api/{path}?topic=other", **authorization).status_code == 200
        assert site.get(f"/api/{path}?topic=t").status_code == 401
    finally:
        site.close()


def test_headers_that_cannot_be_read_hide_no_message(site: ConsoleSite) -> None:
    bad = [b"\xc1", b"\x93abc", msgpack.packb({"a": [b"x"]}), msgpack.packb({b"a": 1})]
    fine = pack_headers({"large": 1 << 60, "none": float("nan")})
    site.source.blocks = [placed(0, 1, *[b"x"] * 5, headers=[*bad, fine])]
    found = [
        search(site)["messages"],
        site.get("/api/messages?topic=t&offset=0").json()["messages"],
    ]
    for messages in found:
        assert [[*one["headers"]] for one in messages[:-1]] == [[UNREADABLE]] * 4
        assert messages[0]["headers"][UNREADABLE]["base64"] == "wQ=="
        assert messages[-1]["headers"] == {"large": str(1 << 60), "none": "nan"}
    assert [one["headers_base64"] for one in download(site)[:1]] == [{UNREADABLE: "wQ=="}]


# Download


def download(site: ConsoleSite, query: str = "") -> list[Any]:
    answer = site.get(f"/api/download?topic=t&{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="t.jsonl"'
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_download_has_each_message_in_the_form_of_the_commands(site: ConsoleSite) -> None:
    headers = [pack_headers({"h": "x", "b": b"\xff"}), None]
    site.source.blocks = [
        placed(1, 1, b"text", b"\xff\x00", keys=[b"k", None], tags=[b"t", None], headers=headers)
    ]
    first, second = download(site)
    assert first == {
        "topic": "t", "offset": 1, "id": "0040000000000001", "timestamp_ns": SECOND_NS, "timestamp": "1970-01-01T00:00:01+00:00",
        "key": "k", "body": "text", "tag": "t", "headers": {"h": "x"}, "headers_base64": {"b": "/w=="},
    }  # fmt: skip
    assert (second["body_base64"], second["offset"]) == ("/wA=", 2)
    assert download(site, "text=tex") == [first]


def test_a_cut_download_says_so_and_where_to_continue(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = download(site, "text=m1&count=2")
    assert [one.get("offset") for one in lines] == [1, 10, None]
    assert lines[-1] == {"cut": "the limit of 2 messages is reached", "next_offset": 11}
    assert download(site, "offset=11&count=1")[-1]["offset"] == 11  # it is complete
    monkeypatch.setattr(search_handlers, "DOWNLOAD_BYTES_MAX", 300)
    lines = download(site)
    assert (len(lines), lines[-1]["cut"]) == (4, "the limit of 300 bytes is reached")
    monkeypatch.setattr(search_handlers, "DOWNLOAD_S", 0.0)
    assert download(site, "text=nothing") == [
        {"cut": "it was not read to its end in time", "next_offset": 3}
    ]


def test_a_download_that_fails_on_its_way_says_so(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = site.source.read

    async def once(offset: int, max_bytes: int) -> Any:
        if offset:
            raise NotFound(E_NOT_FOUND, "topic 't' does not exist")
        return (await read(offset, max_bytes))._replace(
            blocks=site.source.blocks[:1], next_offset=3
        )

    monkeypatch.setattr(site.source, "read", once)
    lines = download(site)
    assert [one["offset"] for one in lines[:-1]] == [0, 1, 2]
    assert lines[-1] == {"cut": "E_NOT_FOUND topic 't' does not exist", "next_offset": 3}


DAMAGED = "offsets {} to {} of topic t cannot be read: the broker found damage there"
REMOVED = "offsets {} to {} of topic t cannot be read: the topic now begins at offset {}; "


@pytest.mark.parametrize(
    ("kept", "query", "found", "gap", "missing"),
    [
        ([0, 2, 3], "", [0, 1, 2], (3, 6), 3),
        ([0, 3], "end=11", [0, 1, 2], (3, 9), 6),
        ([0, 3], "end=8", [0, 1, 2], (3, 8), 5),  # the gap goes beyond the range
        ([0, 2, 3], "offset=3", [], (3, 6), 3),
        ([0, 2, 3], "offset=4&end=5", [], (4, 5), 1),
        ([2, 3], "offset=1", [], (1, 6), 5),  # before the oldest message
        ([3], "offset=4&end=7", [], (4, 7), 3),  # all of the range is before it
        ([2, 3], "", [6, 7, 8, 9, 10, 11], None, 0),  # without an offset nothing is asked for there
        ([0, 2, 3], "end=3", [0, 1, 2], None, 0),
        ([0, 1, 2, 3], "offset=99", [], None, 0),
    ],
)
def test_offsets_that_do_not_exist_are_never_left_out_silently(
    site: ConsoleSite,
    kept: list[int],
    query: str,
    found: list[int],
    gap: tuple[int, int] | None,
    missing: int,
) -> None:
    """A search counts them. A download ends there, and can be continued behind them."""
    site.source.blocks = [site.source.blocks[number] for number in kept]
    answer = search(site, query)
    assert (answer["missing"], answer["done"]) == (missing, True)
    *lines, last = [*download(site, query), None] if gap is None else download(site, query)
    assert [one["offset"] for one in lines] == found
    if gap is not None:
        first, end = gap
        start = site.source.blocks[0].first_offset
        text = (REMOVED if first < start else DAMAGED).format(first, end - 1, start)
        assert last["cut"].startswith(text.replace("offsets 4 to 4", "offset 4"))
        assert last["next_offset"] == end


def test_a_topic_that_is_created_again_does_not_continue_a_download(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic begins at the end of the old one, so its first block is behind the range. Or it
    has no message yet.
    """
    read = site.source.read
    for after in ([placed(12, 9, b"new")], []):

        async def once(offset: int, max_bytes: int, after: list[Block] = after) -> Any:
            if offset:
                return Fetched(12, 13, after, 13)
            return (await read(0, max_bytes))._replace(blocks=site.source.blocks[:1], next_offset=3)

        monkeypatch.setattr(site.source, "read", once)
        *_, last = download(site)
        assert last["cut"].startswith(REMOVED.format(3, 11, 12))
        assert last["next_offset"] == 12
        answer = search(site)
        assert (offsets(answer), answer["missing"], answer["done"]) == ([0, 1, 2], 9, True)


def test_a_download_ends_when_permissions_change(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor, read = Visitor(), site.source.read
    monkeypatch.setattr(search_handlers, "PIECE_BYTES", 1)  # each line is one piece

    async def once(offset: int, max_bytes: int) -> Any:
        return (await read(offset, max_bytes))._replace(blocks=site.source.blocks[:1])

    monkeypatch.setattr(site.source, "read", once)

    async def told() -> list[bytes]:
        answer: Any = await site.messages.search.download(asked(site, "GET", "", visitor))
        with answer.place:
            pieces = answer.body_iterator
            found = [await anext(pieces)]
            visitor.renew()
            return found + [one async for one in pieces]

    first, last = (json.loads(line) for line in site.within(told) if line)
    assert first["offset"] == 0
    assert last == {"cut": "the permissions have changed; ask again", "next_offset": 1}


# The places of streams


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("download", HttpLimits().downloads.each),
        ("tail", HttpLimits().tails.each),
        ("live", HttpLimits().live_views.each),
    ],
)
def test_requests_that_come_together_do_not_exceed_the_limit(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch, path: str, most: int
) -> None:
    """All of them are in their handler before the first one has its answer."""
    monkeypatch.setattr(tail_handlers, "STREAM_S", 0.0)
    monkeypatch.setattr(live, "STREAM_S", 0.0)
    monkeypatch.setattr(live, "KEEP_S", 0.01)
    bounds, overview, full = site.source.bounds, site.source.overview, asyncio.Event()

    async def all_wait() -> None:
        turn = asyncio.get_running_loop().create_future()
        while not full.is_set():
            await asyncio.wait((turn,), timeout=0.001)
            if places(site, path).taken == most:
                full.set()

    async def slow_bounds() -> tuple[int, int]:
        await all_wait()
        return await bounds()

    async def slow_overview(*since: int, **parts: bool) -> dict[str, Any]:
        if path == "live":
            await all_wait()
        return await overview(*since, **parts)

    monkeypatch.setattr(site.source, "bounds", slow_bounds)
    monkeypatch.setattr(site.source, "overview", slow_overview)

    async def together() -> list[httpx.Response]:
        site.console.sampler.stir()  # the board is too old for all of them
        asked = [site.acall("GET", f"/api/{path}?topic=t") for _ in range(most + 2)]
        return await asyncio.gather(*asked)

    answers = site.within(together)
    assert sorted(one.status_code for one in answers) == [200] * most + [503] * 2
    assert all("E_LIMIT" in one.text for one in answers if one.status_code == 503)
    assert places(site, path).taken == 0


def places(site: ConsoleSite, path: str) -> Limiter:
    limiters = site.limiters
    return {
        "tail": limiters.tails,
        "download": limiters.downloads,
        "live": limiters.live_views,
    }[path]


@pytest.mark.parametrize("path", ["download", "tail"])
def test_each_way_out_gives_the_place_back(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    assert site.call("HEAD", f"/api/{path}?topic=t").status_code == 200
    assert site.get(f"/api/{path}?topic=none").status_code == 404
    assert places(site, path).taken == 0
    paths = site.messages
    handler = paths.tail.tail if path == "tail" else paths.search.download

    async def left() -> None:
        """The client leaves before the first piece, so the stream is never read."""
        answer = await handler(asked(site, "GET"))
        assert places(site, path).taken == 1

        async def send(message: Any) -> None:
            raise OSError("the client has left")

        with pytest.raises(ClientDisconnect):
            await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    site.within(left)
    assert places(site, path).taken == 0

    async def fails() -> int:
        raise NotFound(E_NOT_FOUND, "it is gone")

    monkeypatch.setattr(site.messages.tail, "_node", fails)
    monkeypatch.setattr(site.messages.search, "_node", fails)
    assert site.get(f"/api/{path}?topic=t").status_code == 404
    assert places(site, path).taken == 0


# Live tail

Events = AsyncIterator[bytes]


def asked(
    site: ConsoleSite, method: str, query: str = "", visitor: Visitor | None = None
) -> Request:
    return (visitor or Visitor()).request(site, method, f"topic=t&{query}")


async def tail(site: ConsoleSite, query: str = "", visitor: Visitor | None = None) -> Events:
    answer: Any = await site.messages.tail.tail(asked(site, "GET", query, visitor))

    async def events() -> Events:
        with answer.place:
            async with aclosing(answer.body_iterator) as pieces:
                async for one in pieces:
                    yield one

    return events()


async def heard(events: Events) -> tuple[str, Any]:
    kind, _, data = (await anext(events)).decode().partition("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: ").strip())


async def ended(events: Events) -> None:
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_handlers, "LOOK_S", 0.001)


def run(site: ConsoleSite, listen: Callable[[], Any]) -> None:
    site.within(listen)
    assert site.limiters.tails.taken == 0


@pytest.mark.usefixtures("quick")
def test_a_tail_shows_new_messages_from_now_on_or_from_some_back(site: ConsoleSite) -> None:
    async def listen() -> None:
        events, back = await tail(site), await tail(site, "last=2&body_max=1")
        assert await heard(events) == ("start", {"offset": 12})
        site.source.blocks.append(placed(12, 5, b"new"))
        kind, data = await heard(events)
        assert (kind, offsets(data), data["dropped"], data["offset"]) == ("messages", [12], 0, 13)
        assert await heard(back) == ("start", {"offset": 10})
        data = (await heard(back))[1]
        assert (offsets(data), data["messages"][0]["body"]["text"]) == ([10, 11, 12], "m")
        assert site.limiters.tails.taken == 2
        await events.aclose()  # type: ignore[attr-defined]
        await back.aclose()  # type: ignore[attr-defined]

    run(site, listen)
    assert site.source.calls == [], "no order was given, so no channel was created"


@pytest.mark.usefixtures("quick")
def test_a_flood_is_dropped_and_counted(site: ConsoleSite) -> None:
    async def listen() -> None:
        events = await tail(site)
        await heard(events)
        flood = [b"x"] * (BEHIND_MAX + 1)
        site.source.blocks.append(placed(12, 5, *flood))
        _, data = await heard(events)
        assert (len(data["messages"]), data["dropped"]) == (BURST, BEHIND_MAX + 1 - BURST)
        assert data["offset"] == 12 + BEHIND_MAX + 1
        await events.aclose()  # type: ignore[attr-defined]

    run(site, listen)


@pytest.mark.usefixtures("quick")
def test_a_tail_ends_with_its_time_its_rules_and_its_topic(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen() -> None:
        visitor = Visitor()
        events = await tail(site, "offset=11", visitor)
        assert [(await heard(events))[0] for _ in range(2)] == ["start", "messages"]
        visitor.renew()
        assert await heard(events) == ("again", {"offset": 12})
        await ended(events)
        monkeypatch.setattr(tail_handlers, "KEEP_S", 0.0)
        events = await tail(site)
        await heard(events)
        assert await anext(events) == b": keep\n\n"
        monkeypatch.setattr(tail_handlers, "STREAM_S", 0.0)
        assert await heard(events) == ("again", {"offset": 12})
        await ended(events)
        events = await tail(site)
        await heard(events)

        async def gone() -> Any:
            raise NotFound(E_NOT_FOUND, "topic 't' does not exist")

        monkeypatch.setattr(tail_handlers, "STREAM_S", 60.0)
        monkeypatch.setattr(site.source, "bounds", gone)
        kind, data = await heard(events)
        assert (kind, data["message"]) == ("failed", "E_NOT_FOUND topic 't' does not exist")
        await ended(events)

    run(site, listen)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("path", ["tail", "download"])
def test_the_time_limit_of_requests_does_not_cut_streams(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 0 s, any other request is cut as soon as it waits for something."""
    monkeypatch.setattr(tail_handlers, "STREAM_S", 0.05)
    monkeypatch.setattr(scan, "SLICE_S", -1.0)  # a scan waits after each message
    site = ConsoleSite(limits=HttpLimits(request_s=0.0))
    site.source.blocks = [placed(0, 1, b"x")]
    try:
        assert site.get("/api/search?topic=t").status_code == 503
        text = site.get(f"/api/{path}?topic=t&offset=0").text
        assert "event: again" in text if path == "tail" else json.loads(text)["body"] == "x"
    finally:
        site.close()


@pytest.mark.usefixtures("quick")
def test_nothing_is_shown_that_was_read_under_old_permissions(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, visitor = site.source.read, Visitor()

    async def renewing(offset: int, max_bytes: int) -> Any:
        visitor.renew()
        return await read(offset, max_bytes)

    monkeypatch.setattr(site.source, "read", renewing)

    async def listen() -> None:
        events = await tail(site, "offset=11", visitor)
        place = {"offset": 11}
        assert [await heard(events) for _ in range(2)] == [("start", place), ("again", place)]
        await ended(events)

    run(site, listen)


def test_a_gateway_that_stops_ends_its_tails(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_handlers, "LOOK_S", 60.0)

    async def listen() -> None:
        events = await tail(site)
        await heard(events)
        coming = asyncio.ensure_future(heard(events))
        await asyncio.wait((coming,), timeout=0.01)  # it waits for its next look
        begun_s = time.monotonic()
        site.messages.close()
        assert await coming == ("again", {"offset": 12})
        assert time.monotonic() - begun_s < 10
        await ended(events)

    run(site, listen)
    site.messages.tail._closing.clear()
