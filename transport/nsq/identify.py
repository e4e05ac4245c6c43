"""IDENTIFY: the values that a client requests, and the values that the gateway grants.

The body is decoded as in nsqd (Go's JSON into typed fields). Upper and lower case make no
difference in field names. If a field appears several times, the last one is used. null changes
nothing. An unknown field is ignored. A value of the wrong type makes the whole body invalid.

The client may not be authenticated. So the parser limits the size of the body
(IDENTITY_BYTES_MAX), and this module checks the depth before the JSON decoder gets the body.
Strings are cut to STRING_BYTES_MAX, because they are kept and reported as long as the connection
lasts. Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .errors import E_BAD_BODY, E_IDENTIFY_FAILED, NsqError
from .limits import (
    DEFLATE_LEVEL_DEFAULT,
    HEARTBEAT_INTERVAL_MS_MIN,
    JSON_DEPTH_MAX,
    MSG_TIMEOUT_MS_MIN,
    OUTPUT_BUFFER_SIZE_MIN,
    SAMPLE_RATE_MAX,
    STRING_BYTES_MAX,
    NsqLimits,
)

_INT64: Final = range(-(1 << 63), 1 << 63)
_INT32: Final = range(-(1 << 31), 1 << 31)


class _Asked(NamedTuple):
    """The fields of the body. A field accepts only values of the type of its default."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client, and the values that were agreed with it.

    `heartbeat_ms` and `output_buffer_timeout_ms` are 0 for no heartbeats and no timeout.
    """

    limits: NsqLimits
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_ms: int = 30_000
    msg_timeout_ms: int = 60_000
    sample_rate: int = 0
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout_ms: int = 250
    tls: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL_DEFAULT
    snappy: bool = False
    topology_region: str = ""
    topology_zone: str = ""

    @classmethod
    def unknown(cls, limits: NsqLimits) -> ClientIdentity:
        """Return the identity of a client that has not sent IDENTIFY."""
        return cls(
            limits,
            heartbeat_ms=limits.client_timeout_ms // 2,
            msg_timeout_ms=limits.msg_timeout_ms,
            output_buffer_size=limits.output_buffer_size,
            output_buffer_timeout_ms=limits.output_buffer_timeout_ms,
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to add to the connection, in this order.

        After each layer is added, OK is sent through it.
        """
        return tuple(name for name in ("tls", "snappy", "deflate") if getattr(self, name))

    def answer(self) -> bytes:
        """Return the reply to IDENTIFY."""
        if not self.feature_negotiation:
            return b"OK"
        limits = self.limits
        topology = {
            "topology_region": limits.topology_region,
            "topology_zone": limits.topology_zone,
        }
        if not (self.topology_region or self.topology_zone or any(topology.values())):
            # nsqd 1.3 does not send these fields. So send them only if the client or the gateway
            # has set one of them.
            topology = {}
        return go_json(
            {
                "max_rdy_count": limits.max_rdy_count,
                "version": limits.version,
                "max_msg_timeout": limits.max_msg_timeout_ms,
                "msg_timeout": self.msg_timeout_ms,
                "tls_v1": self.tls,
                "deflate": self.deflate,
                "deflate_level": self.deflate_level,
                "max_deflate_level": limits.max_deflate_level,
                "snappy": self.snappy,
                "sample_rate": self.sample_rate,
                "auth_required": limits.auth_required,
                "output_buffer_size": self.output_buffer_size,
                "output_buffer_timeout": self.output_buffer_timeout_ms,
                **topology,
            }
        )


