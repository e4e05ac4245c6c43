"""Tests of limits of the HTTP gateway: tombstones, warnings, a client that reads too slowly, the
console's folder, and which requests have a body.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from support.http_api import Site

from zsq.actors.gateways.http.api import lookup
from zsq.actors.gateways.http.api.lookup import Tombstones
from zsq.actors.gateways.http.console import files
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.gateways.http.web.body import has_body
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.server import BoundedProtocol
from zsq.actors.security.access import Access
from zsq.actors.security.policy import AccessPolicy


def request(**headers: str) -> Request:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/pub",
            "client": ("127.0.0.1", 9),
            "headers": fields,
            "query_string": b"",
        }
    )


def test_tombstones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "TOMBSTONES_MAX", 2)
    stones = Tombstones()
    for topic in "abc":
        stones.add(topic)
    assert [stones.hides(topic) for topic in "abc"] == [True, True, False]


def test_refused_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(authority=HttpAuthority(policy=AccessPolicy(Access.parse(""))))
    for _ in range(5):
        assert site.get("/stats", headers={"authorization": "Bearer wrong"}).status_code == 403
    site.close()
    (record,) = (record for record in caplog.records if record.name == "zsq")
    assert "no user of the access file has this token" in record.getMessage()


@pytest.mark.parametrize("reads", ["nothing", "a trickle", "all"])
def test_a_client_that_reads_too_slowly_is_disconnected(reads: str) -> None:
    limits = HttpLimits()
    cut: list[float] = []
    unsent = [100_000]
    protocol: Any = object.__new__(BoundedProtocol)
    now = 0.0
    protocol.transport = SimpleNamespace(
        get_write_buffer_size=lambda: unsent[0], abort=lambda: cut.append(now)
    )
    protocol._server = SimpleNamespace(limits=limits)
    protocol._head_since_s, protocol._unsent, protocol._eof_since_s = None, 0, 0.0
    protocol._unsent_since_s = protocol._stalled_since_s = 0.0
    while now < 2 * limits.request_s and not cut:
        protocol.sweep(now)
        now += 1.0
        unsent[0] -= {"nothing": 0, "a trickle": 1, "all": unsent[0]}[reads]
    assert (
        cut
        == {"nothing": [limits.stalled_s + 1], "a trickle": [limits.request_s + 1], "all": []}[
            reads
        ]
    )


def test_the_consoles_folder_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.css").write_text("/* 20 bytes of it */")
    monkeypatch.setattr(files, "BYTES_MAX", 45)
    assert served(tmp_path) == ["a.css", "b.css"]
    assert "the other files are not served" in caplog.text
    monkeypatch.setattr(files, "BYTES_MAX", 100)
    assert served(tmp_path) == ["a.css", "b.css", "c.css"]
    monkeypatch.setattr(files, "FILES_MAX", 1)
    assert served(tmp_path) == ["a.css"]


def served(folder: Path) -> list[str]:
    return sorted(files.ConsoleFiles(str(folder))._files)


def test_a_request_with_a_length_or_an_encoding_has_a_body() -> None:
    assert has_body(request(content_length="3"))
    assert has_body(request(transfer_encoding="chunked")), "of any length"
    assert not has_body(request(content_length="0"))
    assert not has_body(request())
