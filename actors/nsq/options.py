"""What `zsq serve` is told about its NSQ and HTTP gateways. Pure.

The names and defaults are nsqd's wherever it has them; docs/coming-from-nsq.md sets them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Paths of PEM files; `client_auth`: "", "require" or "require-verify"; `required`: "", "true" or "tcp-https"."""

    cert: str = ""
    key: str = ""
    root_ca: str = ""
    client_auth: str = ""
    required: str = ""
    min_version: str = "tls1.2"


@dataclass(frozen=True, slots=True)
class NsqOptions:
    """`listen`: HOST:PORT or unix:PATH, each; `given`: a person said so, and what cannot be had is an error, not a warning. Times in ms."""

    listen: tuple[str, ...] = (NSQ_LISTEN,)
    given: bool = False
    tls: TlsOptions = TlsOptions()
    deflate: bool = True
    snappy: bool = True
    max_deflate_level: int = 6
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_req_timeout_ms: int = 3_600_000
    max_heartbeat_interval_ms: int = 60_000
    max_output_buffer_size: int = 65_536
    max_output_buffer_timeout_ms: int = 30_000
    max_channel_consumers: int = 0
    auth_http_addresses: tuple[str, ...] = ()
    auth_http_method: str = "get"
    lookupd_tcp_addresses: tuple[str, ...] = ()
    broadcast_address: str = ""
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    http_port: int = 0  # where the HTTP gateway beside it listens; 0 without one
    topology_region: str = ""
    topology_zone: str = ""
    connections_max: int = 10_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """`listen`: HOST:PORT; `given` as above; `nsq`: what /info, /lookup and /nodes say of the NSQ gateway beside this one, None without.

    `tls_cert`, `tls_key`: paths of PEM files, both or none. `allowed_hosts`: names under which clients may call, besides those of this
    machine. `console`: the folder of the console's static files, "" for none.
    """

    listen: str = HTTP_LISTEN
    given: bool = False
    nsq: NsqOptions | None = None
    tls_cert: str = ""
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    console: str = ""
