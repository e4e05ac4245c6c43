"""TLS contexts from nsqd's options: certificate and key, who is asked for a certificate of their own, the oldest version spoken.

Two things differ from nsqd, both to the safe side:

* The oldest version is TLS 1.2 unless an option says otherwise; nsqd's is 1.0. Versions before 1.2 are deprecated (RFC 8996): their
  handshakes are signed with SHA-1 and MD5, and OpenSSL 3 refuses those at its default level anyway. Who has to can still ask for them.
* `require` verifies, as `require-verify` does. nsqd takes any certificate then, one that somebody made for themselves too, and its
  name goes to the auth server as if it meant something. So both need the file of the authorities that count.
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
    """For the gateways' listeners; None where no certificate is given. `UsageError` says which option is wrong, and why."""
    _check_version(min_version)
    if client_auth not in CLIENT_AUTH:
        raise _wrong("tls-client-auth-policy", repr(client_auth), 'it is "require" or "require-verify", or left out')
    if not cert and not key:
        if client_auth:
            raise _wrong("tls-client-auth-policy", repr(client_auth), "it means nothing without tls-cert and tls-key")
        return None
    if not cert or not key:
        raise _wrong("tls-cert" if key else "tls-key", "nothing", "a certificate and its key belong together: give both")
    if client_auth and not root_ca:
        raise _wrong("tls-root-ca-file", "nothing", f"{client_auth!r} needs it: it says which certificates of clients are good")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _set_version(context, min_version)
    _load_own(context, cert, key)
    if client_auth:
        _load_roots(context, root_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, root_ca: str = "", min_version: str = MIN_VERSION) -> ssl.SSLContext:
    """For questions to others over https: auth servers, and nsqlookupd behind a proxy. Without `root_ca` the system's authorities count."""
    _check_version(min_version)
    context = ssl.create_default_context() if not root_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_version(context, min_version)
    if root_ca:
        _load_roots(context, root_ca)
    return context


def _check_version(name: str) -> None:
    if name not in _VERSIONS:
        raise _wrong("tls-min-version", repr(name), f"it is one of {', '.join(_VERSIONS)}")


def _set_version(context: ssl.SSLContext, name: str) -> None:
    if name in _OLD:
        with warnings.catch_warnings():  # the option was asked for; its description says what it means
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = _VERSIONS[name]
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else OpenSSL 3 would say yes and then refuse every handshake
    else:
        context.minimum_version = _VERSIONS[name]


def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    locked = False

    def password() -> str:  # without this OpenSSL asks at the terminal, and waits there for ever
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
            raise _wrong("tls-key", key, "it has a password, and there is nobody to ask for it") from None
        reason = getattr(error, "reason", None) or error
        raise _wrong("tls-cert", f"{cert} with tls-key {key}", f"not a certificate and its key in PEM: {reason}") from None


def _load_roots(context: ssl.SSLContext, path: str) -> None:
    _readable("tls-root-ca-file", path)
    if why := open_to_others(path, os.stat(path)):
        raise UsageError(E_BAD_ARGUMENT, f"tls-root-ca-file {why}")
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise _wrong("tls-root-ca-file", path, f"no certificates in PEM: {getattr(error, 'reason', None) or error}") from None


def _readable(option: str, path: str) -> None:
    """OpenSSL's own word for a missing file does not say which one it is."""
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        raise _wrong(option, path, getattr(error, "strerror", None) or str(error)) from None


def _wrong(option: str, value: str, why: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"{option} {value}: {why}")
