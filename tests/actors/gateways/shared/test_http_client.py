"""Tests of one HTTP request to another server: answers that arrive in any pieces, time-outs, sizes,
TLS, and servers that do not speak HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support import certificates
from support.small_web import SmallWeb, said

import zsq.aio
from zsq.actors.gateways.shared.http_client import BODY_MAX, NotAnswered, Url, Way, ask, parse_url
from zsq.transport.errors import UsageError
from zsq.transport.nsq.tls import client_context, server_context

QUICK = Way(connect_s=5, request_s=0.3)


def run(main: Coroutine[Any, Any, None]) -> None:
    zsq.aio.run(asyncio.wait_for(main, 60))


async def answer_of(raw: bytes | None, way: Way = Way()) -> bytes:  # noqa: B008
    async with SmallWeb(lambda _: raw) as web:
        return await ask(parse_url(f"http://{web.address}/x"), {}, way)


def test_parameters_arrive_by_get_and_by_post() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: said(b"body")) as web:
            url = parse_url(f"http://{web.address}/auth")
            assert await ask(url, {"secret": "a b&c=\udcff", "empty": ""}) == b"body"
            assert (
                await ask(url, {"secret": "a b&c=\udcff", "empty": ""}, Way(post=True)) == b"body"
            )
            assert await ask(url, {}) == b"body"
        get, post, bare = web.asked
        assert (get.method, get.path, get.parameters) == (
            "GET",
            "/auth",
            {"secret": "a b&c=\udcff", "empty": ""},
        )
        assert (post.method, post.path, post.parameters) == ("POST", "/auth", get.parameters)
        assert post.headers["content-type"] == "application/x-www-form-urlencoded"
        assert (get.headers["host"], get.headers["connection"]) == (web.address, "close")
        assert bare.parameters == {}

    run(main())


OK = b"HTTP/1.1 200 OK\r\n"
WHOLE: dict[str, tuple[bytes, bytes]] = {
    "length": (OK + b"content-LENGTH:  4 \r\n\r\nbodymore", b"body"),
    "to the end": (OK + b"\r\nbody", b"body"),
    "an old server": (b"HTTP/1.0 200\r\n\r\nbody", b"body"),
    "chunks": (
        OK + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\n\r\n",
        b"body",
    ),
    "nothing": (OK + b"Content-Length: 0\r\n\r\n", b""),
    "an early answer": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"\r\nbody", b"body"),
    "the longest": (said(bytes(BODY_MAX)), bytes(BODY_MAX)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_each_whole_answer_gives_its_body(name: str) -> None:
    async def main() -> None:
        raw, body = WHOLE[name]
        assert await answer_of(raw) == body

    run(main())


BAD: dict[str, tuple[bytes, str]] = {
    "no": (said(b"secret inside", "403 Forbidden"), "^it answered with status 403$"),
    "a way elsewhere": (
        b"HTTP/1.1 302 Found\r\nLocation: http://evil/\r\n\r\n",
        "it answered with status 302",
    ),
    "another protocol": (b"  V2 hello\r\n\r\n", "is not valid HTTP"),
    "closed at once": (b"", "incomplete or invalid answer"),
    "half a head": (OK + b"Content-Le", "incomplete or invalid answer"),
    "half a body": (OK + b"Content-Length: 10\r\n\r\nbody", "incomplete or invalid answer"),
    "half a chunk": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nbo",
        "incomplete or invalid answer",
    ),
    "no end of chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n",
        "incomplete or invalid answer",
    ),
    "a chunk too long": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbody\r\n0\r\n\r\n",
        "is not valid HTTP",
    ),
    "no size of a chunk": (
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nbo\r\n",
        "is not valid HTTP",
    ),
    "no length": (OK + b"Content-Length: -4\r\n\r\nbody", "is not valid HTTP"),
    "packed": (OK + b"Content-Encoding: gzip\r\n\r\nbody", "coding"),
    "too long said": (
        OK + b"Content-Length: %d\r\n\r\n" % (BODY_MAX + 1),
        f"over the limit of {BODY_MAX} bytes",
    ),
    "too long": (OK + b"\r\n" + bytes(BODY_MAX + 1), f"over the limit of {BODY_MAX} bytes"),
    "too long in chunks": (
        OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"80000\r\n"
        + bytes(0x80000)
        + b"\r\n80001\r\n",
        f"over the limit of {BODY_MAX} bytes",
    ),
    "a head too long": (OK + b"X: " + b"x" * 200_000 + b"\r\n\r\n", "incomplete or invalid answer"),
    "a line too long": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 200_000,
        "incomplete or invalid answer",
    ),
    "early for ever": (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "5 interim answers"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_bad_answer_is_refused(name: str) -> None:
    async def main() -> None:
        raw, text = BAD[name]
        with pytest.raises(NotAnswered, match=text):
            await answer_of(raw)

    run(main())


@pytest.mark.parametrize(
    "raw",
    [None, OK, OK + b"Content-Length: 9\r\n\r\nbody"],
    ids=["silent", "half a head", "half a body"],
)
def test_a_question_without_an_answer_ends_in_time(raw: bytes | None) -> None:
    async def main() -> None:
        stuck = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(raw or b"")
            while await reader.read(1000):
                pass
            stuck.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            began = time.monotonic()
            with pytest.raises(NotAnswered, match=r"no answer within 0\.3 s"):
                await ask(Url(False, "127.0.0.1", port, "/"), {}, QUICK)
            assert time.monotonic() - began < 3
            await asyncio.wait_for(stuck.wait(), 10)  # the connection is closed

    run(main())


def test_a_server_that_cannot_be_reached_is_reported() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: None) as web:
            url = parse_url(f"http://{web.address}")
        with pytest.raises(NotAnswered, match="no connection: "):
            await ask(url, {"secret": "x"})
        with pytest.raises(NotAnswered, match="no connection: "):
            await ask(parse_url("http://no-such-host.invalid"), {})

    run(main())


def test_only_a_known_authority_is_trusted_and_a_hanging_handshake_ends(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)

    async def main() -> None:
        context = server_context(cert=made.cert, key=made.key)
        async with SmallWeb(lambda _: said(b"body"), context) as web:
            way = Way(context=client_context(root_ca=made.root_ca))
            assert await ask(parse_url(f"https://127.0.0.1:{web.port}/auth"), {}, way) == b"body"
            with pytest.raises(NotAnswered, match="no connection"):
                # The system does not trust this certificate authority.
                await ask(parse_url(f"https://127.0.0.1:{web.port}/auth"), {})
        async with SmallWeb(lambda _: None) as web:
            began = time.monotonic()
            with pytest.raises(NotAnswered, match=r"no connection within 0\.3 s"):
                await ask(parse_url(f"https://127.0.0.1:{web.port}/"), {}, Way(connect_s=0.3))
            assert time.monotonic() - began < 10

    run(main())


def test_urls_are_parsed_and_bad_ones_are_refused() -> None:
    assert parse_url("http://host") == Url(False, "host", 80, "/")
    assert parse_url("https://[::1]:8443/a/b") == Url(True, "::1", 8443, "/a/b")
    assert str(parse_url("https://[::1]:8443/a/b")) == "https://[::1]:8443"
    bad = [
        "ftp://host",
        "host:80",
        "http://",
        "http://a:b@host",
        "http://host/?a=b",
        "http://host/#x",
        "http://host:99999",
        "http://ho st",
    ]
    for text in [
        *bad,
        "http://host/a b",
        "http://host/é",
        "http://ho/st\r\nX: y",
        "http://[::1",
        "http://host\r\n",
    ]:
        if text in {"http://ho/st\r\nX: y", "http://host\r\n"}:  # urlsplit removes line ends
            assert "\r" not in repr(parse_url(text.replace(" ", "")))
            continue
        with pytest.raises(UsageError):
            parse_url(text)
