"""Tests of the HTTP server's limits on real sockets, with slow, silent, greedy and
broken clients.
"""

from __future__ import annotations

import json
import socket
import threading
import time

import h11
import pytest
from support.broker import wait_for
from support.http_api import all_of, served

from zsq.actors.gateways.http.web import server as module
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.server import StrictConnection
from zsq.actors.gateways.limiter import Bound

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"


def answer_of(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return the next answer, read to the length that it states."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(65_536)
        assert chunk, f"closed after {data!r}"
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    headers = dict(field.lower().split(": ", 1) for field in fields)
    while len(body) < int(headers["content-length"]):
        body += sock.recv(65_536)
    return int(status.split()[1]), headers, body


def post(target: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_connection_is_kept_and_answers_are_dated_and_in_order() -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(PING)
        status, headers, body = answer_of(sock)
        assert (status, body) == (200, b"OK")
        assert headers["date"].endswith("gmt")
        assert "server" not in headers
        sock.sendall(post("/pub?topic=t", b"one") + post("/topic/create?topic=u", b"unread") + PING)
        assert statuses(sock, 3) == [200, 200, 200]
        assert site.broker.published == [("t", [b"one"], 0)]


def test_clients_of_http_1_0_may_keep_their_connection() -> None:
    """`ab -k` and old clients ask for it."""
    with served() as site, site.dial() as sock:
        for _ in range(2):
            sock.sendall(b"POST /pub?topic=t HTTP/1.0\r\nConnection: Keep-Alive\r\n")
            sock.sendall(b"Content-Length: 1\r\n\r\na")
            status, headers, body = answer_of(sock)
            assert (status, headers["connection"], body) == (200, "keep-alive", b"OK")
        sock.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert answer_of(sock)[1]["connection"] == "close"
        assert sock.recv(1) == b""
        assert site.broker.published == [("t", [b"a"], 0)] * 2


def test_a_target_may_be_a_url_which_also_names_the_host() -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(b"POST http://a:4151/pub?topic=t HTTP/1.1\r\nHost: b\r\n")
        sock.sendall(b"Content-Length: 1\r\n\r\na" + PING.replace(b"/", b"HTTP://a/", 1))
        assert statuses(sock, 2) == [200, 200]
        assert site.broker.published == [("t", [b"a"], 0)]
        sock.sendall(b"GET http://evil/api/live HTTP/1.1\r\nHost: a\r\n\r\n")
        status, _, body = answer_of(sock)
        assert (status, b"'evil'" in body) == (421, True), "the Host beside it means nothing"
        sock.sendall(b"GET http:///ping HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer_of(sock)[0] == 400


def statuses(sock: socket.socket, count: int) -> list[int]:
    data = b""
    while data.count(b"HTTP/1.1 ") < count:
        data += sock.recv(65_536)
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\0",
        b"  V2",
        b"GET / HTTP/x",
        b"GET /ping HTTP/1.1",
        b"GET / x",
        b"GET /\xff HTTP/1.1",
    ],
)
def test_each_request_that_is_not_http_is_refused_and_disconnected(garbage: bytes) -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(garbage + b"\r\n\r\n")
        status, headers, body = answer_of(sock)
        assert (status, json.loads(body), headers["connection"]) == (
            400,
            {"message": "INVALID_REQUEST"},
            "close",
        )
        assert all_of(sock) == b""


def test_an_invalid_chunk_in_a_body_ends_the_request() -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(
            b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
            b"hello\r\n"
        )
        sock.sendall(b"no size\r\n")
        assert b"400" in all_of(sock)
        wait_for(lambda: site.app.active == 0, what="the end of the request")
        assert not site.broker.published


def test_a_head_that_does_not_end() -> None:
    with served(HttpLimits(head_bytes_max=4_096)) as site, site.dial() as sock:
        sock.sendall(b"GET /ping?" + b"x" * 8_192)
        assert answer_of(sock)[0] == 400


@pytest.mark.parametrize("begin", [b"", b"GET /ping HT", PING + b"GET"])
def test_a_head_that_does_not_come(begin: bytes) -> None:
    with served(HttpLimits(head_s=0.5)) as site, site.dial() as sock:
        sock.sendall(begin)
        before = time.monotonic()
        all_of(sock)
        assert time.monotonic() - before < 5


def test_an_idle_connection_is_closed_after_its_time_and_not_before() -> None:
    with served(HttpLimits(head_s=0.2, keep_alive_s=3)) as site, site.dial() as sock:
        before = time.monotonic()
        sock.sendall(PING)
        answer_of(sock)
        assert all_of(sock) == b""
        assert 2 < time.monotonic() - before < 8


def test_a_body_that_does_not_come() -> None:
    with served(HttpLimits(body_s=0.3, linger_s=0.1)) as site, site.dial() as sock:
        sock.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhel")
        status, headers, body = answer_of(sock)
        assert (status, json.loads(body), headers["connection"]) == (
            408,
            {"message": "REQUEST_TIMEOUT"},
            "close",
        )
        assert all_of(sock) == b""
        assert site.limiters.bodies.taken == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(
            b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\nExpect: "
            b"100-continue\r\n\r\n"
        )
        status, _, body = answer_of(sock)
        assert (status, json.loads(body)) == (413, {"message": "MSG_TOO_BIG"})


def test_a_client_that_sent_too_much_can_read_the_refusal() -> None:
    """If the server did not read what the client still sends, the connection would be reset and the
    answer lost.
    """
    with served() as site, site.dial() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        sock.sendall(post("/mpub?topic=t", b"x" * 12_000_000))
        assert answer_of(sock)[0] == 413
        assert all_of(sock) == b""


def test_a_chunked_body_is_bounded_too() -> None:
    with served(HttpLimits(max_body_size=100_000)) as site, site.dial() as sock:
        sock.sendall(
            b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sock.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        assert site.broker.published == []
        sock.sendall((b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 4)
        status, _, body = answer_of(sock)
        assert (status, json.loads(body)) == (413, {"message": "BODY_TOO_BIG"})


def test_a_client_that_does_not_read_is_disconnected() -> None:
    with served(HttpLimits(stalled_s=0.5)) as site:
        site.broker.there = {
            f"topic-{number}": {f"channel-{n}" for n in range(20)} for number in range(400)
        }
        with site.dial() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.sendall(b"GET /stats?format=json HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
            wait_for(
                lambda: site.broker.calls and not site.server.connections,
                what="the end of the connection",
            )


def test_a_silent_connection_gives_way_where_all_places_are_taken() -> None:
    with served(HttpLimits(connections_max=3)) as site:
        asked, oldest, newer = [site.dial() for _ in range(3)]
        asked.sendall(PING)
        assert answer_of(asked)[0] == 200
        wait_for(lambda: len(site.server.connections) == 3, what="three connections")
        with site.dial() as fourth:
            fourth.sendall(PING)
            assert answer_of(fourth)[0] == 200
            assert all_of(oldest) == b"", (
                "who asked nothing goes before who did, and the oldest first"
            )
            assert len(site.server.connections) == 3
            for sock in (asked, newer):
                sock.sendall(PING)
                assert answer_of(sock)[0] == 200
        for sock in (asked, oldest, newer):
            sock.close()


def test_a_new_connection_does_not_give_way_to_idle_ones_that_were_served() -> None:
    """Otherwise clients that keep their connections open would keep all others out."""
    with served(HttpLimits(connections_max=3)) as site:
        kept = [site.dial() for _ in range(3)]
        for sock in kept:
            sock.sendall(PING)
            assert answer_of(sock)[0] == 200
        with site.dial() as fourth:
            fourth.sendall(PING)
            assert answer_of(fourth)[0] == 200
        assert all_of(kept[0]) == b"", "the connection that has been idle for longest is closed"
        for sock in kept:
            sock.close()


def test_no_connection_at_work_gives_way() -> None:
    with served(HttpLimits(connections_max=3)) as site:
        release = site.hold()
        held = [site.dial() for _ in range(3)]
        for sock in held:
            sock.sendall(post("/pub?topic=t", b"x"))
        wait_for(lambda: site.app.active == 3, what="three requests")
        with site.dial() as fourth:
            assert all_of(fourth) == b""
        release()
        for sock in held:
            assert answer_of(sock)[0] == 200
            sock.close()


def test_a_request_over_the_limit_of_running_ones_is_refused() -> None:
    with served(HttpLimits(requests=Bound(6, 3))) as site:
        release = site.hold()
        held = [site.dial() for _ in range(3)]
        for sock in held:
            sock.sendall(post("/pub?topic=t", b"x"))
        wait_for(lambda: site.app.active == 3, what="three requests")
        with site.dial() as fourth:
            fourth.sendall(post("/pub?topic=t", b"x"))
            status, headers, body = answer_of(fourth)
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(body)["message"].startswith("E_LIMIT ")
        release()
        for sock in held:
            assert answer_of(sock)[0] == 200
            sock.close()


def test_a_request_that_takes_too_long_is_answered_with_a_timeout() -> None:
    with served(HttpLimits(request_s=0.3)) as site, site.dial() as sock:
        release = site.hold()
        sock.sendall(post("/pub?topic=t", b"x"))
        status, _, body = answer_of(sock)
        assert status == 503
        assert json.loads(body)["message"].startswith("E_TIMEOUT ")
        release()


def test_a_body_over_the_limit_of_all_bodies_is_refused() -> None:
    with served(HttpLimits(bodies=Bound(200_000, 100_000))) as site:
        release = site.hold()
        with site.dial() as first, site.dial() as second:
            first.sendall(post("/pub?topic=t", b"x" * 60_000))
            wait_for(lambda: site.limiters.bodies.taken == 60_000, what="the first body")
            second.sendall(post("/pub?topic=t", b"x" * 60_000))
            status, _, body = answer_of(second)
            assert (status, json.loads(body)["message"][:8]) == (503, "E_LIMIT ")
            release()
            assert answer_of(first)[0] == 200
        wait_for(lambda: site.limiters.bodies.taken == 0, what="room")


def test_a_client_that_leaves_during_a_request_leaves_no_memory_in_use() -> None:
    with served() as site:
        for _ in range(20):
            with site.dial() as sock:
                sock.sendall(
                    b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhel"
                )
        wait_for(lambda: not site.server.connections and not site.app.active, what="all gone")
        assert site.limiters.bodies.taken == 0
        assert site.broker.published == []
        counted = [
            sample
            for family in site.app.metrics.registry.collect()
            for sample in family.samples
            if "_total" in sample.name
        ]
        assert counted == [], "an answer that nobody heard is none"


def test_requests_under_way_are_answered_at_the_end() -> None:
    with served() as site:
        release = site.hold()
        with site.dial() as sock, site.dial() as idle:
            sock.sendall(post("/pub?topic=t", b"x"))
            wait_for(lambda: site.app.active == 1, what="the request")
            closing = threading.Thread(target=site.close)
            closing.start()
            assert all_of(idle) == b""
            release()
            assert answer_of(sock)[0] == 200
            closing.join(10)
        with pytest.raises(OSError):
            site.dial(1.0)


def test_an_upgrade_is_not_made() -> None:
    with served() as site, site.dial() as sock:
        sock.sendall(
            b"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: x\r\n\r\n"
        )
        assert answer_of(sock)[2] == b"OK"


def test_nothing_wakes_an_idle_server() -> None:
    with served() as site:
        with site.dial() as sock:
            sock.sendall(PING)
            answer_of(sock)
        wait_for(lambda: site.server._timer is None, what="the last look")


def parse(*parts: bytes) -> None:
    """Feed the server's parser with these parts of one request."""
    parser = StrictConnection(65_536)
    for part in parts:
        parser.receive_data(part)
        while parser.next_event() is not h11.NEED_DATA:
            pass


def test_transfer_encoding_is_refused_with_a_content_length_and_in_http_1_0() -> None:
    parse(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for version, more in ((b"1.0", b""), (b"1.1", b"Content-Length: 1\r\n")):
        with pytest.raises(h11.RemoteProtocolError, match="Transfer-Encoding is not allowed"):
            parse(
                b"POST / HTTP/"
                + version
                + b"\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
                + more
                + b"\r\n"
            )


CHUNKED = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        PING.replace(b"\r\n", b"\n"),
        PING.replace(b"\r\n\r\n", b"\r\nX: a\nY: b\r\n\r\n"),
        PING.replace(b"\r\n\r\n", b"\r\nX: a\r\n\n"),
        PING.replace(b"\r\n\r\n", b"\r\nX: a\r\n b\r\n\r\n"),
        PING.replace(b"\r\n\r\n", b"\r\nX: a\r\n\tb\r\n\r\n"),
        PING.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * 70_000 + b"\r\n\r\n"),
        b"GET /ping?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        CHUNKED + b"1;x=" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
        CHUNKED + b"1\r\nx\r\n0;x=" + b"a" * 100_000 + b"\r\n\r\n",
        CHUNKED + b"1;x=" + b"a" * 50_000,
        CHUNKED + b"1\r\nx\r\n0\r\nX: y\r\n\r\n",
        CHUNKED + b"1\r\nx\r\n0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        CHUNKED + b"1\r\nx\r\n0\r\n\n",
        CHUNKED + b"0\r\n\n",
    ],
    ids=[
        "bare LF", "one bare LF", "bare LF at the end", "folded by a space", "folded by a tab",
        "a large header", "a long target", "an extension", "an extension of the last chunk",
        "an unfinished extension", "a trailer", "20,000 trailers", "bare LF after a body",
        "bare LF after nothing",
    ],
)  # fmt: skip
def test_what_another_reader_could_divide_differently_or_has_no_limit_is_refused(
    request_bytes: bytes,
) -> None:
    """Each of them arrives in one piece, and in pieces of 1,000 bytes."""
    for size in (len(request_bytes), 1_000):
        with served() as site, site.dial() as sock:
            for start in range(0, len(request_bytes), size):
                try:
                    sock.sendall(request_bytes[start : start + size])
                except OSError:  # the answer is there before all was sent
                    break
            assert answer_of(sock)[0] == 400
            assert not site.broker.published


def test_heads_and_bodies_within_the_limits_are_accepted_one_after_the_other() -> None:
    large = PING.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * 32_700 + b"\r\n\r\n")
    assert len(large) < HttpLimits().head_bytes_max
    body = CHUNKED + b"1;x=y\r\na\r\n" * 50 + b"0;z\r\n\r\n"
    with served() as site, site.dial() as sock:
        sock.sendall((large + body + post("/pub?topic=t", b"b\n\nb") + body) * 3)
        assert statuses(sock, 12) == [200] * 12
        assert (
            site.broker.published
            == [("t", [b"a" * 50], 0), ("t", [b"b\n\nb"], 0), ("t", [b"a" * 50], 0)] * 3
        )


def test_a_body_of_very_small_chunks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNKS_MAX", 3)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    parse(head, *[b"1\r\nx\r\n"] * 3)
    parse(head, *[b"80\r\n" + b"x" * 128 + b"\r\n"] * 8)
    with pytest.raises(h11.RemoteProtocolError, match="chunks of the body are too small"):
        parse(head, *[b"1\r\nx\r\n"] * 4)