def go_json(value: Mapping[str, object]) -> bytes:
    """Return JSON as Go writes it.

    It has no spaces, and escapes characters that could end a script in HTML.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode()


def decode(body: bytes, limits: NsqLimits) -> ClientIdentity:
    """Return the identity that a client requests.

    Raises a fatal `NsqError` if it is not allowed.
    """
    try:
        request = _typed(body)
    except (ValueError, RecursionError):
        raise NsqError(E_BAD_BODY, "IDENTIFY failed to decode JSON body") from None
    before = ClientIdentity.unknown(limits)
    heartbeat_ms = _heartbeat(request.heartbeat_interval, before.heartbeat_ms, limits)
    size, timeout_ms = _output_buffer(
        request.output_buffer_size, request.output_buffer_timeout, limits
    )
    if not 0 <= request.sample_rate <= SAMPLE_RATE_MAX:
        raise NsqError(E_BAD_BODY, f"IDENTIFY sample rate ({request.sample_rate}) is invalid")
    msg_timeout_ms = _msg_timeout(request.msg_timeout, limits)
    negotiated = request.feature_negotiation
    deflate = negotiated and limits.deflate and request.deflate
    snappy = negotiated and limits.snappy and request.snappy
    if deflate and snappy:
        raise NsqError(E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    level = (
        request.deflate_level if deflate and request.deflate_level > 0 else DEFLATE_LEVEL_DEFAULT
    )
    return ClientIdentity(
        limits,
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        feature_negotiation=negotiated,
        heartbeat_ms=heartbeat_ms,
        msg_timeout_ms=msg_timeout_ms,
        sample_rate=request.sample_rate,
        output_buffer_size=size,
        output_buffer_timeout_ms=timeout_ms,
        tls=negotiated and limits.tls_v1 and request.tls_v1,
        deflate=deflate,
        deflate_level=min(level, limits.max_deflate_level),
        snappy=snappy,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
    )


def _heartbeat(asked_ms: int, default_ms: int, limits: NsqLimits) -> int:
    if asked_ms == -1:
        return 0
    if asked_ms == 0:
        return default_ms
    if not HEARTBEAT_INTERVAL_MS_MIN <= asked_ms <= limits.max_heartbeat_interval_ms:
        raise NsqError(E_BAD_BODY, f"IDENTIFY heartbeat interval ({asked_ms}) is invalid")
    return asked_ms


def _output_buffer(asked_size: int, asked_ms: int, limits: NsqLimits) -> tuple[int, int]:
    """Return size and timeout. The timeout is checked first. A size of 1 means no buffer."""
    timeout_ms = {-1: 0, 0: limits.output_buffer_timeout_ms}.get(asked_ms, asked_ms)
    if (
        asked_ms not in {-1, 0}
        and not limits.min_output_buffer_timeout_ms
        <= asked_ms
        <= limits.max_output_buffer_timeout_ms
    ):
        raise NsqError(E_BAD_BODY, f"IDENTIFY output buffer timeout ({asked_ms}) is invalid")
    if asked_size == -1:
        return 1, 0
    if asked_size == 0:
        return limits.output_buffer_size, timeout_ms
    if not OUTPUT_BUFFER_SIZE_MIN <= asked_size <= limits.max_output_buffer_size:
        raise NsqError(E_BAD_BODY, f"IDENTIFY output buffer size ({asked_size}) is invalid")
    return asked_size, timeout_ms


def _msg_timeout(asked_ms: int, limits: NsqLimits) -> int:
    if asked_ms == 0:
        return limits.msg_timeout_ms
    if not MSG_TIMEOUT_MS_MIN <= asked_ms <= limits.max_msg_timeout_ms:
        raise NsqError(E_BAD_BODY, f"IDENTIFY msg timeout ({asked_ms}) is invalid")
    return asked_ms


# The pattern is possessive, and the closing quote is optional. So any input takes only one pass.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def _check_depth(body: bytes) -> None:
    """Raise `ValueError` if objects and lists are nested more than JSON_DEPTH_MAX deep."""
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH_MAX:
        return
    depth = 0
    for char in _STRING.sub(b"", body):
        if char in b"[{":
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise ValueError("nested too deeply")
        elif char in b"]}":
            depth -= 1


def cut_string(text: str) -> str:
    """Return the text, cut to STRING_BYTES_MAX bytes of UTF-8 between two characters."""
    if len(text) * 4 <= STRING_BYTES_MAX:
        return text
    return (
        text[:STRING_BYTES_MAX]
        .encode("utf-8", "replace")[:STRING_BYTES_MAX]
        .decode("utf-8", "ignore")
    )


def _typed(body: bytes) -> _Asked:
    """Return all fields with values of their types.

    Raises `ValueError` if the body is not such a document.
    """
    _check_depth(body)
    document = json.loads(
        body.decode("utf-8", "replace"),
        object_pairs_hook=_Pairs,
        parse_constant=_refuse,
        parse_float=_Other,
        parse_int=_integer,
    )
    if document is None:
        return _Asked()
    if not isinstance(document, _Pairs):
        raise ValueError("not an object")
    defaults, values = _Asked._field_defaults, {}
    for name, value in document:
        name = name.lower()
        if name not in defaults or value is None:
            continue
        if type(value) is not type(defaults[name]):
            raise ValueError(name)
        if isinstance(value, str):  # replace single halves of surrogate pairs
            value = cut_string(
                value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            )
        elif type(value) is int and value not in (_INT32 if name == "sample_rate" else _INT64):
            raise ValueError(name)
        values[name] = value
    return _Asked(**values)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its names in order. If names are equal, the last one is used."""


class _Other(str):
    """A number that is not an integer. No field has this type."""


def _integer(text: str) -> int | _Other:
    """Return the number, or `_Other` if it is far too long.

    `_typed` refuses a number beyond int64 in a known field, and ignores it in an unknown field.
    """
    return int(text) if len(text) < 25 else _Other(text)


def _refuse(name: str) -> Any:
    raise ValueError(name)
