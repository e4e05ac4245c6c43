"""NSQ clients by the access file: tokens, [anonymous], what is told of AUTH, and how many may connect at all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.nsq_client import OK, Client, pub, sized

from zsq.actors.access import Access, token_hash
from zsq.actors.actor import StartFailed
from zsq.actors.nsq.access_auth import AccessAuthenticator, load_access
from zsq.actors.nsq.auth import AuthFailed, Who
from zsq.actors.nsq.connection import Connection
from zsq.actors.nsq.gateway import NsqGateway, limits_of
from zsq.actors.nsq.options import NsqOptions, TlsOptions
from zsq.transport.nsq.limits import NsqLimits

USERS = f"""
[users.etl]
tokens = ["{token_hash("secret")}"]
publish = ["clicks"]
subscribe = ["clicks/a*"]
[users.looker]
tokens = ["{token_hash("look")}"]
view = ["*"]
"""


def who(secret: str) -> Who:
    return Who("10.0.0.1", False, "", secret)


def test_a_token_is_a_user() -> None:
    async def main() -> None:
        them = AccessAuthenticator(Access.parse(USERS))
        etl = await them.state(who("secret"), fresh=True)
        assert (etl.identity, etl.permission_count) == ("etl", 2)
        asked = [("publish", "clicks", ""), ("publish", "other", ""), ("subscribe", "clicks", "ab"), ("subscribe", "clicks", "b")]
        assert [etl.permits(*one) for one in asked] == [True, False, True, False]
        assert not etl.permits("subscribe", "clicks", "")
        assert not etl.permits("publish", "clicks", "ab")
        assert (await them.state(who("look"))).permission_count == 0, "AUTH is refused: there is nothing that NSQ could do"
        for wrong in ("", "other", token_hash("secret"), "\udcff"):
            with pytest.raises(AuthFailed):
                await them.state(who(wrong))
            assert not them.known(who(wrong)).permits("publish", "clicks")

    asyncio.run(main())


def test_new_rules_hold_for_who_is_there() -> None:
    them = AccessAuthenticator(Access.parse(USERS))
    assert them.known(who("secret")).permits("publish", "clicks")
    them.access = Access.parse("")
    assert not them.known(who("secret")).permits("publish", "clicks")


@pytest.mark.parametrize(
    ("anonymous", "required", "offered"),
    [("", True, False), ('[anonymous]\nview = ["*"]', True, False), ('[anonymous]\npublish = ["open"]', False, True)],
)
def test_what_is_told_of_auth(anonymous: str, required: bool, offered: bool) -> None:
    limits = limits_of(NsqOptions(), snappy=False, access=AccessAuthenticator(Access.parse(USERS + anonymous)))
    assert (limits.auth_required, limits.auth_offered) == (required, offered)


def test_who_does_not_auth_is_asked_for_as_somebody() -> None:
    client = Client(NsqLimits(auth_offered=True))
    assert client.send(pub(b"t", b"x")) == OK
    assert client.calls[0] == ("permitted", "publish", "t", "")
    client.why["permitted"] = "not permitted"
    assert b"E_UNAUTHORIZED" in client.send(pub(b"t", b"x"))
    assert len(client.calls) == 3, "asked, published, asked"


def test_where_auth_is_required_nobody_is_asked_for_before_it() -> None:
    client = Client(NsqLimits(auth_required=True))
    assert b"E_AUTH_FIRST" in client.send(pub(b"t", b"x"))
    assert client.calls == []


def test_auth_is_taken_where_it_is_offered() -> None:
    assert b'"identity":"bob"' in Client(NsqLimits(auth_offered=True)).send(b"AUTH\n" + sized(b"secret"))
    assert b"E_AUTH_DISABLED" in Client(NsqLimits()).send(b"AUTH\n" + sized(b"secret"))


def test_certificates_of_clients_are_asked_for_on_every_connection() -> None:
    """As nsqd does: a policy that a client could leave out by not asking for TLS would be none."""
    assert limits_of(NsqOptions(tls=TlsOptions("c", "k", "ca", "require-verify")), snappy=False).tls_required
    assert limits_of(NsqOptions(tls=TlsOptions("c", "k", required="true")), snappy=False).tls_required
    assert not limits_of(NsqOptions(tls=TlsOptions("c", "k")), snappy=False).tls_required


def test_a_file_that_cannot_be_used_is_told_at_the_start(tmp_path: Any) -> None:
    assert load_access("") is None
    (tmp_path / "a").write_text("[users")
    for path in (tmp_path / "a", tmp_path / "none"):
        with pytest.raises(StartFailed, match=str(path)):
            load_access(str(path))


def test_so_many_connections_and_no_more() -> None:
    gateway = NsqGateway(1, "nsq gateway", {})
    gateway.options = NsqOptions(connections_max=2)
    gateway.connections = cast("Any", {})
    gateway.accepted = gateway.turned_away = 0
    gateway.stir = lambda **_: None  # type: ignore[method-assign]
    cut: list[str] = []

    def dial() -> None:
        told = {"set_write_buffer_limits": lambda _: None, "get_extra_info": lambda _: ("10.0.0.1", 1), "abort": lambda: cut.append("cut")}
        transport = SimpleNamespace(**told)
        gateway.limits = NsqLimits()
        connection = Connection(gateway)
        connection._on_time = lambda: None  # type: ignore[method-assign]
        connection.connection_made(cast("Any", transport))

    gateway.loop = cast("Any", None)
    for _ in range(3):
        dial()
    assert (len(gateway.connections), gateway.turned_away, cut) == (2, 1, ["cut"])
