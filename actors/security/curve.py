"""The ZeroMQ gateway's doors: who comes in, who that is on every message, and new rules while it runs.

Three ways to stand:

* without an access file everybody is `EVERYBODY`, as on a machine of one's own;
* with one and a key pair (CURVE) only those whose public key stands in it get a connection, and libzmq says on every message by which key
  it came: that decides, not what the client calls itself. A routing id may be chosen by the client, and be used by another one later;
* with an access file alone all are its `[anonymous]`.

A connection cannot be cut from here, but a key that is taken out of the file opens nothing any more from that moment on.

ZeroMQ's questions about who connects, and the answers: ZAP 1.0 (RFC 27) for the mechanism CURVE. Pure.

A question comes from within libzmq once a client has proved that it has the secret of its public key. Only then, so whoever answers is not
kept busy by strangers. What is asked with anything else than CURVE, in a foreign domain or in another form is refused.

pyzmq has an authenticator of its own; it is a coroutine, and this gateway turns no event loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import zmq
from zmq.utils import z85

from ...transport.errors import E_BAD_ARGUMENT, Refused
from ...transport.wire.credentials import KEY_BYTES, open_to_others, read_key_file
from ..settings.options import SecurityOptions
from .access import Access, AccessError
from .policy import EVERYBODY, NOBODY, AccessPolicy, Principal

if TYPE_CHECKING:
    from ..runtime.port import Port


ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
ZAP_DOMAIN: Final = b"zsq"
MECHANISM: Final = b"CURVE"
_FRAMES: Final = 7  # version, request id, domain, address, identity, mechanism, the public key


def answer_zap(frames: Sequence[bytes], known: Callable[[str], bool]) -> tuple[list[bytes], str]:
    """(the reply's frames, why it was refused or ""). `known`: whether this public key (Z85) may come in; it becomes the User-Id."""
    version, request = [*frames, b"", b""][:2]
    if len(frames) != _FRAMES or version != VERSION:
        return [VERSION, request, b"500", b"not ZAP 1.0", b"", b""], "a question that is not ZAP 1.0"
    domain, address, mechanism, key = frames[2], frames[3].decode(errors="replace"), frames[5], frames[6]
    if domain != ZAP_DOMAIN or mechanism != MECHANISM or len(key) != KEY_BYTES:
        return [VERSION, request, b"400", b"CURVE is wanted", b"", b""], f"{address}: no CURVE"
    public = z85.encode(key).decode()
    if not known(public):
        return [VERSION, request, b"400", b"unknown key", b"", b""], f"{address}: unknown public key {public}"
    return [VERSION, request, b"200", b"OK", public.encode(), b""], ""


log = logging.getLogger("zsq")

ZAP_DRAIN_MAX: Final = 256
COMPLAINT_S: Final = 10.0
GIVEN_NAME_BYTES: Final = 5  # of a routing id that libzmq gives
HANDSHAKE_MS: Final = 5_000  # a connection that is not through with it by then is closed


class CurveAuthentication:
    """Opens nothing; raises `AccessError`, or `UsageError` E_BAD_KEY for what is no key file of a server."""

    def __init__(self, security: SecurityOptions) -> None:
        access = load_rules(security.access_file) if security.access_file else None
        self.policy = AccessPolicy(access) if access is not None else None
        self._secret = read_key_file(security.curve_key_file, ("public", "secret"))["secret"] if security.curve_key_file else ""
        self.refused = 0
        self._untold = 0
        self._told_s = -COMPLAINT_S
        check(security, access)

    @property
    def encrypts(self) -> bool:
        return bool(self._secret)

    @property
    def closed(self) -> bool:
        """Whether there is anything that not everybody may do."""
        return self.policy is not None

    def guard(self, port: Port) -> None:
        """Before it is bound."""
        port.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if self._secret:
            port.socket.setsockopt(zmq.CURVE_SERVER, 1)
            port.socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())
            port.socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            port.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no answer is no permission

    def answer(self, port: Port) -> None:
        """Questions of libzmq's that came in: at most so many, so that the links get their turn."""
        for _ in range(ZAP_DRAIN_MAX):
            try:
                frames = port.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply, why = answer_zap(frames[2:], lambda key: self.policy is not None and self.policy.by_curve(key) is not None)
            if why:
                self.complain(f"no connection for {why}")
            port.send_frames([*frames[:2], *reply])

    def complain(self, text: str) -> None:
        """Of who was refused. Strangers could fill the disk with it, so one in a while is told, and how many there were besides."""
        self.refused += 1
        self._untold += 1
        if time.monotonic() - self._told_s < COMPLAINT_S:
            return
        more = f" (and {self._untold - 1} others since the last that was told)" if self._untold > 1 else ""
        self._told_s, self._untold = time.monotonic(), 0
        log.warning("%s%s", text, more)

    def key(self, frame: Any) -> str:
        """By what a message's sender is known; "" for nobody in particular. Compared with that of its link."""
        if not self._secret:
            return ""
        found = frame.get("User-Id")
        return found if isinstance(found, str) else str(found, "ascii", "replace")

    def address(self, frame: Any) -> str:
        """Where a message came from, without the port."""
        try:
            return str(frame.get("Peer-Address"))
        except zmq.ZMQError:
            return ""

    def chose_its_name(self, client: bytes, frame: Any) -> bool:
        """Whether the client chose its routing id. None of ours does; who does may wait for the id of another one, and get its answers.

        The name is looked at, too: of a handshake that says Identity twice libzmq takes the last as routing id, and tells us the first.
        What is left is a name that looks like libzmq's own, a zero and 32 bits of a counter that begins anywhere: nobody knows another's.
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
            return False  # it said nothing of one in its handshake, which only libzmq's own clients always do

    def principal(self, key: str) -> Principal:
        """As the rules are now."""
        if self.policy is None:
            return EVERYBODY
        found = self.policy.by_curve(key) if self._secret else self.policy.anonymous
        return found or NOBODY

    def reload(self, access_file: str) -> None:
        """The rules anew; `Refused` where the file cannot be used, and the old ones hold. With or without one is decided at the start."""
        if self.policy is None or not access_file:
            return
        try:
            self.policy = AccessPolicy(load_rules(access_file))
        except AccessError as error:
            raise Refused(E_BAD_ARGUMENT, str(error)) from None


def check(security: SecurityOptions, access: Access | None) -> None:
    """`AccessError` for what would let nobody in, or everybody where somebody believes otherwise. Of a gateway that listens."""
    if security.curve_key_file and access is None:
        text = "a key pair alone keeps nobody out: any client may make one; say with --access FILE who may come in"
        raise AccessError(f"--curve-key: {text}")
    if access is not None and not security.curve_key_file and access.anonymous is None:
        text = "nobody could come in by ZeroMQ's TCP port: give --curve-key FILE (`zsq keys server` makes one), or --no-listen,"
        raise AccessError(f"--access: {text} or say in the file what [anonymous] may do")


def load_rules(path: str) -> Access:
    """The access file as a gateway takes it. `AccessError`, also where other users of this machine may write it."""
    try:
        why = open_to_others(path, os.stat(path))
    except OSError as error:
        raise AccessError(f"the access file {path} cannot be read: {error.strerror or error}") from None
    if why:
        raise AccessError(f"the access file {why}")
    return Access.load(path)
