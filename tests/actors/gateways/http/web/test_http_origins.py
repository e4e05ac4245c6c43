"""Tests against requests that a browser sends for other pages: by which host names this broker may
be addressed, and from which origins it may be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.http_api import Site

from zsq.actors.gateways.http.gateway import make_node, make_origins
from zsq.actors.gateways.http.web.authority import HttpAuthority
from zsq.actors.gateways.http.web.origins import BROWSER_HEADERS, Origins, host_of
from zsq.actors.security.access import Access
from zsq.actors.security.policy import AccessPolicy
from zsq.actors.settings.options import NsqOptions, TlsOptions

ORIGINS = Origins(
    ("box.example.org", "box", "queue.example.org"), ("zsq.example.com", "Proxy.Example.com:8443")
)

BROWSER: dict[str, str | bytes] = {"accept-language": "en"}


@pytest.fixture
def site() -> Iterator[Site]:
    with closing(Site(origins=ORIGINS)) as one:
        one.broker.there = {"t": {"c"}}
        yield one


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:4151", "127.0.0.1", "[::1]:4151", "[::1]", "10.1.2.3", "localhost:4151", "LOCALHOST", "localhost.", "box",
     "box.example.org:1",
     "queue.example.org", "zsq.example.com", "proxy.example.com", ""],
)  # fmt: skip
def test_each_name_of_the_node_is_accepted_as_host(site: Site, host: str) -> None:
    assert site.get("/stats", headers=BROWSER | {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4151", "localhost.evil.example", "127.0.0.1.evil.example", "box.example.org.evil.example", "[::1",
     "[::1]x",
     "evil.example:80@127.0.0.1", "127.0.0.1:x", "xbox", "0x7f.1", "2130706433", "\xff"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/ping"), ("GET", "/stats"), ("POST", "/topic/delete?topic=t")]
)
def test_each_other_name_is_refused_as_host(
    site: Site, method: str, target: str, host: str
) -> None:
    answer = site.call(method, target, headers=BROWSER | {"host": host.encode("latin-1")})
    assert answer.status_code == 421
    said = answer.json()["message"]
    assert said.startswith("E_HOST ")
    assert said.endswith(
        " is not a known name of this broker; to allow it, use --http-allowed-host"
    )
    assert not site.broker.calls


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/ping"), ("GET", "/metrics"), ("GET", "/health"), ("POST", "/pub?topic=t")],
)
def test_clients_that_are_no_browsers_may_use_any_name(
    site: Site, method: str, target: str
) -> None:
    headers = {"host": "zsq.prod.svc.cluster.local:4151"}
    assert site.call(method, target, b"x", headers=headers).status_code == 200
    for mark in BROWSER_HEADERS:
        marked = headers | {mark.decode(): "any"}
        assert site.call(method, target, b"x", headers=marked).status_code == 421, mark
    assert site.get("/api/overview", headers=headers).status_code == 421


def test_a_refused_host_name_is_shown_as_short_json(site: Site) -> None:
    answer = site.get("/ping", headers=BROWSER | {"host": '<script>"' + "x" * 1000})
    assert answer.headers["content-type"].startswith("application/json")
    assert len(answer.content) < 300


def test_the_host_name_is_not_checked_if_every_user_needs_a_token() -> None:
    file = '[users.a]\nview = ["*"]\n'
    for text, status in ((file, 401), (file + '[anonymous]\nview = ["*"]\n', 421)):
        with closing(
            Site(origins=ORIGINS, authority=HttpAuthority(policy=AccessPolicy(Access.parse(text))))
        ) as one:
            headers = BROWSER | {"host": "anything.example"}
            assert one.get("/stats", headers=headers).status_code == status


def test_the_node_knows_localhost_its_hostname_and_the_given_names() -> None:
    origins = make_origins(make_node(None, "0.0.0.0", 1), ("told.example",))
    assert all(
        origins.knows(name)
        for name in ("localhost", "told.example", make_node(None, "", 1).hostname.lower())
    )
    assert not origins.knows("")
    assert host_of("A.B:1") == "a.b"
    assert host_of("a:b") == ""


HOST = {"host": "127.0.0.1:4151"}
OURS = [
    {}, {"origin": "http://127.0.0.1:4151"}, {"origin": "https://127.0.0.1:4151"}, {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
    # A proxy changed the Host, but the browser knows the real origin.
    {"origin": "http://elsewhere.example", "sec-fetch-site": "same-origin"},
    {"origin": "https://zsq.example.com"}, {"origin": "https://proxy.example.com:8443"},
]  # fmt: skip
THEIRS = [
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1:8080"},
    {"origin": "http://127.0.0.1"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none of these"},
    {"origin": "http://127.0.0.1:4151", "sec-fetch-site": "cross-site"}, {"origin": "http://box"}, {"origin": "http://[::1"},
    {"origin": "https://proxy.example.com"},
]  # fmt: skip


@pytest.mark.parametrize(
    "target", ["/topic/delete?topic=t", "/pub?topic=t", "/channel/empty?topic=t&channel=c"]
)
def test_pages_of_other_sites_cannot_change_anything(site: Site, target: str) -> None:
    for headers in THEIRS:
        answer = site.post(target, b"x", headers=HOST | headers)
        assert (answer.status_code, answer.json()["message"]) == (
            403,
            (
                "E_ORIGIN the request came from a page of another site, which may not do this; use "
                "the broker's console"
            ),
        ), headers
    assert not site.broker.calls
    assert not site.broker.published


@pytest.mark.parametrize("headers", OURS)
def test_requests_without_a_browser_or_from_our_pages_are_accepted(
    site: Site, headers: dict[str, str]
) -> None:
    assert site.post("/topic/pause?topic=t", headers=HOST | headers).status_code == 200


def test_a_foreign_origin_may_only_read_outside_the_api(site: Site) -> None:
    theirs = HOST | {"origin": "http://evil.example"}
    assert site.call("PUT", "/config/log_level", b"debug", headers=theirs).status_code == 403
    assert site.get("/api/live", headers=theirs).status_code == 403
    assert site.get("/stats", headers=theirs).status_code == 200
    assert "access-control-allow-origin" not in site.get("/stats", headers=theirs).headers


def test_a_plain_page_is_not_the_secure_one() -> None:
    scope = {
        "scheme": "https",
        "method": "POST",
        "path": "/pub",
        "headers": [(b"host", b"h.example"), (b"origin", b"http://h.example")],
    }
    origins = Origins(("h.example",))
    assert origins.refusal(scope, any_name=False) is not None
    assert origins.refusal(scope | {"scheme": "http"}, any_name=False) is None


def test_https_is_accepted_where_tls_is_required() -> None:
    with closing(Site(nsq=NsqOptions(tls=TlsOptions("c", "k", required="true")))) as one:
        assert one.get("/ping").json()["message"] == "TLS_REQUIRED"
        assert one.get("https://localhost/ping").text == "OK"
