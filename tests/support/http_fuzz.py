"""Random requests to the HTTP API, and a check that every answer must pass."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from urllib.parse import quote_from_bytes

from zsq.actors.gateways.http.web.responses import ANSWERS

METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW")
PATHS = (
    "/pub", "/mpub", "/pub", "/mpub", "/pub", "/mpub", "/topic/create", "/channel/create", "/ping", "/info",
    "/stats", "/topic/create", "/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause",
    "/topic/tombstone", "/channel/create", "/channel/delete", "/channel/empty", "/channel/pause", "/channel/unpause", "/config/log_level",
    "/config/nsqlookupd_tcp_addresses", "/config/max_msg_size", "/config/", "/lookup", "/topics", "/channels", "/nodes", "/metrics", "/",
    "/debug/pprof/", "/topic", "/PING", "//pub", "/%2e%2e/pub", "/ping/", "/config/a/b",
)  # fmt: skip
NAMES = (
    "topic",
    "channel",
    "defer",
    "binary",
    "format",
    "include_clients",
    "include_mem",
    "node",
    "x",
    "",
)
VALUES = (b"a", b"b", b"c#ephemeral", b"json", b"true", b"false", b"0", b"1", b"-1", b"3600000", b"9" * 30, b"10.0.0.1:4151", b"", b"..",
          b"\xff\xfe", b"\0", "täg".encode(), b"a b", b"t" * 65, b"%", b"&=?#")  # fmt: skip
OWN_CODES = ("E_",)


class Requests:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self) -> tuple[str, str, bytes]:
        method = "POST" if self.random.random() < 0.5 else self.random.choice(METHODS)
        path = self.random.choice(PATHS)
        if self.random.random() < 0.05:
            path = "/" + quote_from_bytes(self.random.randbytes(self.random.randrange(30)))
        return method, path + self._query(), self._body()

    def _query(self) -> str:
        chance = self.random.random()
        if chance < 0.05:
            return "?" + "".join(self.random.choices("%;&=+ab012", k=self.random.randrange(20)))
        names = (
            ["topic"] * (chance < 0.8)
            + ["channel"] * (chance < 0.6)
            + self.random.choices(NAMES, k=self.random.randrange(3))
        )
        good = self.random.random() < 0.7
        values = [
            self.random.choice(VALUES[:3] if good and name in ("topic", "channel") else VALUES)
            for name in names
        ]
        pairs = [
            f"{name}={quote_from_bytes(value)}" for name, value in zip(names, values, strict=True)
        ]
        return "?" + "&".join(pairs) if pairs else ""

    def _body(self) -> bytes:
        kind = self.random.randrange(6)
        if kind == 0:
            return b""
        if kind == 1:
            return self.random.randbytes(self.random.randrange(100))
        if kind == 2:
            return b"\n".join(
                self.random.randbytes(self.random.randrange(30))
                for _ in range(self.random.randrange(1, 50))
            )
        if kind == 3:
            bodies = [
                self.random.randbytes(self.random.randrange(1, 50))
                for _ in range(self.random.randrange(1, 20))
            ]
            body = bytearray(
                struct.pack(">i", len(bodies))
                + b"".join(struct.pack(">i", len(one)) + one for one in bodies)
            )
            if self.random.random() < 0.5:
                body[self.random.randrange(len(body))] ^= 1 << self.random.randrange(8)
            return bytes(body)
        if kind == 4:
            return self.random.choice((b"debug", b'["a:4160"]', b"[]", b"{", b"[" * 500))
        return b"x" * self.random.choice((1_999, 2_000, 2_001, 7_999, 8_001, 70_000))


def check(
    seed: int,
    method: str,
    target: str,
    body: bytes,
    status: int,
    headers: Mapping[str, str],
    content: bytes,
) -> None:
    """Check that the answer agrees with docs/http-reference.md."""
    said = (
        f"seed {seed}: {method} {target} {body[:40]!r} ({len(body)} bytes) was answered "
        f"{status} {content[:200]!r}"
    )
    if status == 200:
        assert method in ("GET", "HEAD", "POST", "PUT"), said
        return
    if target.startswith("/ping") and status == 500:
        assert content.startswith(b"NOK - ") or method == "HEAD", said
        return
    assert headers["content-type"] == "application/json; charset=utf-8", said
    if method == "HEAD" and not content:
        return
    message = json.loads(content)["message"]
    if message in ANSWERS:
        assert status in ({400, 413} if message == "INVALID_VALUE" else {ANSWERS[message][0]}), said
        assert status != 500, said
    else:
        assert message.startswith(OWN_CODES), said
        assert status in (400, 403, 404, 503), said
