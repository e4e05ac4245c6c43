"""Options of `zsq serve` for its NSQ and HTTP gateways; named as nsqd names them, with `--nsq-` before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from .quantities import Seconds

if TYPE_CHECKING:
    from ...actors.nsq.options import HttpOptions, NsqOptions

Command = TypeVar("Command", bound=Callable[..., Any])

# These repeat actors/nsq/options.py (a test compares them): help should come at once.
NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"
MSG_TIMEOUT_S: Final = 60
MSG_TIMEOUT_S_MAX: Final = 900
_MS: Final = (
    "nsq_msg_timeout",
    "nsq_max_msg_timeout",
    "nsq_max_req_timeout",
    "nsq_max_heartbeat_interval",
    "nsq_max_output_buffer_timeout",
)


def with_nsq(command: Command) -> Command:
    many: dict[str, Any] = {"multiple": True}
    file: dict[str, Any] = {"metavar": "FILE", "type": click.Path(exists=True, dir_okay=False, path_type=Path)}
    time: dict[str, Any] = {"metavar": "TIME", "type": Seconds()}

    def at_least(low: int) -> dict[str, Any]:
        return {"metavar": "N", "type": click.IntRange(min=low)}

    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--nsq-listen", {"metavar": "HOST:PORT", **many}, f"Where NSQ clients connect, or unix:PATH. Repeatable. {NSQ_LISTEN} if free."),
        ("--no-nsq", {"is_flag": True}, "No NSQ gateway."),
        ("--http-listen", {"metavar": "HOST:PORT"}, f"Where the HTTP API listens (zsq[http]). {HTTP_LISTEN} if free."),
        ("--no-http", {"is_flag": True}, "No HTTP gateway."),
        ("--http-tls-cert", file, "Certificate of the HTTP gateway, PEM; with it HTTP is spoken with TLS only (1.2 or later)."),
        ("--http-tls-key", file, "Its key, PEM."),
        ("--http-allowed-host", {"metavar": "HOST", **many}, "Another name by which browsers may call it. Repeatable."),
        ("--nsq-lookupd-tcp-address", {"metavar": "HOST:PORT", **many}, "Register with this nsqlookupd. Repeatable."),
        ("--nsq-broadcast-address", {"metavar": "HOST"}, "Where lookups say that this node is; default: where it listens."),
        ("--nsq-broadcast-tcp-port", {"metavar": "PORT", "type": click.IntRange(1, 65535)}, "The port they name (--nsq-listen's)."),
        ("--nsq-broadcast-http-port", {"metavar": "PORT", "type": click.IntRange(1, 65535)}, "The same for HTTP."),
        ("--nsq-auth-http-address", {"metavar": "HOST:PORT", **many}, "Ask this server what an NSQ client may do. Repeatable."),
        ("--nsq-auth-http-method", {"type": click.Choice(["get", "post"])}, "How it is asked (get)."),
        ("--nsq-tls-cert", file, "Certificate of the NSQ gateway, PEM; with it clients may ask for TLS."),
        ("--nsq-tls-key", file, "Its key, PEM."),
        ("--nsq-tls-root-ca-file", file, "Who may sign clients' certificates, PEM."),
        (
            "--nsq-tls-client-auth-policy",
            {"type": click.Choice(["require", "require-verify"])},
            "Clients show a certificate; none comes without TLS then.",
        ),
        ("--nsq-tls-required", {"type": click.Choice(["true", "tcp-https"])}, "No NSQ client without TLS; `tcp-https`: HTTP may be plain."),
        ("--nsq-tls-min-version", {"type": click.Choice(["tls1.0", "tls1.1", "tls1.2", "tls1.3"])}, "The oldest version taken (tls1.2)."),
        ("--nsq-no-deflate", {"is_flag": True}, "Offer no deflate."),
        ("--nsq-no-snappy", {"is_flag": True}, "Offer no snappy."),
        ("--nsq-max-deflate-level", {"metavar": "N", "type": click.IntRange(1, 9)}, "At most this level (6)."),
        ("--nsq-max-rdy-count", at_least(1), "How many messages a client may ask for at a time (2500)."),
        ("--nsq-msg-timeout", time, "How long a client may hold a message if it does not say (60s)."),
        ("--nsq-max-msg-timeout", time, "How long it may at most, with TOUCH (15m; no more)."),
        ("--nsq-max-req-timeout", time, "The longest delay of REQ and DPUB (1h)."),
        ("--nsq-max-heartbeat-interval", time, "The longest a client may ask for (60s)."),
        ("--nsq-max-output-buffer-size", at_least(64), "Bytes (65536)."),
        ("--nsq-max-output-buffer-timeout", time, "The longest that output may wait (30s)."),
        ("--nsq-max-channel-consumers", at_least(0), "NSQ consumers of a channel; 0: any number."),
        ("--nsq-topology-region", {"metavar": "NAME"}, "Where this node says it is."),
        ("--nsq-topology-zone", {"metavar": "NAME"}, "And where there."),
    )  # fmt: skip
    for name, more, text in reversed(rows):
        command = click.option(name, help=text, **more)(command)
    return command


def given_gateways(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of both, which speak of each other: `nsq` and `http` of `ServeOptions`."""
    from dataclasses import replace

    http, nsq = given_http(options), given_nsq(options)
    if http is not None and nsq is not None:
        nsq = replace(nsq, http_port=int(http.listen.rpartition(":")[2]))
    return {"nsq": nsq, "http": None if http is None else replace(http, nsq=nsq)}


