"""Tests of an NSQ client's session with AUTH and permissions, and with TLS and compression."""

from __future__ import annotations

import pytest
from support.nsq_client import BEAT, ID, OK, Client, Grant, failed, mpub, pub, said, sized

from zsq.transport.nsq.limits import BYTES_BEFORE_AUTH_MAX, NsqLimits
from zsq.transport.nsq.session import COMMANDS_PIECE

AUTH_LIMITS = NsqLimits(auth_required=True)
OFFERED = NsqLimits(auth_offered=True)
SUB = b"SUB t c\n"
DPUB = b"DPUB t 5\n" + sized(b"x")
SECRET = b"AUTH\n" + sized(b"secret")
GRANTED = said(
    '{"identity":"bob","identity_url":"http://who/\\u003cbob\\u003e","permission_count":2}'
)


# AUTH


@pytest.mark.parametrize(
    ("sent", "name"),
    [(SUB, "SUB"), (pub(b"t", b"x"), "PUB"), (mpub(b"t", b"x"), "MPUB"), (DPUB, "DPUB")],
)
def test_with_required_auth_a_command_before_auth_is_refused(sent: bytes, name: str) -> None:
    client = Client(AUTH_LIMITS)
    assert client.send(sent) == failed(f"E_AUTH_FIRST AUTH required before {name}")
    assert (client.closed, client.calls) == (True, [])


