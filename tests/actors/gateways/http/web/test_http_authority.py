"""Tests of permissions over HTTP. They try every path and method of a table without a token, with a
token that does not permit it, and with one that does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from support.console_site import ConsoleSite
from support.http_api import Site

from zsq.actors.gateways.acting_clients import ACTING
from zsq.actors.gateways.http.console import console as live
from zsq.actors.gateways.http.messages import tail_handlers
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.gateways.http.web.permissions import CHANNEL_PATH, PATHS, Actions, actions_of
from zsq.actors.gateways.shared.auth import Authenticator, AuthFailed, Who
from zsq.actors.gateways.shared.auth_policy import granted
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.policy import (
    AccessPolicy,
    Principal,
)
from zsq.transport.nsq.permissions import parse_state
from zsq.transport.wire.actions import Action


async def level(value: str) -> None:
    pass


def guarded(authority: HttpAuthority, folder: Path | None = None) -> Site:
    """Return a site. It includes the console if `folder` is given."""
    if folder is None:
        site = Site(authority=authority, changes={"log_level": level})
    else:
        (folder / "index.html").write_text("")
        (folder / "main.js").write_text("")
        site = ConsoleSite(str(folder), authority=authority)
    site.broker.there = {"clicks": {"c", "d"}, "hidden": {"c"}}
    return site


def said(
    site: Site, method: str, target: str, token: str | None, content: bytes = b"x"
) -> tuple[int, str]:
    headers: dict[str, Any] = {} if token is None else {"authorization": f"Bearer {token}"}
    answer = site.call(method, target, content, headers=headers)
    return answer.status_code, answer.json()["message"] if answer.status_code != 200 else ""


def untouched(site: Site) -> bool:
    asked = site.source.calls + site.source.reads if isinstance(site, ConsoleSite) else []
    return not site.broker.published and set(site.broker.calls) <= {"stats"} and not asked


# The access file


def user(name: str, **lists: list[str]) -> str:
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lists.items())
    return f'[users.{name}]\ntokens = ["{token_hash(name)}"]\n{rows}'


FILE = "\n".join(
    [
        user("publisher", publish=["clicks"]),
        user("reader", subscribe=["clicks/c"]),
        user("archiver", subscribe=["clicks"]),
        user("owner", admin=["clicks"]),
        user("looker", view=["clicks"]),
        user("seer", view=["*"]),
        user(
            "stranger", publish=["hidden"], subscribe=["hidden"], admin=["hidden"], view=["hidden"]
        ),
        user("root", admin=["*"], publish=["*"], subscribe=["*"]),
    ]
)
ALL = ("publisher", "reader", "archiver", "owner", "looker", "seer", "stranger", "root")
PERMITTED: dict[Actions, set[str]] = {
    (Action.OPEN,): set(ALL),
    (Action.KNOWN,): set(ALL),
    (Action.MANAGE_TOPIC, Action.REDRIVE): {"root"},
    (Action.MANAGE_TOPIC, Action.PUBLISH): {"root"},
    (Action.SEE,): {*ALL} - {"stranger"},
    (Action.SEE_SOME,): set(ALL),
    (Action.READ,): {"archiver", "root"},
    (Action.CONSUME,): {"reader", "archiver", "root"},
    (Action.PUBLISH,): {"publisher", "root"},
    (Action.MANAGE_TOPIC,): {"owner", "root"},
    (Action.MANAGE_CHANNEL,): {"owner", "root"},
    (Action.CONFIGURE,): {"root"},
    (Action.ADMINISTER,): {"root"},
}


@pytest.fixture
def by_file() -> Iterator[Site]:
    with closing(guarded(HttpAuthority(policy=AccessPolicy(Access.parse(FILE))))) as site:
        yield site


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleSite]:
    monkeypatch.setattr(live, "STREAM_S", 0.0)
    monkeypatch.setattr(tail_handlers, "STREAM_S", 0.0)
    with closing(guarded(HttpAuthority(policy=AccessPolicy(Access.parse(FILE))), tmp_path)) as site:
        assert isinstance(site, ConsoleSite)
        yield site


def routes(site: Site) -> list[tuple[str, str]]:
    found = site.app._app.routes  # type: ignore[attr-defined]
    return [(method, route.path) for route in found for method in sorted(route.methods - {"HEAD"})]


def target_of(path: str) -> str:
    path = path.replace("{option}", "log_level").replace("{name:path}", "main.js")
    path = path.replace("{topic}", "clicks").replace("{channel}", "c")
    return path + "?topic=clicks&channel=c&node=n"


def test_each_path_and_method_needs_its_permission(console: ConsoleSite) -> None:
    """A refusal must come before the request has changed or read anything, whoever sends it."""
    walked = set()
    for method, path in routes(console):
        need = actions_of(method, path)
        for token in (None, "nobody", *ALL):
            console.broker.there, console.source.topics = {"clicks": {"c"}}, {"clicks": ["c"]}
            for calls in (
                console.broker.calls,
                console.broker.published,
                console.source.calls,
                console.source.reads,
            ):
                calls.clear()
            code, why = said(
                console, method, target_of(path), token, b"x" if path in ("/pub", "/mpub") else b""
            )
            place = f"{method} {path} as {token}: {code} {why}"
            if need == (Action.OPEN,) or token in PERMITTED[need]:
                # The effect of the path is tested elsewhere, because the broker of this test
                # answers nothing.
                assert code not in (401, 403), place
            else:
                assert (code, why) == {
                    None: (401, "AUTH_FIRST"),
                    "nobody": (403, "AUTH_FAILED"),
                }.get(token, (403, "UNAUTHORIZED")), place
                assert untouched(console), place
        walked.add((method, path))
    assert walked == PATHS.keys(), "no entry without a path"


@pytest.mark.parametrize(
    ("method", "target", "needs"),
    [
        ("GET", "/api/search?topic=clicks", "subscribe to the whole topic"),
        ("GET", "/api/peek?topic=clicks&channel=c", "subscribe"),
        ("POST", "/pub?topic=clicks", "publish"),
        ("PUT", "/config/log_level", 'admin = ["*"]'),
    ],
)
def test_the_log_names_the_permission_as_the_access_file_does(
    console: ConsoleSite, caplog: pytest.LogCaptureFixture, method: str, target: str, needs: str
) -> None:
    with caplog.at_level(logging.WARNING, "zsq"):
        assert said(console, method, target, "looker")[0] == 403
    assert caplog.messages[-1].endswith(f"refused: looker needs the permission {needs}")


def test_every_path_has_the_permission_that_it_needs() -> None:
    """Check the table a second time, by listing the paths that need each permission."""
    by_action = {
        action: {path for (_, path), one in PATHS.items() if action in one} for action in Action
    }
    assert by_action[Action.OPEN] == {
        "/ping", "/ready", "/health", "/", "/console/{name:path}",
    }  # fmt: skip
    assert by_action[Action.ADMINISTER] == {"/api/processes", "/api/audit"}
    assert by_action[Action.READ] | by_action[Action.CONSUME] == {
        "/api/messages",
        "/api/body",
        "/api/delayed",
        "/api/peek",
        "/api/search",
        "/api/dead-letters",
        "/api/tail",
        "/api/download",
        *(f"{CHANNEL_PATH}/{verb}" for verb in ("receive", "finish", "requeue", "touch")),
    }
    assert by_action[Action.KNOWN] == {"/api/job/stop"}
    assert by_action[Action.CONFIGURE] == {"/config/{option}"}
    changes = {
        action
        for (method, path), actions in PATHS.items()
        for action in actions
        if method != "GET" and not path.startswith(CHANNEL_PATH)
    }
    assert not changes & {Action.OPEN, Action.SEE, Action.READ, Action.CONSUME}
    topics = {
        path: actions
        for (method, path), actions in PATHS.items()
        if method == "POST" and "/topic/" in path
    }
    assert topics.pop("/api/topic/publish") == (Action.PUBLISH,)
    assert set(topics.values()) == {(Action.MANAGE_TOPIC,)}
    assert all(
        PATHS["POST", path] == (Action.MANAGE_CHANNEL,)
        for method, path in PATHS
        if method == "POST" and "/channel/" in path
    )
    with pytest.raises(AssertionError, match=r"GET /new has no row in PATHS of permissions\.py"):
        actions_of("GET", "/new")


def test_the_consoles_names_are_there_once_and_legal(console: ConsoleSite) -> None:
    """A request with a repeated or illegal name is refused. Otherwise the permission could be
    checked for another name than the one that the handler uses.
    """
    for method, path in routes(console):
        in_query = path.startswith("/api/") and not path.startswith(CHANNEL_PATH)
        if in_query and actions_of(method, path) not in (
            (Action.ADMINISTER,),
            (Action.KNOWN,),
        ):
            for wrong in (
                "topic=clicks&topic=hidden",
                "topic=clicks&channel=c&channel=d",
                "topic=hidden&topic=clicks",
            ):
                assert said(console, method, f"{path}?{wrong}", "root") == (400, "INVALID_REQUEST")
            if {
                Action.READ,
                Action.CONSUME,
                Action.MANAGE_TOPIC,
                Action.MANAGE_CHANNEL,
                Action.REDRIVE,
            } & {*actions_of(method, path)}:
                assert said(console, method, path, "root") == (400, "MISSING_ARG_TOPIC")
                assert said(console, method, f"{path}?topic=$&channel=c", "root")[0] == 400
            if {Action.CONSUME, Action.MANAGE_CHANNEL} & {*actions_of(method, path)}:
                assert said(console, method, f"{path}?topic=clicks", "root") == (
                    400,
                    "MISSING_ARG_CHANNEL",
                )
                assert said(console, method, f"{path}?topic=clicks&channel=$", "root") == (
                    400,
                    "INVALID_ARG_CHANNEL",
                )


def test_lists_show_what_may_be_seen(by_file: Site) -> None:
    def names(token: str, target: str) -> str:
        return by_file.get(target, headers={"authorization": f"Bearer {token}"}).text

    for target in ("/stats", "/stats?format=json", "/metrics", "/topics", "/nodes"):
        assert "hidden" not in names("looker", target), target
        assert "clicks" in names("looker", target)
        assert "hidden" in names("seer", target), target
    assert said(by_file, "GET", "/lookup?topic=hidden", "looker") == (403, "UNAUTHORIZED")
    assert said(by_file, "GET", "/channels?topic=hidden", "looker") == (403, "UNAUTHORIZED")
    assert said(by_file, "GET", "/lookup?topic=clicks", "looker") == (200, "")


def test_ping_shows_unknown_users_only_that_there_is_a_problem(by_file: Site) -> None:
    by_file.broker.health = {"clicks": "failed: no space"}
    assert (
        by_file.get("/ping").text
        == "NOK - a topic has a problem; only users who may view the topic see which one"
    )
    shown = {
        token: by_file.get("/ping", headers={"authorization": f"Bearer {token}"}).text
        for token in ("stranger", "looker", "nobody")
    }
    assert "clicks" not in shown["stranger"] + shown["nobody"]
    assert shown["looker"] == "NOK - topic clicks: failed: no space"


def test_a_request_without_a_token_has_only_anonymous_permissions() -> None:
    access = Access.parse(FILE + '\n[anonymous]\nview = ["clicks"]\n')
    with closing(guarded(HttpAuthority(policy=AccessPolicy(access)))) as site:
        assert said(site, "GET", "/stats?topic=clicks", None) == (200, "")
        assert said(site, "GET", "/stats?topic=hidden", None) == (403, "UNAUTHORIZED")
        assert said(site, "POST", "/pub?topic=clicks", None) == (403, "UNAUTHORIZED")
        assert said(site, "GET", "/stats", "nobody") == (403, "AUTH_FAILED"), (
            "a token that is not known is a mistake, not nobody"
        )
        answer = site.get("/stats", headers={"authorization": "Basic abc"})
        assert (answer.status_code, answer.json()["message"]) == (401, "AUTH_FIRST")


def test_a_file_that_is_taken_up_counts_at_once(by_file: Site) -> None:
    authority = HttpAuthority(policy=AccessPolicy(Access.parse(FILE)))
    with closing(guarded(authority)) as site:
        assert said(site, "POST", "/pub?topic=clicks", "publisher") == (200, "")
        authority.policy = AccessPolicy(Access.parse(user("hidden")))
        assert said(site, "POST", "/pub?topic=clicks", "publisher") == (403, "AUTH_FAILED")


def test_each_order_carries_the_name_of_its_user(by_file: Site) -> None:
    acted: list[dict[str, str]] = []
    pause = by_file.broker.pause

    async def noted(topic: str, channel: str | None = None) -> dict[str, Any]:
        acted.append(dict(ACTING.get()))
        return await pause(topic, channel)

    by_file.broker.pause = noted  # type: ignore[method-assign]
    assert said(by_file, "POST", "/topic/pause?topic=clicks", "owner") == (200, "")
    assert said(by_file, "POST", "/topic/pause?topic=clicks", "root") == (200, "")
    assert acted == [
        {"user": name, "from": "127.0.0.1", "via": "http"} for name in ("owner", "root")
    ]
    assert not ACTING.get()


# An auth server


class FakeAuthenticator:
    """An authenticator that knows three secrets."""

    def __init__(self) -> None:
        self.asked: list[Who] = []

    async def state(self, who: Who) -> Principal:
        self.asked.append(who)
        if who.secret == "nobody":
            raise AuthFailed("unknown")
        topic = "clicks" if who.secret == "clicks" else ".*"
        permissions = {"publisher": ["publish"], "subscriber": ["subscribe"]}.get(
            who.secret, ["publish", "subscribe"]
        )
        row = {"topic": topic, "channels": ["c?"], "permissions": permissions}
        return granted(
            parse_state(json.dumps({"ttl": 60, "identity": "me", "authorizations": [row]}).encode())
        )


@pytest.fixture
def by_server() -> Iterator[Site]:
    with closing(guarded(HttpAuthority(cast("Authenticator", FakeAuthenticator())))) as site:
        yield site


CHANGES = [
    ("POST", "/pub?topic=clicks"), ("POST", "/mpub?topic=clicks"),
    *[("POST", f"/topic/{command}?topic=clicks") for command in ("create", "delete", "empty", "pause", "unpause")],
    ("POST", "/topic/tombstone?topic=clicks&node=n"),
    *[("POST", f"/channel/{command}?topic=clicks&channel=c") for command in ("create", "delete", "empty", "pause", "unpause")],
]  # fmt: skip


@pytest.mark.parametrize(("method", "target"), CHANGES)
def test_a_request_that_changes_something_needs_a_permission(
    by_server: Site, method: str, target: str
) -> None:
    elsewhere = target.replace("clicks", "hidden")
    assert said(by_server, method, target, None) == (401, "AUTH_FIRST")
    assert said(by_server, method, target, "nobody") == (403, "AUTH_FAILED")
    assert said(by_server, method, elsewhere, "clicks") == (403, "UNAUTHORIZED")
    assert untouched(by_server)
    assert said(by_server, method, target, "clicks") == (200, "")


def test_channels_by_their_own_names_and_permission(by_server: Site) -> None:
    assert said(by_server, "POST", "/channel/delete?topic=clicks&channel=d", "clicks") == (
        403,
        "UNAUTHORIZED",
    )
    assert said(by_server, "POST", "/channel/delete?topic=clicks&channel=c", "publisher") == (
        403,
        "UNAUTHORIZED",
    )
    assert said(by_server, "POST", "/topic/delete?topic=hidden&channel=c", "subscriber") == (
        403,
        "UNAUTHORIZED",
    ), "a channel does not help"
    assert said(by_server, "POST", "/pub?topic=clicks", "publisher") == (200, "")


def test_reading_is_open_but_changing_config_needs_a_permission(by_server: Site) -> None:
    for target in (
        "/ping",
        "/info",
        "/stats",
        "/metrics",
        "/lookup?topic=clicks",
        "/topics",
        "/channels?topic=clicks",
        "/nodes",
    ):
        assert by_server.get(target).status_code == 200
    assert by_server.get("/config/log_level").status_code == 200
    assert said(by_server, "PUT", "/config/log_level", None, b"debug") == (401, "AUTH_FIRST")
    assert said(by_server, "PUT", "/config/log_level", "nobody", b"debug") == (403, "AUTH_FAILED")
    assert said(by_server, "PUT", "/config/log_level", "clicks", b"debug") == (200, "")


# With an access file and with an auth server


def test_a_name_that_is_not_legal_is_refused_by_its_handler(by_server: Site, by_file: Site) -> None:
    for site, token in ((by_server, "clicks"), (by_file, "owner")):
        assert said(site, "POST", "/pub?topic=$", token) == (400, "INVALID_TOPIC")
        assert said(site, "POST", "/channel/delete?topic=clicks&channel=$", token) == (
            400,
            "INVALID_ARG_CHANNEL",
        )
        assert said(site, "POST", "/pub?topic=%zz", token) == (400, "INVALID_REQUEST")


def test_only_a_bearers_token_counts(by_server: Site, by_file: Site) -> None:
    for site, token in ((by_server, "clicks"), (by_file, "publisher")):
        for header in (token, f"Basic {token}", "Bearer", "Bearer  "):
            answer = site.post("/pub?topic=clicks", b"x", headers={"authorization": header})
            assert (
                answer.status_code,
                answer.json()["message"],
                answer.headers["www-authenticate"],
            ) == (401, "AUTH_FIRST", "Bearer")
        assert (
            site.post(
                "/pub?topic=clicks", b"x", headers={"authorization": f"bEARER {token}"}
            ).status_code
            == 200
        )
