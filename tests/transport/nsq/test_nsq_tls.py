"""Tests of NSQ's TLS layer and its contexts: real handshakes in memory, versions, client
certificates, and bad files.
"""

from __future__ import annotations

import ssl
import subprocess
import warnings
from pathlib import Path

import pytest
from support import certificates
from support.certificates import CLIENT_NAME, Certificates

from zsq.transport.errors import UsageError
from zsq.transport.nsq.layers import (
    PARTS_PIECE,
    DeflateLayer,
    LayerError,
    Layers,
    SnappyLayer,
    TlsLayer,
)
from zsq.transport.nsq.tls import client_context, server_context


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("tls"))


def server(
    made: Certificates, client_auth: str = "", min_version: str = "tls1.2"
) -> ssl.SSLContext:
    root = made.root_ca if client_auth else ""
    context = server_context(
        cert=made.cert, key=made.key, root_ca=root, client_auth=client_auth, min_version=min_version
    )
    assert context is not None
    return context


class Client:
    """The other end, made with Python's ssl."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self, data: bytes = b"") -> tuple[bytes, bool]:
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return self.outgoing.read(), False
        return self.outgoing.read(), True

    def send(self, data: bytes) -> bytes:
        at = 0
        while at < len(data):
            at += self.tls.write(data[at:])
        return self.outgoing.read()

    def read(self, data: bytes) -> bytes:
        self.incoming.write(data)
        plain = b""
        try:
            while piece := self.tls.read():
                plain += piece
        except ssl.SSLWantReadError:
            pass
        return plain


def shaken(layers: Layers, client: Client) -> None:
    assert layers.tls is not None
    back = b""
    for _ in range(6):
        out, done = client.shake(back)
        layers.receive(out)
        back = layers.take_out()
        if done and layers.tls.ready:
            client.incoming.write(back)
            return
    raise AssertionError("no end of the handshake")


def pair(context: ssl.SSLContext, other: ssl.SSLContext) -> tuple[Layers, Client]:
    layers, client = Layers(), Client(other)
    layers.push(TlsLayer(context))
    shaken(layers, client)
    return layers, client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_carries_data_in_both_directions_however_it_is_divided(
    made: Certificates, version: ssl.TLSVersion
) -> None:
    other = made.client()
    other.minimum_version = other.maximum_version = version
    layers, client = pair(server(made), other)
    assert layers.tls is not None
    assert layers.tls.version == version.name.replace("_", ".")
    assert layers.tls.cipher == (client.tls.cipher() or ("?",))[0]
    assert layers.tls.common_name == ""
    for data in (b"NOP\n", b"x" * 1_000_000):
        assert layers.receive(client.send(data)) == data
        assert client.read(layers.send(data)) == data
    wire = client.send(b"abc" * 30_000)
    assert (
        b"".join(layers.receive(wire[at : at + 700]) for at in range(0, len(wire), 700))
        == b"abc" * 30_000
    )
    assert layers.receive(b"") == b""


@pytest.mark.parametrize("over", [DeflateLayer(6), SnappyLayer()], ids=["deflate", "snappy"])
def test_compressed_data_passes_through_tls(
    made: Certificates, over: DeflateLayer | SnappyLayer
) -> None:
    layers, client = pair(server(made), made.client())
    assert client.read(layers.send(b"OK")) == b"OK"
    layers.push(over)
    far = type(over)(6) if isinstance(over, DeflateLayer) else type(over)()
    assert far.receive(client.read(layers.send(b"OK"))) == b"OK"
    size = 3 * 2**20
    plain = layers.receive(client.send(far.send(bytes(size))))
    whole = len(plain)
    while layers.held:
        whole += len(layers.receive(b""))
    assert whole == size


def test_data_sent_right_after_the_handshake_is_read(made: Certificates) -> None:
    """A client may send data together with its last bytes of the handshake."""
    layer, client = TlsLayer(server(made)), Client(made.client())
    assert layer.receive(client.shake()[0]) == b""
    assert not layer.ready
    out, done = client.shake(layer.take_out())
    assert done
    assert layer.receive(out + client.send(b"first")) == b"first"
    assert layer.ready


def test_small_records_are_read_piece_by_piece(made: Certificates) -> None:
    """A record of one byte costs as much work as a record of 16 KiB."""
    layers, client = pair(server(made), made.client())
    wire = b"".join(client.send(b"x") for _ in range(2 * PARTS_PIECE + 10))
    assert layers.receive(wire) == b"x" * PARTS_PIECE
    assert layers.held
    assert layers.kept > 0
    assert layers.receive(b"") == b"x" * PARTS_PIECE
    assert layers.receive(b"") == b"x" * 10
    assert (layers.held, layers.kept) == (False, 0)


def test_the_end_of_tls_is_announced_and_recognised(made: Certificates) -> None:
    layers, client = pair(server(made), made.client())
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    assert layers.receive(client.outgoing.read()) == b""
    layers, client = pair(server(made), made.client())
    client.incoming.write(layers.close())
    assert client.tls.read() == b""  # an orderly end, not a cut connection


@pytest.mark.parametrize(
    "data", [b"  V2IDENTIFY\n" * 5, bytes(100), b"\x16\x03\x01\xff\xff" + bytes(80)]
)
def test_data_that_is_not_tls_is_refused(made: Certificates, data: bytes) -> None:
    layers = Layers()
    layers.push(TlsLayer(server(made)))
    with pytest.raises(LayerError, match="TLS: "):
        layers.receive(data)
    layers.take_out()
    assert layers.close() == b""


def test_a_client_that_does_not_trust_us(made: Certificates) -> None:
    layer, client = TlsLayer(server(made)), Client(ssl.create_default_context())
    layer.receive(client.shake()[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        client.shake(layer.take_out())
    with pytest.raises(LayerError, match="UNKNOWN_CA"):
        layer.receive(client.outgoing.read())


def test_a_changed_record_is_refused_with_an_alert(made: Certificates) -> None:
    layers, client = pair(server(made), made.client())
    wire = bytearray(client.send(b"PUB t\n"))
    wire[-1] ^= 1
    with pytest.raises(LayerError, match=r"BAD_RECORD_MAC|BAD_DECRYPT|RECORD_LAYER_FAILURE"):
        layers.receive(bytes(wire))
    assert layers.take_out()  # an alert for the client


@pytest.mark.parametrize("policy", ["require", "require-verify"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_a_client_with_a_known_certificate_is_accepted(
    made: Certificates, policy: str, version: ssl.TLSVersion
) -> None:
    known = made.client(cert=made.client_cert, key=made.client_key)
    unknown = made.client(cert=made.stranger_cert, key=made.stranger_key)
    for other in (known, unknown, nobody := made.client()):
        other.minimum_version = other.maximum_version = version
    layers, _ = pair(server(made, policy), known)
    assert layers.tls is not None
    assert layers.tls.common_name == CLIENT_NAME
    for other in (unknown, nobody):
        with pytest.raises(LayerError, match="CERTIFICATE"):
            pair(server(made, policy), other)


def test_without_a_policy_no_client_certificate_is_asked_for(made: Certificates) -> None:
    layers, _ = pair(server(made), made.client(cert=made.stranger_cert, key=made.stranger_key))
    assert layers.tls is not None
    assert layers.tls.common_name == ""


def old_client(made: Certificates) -> ssl.SSLContext:
    other = made.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        other.minimum_version = ssl.TLSVersion.TLSv1
        other.maximum_version = ssl.TLSVersion.TLSv1_1
    other.set_ciphers("DEFAULT:@SECLEVEL=0")
    return other


def test_old_tls_versions_are_used_only_if_an_option_allows_them(made: Certificates) -> None:
    layers, _ = pair(server(made, min_version="tls1.0"), old_client(made))
    assert layers.tls is not None
    assert layers.tls.version == "TLSv1.1"
    with pytest.raises(LayerError, match="PROTOCOL"):
        pair(server(made), old_client(made))
    newer = made.client()
    newer.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(LayerError, match="PROTOCOL"):
        pair(server(made, min_version="tls1.3"), newer)


def test_without_a_certificate_there_is_no_tls_context() -> None:
    assert server_context(cert="", key="") is None


def test_each_wrong_tls_option_is_refused(made: Certificates, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nno\n")
    missing = str(tmp_path / "missing.pem")
    good = {"cert": made.cert, "key": made.key}
    cases: list[tuple[dict[str, str], str]] = [
        ({"cert": made.cert, "key": ""}, "tls-key is missing: give tls-cert and tls-key together"),
        ({"cert": "", "key": made.key}, "tls-cert is missing: give tls-cert and tls-key together"),
        ({"cert": missing, "key": made.key}, f"tls-cert {missing}: No such file"),
        ({"cert": made.cert, "key": missing}, f"tls-key {missing}: No such file"),
        ({"cert": made.cert, "key": str(tmp_path)}, "tls-key .*: Is a directory"),
        ({"cert": str(junk), "key": made.key}, "must be a certificate and its key"),
        ({"cert": made.cert, "key": made.client_key}, "KEY_VALUES_MISMATCH"),
        (
            {**good, "client_auth": "maybe"},
            "tls-client-auth-policy 'maybe': it must be \"require\" or",
        ),
        (
            {**good, "client_auth": "require"},
            "tls-root-ca-file is missing: tls-client-auth-policy 'require' needs it",
        ),
        ({**good, "client_auth": "require", "root_ca": missing}, "tls-root-ca-file .*No such file"),
        ({**good, "client_auth": "require", "root_ca": str(junk)}, "no certificates in PEM"),
        ({"cert": "", "key": "", "client_auth": "require-verify"}, "it needs tls-cert and tls-key"),
        (
            {**good, "min_version": "ssl3.0"},
            r"tls-min-version 'ssl3\.0': it must be one of tls1\.0, ",
        ),
        ({"cert": "a\0b", "key": made.key}, "tls-cert"),
    ]
    for given, text in cases:
        with pytest.raises(UsageError, match=text):
            server_context(**given)


def test_a_key_with_a_password_is_refused_without_asking_for_it(
    made: Certificates, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.pem"
    command = [
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:secret",
        "-in",
        made.key,
        "-out",
        str(locked),
    ]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the openssl program")
    assert done.returncode == 0, done.stderr
    with pytest.raises(UsageError, match="is encrypted with a password"):
        server_context(cert=made.cert, key=str(locked))


def test_a_client_context_trusts_only_the_given_authority(made: Certificates) -> None:
    pair(server(made), client_context(root_ca=made.root_ca))
    with pytest.raises(ssl.SSLCertVerificationError):
        pair(server(made), client_context())
    with pytest.raises(UsageError, match="tls-min-version"):
        client_context(min_version="tls9")
