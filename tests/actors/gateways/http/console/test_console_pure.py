"""Tests of the console's functions without I/O: bytes as JSON, what an action would lose, files of
pages, and details of a channel.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from zsq.actors.gateways.http.console import answers as bodies
from zsq.actors.gateways.http.console import files
from zsq.actors.gateways.http.console.answers import Room, text_of, told
from zsq.actors.gateways.http.console.files import ConsoleFiles
from zsq.actors.gateways.http.console.page_details import channel_details, chunk_rows, latency
from zsq.actors.gateways.http.console.previews import ActionRequest, change, preview
from zsq.actors.gateways.http.web.responses import ApiError
from zsq.transport.client.core.message import StoredMessage, parse_id


@given(st.binary(max_size=50), st.integers(0, 60))
def test_bytes_come_back_from_json(data: bytes, length: int) -> None:
    found = json.loads(json.dumps(told(data, length)))
    assert base64.b64decode(found["base64"]) == data[:length]
    assert (found["size"], "cut" in found) == (len(data), length < len(data))


@given(st.text(max_size=30), st.integers(0, 60))
def test_text_that_is_cut_is_text_up_to_there(text: str, length: int) -> None:
    data = text.encode()
    found = told(data, length).get("text")
    if not bodies._NO_TEXT.search(text):
        assert found is not None
        assert text.startswith(found)
        assert len(data[:length]) - len(found.encode()) < 4


@pytest.mark.parametrize(
    ("data", "cut", "text"),
    [
        (b"a\tb\n", False, "a\tb\n"), (b"\x00", False, None), (b"a\x7f", False, None), ("\u0085".encode(), False, None),
        (b"\xff", False, None), (b"\xff", True, None), ("é".encode()[:1], False, None), (b"a\xc3", True, "a"),
        (b"a\xffb\xc3", True, None), (b"", False, ""),
    ],
)  # fmt: skip
def test_only_printable_utf8_is_shown_as_text(data: bytes, cut: bool, text: str | None) -> None:
    assert text_of(data, cut=cut) == text


def test_bodies_of_one_answer_have_a_bound_together() -> None:
    room = Room(100, 250)
    assert [room.take(size) for size in (90, 1000, 1000, 5)] == [90, 100, 60, 0]
    message = StoredMessage(
        "t", 5, 1_500_000_000, b"x" * 9, b"\xff", "tag", {"n": 1 << 60, "b": b"\x00", "t": "x"}
    )
    found = bodies.message(message, 3, Room(4))
    assert (found["body"], found["size"], found["time_ms"]) == (
        {"size": 9, "base64": "eHh4eA==", "text": "xxxx", "cut": True},
        9,
        1_500,
    )
    assert parse_id(found["id"]) == (3, 5)
    part = bodies.message(message._replace(topic="t#2"), 3, Room(4))
    assert part["id"] == "0200000000000005", "a part keeps it at another broker"
    assert found["headers"] == {"n": str(1 << 60), "b": {"size": 1, "base64": "AA=="}, "t": "x"}
    (row,) = bodies.delayed(
        [
            {
                "delayed_key": "k",
                "due_ns": 5_000_000,
                "size": 300,
                "body": b"a" * 200,
                "tag": b"t",
                "key": None,
            }
        ]
    )
    assert (row["body"]["size"], row["body"]["cut"], row["due_ms"], row["tag"]) == (
        300,
        True,
        5,
        "t",
    )


# Losses

CHANNEL: Any = {
    "channel_name": "c", "depth": 30, "in_flight_count": 4, "deferred_count": 2, "dying_count": 0, "client_count": 1, "health": "OK",
    "next_offset": 75, "paused": False,
}  # fmt: skip
TOPIC: Any = {
    "uuid": "u",
    "channels": [CHANNEL], "depth": 0, "delayed_count": 7, "stages": 0, "head": 100, "start": 20,
    "kept_count": 80, "log_bytes": 5_000, "closed": "",
}  # fmt: skip


def ask(
    action: str, channel: Any = None, to: int | None = None, keys: int | None = None, **topic: Any
) -> Any:
    row: Any = {**TOPIC, **topic}
    return preview(action, ActionRequest(row, channel, to, keys))


def counts(found: Any) -> dict[str, int]:
    return {loss["what"]: loss["count"] for loss in found["loses"]}


def test_deleting_and_emptying_say_what_goes() -> None:
    held = {"messages waiting": 30, "messages in flight": 4, "messages deferred": 2}
    assert counts(ask("channel.delete", CHANNEL)) == held
    # The topic has no other channel that would get its delayed messages.
    assert counts(ask("channel.empty", CHANNEL)) == {**held, "delayed messages": 7}
    two = [CHANNEL, {**CHANNEL, "channel_name": "other"}]
    assert counts(ask("channel.empty", CHANNEL, channels=two)) == held
    found = ask("topic.delete")
    assert counts(found) == {"messages in the log": 80, "delayed messages": 7, "channels": 1}
    assert "30 waiting" in found["says"][1]
    assert found["says"][-1] == "Connected consumers: 1. They receive no more messages."
    found = ask("topic.empty", depth=9, channels=[])
    assert counts(found) == {"messages waiting": 9, "delayed messages": 7}
    assert counts(ask("topic.empty", depth=9)) == {"messages waiting": 9}
    empty = ask("topic.delete", channels=[], start=100, kept_count=0, delayed_count=0)
    assert (empty["harmless"], empty["says"]) == (True, ["The topic is empty."])


@pytest.mark.parametrize(
    ("to", "seek", "skipped"),
    [
        (50, {"from": 75, "to": 50, "again": 25, "skipped": 0}, None),
        # Messages that retention has removed do not count.
        (
            0,
            {"from": 75, "to": 20, "again": 55, "skipped": 0},
            None,
        ),
        (90, {"from": 75, "to": 90, "again": 0, "skipped": 15}, 15),
        (1 << 62, {"from": 75, "to": 100, "again": 0, "skipped": 25}, 25),
    ],
)
def test_a_seek_says_from_where_to_where(
    to: int, seek: dict[str, int], skipped: int | None
) -> None:
    found = ask("channel.seek", CHANNEL, to)
    assert found["seek"] == seek
    assert counts(found).get("messages skipped") == skipped
    # 30 messages wait, but only 25 lie behind the cursor.
    assert counts(found)["messages to be delivered again"] == 5
    with pytest.raises(ApiError):
        ask("channel.seek", CHANNEL)


def test_more_than_a_tenth_more_than_the_user_has_seen_is_a_change() -> None:
    seen = ask("channel.delete", CHANNEL)["seen"]
    assert seen == {"uuid": "u", "counts": {"messages": 36}}
    for state in ("depth", "in_flight_count"):
        for count, text in ((3, ""), (4, "the dialog showed 36 messages, and now 40 are affected")):
            more = {**CHANNEL, state: CHANNEL[state] + count}
            assert change(seen, ask("channel.delete", more)["seen"]) == text
    moved = {**CHANNEL, "depth": 0, "in_flight_count": 34}
    assert change(seen, ask("channel.delete", moved)["seen"]) == ""
    assert "created again" in change(seen, ask("channel.delete", CHANNEL, uuid="v")["seen"])
    replay = ask("channel.seek", CHANNEL, 70)["seen"], ask("channel.seek", CHANNEL, 20)["seen"]
    assert "now 55 are affected" in change(*replay)
    channels = ask("topic.delete")["seen"], ask("topic.delete", channels=[CHANNEL] * 2)["seen"]
    assert change(*channels) == "the dialog showed 1 channels, and now 2 are affected"


def test_a_seek_beyond_the_end_is_refused_already_in_its_preview() -> None:
    with pytest.raises(ApiError, match="offset 101 is beyond the end of the topic, offset 100"):
        ask("channel.seek", CHANNEL, 101)


def test_a_harmless_action_says_that_it_loses_nothing() -> None:
    for action in ("topic.pause", "topic.close", "topic.close.consumers", "redrive"):
        found = ask(action)
        assert (found["harmless"], bool(found["says"])) == (True, True)
    assert ask("channel.pause", CHANNEL)["harmless"]
    assert ask("redrive")["count"] == 80
    assert ask("redrive", channels=[{**CHANNEL, "channel_name": "redrive"}])["count"] == 36
    assert counts(ask("delayed.cancel")) == {"delayed messages": 7}
    assert counts(ask("delayed.cancel", keys=3)) == {"delayed messages": 3}
    starting = ask("topic.delete", channels=[{**CHANNEL, "health": "starting"}])
    assert (starting["unknown"], "not counted" in starting["says"][-1]) == (True, True)
    with pytest.raises(ApiError, match="unknown action"):
        ask("topic.paint")


# Details


def test_details_have_the_form_that_the_pages_expect() -> None:
    assert latency(None) == {
        "count": 0,
        "p50_ms": None,
        "p90_ms": None,
        "p95_ms": None,
        "p99_ms": None,
        "max_ms": None,
    }
    percentiles = [
        {"quantile": quantile, "value": 1_500_000} for quantile in (0.5, 0.9, 0.95, 0.99, 1.0)
    ]
    row: Any = {
        **CHANNEL, "rates": {}, "drain_s": None, "e2e_processing_latency": {"count": 3, "percentiles": percentiles},
        "clients": [{"client_id": "a b:1", "remote_address": "b:1", "rates": {"finish_count": 2.0}, "connect_ts": 7, "ready_count": 5}],
    }  # fmt: skip
    found: Any = channel_details(row, {"depth": 30})
    assert found["channel"]["latency"]["max_ms"] == 1.5
    assert found["channel"]["counters"] == {
        "in_flight_count": 4,
        "deferred_count": 2,
        "dying_count": 0,
    }
    client = found["clients"][0]
    assert (
        client["name"],
        client["nsq"],
        client["connected_ms"],
        client["out"],
        client["ready"],
    ) == ("a b:1", True, 7_000, 2.0, 5)
    chunk = {"first_offset": 0, "first_time_ns": None, "last_time_ns": 9_000_000, "bytes": 3}
    chunks: Any = {"chunks": (chunk,), "total": {"chunks": 1}, "older": {"chunks": 0}}
    assert chunk_rows(chunks)["chunks"] == [
        {"first_offset": 0, "bytes": 3, "first_time_ms": None, "last_time_ms": 9}
    ]


# Files


def test_only_files_of_the_folder_are_served_and_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    (folder / "view").mkdir(parents=True)
    (folder / "index.html").write_text("<p>" * 500)
    (folder / "view" / "a.js").write_text("a")
    (folder / "notes.txt").write_text("not a page")
    (tmp_path / "secret.js").write_text("secret")
    pages = ConsoleFiles(str(folder))
    site = httpx.ASGITransport(
        Starlette(routes=[Route("/", pages.index), Route("/console/{name:path}", pages.named)])
    )

    def get(path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=site, base_url="http://site") as client:
                return await client.get(
                    path, headers={name.replace("_", "-"): value for name, value in headers.items()}
                )

        return asyncio.run(ask())

    found = get("/")
    assert (found.status_code, found.headers["content-encoding"], found.text) == (
        200,
        "gzip",
        "<p>" * 500,
    )
    assert "script-src 'self'" in found.headers["content-security-policy"]
    assert get("/", accept_encoding="br").headers.get("content-encoding") is None
    again = get("/", if_none_match=f'"x", W/{found.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")
    assert get("/console/view/a.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("notes.txt", "..%2Fsecret.js", "view/..%2f..%2fsecret.js", "nothing.js", ""):
        with pytest.raises(ApiError, match="NOT_FOUND"):
            get(f"/console/{path}")
    assert gzip.decompress(pages._files["index.html"].packed) == b"<p>" * 500
    monkeypatch.setattr(files, "FILES_MAX", 1)
    assert len(ConsoleFiles(str(folder))._files) == 1
    assert not ConsoleFiles("")
