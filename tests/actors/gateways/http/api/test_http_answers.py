"""Tests of each path of the HTTP API, of each refusal, and of what docs/http-reference.md says."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from support.broker import wait_for
from support.http_api import Site

from zsq.actors.gateways.http.api.lookup import TOMBSTONE_S, Tombstones
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.responses import ANSWERS
from zsq.actors.settings.options import NsqOptions, TlsOptions
from zsq.transport.errors import (
    E_CLOSED,
    E_CLOSING,
    E_DISK_FULL,
    E_EXISTS,
    E_TIMEOUT,
    E_TOO_BIG,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
    from_wire,
)
from zsq.transport.nsq.lookup import Node

DOCS = (Path(__file__).resolve().parents[5] / "docs" / "http-reference.md").read_text()
NSQ_HEADER = "nsq; version=1.0"


def refused(answer: Any) -> tuple[int, str]:
    assert answer.headers["x-nsq-content-type"] == NSQ_HEADER
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    (message,) = answer.json().values()
    return answer.status_code, message


def mpub(*bodies: bytes, count: int | None = None) -> bytes:
    return struct.pack(">i", len(bodies) if count is None else count) + b"".join(
        struct.pack(">i", len(body)) + body for body in bodies
    )


def test_a_publish_is_confirmed(site: Site) -> None:
    answer = site.post("/pub?topic=t", b"hello")
    assert (answer.status_code, answer.text, answer.headers["x-nsq-content-type"]) == (
        200,
        "OK",
        NSQ_HEADER,
    )
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert site.post("/pub?topic=t&defer=3600000", b"later").text == "OK"
    assert site.post("/pub?topic=t&topic=u&defer=%2B5", b"\n").text == "OK"
    assert site.broker.published == [
        ("t", [b"hello"], 0),
        ("t", [b"later"], 3_600_000),
        ("t", [b"\n"], 5),
    ], "of two topics the first"


@pytest.mark.parametrize(
    ("target", "body", "status", "message"),
    [
        ("/pub?topic=t", b"", 400, "MSG_EMPTY"),
        ("/pub", b"", 400, "MSG_EMPTY"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%20b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=..", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=" + "t" * 65, b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%ff", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t;defer=5", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t" + "&a=b" * 64, b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=" + "9" * 40, b"x", 400, "INVALID_DEFER"),
        ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=!", b"x", 400, "INVALID_TOPIC"),
        ("/mpub?topic=t&binary=true", b"", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\0\0\0", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", mpub(count=0), 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", mpub(count=-1), 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", mpub(b"x", count=1_048_576), 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", mpub(b"x", count=2), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", mpub(b"x", b""), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", mpub(b"xyz")[:-1], 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", mpub() + struct.pack(">i", -1), 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", struct.pack(">ii", 1, -1), 413, "BAD_MESSAGE"),
        ("/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=$", b"", 400, "INVALID_TOPIC"),
        ("/topic/create?topic=t", b"x" * 65_537, 413, "BODY_TOO_BIG"),
        ("/topic/delete", b"", 400, "MISSING_ARG_TOPIC"),
        ("/topic/delete?topic=$", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/delete?topic=no", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/empty?topic=$", b"", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=no", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause?topic=$", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause?topic=no", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/unpause?topic=no", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/tombstone", b"", 400, "MISSING_ARG_TOPIC"),
        ("/topic/tombstone?topic=t", b"", 400, "MISSING_ARG_NODE"),
        ("/channel/create?channel=c", b"", 400, "MISSING_ARG_TOPIC"),
        ("/channel/create?topic=$&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
        ("/channel/create?topic=there", b"", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/create?topic=there&channel=$", b"", 400, "INVALID_ARG_CHANNEL"),
        ("/channel/create?topic=no&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
        *[
            (f"/channel/{command}?topic={topic}&channel=no", b"", 404, message)
            for command in ("delete", "empty", "pause", "unpause")
            for topic, message in (("no", "TOPIC_NOT_FOUND"), ("there", "CHANNEL_NOT_FOUND"))
        ],
        ("/nothing", b"", 404, "NOT_FOUND"),
        ("/pub/?topic=t", b"x", 404, "NOT_FOUND"),
        ("/debug/freememory", b"", 404, "NOT_FOUND"),
        ("/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_wrong_requests_are_refused_with_the_status_and_text_of_nsqd(
    site: Site, target: str, body: bytes, status: int, message: str
) -> None:
    site.broker.there["there"] = {"c"}
    assert refused(site.post(target, body)) == (status, message)
    assert not site.broker.published
    assert ANSWERS[message][0] == status
    assert sorted(site.broker.there) == ["there"]


def test_each_wrong_get_is_refused_and_head_is_answered(site: Site) -> None:
    assert refused(site.get("/pub?topic=t")) == (405, "METHOD_NOT_ALLOWED")
    assert site.get("/pub?topic=t").headers["allow"] == "POST"
    assert refused(site.get("/debug/pprof/")) == (404, "NOT_FOUND")
    assert refused(site.get("/lookup")) == (400, "MISSING_ARG_TOPIC")
    assert refused(site.get("/lookup?topic=no")) == (404, "TOPIC_NOT_FOUND")
    assert refused(site.get("/channels")) == (400, "MISSING_ARG_TOPIC")
    assert refused(site.get("/config/nothing")) == (400, "INVALID_OPTION")
    head = site.call("HEAD", "/info")
    assert (head.status_code, head.headers["content-type"]) == (
        200,
        "application/json; charset=utf-8",
    )


def test_many_messages_are_published_as_lines_or_counted(site: Site) -> None:
    assert site.post("/mpub?topic=t", b"one\n\ntwo\r\n\n three").text == "OK"
    assert site.post("/mpub?topic=t&binary=false", b"\nx\n").text == "OK"
    for said in ("true", "1", "yes", ""):
        assert (
            site.post(f"/mpub?topic=t&binary={said}", mpub(b"a\n", b"b") + b"behind").text == "OK"
        )
    assert site.post("/mpub?topic=new", b"\n\n\n").text == "OK"
    assert site.broker.published[:2] == [("t", [b"one", b"two\r", b" three"], 0), ("t", [b"x"], 0)]
    assert site.broker.published[2:] == [("t", [b"a\n", b"b"], 0)] * 4
    assert "new" in site.broker.there, "nothing to publish makes the topic, as with nsqd"


def test_messages_and_bodies_over_their_limits_are_refused() -> None:
    limits = HttpLimits(max_msg_size=100, max_body_size=250)
    site = Site(limits)
    assert site.post("/pub?topic=t", b"x" * 100).status_code == 200
    assert refused(site.post("/pub?topic=t", b"x" * 101)) == (413, "MSG_TOO_BIG")
    assert site.post("/mpub?topic=t", (b"x" * 100 + b"\n") * 2 + b"y" * 48).status_code == 200
    assert refused(site.post("/mpub?topic=t", b"x\n" * 125 + b"y")) == (413, "BODY_TOO_BIG")
    assert refused(site.post("/mpub?topic=t", b"x" * 101)) == (413, "MSG_TOO_BIG")
    assert site.post("/mpub?topic=t&binary=true", mpub(b"x" * 100, b"y" * 100)).status_code == 200
    assert refused(site.post("/mpub?topic=t&binary=true", mpub(b"x" * 101))) == (413, "BAD_MESSAGE")
    assert refused(site.call("PUT", "/config/log_level", b"x" * 101)) == (413, "INVALID_VALUE")
    site.close()


def test_commands_are_carried_out(site: Site) -> None:
    for target in (
        "/topic/create?topic=t",
        "/topic/create?topic=t",
        "/channel/create?topic=t&channel=c#".replace("#", "%23ephemeral"),
    ):
        answer = site.post(target)
        assert (answer.status_code, answer.content, answer.headers["x-nsq-content-type"]) == (
            200,
            b"",
            NSQ_HEADER,
        )
    assert site.broker.there == {"t": {"c#ephemeral"}}
    site.post("/channel/create?topic=t&channel=c")
    for target, paused in (("/topic/pause?topic=t", {("t", "")}), ("/channel/pause?topic=t&channel=c", {("t", ""), ("t", "c")}),
                           ("/topic/unpause?topic=t", {("t", "c")}), ("/channel/unpause?topic=t&channel=c", set())):  # fmt: skip
        assert site.post(target).status_code == 200
        assert site.broker.paused == paused
    assert site.post("/topic/empty?topic=t").status_code == 200
    assert site.post("/channel/empty?topic=t&channel=c").status_code == 200
    assert site.broker.calls[-2:] == ["empty", "empty"]
    assert site.post("/channel/delete?topic=t&channel=c").status_code == 200
    assert site.post("/topic/delete?topic=t", b"a small body means nothing").status_code == 200
    assert [call for call in site.broker.calls if call.startswith("delete")] == [
        "delete_channel force=True",
        "delete_topic force=True",
    ]
    assert site.broker.there == {}


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        (E_CLOSING, 503, "EXITING"),
        (E_TOO_BIG, 413, "MSG_TOO_BIG"),
        (E_TOPIC_FULL, 503, "E_TOPIC_FULL why"),
        (E_DISK_FULL, 503, "E_DISK_FULL why"),
        (E_CLOSED, 503, "E_CLOSED why"),
        (E_TIMEOUT, 503, "E_TIMEOUT why"),
        (E_EXISTS, 400, "E_EXISTS why"),
    ],
)
def test_each_refusal_of_the_broker_has_its_status_and_message(
    site: Site, code: str, status: int, message: str
) -> None:
    site.broker.fails = from_wire(code, "why")
    assert refused(site.post("/pub?topic=t", b"x")) == (status, message)
    site.broker.fails = from_wire(code, "why")
    assert refused(site.post("/topic/create?topic=t")) == (status, message)


def test_a_defect_is_told_without_its_text(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.broker.fails = RuntimeError("with a secret")
    assert refused(site.post("/pub?topic=t", b"x")) == (500, "INTERNAL_ERROR")
    assert "with a secret" in caplog.text


def test_ping_answers_ok(site: Site) -> None:
    answer = site.get("/ping")
    assert (answer.status_code, answer.text, answer.headers.get("x-nsq-content-type")) == (
        200,
        "OK",
        None,
    )


def test_ping_tells_what_is_so_now_and_forgets_refused_publishes(site: Site) -> None:
    site.broker.there["t"] = set()
    site.broker.fails = from_wire(E_TOPIC_FAILED, "a sync failed")
    assert site.post("/pub?topic=t", b"x").status_code == 503
    assert site.get("/ping").text == "OK"
    site.broker.health["t"] = "a sync failed"
    wait_for(lambda: site.get("/ping").status_code == 500, what="the next look at the broker")
    assert site.get("/ping").text == "NOK - topic t: a sync failed"
    assert site.get("/stats?format=json").json()["health"] == "NOK - topic t: a sync failed"


def test_a_sick_primary_is_ready_and_alive(site: Site) -> None:
    site.broker.there["t"] = set()
    site.broker.health["t"] = "a sync failed"
    assert site.get("/ping").status_code == 500
    assert (site.get("/ready").status_code, site.get("/ready").text) == (200, "OK")
    answer = site.get("/health")
    assert (answer.status_code, answer.json()) == (
        200,
        {"role": "primary", "health": "NOK - topic t: a sync failed"},
    )


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_a_gateway_whose_broker_does_not_answer_is_neither_ready_nor_alive(
    site: Site, path: str
) -> None:
    site.broker.fails = from_wire(E_TIMEOUT, "no answer")
    answer = site.get(path)
    assert (answer.status_code, "the broker does not answer" in answer.text) == (503, True)


def test_ping_when_the_broker_does_not_answer(site: Site) -> None:
    site.broker.fails = from_wire(E_TIMEOUT, "no answer")
    answer = site.get("/ping")
    assert (answer.status_code, answer.text) == (
        500,
        "NOK - the broker does not answer: E_TIMEOUT no answer",
    )


def test_info_describes_the_node_as_nsqd_does(site: Site) -> None:
    assert site.get("/info").json() == {
        "version": "1.3.0", "broadcast_address": "10.0.0.1", "hostname": "host", "http_port": 4151, "tcp_port": 4150,
        "start_time": 1_700_000_000, "max_heartbeat_interval": 60_000_000_000, "max_output_buffer_size": 65_536,
        "max_output_buffer_timeout": 30_000_000_000, "max_deflate_level": 6, "topology_zone": "", "topology_region": "",
    }  # fmt: skip


def test_lookup_paths_answer_as_nsqlookupd_does(site: Site) -> None:
    site.broker.there = {"a": {"x", "y"}, "b": set()}
    peer = {
        "remote_address": "10.0.0.1:4150", "hostname": "host", "broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151,
        "version": "1.3.0", "topology_zone": "", "topology_region": "",
    }  # fmt: skip
    assert site.get("/lookup?topic=a").json() == {"channels": ["x", "y"], "producers": [peer]}
    assert site.get("/topics").json() == {"topics": ["a", "b"]}
    assert site.get("/channels?topic=a").json() == {"channels": ["x", "y"]}
    assert site.get("/channels?topic=no").json() == {"channels": []}
    assert site.get("/channels?topic=").json() == {"channels": []}
    assert site.get("/nodes").json() == {
        "producers": [{**peer, "tombstones": [False, False], "topics": ["a", "b"]}]
    }
    for node in ("10.0.0.1:4152", "10.0.0.1:4151"):
        assert site.post(f"/topic/tombstone?topic=b&node={node}").status_code == 200
    assert site.get("/nodes").json()["producers"][0]["tombstones"] == [False, True]
    assert site.get("/lookup?topic=b").json() == {"channels": [], "producers": []}
    site.post("/topic/delete?topic=b")
    site.post("/topic/create?topic=b")
    assert site.get("/lookup?topic=b").json()["producers"] == [peer]


def test_lookup_paths_show_a_topic_with_parts_here_and_not_its_parts(site: Site) -> None:
    site.broker.there = {"a#0": {"x"}, "a#3": {"x", "y"}, "b": set()}
    found = site.get("/lookup?topic=a").json()
    assert (found["channels"], len(found["producers"])) == (["x", "y"], 1)
    assert site.get("/lookup?topic=a%230").json()["channels"] == ["x"]
    assert site.get("/topics").json() == {"topics": ["a", "b"]}
    assert site.get("/channels?topic=a").json() == {"channels": ["x", "y"]}
    assert site.get("/nodes").json()["producers"][0]["topics"] == ["a", "b"]
    site.post("/topic/tombstone?topic=a&node=10.0.0.1:4151")
    assert site.get("/lookup?topic=a").json()["producers"] == []


def test_a_tombstone_names_a_node_of_ipv6_in_brackets() -> None:
    site = Site(node=Node("::1", "host", 4150, 4151, "1.3.0"))
    site.broker.there = {"a": set()}
    for node, is_hidden in (("::1:4151", False), ("[::1]:4151", True)):
        assert site.post(f"/topic/tombstone?topic=a&node={node}").status_code == 200
        assert site.get("/nodes").json()["producers"][0]["tombstones"] == [is_hidden]
    site.close()


def test_a_tombstone_is_over_in_time() -> None:
    now = [100.0]
    stones = Tombstones(lambda: now[0])
    stones.add("t")
    now[0] += TOMBSTONE_S - 0.1
    assert stones.hides("t")
    now[0] += 0.2
    assert not stones.hides("t")
    stones.add("u")
    assert list(stones._until_s) == ["u"], "what is over is forgotten"


def test_without_an_nsq_gateway_no_lookup_names_this_node() -> None:
    site = Site(node=Node("10.0.0.1", "host", -1, 4151, "1.3.0"))
    site.broker.there = {"a": set()}
    assert site.get("/lookup?topic=a").json() == {"channels": [], "producers": []}
    assert site.get("/nodes").json() == {"producers": []}
    assert site.get("/info").json()["tcp_port"] == -1
    site.close()


def test_options_are_shown_and_only_the_log_level_can_be_changed() -> None:
    taken: list[Any] = []

    async def level(value: str) -> None:
        taken.append(value)

    site = Site(
        nsq=NsqOptions(lookupd_tcp_addresses=("a:4160",), topology_zone="z"),
        changes={"log_level": level},
    )
    assert site.get("/config/max_body_size").json() == 5_242_880
    assert site.get("/config/msg_timeout").json() == 60_000_000_000
    assert site.get("/config/nsqlookupd_tcp_addresses").json() == ["a:4160"]
    assert site.get("/config/topology_zone").text == "z", "a text as it is"
    assert site.get("/config/auth_http_addresses").json() == []
    assert site.get("/config/tcp_address").text == "127.0.0.1:4150"
    assert site.get("/config/http_address").text == "127.0.0.1:4151"
    assert site.get("/config/https_address").text == ""
    assert site.get("/config/tls_min_version").json() == 0x303
    assert site.get("/config/output_buffer_timeout").json() == 250_000_000
    assert site.get("/config/log_level").json() == 2
    assert site.call("PUT", "/config/log_level", b"debug").json() == 1
    assert taken == ["debug"]
    assert site.get("/config/log_level").json() == 1
    assert refused(site.call("PUT", "/config/log_level", b"loud")) == (400, "INVALID_VALUE")
    assert refused(site.call("PUT", "/config/log_level", b"")) == (413, "INVALID_VALUE")
    assert refused(site.call("PUT", "/config/max_body_size", b"1")) == (400, "INVALID_OPTION")
    assert refused(site.call("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")) == (
        400,
        "INVALID_OPTION",
    ), "nobody would follow it"
    site.close()


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"[1]",
        b'["a"]',
        b'["a:b"]',
        b"[" * 10_000,
        b"\xff",
        b'["a:1", "b:1"',
        json.dumps(["a:1"] * 65).encode(),
    ],
)
def test_each_bad_list_of_lookup_addresses_is_refused(value: bytes) -> None:
    async def take(addresses: list[str]) -> None:
        raise AssertionError(addresses)

    site = Site(changes={"nsqlookupd_tcp_addresses": take})
    assert refused(site.call("PUT", "/config/nsqlookupd_tcp_addresses", value)) == (
        400,
        "INVALID_VALUE",
    )
    site.close()


def test_plain_http_is_refused_only_if_tls_is_required_for_http() -> None:
    site = Site(nsq=NsqOptions(tls=TlsOptions(required="true")))
    assert (found := site.get("/ping")).status_code == 403
    assert found.json() == {"message": "TLS_REQUIRED", "https_port": 0}
    site.close()
    site = Site(nsq=NsqOptions(tls=TlsOptions(required="tcp-https")))
    assert site.get("/ping").status_code == 200
    site.close()


def test_the_documentation_names_every_answer() -> None:
    answers = dict(re.findall(r"^\| `([A-Z_]+)` \| (\d+ \| .*) \|$", DOCS, re.MULTILINE))
    assert answers == {code: f"{status} | {why}" for code, (status, why) in ANSWERS.items()}
