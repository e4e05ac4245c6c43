"""Tests that a gateway is refused if it listens beyond this machine without authentication."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zsq.actors.security.exposure import check, exposed, in_clear, is_local
from zsq.actors.settings.options import (
    HttpOptions,
    NsqOptions,
    SecurityOptions,
    ServeOptions,
    TlsOptions,
)
from zsq.transport.errors import UsageError

LOCAL = ServeOptions(Path("/data"), extensions=(NsqOptions(), HttpOptions()))
FILE, KEYS = SecurityOptions("access.toml"), SecurityOptions("access.toml", "server.key")


@pytest.mark.parametrize(
    ("place", "local"),
    [("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/run/x", True),
     ("0.0.0.0:1", False), ("[::]:1", False), ("*:1", False), (":1", False), ("10.0.0.1:1", False), ("[fe80::1%lo]:1", False)],
)  # fmt: skip
def test_only_loopback_and_unix_addresses_are_local(place: str, local: bool) -> None:
    assert is_local(place) is local


NSQ_TEXT = "needs --access, --nsq-auth-http-address or --nsq-tls-client-auth-policy"
ZMQ_TEXT = "(ZeroMQ) needs --access and --curve-key"
OPEN: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"gateway": "0.0.0.0:1"}, [f"--listen 0.0.0.0:1 {ZMQ_TEXT}", f"--listen-push 0.0.0.0:0 {ZMQ_TEXT}"]),
    ({"gateway_push": "0.0.0.0:2"}, [f"--listen-push 0.0.0.0:2 {ZMQ_TEXT}"]),
    ({"gateway_push": "0.0.0.0:2", "security": FILE}, [f"--listen-push 0.0.0.0:2 {ZMQ_TEXT}"]),
    ({"gateway": "0.0.0.0:1", "security": KEYS}, []),
    ({"gateway": ""}, []),
    ({"extensions": (NsqOptions(listen=("127.0.0.1:1", "0.0.0.0:1", "unix:/x")),)}, [f"--nsq-listen 0.0.0.0:1 {NSQ_TEXT}"]),
    (
        {"extensions": (NsqOptions(listen=("0.0.0.0:1",), tls=TlsOptions("c", "k", required="true")),)},
        [f"--nsq-listen 0.0.0.0:1 {NSQ_TEXT}"],
    ),
    ({"extensions": (NsqOptions(listen=("0.0.0.0:1",), tls=TlsOptions("c", "k", "ca", "require-verify")),)}, []),
    ({"extensions": (NsqOptions(listen=("0.0.0.0:1",), auth_http_addresses=("a:1",)),)}, []),
    ({"extensions": (NsqOptions(listen=("0.0.0.0:1",)),), "security": FILE}, []),
    ({"extensions": (HttpOptions("0.0.0.0:1"),)}, ["--http-listen 0.0.0.0:1 needs --access"]),
    ({"extensions": (HttpOptions("0.0.0.0:1", tls_cert="c", tls_key="k"),)}, ["--http-listen 0.0.0.0:1 needs --access"]),
    ({"extensions": (HttpOptions("0.0.0.0:1"), NsqOptions(auth_http_addresses=("a:1",)))}, ["--http-listen 0.0.0.0:1 needs --access"]),
    ({"extensions": (HttpOptions("0.0.0.0:1"),), "security": FILE}, []),
    ({"extensions": ()}, []),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "texts"), OPEN)
def test_each_open_address_is_refused_unless_insecure_is_set(
    changes: dict[str, Any], texts: list[str]
) -> None:
    options = replace(LOCAL, **changes)
    assert exposed(options) == texts
    if texts:
        with pytest.raises(UsageError, match="every client that can reach this machine") as refused:
            check(options)
        assert all(text in refused.value.text for text in texts)
        assert "--insecure" in refused.value.text
    check(replace(options, security=replace(options.security, insecure=True)))


def test_an_access_file_and_auth_servers_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        check(
            replace(
                LOCAL,
                security=replace(KEYS, insecure=True),
                extensions=(NsqOptions(auth_http_addresses=("a:1",)),),
            )
        )


def test_unencrypted_addresses_are_reported() -> None:
    assert in_clear(LOCAL) == []
    wide = replace(LOCAL, extensions=(NsqOptions(listen=("0.0.0.0:1",)), HttpOptions("0.0.0.0:2")))
    nsq = "NSQ clients at 0.0.0.0:1 may connect without TLS (see --nsq-tls-required)"
    assert in_clear(wide) == [nsq, "HTTP at 0.0.0.0:2 does not use TLS (see --http-tls-cert)"]
    http = HttpOptions("0.0.0.0:2", tls_cert="c", tls_key="k")
    tls = TlsOptions("c", "k", required="true")
    assert (
        in_clear(replace(wide, extensions=(NsqOptions(listen=("0.0.0.0:1",), tls=tls), http))) == []
    )


@pytest.mark.parametrize(
    "place", ["eth0:4153", "no-such-host.invalid:4153", "a" * 300 + ":1", "\udcff:1", "lo:4153"]
)
@pytest.mark.parametrize("security", [SecurityOptions(), KEYS])
def test_a_name_without_an_address_is_refused(
    place: str, security: SecurityOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq considers a name such as eth0 a network interface."""

    def unknown(host: str, port: object) -> Any:
        host.encode("idna")
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    changes: list[dict[str, Any]] = [
        {"gateway": place},
        {"gateway_push": place},
        {"extensions": (NsqOptions(listen=(place,)),)},
    ]
    for change in [*changes, {"extensions": (HttpOptions(place),)}]:
        with pytest.raises(UsageError, match="has no address") as refused:
            check(replace(LOCAL, security=security, **change))
        assert "give an address of this machine" in refused.value.text
        check(replace(LOCAL, security=replace(security, insecure=True), **change))
    assert f"HTTP at {place} does not use TLS (see --http-tls-cert)" in in_clear(
        replace(LOCAL, extensions=(HttpOptions(place),))
    )


def test_the_name_of_a_network_interface_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [(0, 0, 0, "", ("127.0.0.1", 0))])
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert is_local("localhost:1")
    assert not is_local("eth0:1")
