"""Tests of the console's paths: what they request from the broker, what they refuse, and how large
one answer can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest
from support.console_site import ConsoleSite
from support.http_api import Site

from zsq.actors.gateways.acting_clients import FirstUse
from zsq.actors.gateways.http.console import answers as bodies
from zsq.actors.gateways.http.console import read_handlers
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.policy import AccessPolicy
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.errors import E_NOT_FOUND, E_TOO_BIG, NotFound, UsageError

ACCESS = f"""
[users.some]
tokens = ["{token_hash("some")}"]
admin = ["t"]
subscribe = ["t"]
[users.sending]
tokens = ["{token_hash("sending")}"]
admin = ["t"]
subscribe = ["t"]
publish = ["u"]
[users.all]
tokens = ["{token_hash("all")}"]
admin = ["*"]
publish = ["*"]
[users.using]
tokens = ["{token_hash("using")}"]
publish = ["*"]
create = ["mine.*"]
"""


@pytest.fixture(scope="module")
def module_site() -> Iterator[ConsoleSite]:
    site = ConsoleSite()
    yield site
    site.close()


@pytest.fixture
def site(module_site: ConsoleSite) -> ConsoleSite:
    source = module_site.source
    source.calls, source.answers, source.topics, source.blocks, source.reads = (
        [],
        {},
        {"t": ["c"]},
        [],
        [],
    )
    return module_site


def post(site: Site, path: str, options: Any = None, **more: Any) -> httpx.Response:
    return site.call(
        "POST",
        path,
        b"" if options is None else None,
        **({} if options is None else {"json": options}),
        **more,
    )


def refused(answer: httpx.Response, status: int, text: str) -> None:
    assert (answer.status_code, text in answer.json()["message"]) == (status, True), answer.text


# Actions

HOUR = {"keep_time_s": 3600}


@pytest.mark.parametrize(
    ("path", "options", "call"),
    [
        (
            "/api/topic/create?topic=n",
            {"sync": "never", "settings": HOUR},
            ("create_topic", "n", {"sync": "never", **HOUR}),
        ),
        ("/api/topic/create?topic=n", None, ("create_topic", "n", {"sync": "always"})),
        (
            "/api/topic/configure?topic=t",
            {"keep_time_s": None},
            ("configure_topic", "t", {"keep_time_s": None}),
        ),
        ("/api/topic/pause?topic=t", None, ("pause", "t")),
        ("/api/topic/unpause?topic=t", {}, ("unpause", "t")),
        ("/api/topic/empty?topic=t", None, ("empty", "t")),
        (
            "/api/topic/close?topic=t",
            {"to": "consumers"},
            ("close_topic", "t", {"to": "consumers"}),
        ),
        ("/api/topic/open?topic=t", None, ("open_topic", "t", {"to": "publishers"})),
        ("/api/topic/delete?topic=t", None, ("delete_topic", "t", {"force": False})),
        ("/api/topic/delete?topic=t", {"force": True}, ("delete_topic", "t", {"force": True})),
        ("/api/topic/delete?topic=t", {"force": "yes"}, ("delete_topic", "t", {"force": False})),
        (
            "/api/channel/create?topic=t&channel=n",
            {"tags": "a", "start": 5},
            ("create_channel", "t", "n", {"tags": "a", "start": 5}),
        ),
        (
            "/api/channel/create?topic=t&channel=n",
            {"start": {"time_ms": 1500}},
            ("create_channel", "t", "n", {"start": 1.5}),
        ),
        (
            "/api/channel/configure?topic=t&channel=c",
            {"max_attempts": 3},
            ("configure_channel", "t", "c", {"max_attempts": 3}),
        ),
        ("/api/channel/pause?topic=t&channel=c", None, ("pause", "t", "c")),
        ("/api/channel/unpause?topic=t&channel=c", None, ("unpause", "t", "c")),
        ("/api/channel/empty?topic=t&channel=c", None, ("empty", "t", "c")),
        (
            "/api/channel/delete?topic=t&channel=c",
            {"force": True},
            ("delete_channel", "t", "c", {"force": True}),
        ),
        (
            "/api/channel/seek?topic=t&channel=c",
            {"to": 7},
            ("seek", "t", "c", 7, {"forward": False, "clamp": False}),
        ),
        (
            "/api/channel/seek?topic=t&channel=c",
            {"to": 9, "forward": True, "clamp": True},
            ("seek", "t", "c", 9, {"forward": True, "clamp": True}),
        ),
        (
            "/api/channel/seek?topic=t&channel=c",
            {"to": {"time_ms": 2000}},
            ("seek", "t", "c", 2.0, {"forward": False, "clamp": False}),
        ),
    ],
)
def test_each_action_is_one_call(
    site: ConsoleSite, path: str, options: Any, call: tuple[Any, ...]
) -> None:
    assert post(site, path, options).json() == {"done": True}
    assert site.source.calls == [call]


def test_the_effect_of_an_action_is_in_the_next_overview(site: ConsoleSite) -> None:
    assert site.get("/api/overview?topic=t").json()["topics"]["t"]["head"] == 0
    site.source.values = {"head": 5}
    assert post(site, "/api/topic/pause?topic=t").status_code == 200
    assert site.get("/api/overview?topic=t").json()["topics"]["t"]["head"] == 5
    site.source.values = {}


@pytest.mark.parametrize(
    ("path", "options", "status", "text"),
    [
        (
            "/api/topic/configure?topic=t",
            {"keep": 1},
            400,
            "unknown setting keep; the settings are ",
        ),
        ("/api/topic/create?topic=n", {"settings": 5}, 400, "settings must be an object"),
        ("/api/topic/pause?topic=t", [1], 400, "a JSON object"),
        ("/api/channel/create?topic=none&channel=c", None, 404, "does not exist"),
        (
            "/api/channel/configure?topic=t&channel=c",
            {"start": 0},
            400,
            "unknown setting start; the settings are ",
        ),
        ("/api/channel/seek?topic=t&channel=c", {}, 400, "is missing; give "),
        ("/api/channel/seek?topic=t&channel=c", {"to": {"time_ms": "1"}}, 400, "a time must be "),
        (
            "/api/channel/seek?topic=t&channel=c",
            {"to": {"time_ms": 1, "x": 1}},
            400,
            "a time must be ",
        ),
        ("/api/delayed/cancel?topic=t", {"keys": []}, 400, "1 to 1000 keys"),
        ("/api/delayed/cancel?topic=t", {"keys": ["a"] * 1001}, 400, "1 to 1000 keys"),
        ("/api/delayed/cancel?topic=t", {"all": 1}, 400, "1 to 1000 keys"),
        ("/api/redrive?topic=t", {"count": 0}, 400, "at least 1, not 0"),
        ("/api/redrive?topic=t", {"to": "a/b"}, 400, "INVALID"),
        ("/api/redrive?topic=t", {"rate": 0}, 400, "rate must be a number a second"),
        ("/api/redrive?topic=t", {"group": 5}, 400, "group must be the id"),
        ("/api/redrive?topic=t", {"rate": 5, "offsets": [1]}, 400, "give no rate"),
        ("/api/redrive?topic=none", {}, 404, "does not exist"),
        ("/api/job/stop?id=77", None, 404, "job 77 does not exist"),
        ("/api/topic/pause", None, 400, ""),
        ("/api/channel/pause?topic=t", None, 400, ""),
    ],
)
def test_an_action_with_wrong_options_is_refused_and_has_no_effect(
    site: ConsoleSite, path: str, options: Any, status: int, text: str
) -> None:
    refused(post(site, path, options), status, text)
    assert site.source.calls == []


def test_a_body_that_is_no_json_or_too_large_does_nothing(site: ConsoleSite) -> None:
    refused(site.post("/api/topic/pause?topic=t", b"{"), 400, "not valid JSON")
    refused(site.post("/api/topic/pause?topic=t", b"[" * 100_000), 400, "not valid JSON")
    refused(site.post("/api/topic/pause?topic=t", b" " * 200_000), 413, "BODY_TOO_BIG")
    assert site.source.calls == []


def test_delayed_messages_are_cancelled_and_counted(site: ConsoleSite) -> None:
    site.source.answers = {"delayed_cancel": [True, False], "delayed_cancel_all": 5}
    assert post(site, "/api/delayed/cancel?topic=t", {"keys": ["a", "b"]}).json() == {
        "done": True,
        "cancelled": 1,
        "not_found": 1,
    }
    assert post(site, "/api/delayed/cancel?topic=t", {"all": True}).json()["cancelled"] == 5


def test_a_preview_does_nothing(site: ConsoleSite) -> None:
    found = site.get("/api/preview?action=channel.seek&topic=t&channel=c&to=time:5").json()
    assert found["seek"] == {"from": 0, "to": 3, "again": 0, "skipped": 3}
    assert site.source.calls == [("offset_at", 5_000_000)]
    assert (
        site.get("/api/preview?action=channel.seek&topic=t&channel=c&to=latest").json()["seek"][
            "to"
        ]
        == 10
    )
    assert site.get("/api/preview?action=topic.delete&topic=t").json()["loses"][0]["count"] == 10
    for query, status in (
        ("channel.seek&channel=c&to=x", 400),
        ("channel.seek&channel=c", 400),
        ("channel.empty&channel=d", 404),
        ("x", 400),
    ):
        assert site.get(f"/api/preview?topic=t&action={query}").status_code == status


GUARDED: Final = [
    ("topic.delete", "topic/delete", {"force": True}, "delete_topic"),
    ("topic.empty", "topic/empty", {}, "empty"),
    ("topic.pause", "topic/pause", {}, "pause"),
    ("topic.close", "topic/close", {"to": "publishers"}, "close_topic"),
    ("topic.close.consumers", "topic/close", {"to": "consumers"}, "close_topic"),
    ("channel.delete", "channel/delete", {"force": True}, "delete_channel"),
    ("channel.empty", "channel/empty", {}, "empty"),
    ("channel.pause", "channel/pause", {}, "pause"),
    ("channel.seek", "channel/seek", {"to": {"time_ms": 5}}, "seek"),
    ("channel.skip", "channel/skip", {"offsets": [5]}, "skip"),
    ("redrive.discard", "redrive/discard", {"offsets": [5]}, "skip"),
    ("delayed.cancel", "delayed/cancel", {"all": True}, "delayed_cancel_all"),
    ("redrive", "redrive", {}, "create_channel"),
    ("", "topic/configure", {}, "configure_topic"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "path", "options", "call"), GUARDED)
def test_an_action_carries_what_its_user_has_seen(
    site: ConsoleSite, action: str, path: str, options: Any, call: str
) -> None:
    site.source.answers = {"delayed_cancel_all": 0, "skip": [5]}

    def calls() -> list[str]:
        return [one[0] for one in site.source.calls if one[-1] != {"preview": True}]

    seen = {"uuid": "u", "counts": {}}
    if action:
        query = f"/api/preview?action={action}&topic=t&channel=c&to=time:5&offsets=5"
        seen = site.get(query).json()["seen"]
    path = f"/api/{path}?topic=t&channel=c"
    old = {**options, "seen": {**seen, "uuid": "that of an earlier topic"}}
    refused(post(site, path, old), 409, "E_CHANGED the topic was deleted and created again")
    assert call not in calls()
    assert post(site, path, {**options, "seen": seen}).json()["done"]
    assert call in calls()


@pytest.mark.parametrize(
    "seen", [None, 1, {}, {"uuid": 1, "counts": {}}, {"uuid": "u", "counts": {"messages": "1"}}]
)
def test_what_a_user_has_seen_must_be_what_a_preview_returns(site: ConsoleSite, seen: Any) -> None:
    answer = post(site, "/api/channel/empty?topic=t&channel=c", {"seen": seen})
    refused(answer, 400, "seen must be what the preview has returned as seen")
    assert site.source.calls == []


# Messages


def block(first: int, *values: bytes) -> Block:
    return with_place(pack(list(values)), first, 1_000_000_000)


def offsets(site: ConsoleSite, query: str) -> list[int]:
    answer = site.get(f"/api/messages?topic=t&{query}")
    assert answer.status_code == 200, answer.text
    return [message["offset"] for message in answer.json()["messages"]]


def test_messages_are_found_by_offset_id_and_time(site: ConsoleSite) -> None:
    # Offsets 5 to 7 are lost.
    site.source.blocks = [
        block(2, b"a", b"b"),
        block(4, b"c"),
        block(8, *[b"x"] * 300),
    ]
    assert offsets(site, "offset=3&count=2") == [3, 4]
    assert offsets(site, "offset=0&count=1") == [2]  # the oldest message that is kept
    assert offsets(site, "offset=5&count=1") == [8]
    assert offsets(site, "id=0040000000000004&count=1") == [4]
    assert offsets(site, "time_ms=1&count=1") == [3]
    assert offsets(site, "latest=1") == list(range(208, 308))
    assert offsets(site, "") == list(range(208, 308))
    assert offsets(site, "offset=2&count=1000000") == [2, 3, 4, *range(8, 105)]
    assert offsets(site, "offset=308") == []
    found = site.get("/api/messages?topic=t&offset=3&count=2").json()
    assert (found["start"], found["head"], found["from"], found["next_offset"]) == (2, 308, 3, 5)
    assert found["messages"][0]["id"] == "0040000000000003"  # an id of node 1
    refused(
        site.get("/api/messages?topic=t&id=0080000000000004"),
        404,
        "is from node 2, but this broker is node 1",
    )
    for query, text in (
        ("offset=x", "a number"),
        ("id=zz", "neither"),
        ("offset=1&latest=1", "give only one of"),
        ("time_ms=", "a number"),
    ):
        refused(site.get(f"/api/messages?topic=t&{query}"), 400, text)
    refused(site.get("/api/messages"), 400, "")


def test_the_size_of_one_answer_with_messages_is_bounded(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_handlers, "HELD_BYTES_MAX", 5_000)
    monkeypatch.setattr(bodies, "ALL_BYTES_MAX", 3_000)
    site.source.blocks = [block(0, *[b"x" * 1_000] * 50), block(50, b"y")]
    found = site.get("/api/messages?topic=t&offset=0&body_max=900").json()
    assert [len(message["body"]["text"]) for message in found["messages"]] == [900] * 5
    assert found["next_offset"] == 5
    assert len(site.source.reads) == 1
    found = site.get("/api/messages?topic=t&offset=48&body_max=9999999").json()
    assert [message["body"]["size"] for message in found["messages"]] == [1_000, 1_000, 1]


def test_a_body_is_never_a_page(site: ConsoleSite) -> None:
    site.source.blocks = [block(0, b"<script>")]
    found = site.get("/api/body?topic=t&offset=0")
    assert (found.content, found.headers["content-type"]) == (
        b"<script>",
        "application/octet-stream",
    )
    assert found.headers["content-disposition"] == 'attachment; filename="t-0"'
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in found.headers["content-security-policy"]
    for query in ("offset=1", ""):
        refused(site.get(f"/api/body?topic=t&{query}"), 404, "has no message")


# Publishing


@pytest.mark.parametrize(
    ("options", "bodies", "more"),
    [
        ({"body": "h\u00e9"}, ["h\u00e9".encode()], {}),
        ({"body": ""}, [b""], {}),
        ({"body_base64": "AP8="}, [b"\x00\xff"], {}),
        ({"bodies": ["a", "b"], "tag": "x"}, [b"a", b"b"], {"tag": "x"}),
        (
            {"body": "a", "key": "k", "headers": {"n": 1, "s": "t"}},
            [b"a"],
            {"key": b"k", "headers": {"n": 1, "s": "t"}},
        ),
        (
            {"body": "a", "key_base64": "/w==", "headers_base64": {"b": "/w=="}},
            [b"a"],
            {"key": b"\xff", "headers": {"b": b"\xff"}},
        ),
        ({"body": "a", "delay_s": 30 * 86_400}, [b"a"], {"delay": 30 * 86_400}),
        (
            {"body": "a", "delay_s": 0.25, "key": None, "tag": None, "headers": None},
            [b"a"],
            {"delay": 0.25},
        ),
    ],
)
def test_a_publish_is_one_call_of_a_client_of_its_own(
    site: ConsoleSite, options: Any, bodies: list[bytes], more: dict[str, Any]
) -> None:
    site.source.answers, site.source.closed = {"publish": 7}, 0
    found = post(site, "/api/topic/publish?topic=t", options)
    place = {"offset": 7, "part": None, "id": "0040000000000007"}
    assert found.json() == {"done": True, "count": len(bodies), **place, "keys": []}
    assert (site.source.calls, site.source.closed) == ([("publish", "t", bodies, more)], 1)


def test_a_delayed_publish_tells_keys_in_place_of_an_offset(site: ConsoleSite) -> None:
    site.source.answers = {"publish": ["k1", "k2"]}
    found = post(site, "/api/topic/publish?topic=t", {"bodies": ["a", "b"], "delay_s": 5}).json()
    place = {"offset": None, "part": None, "id": None}
    assert found == {"done": True, "count": 2, **place, "keys": ["k1", "k2"]}


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ({}, 400, "give exactly one of body"),
        (None, 400, "give exactly one of body"),
        ({"body": "a", "bodies": ["b"]}, 400, "give exactly one of body"),
        ({"body": "a", "body_base64": "YQ=="}, 400, "give only one of body and body_base64"),
        ({"body": 5}, 400, "body must be a string; send bytes as body_base64"),
        ({"body_base64": "!"}, 400, "not valid base64"),
        ({"bodies": []}, 400, "1 to 10000 strings"),
        ({"bodies": [""] * 10_001}, 400, "1 to 10000 strings"),
        ({"bodies": [b"".decode(), 1]}, 400, "1 to 10000 strings"),
        ({"body": "a", "headers": [1]}, 400, "must be objects"),
        ({"body": "a", "headers": {"n": [1]}}, 400, "a header must be a string"),
        (
            {"body": "a", "headers": {"n": 1}, "headers_base64": {"n": "YQ=="}},
            400,
            "in only one of them",
        ),
        ({"body": "a", "headers_base64": {"n": 1}}, 400, "not valid base64"),
        ({"body": "a", "tag": 1}, 400, "tag must be a string"),
        ({"body": "a", "delay_s": "1h"}, 400, "number of seconds"),
        ({"body": "a", "delay_s": True}, 400, "number of seconds"),
        ({"body": "a", "delay_s": 10**400}, 400, "number of seconds"),
        ({"body": "a", "defer": 1}, 400, "unknown field 'defer'; the fields are "),
        ({"body": "a" * (1024 * 1024 + 1)}, 413, "MSG_TOO_BIG"),
        ({"body": "\n" * (1024 * 1024 + 200_000)}, 413, "BODY_TOO_BIG"),
    ],
)
def test_a_wrong_publish_is_refused_before_it_reaches_a_client(
    site: ConsoleSite, options: Any, status: int, text: str
) -> None:
    refused(post(site, "/api/topic/publish?topic=t", options), status, text)
    assert site.source.calls == []


@pytest.mark.parametrize(
    "body",
    [
        rb'{"body": "\ud800"}',
        rb'{"body": "a", "key": "\ud800"}',
        rb'{"body": "a", "headers": {"\ud800": "\ud800"}}',
    ],
)
def test_half_a_character_is_refused(site: ConsoleSite, body: bytes) -> None:
    refused(site.post("/api/topic/publish?topic=t", body), 400, "not valid Unicode")
    assert site.source.calls == []


def test_a_value_that_is_too_big_is_named(site: ConsoleSite) -> None:
    """It is not the message, so --max-msg-size would change nothing."""
    text = "key of 257 bytes is over the limit of 256 bytes"
    site.source.answers = {"publish": UsageError(E_TOO_BIG, text)}
    found = post(site, "/api/topic/publish?topic=t", {"body": "a", "key": "k" * 257})
    assert (found.status_code, found.json()) == (400, {"message": f"E_TOO_BIG {text}"})


def test_a_refused_publish_ends_its_client_and_gives_its_place_back(site: ConsoleSite) -> None:
    site.source.answers, site.source.closed = (
        {"publish": NotFound(E_NOT_FOUND, "topic 't' does not exist")},
        0,
    )
    many = HttpLimits().publishes.each + 1
    for _ in range(many):
        refused(post(site, "/api/topic/publish?topic=t", {"body": "a"}), 404, "does not exist")
    assert site.source.closed == many


def test_a_publish_over_the_limit_of_running_ones_is_refused(site: ConsoleSite) -> None:
    with ExitStack() as held:
        for _ in range(HttpLimits().publishes.each):
            held.enter_context(site.limiters.publishes.place("address 127.0.0.1"))
        refused(post(site, "/api/topic/publish?topic=t", {"body": "a"}), 503, "E_LIMIT")
    assert site.source.calls == []


def test_a_publish_needs_publish_and_a_new_topic_also_create() -> None:
    async def there() -> dict[str, list[str]]:
        return {"t": [], "u": []}

    site = ConsoleSite(
        authority=HttpAuthority(
            policy=AccessPolicy(Access.parse(ACCESS)), first_use=FirstUse(there)
        )
    )
    try:
        asked = [
            ("some", "t", 403),
            ("sending", "u", 200),
            ("sending", "t", 403),
            ("all", "t", 200),
            ("using", "new", 403),
            ("using", "mine.new", 200),
        ]
        for who, topic, status in asked:
            authorization = {"headers": {"authorization": f"Bearer {who}"}}
            assert (
                post(
                    site, f"/api/topic/publish?topic={topic}", {"body": "a"}, **authorization
                ).status_code
                == status
            ), (who, topic)
        assert [call[1] for call in site.source.calls if call[0] == "publish"] == [
            "u",
            "t",
            "mine.new",
        ]
        assert post(site, "/api/topic/publish?topic=t", {"body": "a"}).status_code == 401
    finally:
        site.close()


def test_a_page_of_elsewhere_publishes_nothing(site: ConsoleSite) -> None:
    found = post(
        site,
        "/api/topic/publish?topic=t",
        {"body": "a"},
        headers={"origin": "http://elsewhere.example"},
    )
    assert (found.status_code, site.source.calls) == (403, [])


# Permissions that the path alone does not decide


def test_moving_messages_needs_the_right_to_read_and_to_publish_them() -> None:
    """With `admin` alone, a user could read a topic by sending its messages to a topic of their
    own, either by a redrive or as dead letters.
    """
    site = ConsoleSite(authority=HttpAuthority(policy=AccessPolicy(Access.parse(ACCESS))))
    try:
        some, sending, all_ = (
            {"headers": {"authorization": f"Bearer {who}"}} for who in ("some", "sending", "all")
        )
        for path, options in (
            ("/api/redrive?topic=t", {"to": "u"}),
            ("/api/channel/configure?topic=t&channel=c", {"dead_letter_topic": "u"}),
            ("/api/channel/create?topic=t&channel=n", {"dead_letter_topic": "u"}),
        ):
            refused(post(site, path, options, **some), 403, "UNAUTHORIZED")
            refused(post(site, path, options, **all_), 403, "UNAUTHORIZED")
            assert post(site, path, options, **sending).status_code == 200, path
        # The job belongs to a topic that this user may administer.
        assert post(site, "/api/job/stop?id=1", **some).status_code == 200
        site.source.topics["u"] = []
        assert [*site.get("/api/histories", **some).json()["topics"]] == ["t"]
        assert [*site.get("/api/overview", **some).json()["topics"]] == ["t"]
        assert site.get("/api/overview?topic=u", **some).status_code == 403
    finally:
        site.close()


SCHEDULE: dict[str, Any] = {
    "topic": "t", "name": "n", "state": "waiting", "next_due_ns": 5 * 10**9, "last_due_ns": 0, "published_count": 1,
    "missed_count": 2, "trouble": "", "cron": "0 3 * * *", "timezone": "UTC", "missed": "one", "body_bytes": 3,
}  # fmt: skip


def test_schedules_are_shown_with_times_for_the_page(site: ConsoleSite) -> None:
    site.source.answers = {"schedule_list": [SCHEDULE]}
    (row,) = site.get("/api/schedules").json()["schedules"]
    assert (row["next_due_ms"], row["last_due_ms"], row["may"]) == (5_000, 0, "ap")
    assert row.items() >= {name: SCHEDULE[name] for name in SCHEDULE if name[-3:] != "_ns"}.items()


@pytest.mark.parametrize("what", ["pause", "resume", "remove", "run"])
def test_a_schedule_is_changed_by_its_name(site: ConsoleSite, what: str) -> None:
    assert post(site, f"/api/schedule/{what}?topic=t", {"name": "n"}).json() == {"done": True}
    assert site.source.calls == [(f"schedule_{what}", "t", "n")]
    refused(post(site, f"/api/schedule/{what}?topic=t", {}), 400, '"name" is missing')
