"""Tests of NSQ clients with an access file: tokens, [anonymous], what the gateway says about AUTH,
and how many clients may connect.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.nsq_client import OK, Client, pub, sized

from zsq.actors.gateways.nsq.connection import Connection
from zsq.actors.gateways.nsq.gateway import NsqGateway, limits_of
from zsq.actors.gateways.nsq.intake import Intake
from zsq.actors.gateways.nsq.permissions import may_command
from zsq.actors.gateways.shared.auth import AccessAuthenticator, AuthFailed, Who, load_access
from zsq.actors.runtime.actor import StartFailed
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.policy import NOBODY, AccessPolicy
from zsq.actors.settings.options import NsqOptions, TlsOptions
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
        them = AccessAuthenticator(AccessPolicy(Access.parse(USERS)))
        etl = await them.state(who("secret"), fresh=True)
        assert (etl.identity, etl.permission_count) == ("etl", 2)
        asked = [
            ("publish", "clicks", ""),
            ("publish", "other", ""),
            ("subscribe", "clicks", "ab"),
            ("subscribe", "clicks", "b"),
        ]
        assert [may_command(etl, *one) for one in asked] == [True, False, True, False]
        assert not may_command(etl, "subscribe", "clicks", "")
        assert not may_command(etl, "publish", "clicks", "ab")
        assert (await them.state(who("look"))).permission_count == 0, (
            "AUTH is refused: there is nothing that NSQ could do"
        )
        for wrong in ("", "other", token_hash("secret"), "\udcff"):
            with pytest.raises(AuthFailed):
                await them.state(who(wrong))
            assert not may_command(them.known(who(wrong)), "publish", "clicks", "")

    asyncio.run(main())


def test_new_rules_hold_for_who_is_there() -> None:
    them = AccessAuthenticator(AccessPolicy(Access.parse(USERS)))
    assert may_command(them.known(who("secret")), "publish", "clicks", "")
    them.policy = AccessPolicy(Access.parse(""))
    assert not may_command(them.known(who("secret")), "publish", "clicks", "")


@pytest.mark.parametrize(
    ("anonymous", "required", "offered"),
    [
        ("", True, False),
        ('[anonymous]\nview = ["*"]', True, False),
        ('[anonymous]\npublish = ["open"]', False, True),
    ],
)
def test_auth_is_only_offered_when_anonymous_clients_may_publish(
    anonymous: str, required: bool, offered: bool
) -> None:
    limits = limits_of(
        NsqOptions(),
        snappy=False,
        access=AccessAuthenticator(AccessPolicy(Access.parse(USERS + anonymous))),
    )
    assert (limits.auth_required, limits.auth_offered) == (required, offered)


def test_permissions_of_a_client_without_auth_are_asked_for() -> None:
    client = Client(NsqLimits(auth_offered=True))
    assert client.send(pub(b"t", b"x")) == OK
    assert client.calls[0] == ("permitted", "publish", "t", "")
    client.why["permitted"] = "not permitted"
    assert b"E_UNAUTHORIZED" in client.send(pub(b"t", b"x"))
    assert len(client.calls) == 3, "asked, published, asked"


def test_with_required_auth_no_permission_is_asked_for_before_auth() -> None:
    client = Client(NsqLimits(auth_required=True))
    assert b"E_AUTH_FIRST" in client.send(pub(b"t", b"x"))
    assert client.calls == []


def test_auth_is_accepted_where_it_is_offered() -> None:
    assert b'"identity":"bob"' in Client(NsqLimits(auth_offered=True)).send(
        b"AUTH\n" + sized(b"secret")
    )
    assert b"E_AUTH_DISABLED" in Client(NsqLimits()).send(b"AUTH\n" + sized(b"secret"))


def test_certificates_of_clients_are_asked_for_on_every_connection() -> None:
    """If the certificates of clients are checked, TLS is required, as in nsqd. Otherwise a client
    could avoid the policy by not asking for TLS.
    """
    assert limits_of(
        NsqOptions(tls=TlsOptions("c", "k", "ca", "require-verify")), snappy=False
    ).tls_required
    assert limits_of(
        NsqOptions(tls=TlsOptions("c", "k", required="true")), snappy=False
    ).tls_required
    assert not limits_of(NsqOptions(tls=TlsOptions("c", "k")), snappy=False).tls_required


def test_a_file_that_cannot_be_used_is_told_at_the_start(tmp_path: Any) -> None:
    assert load_access("") is None
    (tmp_path / "a").write_text("[users")
    for path in (tmp_path / "a", tmp_path / "none"):
        with pytest.raises(StartFailed, match=str(path)):
            load_access(str(path))


def test_a_full_gateway_disconnects_only_unauthenticated_clients() -> None:
    gateway = NsqGateway(1, "nsq gateway", cast("Any", None))
    gateway.options = NsqOptions(connections_max=2)
    gateway.connections = {}
    gateway.paused = {}
    gateway.accepted = gateway.refused = 0
    gateway.stir = lambda **_: None  # type: ignore[method-assign]
    gateway.limits = NsqLimits(auth_required=True)
    gateway.gatherer = cast("Any", SimpleNamespace(full=False))
    gateway.permits = cast("Any", SimpleNamespace(forget=lambda _: None))
    gateway.loop = cast("Any", SimpleNamespace(call_soon=lambda _: None))
    gateway.intake = Intake(gateway.loop, gateway.connections)
    cut: list[int] = []

    def dial(number: int) -> Connection:
        transport = SimpleNamespace(
            set_write_buffer_limits=lambda _: None,
            get_extra_info=lambda _: ("10.0.0.1", number),
            abort=lambda: cut.append(number),
        )
        connection = Connection(gateway)
        connection._on_time = lambda: None  # type: ignore[method-assign]
        connection.connection_made(cast("Any", transport))
        return connection

    first, second = dial(1), dial(2)
    first.data_received(b"  V2")  # so the second one has been idle for longer now
    third = dial(3)
    assert cut == [2]
    third.data_received(b"  V2")
    for known in (first, third):
        known.session.authorized = NOBODY
        known.look()
    dial(4)
    assert cut == [2, 4], "the new one is turned away, for the others have authenticated"
    assert (list(gateway.connections), gateway.refused, gateway.intake.evicted) == (
        [first, third],
        1,
        1,
    )
    assert second not in gateway.intake.strangers