def given_nsq(options: Mapping[str, Any]) -> NsqOptions | None:
    """What was said of the NSQ gateway, checked; None for none."""
    from ...actors.nsq.options import NsqOptions, TlsOptions

    listen = tuple(options["nsq_listen"])
    if options["no_nsq"] or (options["no_listen"] and not listen):
        if listen:
            raise click.UsageError("--no-nsq and --nsq-listen exclude each other")
        return None
    for one in listen:
        _check(one, "--nsq-listen", unix=True)
    tls = {name: str(options[f"nsq_tls_{key}"] or "") for name, key in _TLS.items()}
    if bool(tls["cert"]) != bool(tls["key"]):
        raise click.UsageError("--nsq-tls-cert and --nsq-tls-key belong together")
    if not tls["cert"] and any(tls.values()):
        raise click.UsageError("TLS needs --nsq-tls-cert and --nsq-tls-key")
    if tls["client_auth"] == "require-verify" and not tls["root_ca"]:
        raise click.UsageError("--nsq-tls-client-auth-policy require-verify needs --nsq-tls-root-ca-file: who may sign?")
    for option in ("nsq_auth_http_address", "nsq_lookupd_tcp_address"):
        for one in options[option]:
            _check(one, "--" + option.replace("_", "-"))
    _check_timeouts(options)
    more: dict[str, Any] = {}
    for option in _PLAIN:
        if options[option] is not None:
            name = option.removeprefix("nsq_")
            more[f"{name}_ms" if option in _MS else name] = int(options[option] * 1000) if option in _MS else options[option]
    return NsqOptions(
        listen=listen or (NSQ_LISTEN,),
        given=bool(listen),
        tls=TlsOptions(**{name: value for name, value in tls.items() if value}),
        deflate=not options["nsq_no_deflate"],
        snappy=not options["nsq_no_snappy"],
        auth_http_addresses=tuple(options["nsq_auth_http_address"]),
        lookupd_tcp_addresses=tuple(options["nsq_lookupd_tcp_address"]),
        **more,
    )


def _check_timeouts(options: Mapping[str, Any]) -> None:
    """A channel holds no message longer than 15 minutes for anybody: more would be promised here, and refused at SUB."""
    usual, longest = options["nsq_msg_timeout"], options["nsq_max_msg_timeout"]
    longest = MSG_TIMEOUT_S_MAX if longest is None else longest
    if not 1 <= longest <= MSG_TIMEOUT_S_MAX:
        raise click.UsageError("--nsq-max-msg-timeout is 1s to 15m")
    if not 1 <= (MSG_TIMEOUT_S if usual is None else usual) <= longest:
        raise click.UsageError("--nsq-msg-timeout (60s) is 1s to --nsq-max-msg-timeout (15m)")


_TLS: Final = {
    "cert": "cert", "key": "key", "root_ca": "root_ca_file", "client_auth": "client_auth_policy", "required": "required",
    "min_version": "min_version",
}  # fmt: skip
_PLAIN: Final = (
    *_MS, "nsq_broadcast_address", "nsq_broadcast_tcp_port", "nsq_broadcast_http_port", "nsq_auth_http_method", "nsq_max_deflate_level",
    "nsq_max_rdy_count", "nsq_max_output_buffer_size", "nsq_max_channel_consumers", "nsq_topology_region", "nsq_topology_zone",
)  # fmt: skip


def given_http(options: Mapping[str, Any]) -> HttpOptions | None:
    """What was said of the HTTP gateway; None for none, or where its libraries are not installed and nobody asked for it."""
    from importlib.util import find_spec

    from ...actors.nsq.options import HttpOptions

    listen = options["http_listen"]
    if options["no_http"] or (options["no_listen"] and not listen):
        if listen:
            raise click.UsageError("--no-http and --http-listen exclude each other")
        return None
    if listen:
        _check(listen, "--http-listen")
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing and listen:
        raise click.UsageError(f"--http-listen needs {', '.join(missing)}: pip install 'zsq[http]'")
    cert, key = (str(options[name].absolute()) if options[name] else "" for name in ("http_tls_cert", "http_tls_key"))
    if bool(cert) != bool(key):
        raise click.UsageError("--http-tls-cert and --http-tls-key belong together")
    more: dict[str, Any] = {"tls_cert": cert, "tls_key": key, "allowed_hosts": tuple(options["http_allowed_host"])}
    more["console"] = str(Path(__file__).resolve().parents[1] / "console")
    return None if missing else HttpOptions(listen=listen or HTTP_LISTEN, given=bool(listen), **more)


def _check(place: str, option: str, *, unix: bool = False) -> None:
    if unix and place.startswith("unix:") and len(place) > len("unix:"):
        return
    host, colon, port = place.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(
            f"{place!r} is not HOST:PORT with a port of 1 to 65535" + (", nor unix:PATH" if unix else ""), param_hint=option
        )