def test_a_permitted_client_publishes_and_subscribes() -> None:
    client = Client(AUTH_LIMITS, late="permitted")
    assert client.send(SECRET) == GRANTED
    assert client.send(pub(b"t", b"x"), SUB) == b""
    assert client.tell("permitted") == OK
    assert client.tell("permitted") == OK
    assert client.calls == [
        ("authenticate", b"secret"), ("permitted", "publish", "t", ""), ("publish", "t", [b"x"], 0),
        ("permitted", "subscribe", "t", "c"), ("subscribe", "t", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "why", "text"),
    [
        (SUB, "no", 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'),
        (pub(b"t", b"x"), "E_UNAUTHORIZED", 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'),
        (mpub(b"t", b"x"), "no", 'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""'),
        (DPUB, "no", 'E_UNAUTHORIZED AUTH failed for DPUB on "t" ""'),
        (SUB, "E_AUTH_FAILED", "E_AUTH_FAILED AUTH failed"),
    ],
)
@pytest.mark.parametrize("late", ["", "permitted"])
def test_a_client_without_permission_is_refused_and_disconnected(
    sent: bytes, why: str, text: str, late: str
) -> None:
    client = Client(AUTH_LIMITS, late=late)
    client.why["permitted"] = why
    client.send(SECRET)
    back = client.send(sent, sent)
    if late:
        back += client.tell("permitted", why=why)
    assert back == failed(text)
    assert client.closed
    assert len(client.calls) == 2


def test_permissions_that_are_known_at_once_go_no_deeper() -> None:
    client = Client(AUTH_LIMITS)
    client.send(SECRET)
    assert client.send(pub(b"t", b"x") * 3000) == OK * 3000


@pytest.mark.parametrize(
    ("grant", "text"),
    [
        ("the server is away", "E_AUTH_FAILED AUTH failed"),
        ("", "E_AUTH_FAILED AUTH failed"),
        (Grant(permission_count=0), "E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_a_failed_auth_is_answered_and_ends_the_connection(grant: Grant | str, text: str) -> None:
    client = Client(AUTH_LIMITS, late="authenticate")
    assert client.send(SECRET, pub(b"t", b"x")) == b""
    client.granting[0](grant)
    assert bytes(client.out) == failed(text)
    assert (client.closed, client.calls) == (True, [("authenticate", b"secret")])


def test_commands_and_the_end_of_input_wait_for_a_late_auth() -> None:
    client = Client(AUTH_LIMITS, late="authenticate")
    assert client.send(SECRET, SUB, b"RDY 5\nFIN " + ID + b"\n", pub(b"t", b"x")) == b""
    client.session.on_eof()
    assert not client.closed
    client.granting[0](Grant())
    assert bytes(client.out) == GRANTED + OK + OK
    assert client.closed
    answers = [call for call in client.calls if call[0] in {"ready", "finish", "publish"}]
    assert answers == [("ready", 5), ("finish", [ID]), ("publish", "t", [b"x"], 0)]


def test_a_second_auth_is_refused() -> None:
    client = Client(AUTH_LIMITS)
    assert client.send(SECRET, SECRET) == GRANTED + failed("E_INVALID AUTH already set")
    assert client.closed


# TLS and compression


ASK = b'{"feature_negotiation":true,"tls_v1":true,"deflate":true}'
TLS_LIMITS = NsqLimits(tls_v1=True)


def test_layers_are_added_one_by_one_and_each_sends_its_ok() -> None:
    client = Client(TLS_LIMITS, late="upgrade publish")
    client.send(pub(b"t", b"x"), b"IDENTIFY\n", sized(ASK), b"hello of TLS")
    assert client.calls == [("publish", "t", [b"x"], 0)]
    back = client.tell("publish")
    assert back.startswith(OK + b"\0\0")
    assert b'"tls_v1":true,"deflate":true,"deflate_level":6' in back
    assert client.calls[1:] == [("upgrade", "tls", b"hello of TLS")]
    assert client.session.reading
    assert client.send(b"deflated") == b""
    assert client.tell("upgrade") == OK
    assert client.calls[2:] == [("upgrade", "deflate", b"deflated")]
    assert client.tell("upgrade") == OK
    assert client.session.wrapped == ("tls", "deflate")
    assert client.send(b"NOP\n", pub(b"t", b"y")) == b""
    assert client.calls[3:] == [("publish", "t", [b"y"], 0)]
    assert client.tell("publish") == OK


def test_layers_that_are_there_at_once() -> None:
    client = Client(TLS_LIMITS)
    back = client.send(b"IDENTIFY\n", sized(ASK), b"packed")
    assert back.endswith(OK + OK)
    assert client.calls == [("upgrade", "tls", b"packed"), ("upgrade", "deflate", b"")]
    assert client.send(b"IDENTIFY\n") == failed("E_INVALID cannot IDENTIFY in current state")


def test_a_failed_handshake_is_answered_and_ends_the_connection() -> None:
    client = Client(TLS_LIMITS)
    client.why["upgrade"] = "no certificate"
    assert client.send(b"IDENTIFY\n", sized(ASK)).endswith(
        failed("E_IDENTIFY_FAILED IDENTIFY failed no certificate")
    )
    assert (client.closed, len(client.calls)) == (True, 1)


def test_a_client_that_leaves_within_the_handshake_is_closed_silently() -> None:
    client = Client(TLS_LIMITS, late="upgrade")
    client.send(b"IDENTIFY\n", sized(ASK))
    client.session.on_eof()
    assert client.closed
    assert client.tell("upgrade") == b""
    assert len(client.calls) == 1


def test_a_handshake_is_neither_waited_for_nor_disturbed_for_ever() -> None:
    client = Client(TLS_LIMITS, late="upgrade")
    client.send(b"IDENTIFY\n", sized(ASK))
    assert client.at(9_999) == b""
    assert not client.closed
    assert client.at(10_000) == b""
    assert client.closed


@pytest.mark.parametrize("name", [b"NOP", b"PUB", b"WHAT", b""])
def test_where_tls_is_required_other_commands_are_refused_before_it(name: bytes) -> None:
    limits = NsqLimits(tls_v1=True, tls_required=True)
    client = Client(limits)
    assert client.send(name + b"\n") == failed(
        b"E_INVALID cannot " + name + b" in current state (TLS required)"
    )
    assert client.closed
    client = Client(limits)
    client.send(b"IDENTIFY\n", sized(ASK))
    assert client.send(pub(b"t", b"x")) == OK


@pytest.mark.parametrize("verb", ["authenticate", "permitted", "upgrade"])
def test_a_result_for_a_client_that_has_left_is_ignored(verb: str) -> None:
    client = Client(NsqLimits(auth_required=True, tls_v1=True), late=verb)
    client.send(b"IDENTIFY\n", sized(ASK))
    client.send(SECRET, SUB)
    client.out.clear()
    calls = len(client.calls)
    client.session.on_closed()
    if verb == "authenticate":
        client.granting[0](Grant())
    else:
        client.tell(verb)
    assert (bytes(client.out), client.closed, len(client.calls)) == (b"", False, calls)
    assert (client.session.authorized is None) == (verb != "permitted")


# Before AUTH


def test_bytes_before_auth_are_bounded_in_both_directions() -> None:
    client = Client(AUTH_LIMITS)
    said_so = failed(f"E_AUTH_FIRST AUTH required before more than {BYTES_BEFORE_AUTH_MAX} bytes")
    assert client.send(b"NOP\n" * (BYTES_BEFORE_AUTH_MAX // 4 - 100)) == b""
    assert client.send(b"NOP\n" * 200) == said_so
    assert (client.closed, client.session.failed) == (True, True)
    client = Client(AUTH_LIMITS)
    answers = b"".join(
        client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true}'))
        for _ in range(1000)
        if not client.closed
    )
    assert answers.endswith(said_so)
    assert len(answers) < BYTES_BEFORE_AUTH_MAX + 1000
    client = Client(AUTH_LIMITS)
    client.send(b"NOP\n" * 10_000, SECRET)
    assert client.send(b"NOP\n" * 100_000) == b"", "who has authenticated may say what it likes"


def test_bytes_sent_after_auth_do_not_count_as_before_it() -> None:
    """A client need not wait for the answer to AUTH before it publishes."""
    client = Client(AUTH_LIMITS, late="authenticate")
    assert client.send(SECRET, pub(b"t", b"x" * 200_000)) == b""
    client.granting[0](client.grant)
    assert bytes(client.out) == GRANTED + OK


def test_the_time_before_auth_is_bounded_whatever_heartbeats_are_asked() -> None:
    for asked in (b"{}", b'{"heartbeat_interval":-1}', b'{"heartbeat_interval":1000}'):
        client = Client(AUTH_LIMITS)
        client.send(b"IDENTIFY\n", sized(asked))
        client.send(b"NOP\n", now_ms=9_000)
        client.at(9_999)
        assert not client.closed
        assert client.at(10_000).endswith(failed("E_AUTH_FIRST AUTH required within 10 s"))
        assert client.closed
    client = Client(AUTH_LIMITS, magic=False)
    assert (client.at(10_000), client.closed) == (b"", True)


def test_a_client_has_no_auth_deadline_while_or_after_it_is_checked() -> None:
    client = Client(AUTH_LIMITS, late="authenticate")
    client.send(b"IDENTIFY\n", sized(b'{"heartbeat_interval":-1}'), SECRET)
    client.at(20_000)
    assert not client.closed
    client.granting[0](client.grant)
    assert client.at(10**9) == b""
    assert not client.closed


def test_where_tls_is_required_its_handshake_has_a_deadline() -> None:
    client = Client(NsqLimits(tls_v1=True, tls_required=True))
    client.send(b"IDENTIFY\n", sized(b'{"heartbeat_interval":-1}'))
    client.at(9_999)
    assert not client.closed
    client.at(10_000)
    assert client.closed


def test_a_client_counts_as_unknown_until_it_authenticates_or_works() -> None:
    client = Client(NsqLimits(), magic=False)
    assert client.session.stranger
    client.send(b"  V2")
    assert not client.session.stranger, "nobody is asked who they are here"
    for limits, sent in (
        (AUTH_LIMITS, SECRET),
        (OFFERED, SECRET),
        (OFFERED, pub(b"t", b"x")),
        (OFFERED, SUB),
    ):
        client = Client(limits)
        client.send(b"NOP\n")
        assert client.session.stranger
        client.send(sent)
        assert not client.session.stranger
    client.send(b"WHAT\n")
    assert client.session.stranger, "it is about to go"


@pytest.mark.parametrize("name", ["PUB", "DPUB", "MPUB"])
def test_permission_is_asked_before_the_body_is_waited_for(name: str) -> None:
    sent = {"PUB": pub(b"t", b"xyz"), "DPUB": DPUB, "MPUB": mpub(b"t", b"xyz")}[name][:-1]
    client = Client(AUTH_LIMITS)
    assert client.send(sent) == failed(f"E_AUTH_FIRST AUTH required before {name}")
    assert client.session.held == 0
    for late in ("", "permitted"):
        client = Client(AUTH_LIMITS, late=late)
        client.why["permitted"] = "no"
        client.send(SECRET)
        back = client.send(sent)
        if late:
            assert not client.session.reading, "no more of the body is read before the answer"
            back += client.tell("permitted", why="no")
        assert back == failed(f'E_UNAUTHORIZED AUTH failed for {name} on "t" ""')
        assert (client.closed, client.session.failed, client.session.held) == (True, True, 0)


def test_a_publish_permitted_before_its_body_is_carried_out_with_it() -> None:
    client = Client(AUTH_LIMITS, late="permitted")
    client.send(SECRET)
    assert client.send(pub(b"t", b"xyz")[:-1]) == b""
    assert client.tell("permitted") == b""
    assert client.session.reading
    assert client.send(b"z") == b""
    assert client.tell("permitted") == OK
    assert client.calls[-1] == ("publish", "t", [b"xyz"], 0)


def test_the_end_of_input_while_a_permission_is_asked_is_told_after_the_answer() -> None:
    client = Client(AUTH_LIMITS, late="permitted")
    client.send(SECRET)
    assert client.send(pub(b"t", b"xyz")[:-1]) == b""
    client.session.on_eof()
    assert client.tell("permitted") == failed("E_BAD_MESSAGE PUB failed to read message body")
    assert client.closed


def test_commands_are_handled_in_bounded_pieces() -> None:
    client = Client()
    client.session.receive(b"NOP x\n" * (COMMANDS_PIECE + 10), 0)
    assert client.session.more
    client.session.go_on(0)
    assert (client.session.more, client.session.held) == (False, 0)
    client.session.receive((b"IDENTIFY\n" + sized(b"{}")) * 20, 0)
    assert client.session.more, "an IDENTIFY counts for many"
    client.session.receive(b"NOP\n" * 100_000, 0)
    while client.session.more:
        client.session.go_on(0)
    assert client.out == OK * 20


def test_a_probe_is_a_heartbeat_where_heartbeats_are_wanted() -> None:
    for asked, written in ((b"{}", OK + BEAT), (b'{"heartbeat_interval":-1}', OK)):
        client = Client()
        client.send(b"IDENTIFY\n", sized(asked))
        client.session.probe()
        assert client.out == written


def test_bytes_received_behind_an_upgrade_do_not_count_twice() -> None:
    client = Client(NsqLimits(auth_required=True), late="upgrade")
    client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true,"deflate":true}'), bytes(50_000))
    client.tell("upgrade")
    assert client.send(b"NOP\n" * 10_000) == b""
    assert not client.closed
