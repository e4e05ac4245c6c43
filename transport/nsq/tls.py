"""TLS contexts from nsqd's options: certificate, key, client certificates, and oldest version.

Two points differ from nsqd, both for security:

* The oldest allowed version is TLS 1.2 unless an option changes it. In nsqd it is 1.0. Versions
  before 1.2 are deprecated (RFC 8996), because their handshakes are signed with SHA-1 and MD5.
  OpenSSL 3 refuses those signatures at its default security level. An option can still allow these
  versions.
* `require` verifies a client's certificate, as `require-verify` does. In nsqd, `require` accepts
  any certificate, even a self-signed one, and the auth server gets its name as if it were verified.
  So here both options need the file of trusted authorities.
"""

from __future__ import annotations

import os
import ssl
import warnings
from typing import Final

from ..errors import E_BAD_ARGUMENT, UsageError
from ..wire.credentials import open_to_others

CLIENT_AUTH: Final = ("", "require", "require-verify")
MIN_VERSION: Final = "tls1.2"
_OLD: Final = ("tls1.0", "tls1.1")
_VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def server_context(
    *, cert: str, key: str, root_ca: str = "", client_auth: str = "", min_version: str = MIN_VERSION
) -> ssl.SSLContext | None:
    """Return the context for the gateways' listeners, or None if no certificate is given.

    Raises `UsageError` if an option is wrong. The error names the option and the reason.
    """
    _check_version(min_version)
    if client_auth not in CLIENT_AUTH:
        raise _wrong(
            "tls-client-auth-policy",
            repr(client_auth),
            'it must be "require" or "require-verify", or be left out',
        )
    if not cert and not key:
        if client_auth:
            raise _wrong(
                "tls-client-auth-policy", repr(client_auth), "it needs tls-cert and tls-key"
            )
        return None
    if not cert or not key:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{'tls-cert' if key else 'tls-key'} is missing: give tls-cert and tls-key together",
        )
    if client_auth and not root_ca:
        why = (
            f"tls-client-auth-policy {client_auth!r} needs it to verify the certificates of clients"
        )
        raise UsageError(E_BAD_ARGUMENT, f"tls-root-ca-file is missing: {why}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _set_version(context, min_version)
    _load_own(context, cert, key)
    if client_auth:
        _load_roots(context, root_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, root_ca: str = "", min_version: str = MIN_VERSION) -> ssl.SSLContext:
    """Return the context for https requests to auth servers, and to nsqlookupd with a TLS proxy.

    Without `root_ca` the system's authorities are trusted.
    """
    _check_version(min_version)
    context = (
        ssl.create_default_context() if not root_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    _set_version(context, min_version)
    if root_ca:
        _load_roots(context, root_ca)
    return context


def _check_version(name: str) -> None:
    if name not in _VERSIONS:
        raise _wrong("tls-min-version", repr(name), f"it must be one of {', '.join(_VERSIONS)}")


def _set_version(context: ssl.SSLContext, name: str) -> None:
    if name in _OLD:
        with warnings.catch_warnings():  # no warning is needed, because the option's help has one
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = _VERSIONS[name]
        # Without this, OpenSSL 3 accepts the version but refuses every handshake.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    else:
        context.minimum_version = _VERSIONS[name]


def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    locked = False

    def password() -> str:  # without it, OpenSSL would wait for a password at the terminal
        nonlocal locked
        locked = True
        return ""

    for option, path in (("tls-cert", cert), ("tls-key", key)):
        _readable(option, path)
    if why := open_to_others(key, os.stat(key), secret=True):
        raise UsageError(E_BAD_ARGUMENT, f"tls-key {why}")
    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        if locked:
            raise _wrong(
                "tls-key",
                key,
                "the key is encrypted with a password; give a file with the unencrypted key",
            ) from None
        reason = getattr(error, "reason", None) or error
        why = f"this must be a certificate and its key in PEM format: {reason}"
        raise _wrong("tls-cert", f"{cert} with tls-key {key}", why) from None


def _load_roots(context: ssl.SSLContext, path: str) -> None:
    _readable("tls-root-ca-file", path)
    if why := open_to_others(path, os.stat(path)):
        raise UsageError(E_BAD_ARGUMENT, f"tls-root-ca-file {why}")
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _wrong(
            "tls-root-ca-file", path, f"it has no certificates in PEM format: {reason}"
        ) from None


def _readable(option: str, path: str) -> None:
    """Raise `UsageError` if the file is not readable. OpenSSL's error does not name the file."""
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        raise _wrong(option, path, getattr(error, "strerror", None) or str(error)) from None


def _wrong(option: str, value: str, why: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"{option} {value}: {why}")
