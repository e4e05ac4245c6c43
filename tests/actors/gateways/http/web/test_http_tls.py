"""Tests of HTTP with TLS: connections that are still in their handshake count and have a time
limit, and new certificates are loaded while the server runs.
"""

from __future__ import annotations

import os
import socket
import ssl
import warnings
from pathlib import Path

import pytest
from support.certificates import Certificates, make
from support.http_api import all_of, served

from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.tls_door import Certificates as Context
from zsq.transport.errors import UsageError

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("tls"))


def ask(sock: socket.socket, context: ssl.SSLContext) -> bytes:
    with context.wrap_socket(sock, server_hostname="localhost") as secure:
        secure.sendall(PING)
        return all_of(secure)


def test_a_tls_port_serves_tls_and_nothing_else(certificates: Certificates) -> None:
    with served(HttpLimits(head_s=0.5), Context(certificates.cert, certificates.key)) as site:
        for _ in range(20):
            with site.dial() as sock:
                assert ask(sock, certificates.client()).endswith(b"\r\n\r\nOK")
        with site.dial() as sock:
            sock.sendall(PING)
            assert b"HTTP" not in all_of(sock)
        old = certificates.client()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with site.dial() as sock, pytest.raises(ssl.SSLError):
            ask(sock, old)


def test_a_tls_handshake_has_a_deadline_and_gives_way_to_others(certificates: Certificates) -> None:
    with served(
        HttpLimits(head_s=1.0, connections_max=3), Context(certificates.cert, certificates.key)
    ) as site:
        silent = [site.dial() for _ in range(3)]
        with site.dial() as sock:
            assert ask(sock, certificates.client()).endswith(b"OK"), (
                "the oldest silent one gave way"
            )
        for sock in silent:
            with sock:
                assert all_of(sock) == b"", "closed when its time is over"
        with site.dial() as sock:
            assert ask(sock, certificates.client()).endswith(b"OK")


def test_the_oldest_handshake_gives_way_at_once_where_all_places_are_taken(
    certificates: Certificates,
) -> None:
    with served(
        HttpLimits(head_s=60.0, connections_max=3), Context(certificates.cert, certificates.key)
    ) as site:
        silent = [site.dial() for _ in range(3)]
        with site.dial() as sock:
            assert ask(sock, certificates.client()).endswith(b"OK")
        assert all_of(silent[0]) == b""
        for sock in silent:
            sock.close()


def test_new_files_are_taken_and_bad_ones_are_not(tmp_path: Path) -> None:
    made, fresh = make(tmp_path / "a"), make(tmp_path / "b")
    context = Context(made.cert, made.key)
    with served(HttpLimits(), context) as site:
        with pytest.raises(UsageError):
            context.reload(made.cert, fresh.key)
        with pytest.raises(UsageError):
            context.reload(made.cert, str(tmp_path / "nothing"))
        with site.dial() as sock:
            assert ask(sock, made.client()).endswith(b"OK")
        for name in ("cert", "key"):
            os.replace(getattr(fresh, name), getattr(made, name))
        context.reload(made.cert, made.key)
        with site.dial() as sock, pytest.raises(ssl.SSLCertVerificationError):
            ask(sock, make(tmp_path / "c").client())
        with site.dial() as sock:
            assert ask(sock, fresh.client()).endswith(b"OK")


def test_a_certificate_without_its_key_is_refused(certificates: Certificates) -> None:
    assert Context("", "").context is None
    for cert, key in ((certificates.cert, ""), ("", certificates.key)):
        with pytest.raises(UsageError, match="is missing: give tls-cert and tls-key together"):
            Context(cert, key)
