"""Authentication of the ZeroMQ gateway's clients: of connections and of each message.

There are three modes:

* Without an access file every client is `EVERYBODY`, as on a private machine.
* With an access file and a key pair (CURVE) only clients whose public key is in the file can
  connect. libzmq gives the key of each message's sender. Only that key decides: a client may choose
  its routing id, and another client may use that id later.
* With an access file but without a key pair, every client has the permissions of the file's
  `[anonymous]` table.

The gateway cannot close a single connection. But when a key is removed from the file, it loses all
permissions at once.

`answer_zap` answers libzmq's authentication requests, by ZAP 1.0 (RFC 27) for the mechanism CURVE.
It is pure. A request comes only after a client has proved that it has the secret of its public key,
so unknown clients cannot keep the gateway busy. Any other mechanism, domain or form is refused.

Rejected: pyzmq's authenticator. It is a coroutine, and this gateway runs no event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import zmq
from zmq.utils import z85

from ...transport.errors import E_BAD_ARGUMENT, Refused
from ...transport.wire.credentials import KEY_BYTES, open_to_others, read_key_file
from ..settings.options import SecurityOptions
from .access import Access, AccessError
from .complaints import Complaints
from .policy import EVERYBODY, NOBODY, AccessPolicy, Principal

if TYPE_CHECKING:
    from ..runtime.port import Port


ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
ZAP_DOMAIN: Final = b"zsq"
MECHANISM: Final = b"CURVE"
_FRAMES: Final = 7  # version, request id, domain, address, identity, mechanism, the public key


def answer_zap(frames: Sequence[bytes], known: Callable[[str], bool]) -> tuple[list[bytes], str]:
    """Return the frames of the reply, and the reason if the client is refused, else "".

    `known` returns True if a public key (Z85) may connect. The key becomes the User-Id.
    """
    version, request = [*frames, b"", b""][:2]
    if len(frames) != _FRAMES or version != VERSION:
        return [VERSION, request, b"500", b"not ZAP 1.0", b"", b""], "the request is not ZAP 1.0"
    domain, address, mechanism, key = (
        frames[2],
        frames[3].decode(errors="replace"),
        frames[5],
        frames[6],
    )
    if domain != ZAP_DOMAIN or mechanism != MECHANISM or len(key) != KEY_BYTES:
        return [
            VERSION,
            request,
            b"400",
            b"CURVE is required",
            b"",
            b"",
        ], f"{address}: the client does not use CURVE"
    public = z85.encode(key).decode()
    if not known(public):
        return [
            VERSION,
            request,
            b"400",
            b"unknown key",
            b"",
            b"",
        ], f"{address}: unknown public key {public}"
    return [VERSION, request, b"200", b"OK", public.encode(), b""], ""


ZAP_DRAIN_MAX: Final = 256
GIVEN_NAME_BYTES: Final = 5  # the length of a routing id that libzmq assigns
HANDSHAKE_MS: Final = 5_000  # a connection whose handshake takes longer is closed


class CurveAuthentication:
    """The authentication of one gateway. The constructor opens no socket.

    Raises `AccessError`, or `UsageError` (E_BAD_KEY) if the file is not a server's key file.
    """

    def __init__(self, security: SecurityOptions) -> None:
        access = load_rules(security.access_file) if security.access_file else None
        self.policy = AccessPolicy(access) if access is not None else None
        self._secret = (
            read_key_file(security.curve_key_file, ("public", "secret"))["secret"]
            if security.curve_key_file
            else ""
        )
        self.complaints = Complaints()
        check(security, access)

    @property
    def encrypts(self) -> bool:
        return bool(self._secret)

    @property
    def closed(self) -> bool:
        """True if there is an access file, so that some actions need a permission."""
        return self.policy is not None

    def guard(self, port: Port) -> None:
        """Set a port's security options. Call it before the port is bound."""
        port.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if self._secret:
            port.socket.setsockopt(zmq.CURVE_SERVER, 1)
            port.socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())
            port.socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            # With this option, libzmq refuses a connection whose request gets no answer.
            port.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def answer(self, port: Port) -> None:
        """Answer libzmq's requests.

        A call answers at most ZAP_DRAIN_MAX requests, so that the links are not delayed.
        """
        for _ in range(ZAP_DRAIN_MAX):
            try:
                frames = port.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply, why = answer_zap(
                frames[2:],
                lambda key: self.policy is not None and self.policy.by_curve(key) is not None,
            )
            if why:
                self.complaints.add("refused a connection: %s", why)
            port.send_frames([*frames[:2], *reply])

    def key(self, frame: Any) -> str:
        """Return the key of a message's sender, to be compared with that of its link.

        It is "" without CURVE.
        """
        if not self._secret:
            return ""
        found = frame.get("User-Id")
        return found if isinstance(found, str) else str(found, "ascii", "replace")

    def address(self, frame: Any) -> str:
        """Return the sender's address without the port."""
        try:
            return str(frame.get("Peer-Address"))
        except zmq.ZMQError:
            return ""

    def chose_its_name(self, client: bytes, frame: Any) -> bool:
        """Return True if the client chose its routing id. ZSQ's clients never do.

        Such a client may take the id of another client when that client has left, and get its
        answers. The id itself is checked too: if a handshake contains Identity twice, libzmq uses
        the last one as routing id and reports the first. Ids that pass have the form of libzmq's
        ids: a zero and 32 bits of a counter with a random start. So a client cannot know the id of
        another client.
        """
        if not self.closed:
            return False
        if len(client) != GIVEN_NAME_BYTES or client[0]:
            return True
        try:
            return bool(frame.get("Identity"))
        except UnicodeDecodeError:
            return True
        except zmq.ZMQError:
            return False  # the handshake had no Identity; only libzmq's own clients always send one

    def principal(self, key: str) -> Principal:
        """Return the principal of a key under the current rules."""
        if self.policy is None:
            return EVERYBODY
        found = self.policy.by_curve(key) if self._secret else self.policy.anonymous
        return found or NOBODY

    def reload(self, access_file: str) -> None:
        """Read the rules again. A gateway that started without an access file stays without one.

        Raises `Refused` if the file cannot be used. The old rules then stay.
        """
        if self.policy is None or not access_file:
            return
        try:
            self.policy = AccessPolicy(load_rules(access_file))
        except AccessError as error:
            raise Refused(E_BAD_ARGUMENT, str(error)) from None


def check(security: SecurityOptions, access: Access | None) -> None:
    """Raise `AccessError` if a gateway would admit no client, or any client that makes a key."""
    if security.curve_key_file and access is None:
        text = (
            "a key pair alone admits every client, because any client can make one; list the "
            "permitted keys with --access FILE"
        )
        raise AccessError(f"--curve-key: {text}")
    if access is not None and not security.curve_key_file and access.anonymous is None:
        text = (
            "no client could connect to ZeroMQ's TCP port: give --curve-key FILE (`zsq keys "
            "server` makes one) or --no-listen,"
        )
        raise AccessError(
            f"--access: {text} or add the table [anonymous] with permissions to the file"
        )


def load_rules(path: str) -> Access:
    """Load the access file of a gateway.

    Raises `AccessError`, also if other users of this machine can write to the file.
    """
    try:
        why = open_to_others(path, os.stat(path))
    except OSError as error:
        raise AccessError(
            f"the access file {path} cannot be read: {error.strerror or error}"
        ) from None
    if why:
        raise AccessError(f"the access file {why}")
    return Access.load(path)
