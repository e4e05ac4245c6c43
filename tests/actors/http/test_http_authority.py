"""Permissions over HTTP: which request needs which, and what is answered without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from support.http_api import Site

from zsq.actors.http.authority import needs
from zsq.actors.nsq.auth import Authenticator, AuthFailed, Who
from zsq.transport.nsq.permissions import AuthState, parse_state


class FakeAuthenticator:
    """Knows two secrets."""

    def __init__(self) -> None:
        self.asked: list[Who] = []

    async def state(self, who: Who) -> AuthState:
        self.asked.append(who)
        if who.secret == "nobody":
            raise AuthFailed("unknown")
        topic = "clicks" if who.secret == "clicks" else ".*"
        permissions = ["publish"] if who.secret == "publisher" else ["publish", "subscribe"]
        row = {"topic": topic, "channels": ["c?"], "permissions": permissions}
        return parse_state(json.dumps({"ttl": 60, "identity": "me", "authorizations": [row]}).encode())


@pytest.fixture
def guarded() -> Iterator[Site]:
    authenticator = FakeAuthenticator()

    async def level(value: str) -> None:
        pass

    with closing(Site(authenticator=cast("Authenticator", authenticator), changes={"log_level": level})) as site:
        site.broker.topics = {"clicks": {"c", "d"}, "other": {"c"}}
        yield site


def said(site: Site, method: str, target: str, secret: str | None, content: bytes = b"x") -> tuple[int, str]:
    headers: dict[str, Any] = {} if secret is None else {"authorization": f"Bearer {secret}"}
    answer = site.call(method, target, content, headers=headers)
    return answer.status_code, answer.json()["message"] if answer.status_code != 200 else ""


CHANGES = [
    ("POST", "/pub?topic=clicks"), ("POST", "/mpub?topic=clicks"),
    *[("POST", f"/topic/{command}?topic=clicks") for command in ("create", "delete", "empty", "pause", "unpause")],
    ("POST", "/topic/tombstone?topic=clicks&node=n"),
    *[("POST", f"/channel/{command}?topic=clicks&channel=c") for command in ("create", "delete", "empty", "pause", "unpause")],
]  # fmt: skip


@pytest.mark.parametrize(("method", "target"), CHANGES)
def test_what_changes_something_needs_a_permission(guarded: Site, method: str, target: str) -> None:
    elsewhere = target.replace("clicks", "other")
    assert said(guarded, method, target, None) == (401, "AUTH_FIRST")
    assert said(guarded, method, target, "nobody") == (403, "AUTH_FAILED")
    assert said(guarded, method, elsewhere, "clicks") == (403, "UNAUTHORIZED")
    assert guarded.broker.calls == []
    assert guarded.broker.published == []
    assert said(guarded, method, target, "clicks") == (200, "")


def test_channels_by_their_own_names_and_permission(guarded: Site) -> None:
    assert said(guarded, "POST", "/channel/delete?topic=clicks&channel=d", "clicks") == (403, "UNAUTHORIZED")
    assert said(guarded, "POST", "/channel/delete?topic=clicks&channel=c", "publisher") == (403, "UNAUTHORIZED")
    assert said(guarded, "POST", "/pub?topic=clicks", "publisher") == (200, "")


def test_reading_is_open_and_config_is_not_changed_by_strangers(guarded: Site) -> None:
    for target in ("/ping", "/info", "/stats", "/metrics", "/lookup?topic=clicks", "/topics", "/channels?topic=clicks", "/nodes"):
        assert guarded.get(target).status_code == 200
    assert guarded.get("/config/log_level").status_code == 200
    assert said(guarded, "PUT", "/config/log_level", None, b"debug") == (401, "AUTH_FIRST")
    assert said(guarded, "PUT", "/config/log_level", "nobody", b"debug") == (403, "AUTH_FAILED")
    assert said(guarded, "PUT", "/config/log_level", "clicks", b"debug") == (200, "")


def test_a_name_that_is_not_legal_is_refused_by_its_handler(guarded: Site) -> None:
    assert said(guarded, "POST", "/pub?topic=$", "clicks") == (400, "INVALID_TOPIC")
    assert said(guarded, "POST", "/channel/delete?topic=clicks&channel=$", "clicks") == (400, "INVALID_ARG_CHANNEL")
    assert said(guarded, "POST", "/pub?topic=%zz", "clicks") == (400, "INVALID_REQUEST")


def test_only_a_bearers_secret_counts(guarded: Site) -> None:
    for header in ("clicks", "Basic clicks", "Bearer", "Bearer  "):
        answer = guarded.post("/pub?topic=clicks", b"x", headers={"authorization": header})
        assert (answer.status_code, answer.json()["message"], answer.headers["www-authenticate"]) == (401, "AUTH_FIRST", "Bearer")


def test_every_path_is_thought_of() -> None:
    with closing(Site()) as site:
        routes = {(method, route.path) for route in site.app._app.routes for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    assert {place for place in routes if needs(*place) is None} == {
        ("GET", path) for path in ("/ping", "/info", "/stats", "/metrics", "/lookup", "/topics", "/channels", "/nodes", "/config/{option}")
    }
