"""Certificates for a test: an authority, a server and a client certificate signed by it, and a
client certificate signed by another authority.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

CLIENT_NAME = "orders-worker"


@dataclass(frozen=True)
class Certificates:
    """Paths of the PEM files."""

    root_ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str
    stranger_cert: str
    stranger_key: str

    def client(self, *, cert: str = "", key: str = "") -> ssl.SSLContext:
        """Return a TLS context for a client that trusts the authority. It has a client certificate
        if one is given.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.root_ca)
        if cert:
            context.load_cert_chain(cert, key)
        return context


def make(folder: Path) -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    _write(authority.issue_cert("localhost", "127.0.0.1", "::1"), folder, "server")
    _write(authority.issue_cert("client@example.org", common_name=CLIENT_NAME), folder, "client")
    _write(
        trustme.CA().issue_cert("client@example.org", common_name=CLIENT_NAME), folder, "stranger"
    )
    paths = [folder / "ca.pem"] + [
        folder / f"{who}{end}.pem"
        for who in ("server", "client", "stranger")
        for end in ("", "-key")
    ]
    return Certificates(*map(str, paths))


def _write(issued: trustme.LeafCert, folder: Path, who: str) -> None:
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    (folder / f"{who}.pem").write_bytes(chain)
    issued.private_key_pem.write_to_path(str(folder / f"{who}-key.pem"))
    (folder / f"{who}-key.pem").chmod(0o600)
