"""Handlers of /config: the values of nsqd's options in this broker.

Names and types are nsqd's. Times are in ns, as in Go's durations. As in nsqd, only `log_level` and
`nsqlookupd_tcp_addresses` can be changed while the broker runs, until it ends. An option is refused
(INVALID_OPTION) if nothing in this broker would apply the change. An option of nsqd is not shown if
ZSQ has nothing that it would be the value of, such as a queue in memory that is synced after some
messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.nsq.layers import snappy_is_here
from .....transport.nsq.limits import NsqLimits
from .....transport.nsq.lookup import Node
from .....transport.units import NS_PER_MS, NS_PER_S
from ....settings.options import HttpOptions, NsqOptions
from ...shared.http_client import CONNECT_S, REQUEST_S
from ..web.body import QueryRequest, share_of
from ..web.limits import HttpLimits
from ..web.places import Limiters
from ..web.responses import answer, api_error, text

# The numbers of TLS versions, as Go has them.
_TLS_VERSIONS: Final = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}
# The names of log levels, with the numbers that nsqd has for them.
LOG_LEVELS: Final = {
    "debug": 1,
    "info": 2,
    "warn": 3,
    "error": 4,
    "fatal": 5,
}
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9_.-]{1,255}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}", re.ASCII
)
ADDRESSES_MAX: Final = 64
Change = Callable[[Any], Awaitable[None]]  # applies a new value; raises `ZsqError` if that fails
Option = str | int | list[str]


def settings(
    node: Node, limits: HttpLimits, options: HttpOptions, log_level: str
) -> dict[str, Option]:
    """Return the values of all options, by nsqd's names."""
    nsq, plain = options.nsq or NsqOptions(listen=()), NsqLimits()
    return {
        "auth_http_addresses": list(nsq.auth_http_addresses),
        "auth_http_request_method": nsq.auth_http_method,
        "broadcast_address": node.broadcast_address,
        "broadcast_http_port": nsq.broadcast_http_port,
        "broadcast_tcp_port": nsq.broadcast_tcp_port,
        "deflate": nsq.deflate,
        "http_address": "" if options.tls_cert else options.listen,
        "http_client_connect_timeout": int(CONNECT_S * NS_PER_S),
        "http_client_request_timeout": int(REQUEST_S * NS_PER_S),
        "https_address": options.listen if options.tls_cert else "",
        "log_level": LOG_LEVELS.get(log_level, LOG_LEVELS["info"]),
        "mem_queue_size": 0,  # ZSQ has no queue in memory
        "max_body_size": limits.max_body_size,
        "max_channel_consumers": nsq.max_channel_consumers,
        "max_deflate_level": nsq.max_deflate_level,
        "max_heartbeat_interval": nsq.max_heartbeat_interval_ms * NS_PER_MS,
        "max_msg_size": limits.max_msg_size,
        "max_msg_timeout": nsq.max_msg_timeout_ms * NS_PER_MS,
        "max_output_buffer_size": nsq.max_output_buffer_size,
        "max_output_buffer_timeout": nsq.max_output_buffer_timeout_ms * NS_PER_MS,
        "max_rdy_count": nsq.max_rdy_count,
        "max_req_timeout": limits.max_req_timeout_ms * NS_PER_MS,
        "min_output_buffer_timeout": plain.min_output_buffer_timeout_ms * NS_PER_MS,
        "msg_timeout": nsq.msg_timeout_ms * NS_PER_MS,
        "nsqlookupd_tcp_addresses": list(nsq.lookupd_tcp_addresses),
        "output_buffer_timeout": plain.output_buffer_timeout_ms * NS_PER_MS,
        "snappy": nsq.snappy and snappy_is_here(),
        "statsd_address": "",  # ZSQ does not use statsd
        "statsd_prefix": "",
        "tcp_address": nsq.listen[0].removeprefix("unix:") if nsq.listen else "",
        "tls_cert": nsq.tls.cert,
        "tls_key": nsq.tls.key,
        "tls_client_auth_policy": nsq.tls.client_auth,
        "tls_min_version": _TLS_VERSIONS[nsq.tls.min_version],
        "tls_root_ca_file": nsq.tls.root_ca,
        "tls_required": {"true": 2, "tcp-https": 1}.get(nsq.tls.required, 0),
        "topology_region": nsq.topology_region,
        "topology_zone": nsq.topology_zone,
    }


def lookupd_addresses(body: bytes) -> list[str]:
    try:
        addresses = json.loads(body)
    except (ValueError, RecursionError):
        raise api_error("INVALID_VALUE") from None
    if not isinstance(addresses, list) or len(addresses) > ADDRESSES_MAX:
        raise api_error("INVALID_VALUE")
    if not all(isinstance(address, str) and _ADDRESS.fullmatch(address) for address in addresses):
        raise api_error("INVALID_VALUE")
    return addresses


def log_level(body: bytes) -> str:
    level = body.decode("latin-1").lower()
    if level not in LOG_LEVELS:
        raise api_error("INVALID_VALUE")
    return level


_READ: Final[dict[str, Callable[[bytes], Any]]] = {
    "nsqlookupd_tcp_addresses": lookupd_addresses,
    "log_level": log_level,
}


class Config:
    """The handlers of /config. `changes` has the functions that apply new values, by option."""

    def __init__(
        self,
        settings: dict[str, Option],
        limiters: Limiters,
        changes: Mapping[str, Change],
    ) -> None:
        self._settings = settings
        self._limiters = limiters
        self._query = QueryRequest(limiters)
        self._changes = changes

    async def get(self, request: Request) -> Response:
        await self._query(request)
        return self._tell(request.path_params["option"])

    async def put(self, request: Request) -> Response:
        option = request.path_params["option"]
        with share_of(request, self._limiters) as share:
            too_big = api_error("INVALID_VALUE", 413)
            body = await share.read(self._limiters.limits.max_msg_size, too_big)
        if not body:
            raise api_error("INVALID_VALUE", 413)
        if option not in self._changes:
            raise api_error("INVALID_OPTION")
        value = _READ[option](body)
        await self._changes[option](value)
        self._settings[option] = LOG_LEVELS[value] if option == "log_level" else value
        return self._tell(option)

    def _tell(self, option: str) -> Response:
        """Return the value of an option: a text unchanged, others as JSON, as in nsqd."""
        if option not in self._settings:
            raise api_error("INVALID_OPTION")
        value = self._settings[option]
        return text(value) if isinstance(value, str) else answer(value)
