"""Conversion of the options of `zsq serve` to `ServeOptions`, with all checks."""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import MutableMapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.durations import spelled
from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ..manage.settings import KEEPING, given_settings
from .option_table import HTTP_LISTEN, NSQ_LISTEN, TOKEN, GivenOptions, key

if TYPE_CHECKING:
    from ....actors.settings.options import (
        AlarmOptions,
        HttpOptions,
        NsqOptions,
        SecurityOptions,
        ServeOptions,
    )

SECRET_BYTES_MAX: Final = 4096
ADVERTISED_MAX: Final = 4
ADDRESS_CHARS_MAX: Final = 200

MSG_TIMEOUT_S_MAX: Final = 24 * 3600  # repeats a constant of transport (a test compares them)


def _check_path(data_dir: Path) -> None:
    """Raise `UsageError` for a path that is no text, because addresses of clients contain it."""
    try:
        str(data_dir).encode()
    except UnicodeEncodeError:
        raise UsageError(
            E_BAD_ARGUMENT, f"--data-dir must be UTF-8, not {str(data_dir)!r}"
        ) from None


def serve_options(given: GivenOptions, environment: MutableMapping[str, str]) -> ServeOptions:
    """Return the checked options. Secrets are removed from the environment."""
    _check_path(given.data_dir)
    gateway, push = ("", "") if given.no_listen else (given.listen, given.listen_push)
    if gateway:
        check_listen(gateway, "--listen")
    if push:
        check_listen(push, "--listen-push")
    from ....actors.security.exposure import check as check_exposure
    from ....actors.settings.options import ServeOptions

    alarms, security = given_alarms(given, environment), given_security(given)
    values = _set_fields(ServeOptions, given) | {
        "gateway": gateway,
        "gateway_push": push,
        "max_msg_size": given.max_msg_size,
        "retention": given_settings(KEEPING, asdict(given)),
        "security": security,
        "advertise": given_addresses(given.advertise),
        "extensions": tuple(filter(None, (alarms, *given_gateways(given)))),
    }
    if given.sleep_after is not None:
        values["sleep_after_s"] = 0.0 if given.sleep_after < 0 else max(1.0, given.sleep_after)
    values["busy_at"] = given.busy_at / 100
    if given.share_after is not None:
        values["share_after_s"] = math.inf if given.share_after < 0 else given.share_after
    if given.bucket:
        values["bucket"] = _checked_bucket(given.bucket, "--bucket")
    if given.bucket_lag is not None:
        values["bucket_lag_s"] = max(0.0, given.bucket_lag)
    if given.bucket_cost is not None:
        values["bucket_costs"] = given.bucket_cost
    options = ServeOptions(**values)
    if given.patience is None:
        patience_s = max(options.patience_s, 2 * options.bucket_lag_s)
        options = replace(options, patience_s=patience_s)
    if options.bucket and options.patience_s < 2 * options.bucket_lag_s:
        raise click.UsageError(
            f"--patience {options.patience_s:g} s is too short for --bucket-lag "
            f"{options.bucket_lag_s:g} s: a primary that is only slow would be taken for dead; "
            "give at least twice that time"
        )
    if options.sync == "bucket" and not (options.bucket and options.bucket_lag_s):
        raise click.UsageError(
            "--sync bucket answers publishes when the bucket has them; give --bucket, and "
            "--bucket-lag with a time"
        )
    if given.cluster:
        options = replace(options, cluster=_checked_cluster(given.cluster, options))
    check_exposure(options)
    return options


def _set_fields(kind: type[Any], given: GivenOptions, prefix: str = "") -> dict[str, Any]:
    """Return the values of the options that are set and have the name of a field of `kind`.

    Times are in seconds. A field whose name ends in `_ms` gets them in milliseconds.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):
        name = field.name.removesuffix("_ms").removesuffix("_s")
        value = getattr(given, f"{prefix}{name}", None)
        if value is not None:
            values[field.name] = int(value * 1000) if field.name.endswith("_ms") else value
    return values


def _checked_cluster(text: str, options: ServeOptions) -> str:
    """Return the URL of the cluster. Raises `UsageError` if the broker cannot belong to it."""
    cluster = _checked_bucket(text, "--cluster")
    if not options.bucket:
        raise click.UsageError(
            f"--cluster needs --bucket with a prefix of this broker alone, such as {cluster}/one"
        )
    if cluster == options.bucket:
        raise click.UsageError(
            f"--cluster and --bucket are both {cluster}: the cluster belongs to all its brokers, "
            f"so give --bucket a prefix of this broker alone, such as {cluster}/one"
        )
    if not options.gateway and not options.advertise:
        raise click.UsageError(
            "--cluster needs an address at which clients reach this broker: remove --no-listen, or "
            "give --advertise tcp://HOST:PORT"
        )
    return cluster


def given_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of --advertise. Raises `click.BadParameter`."""
    addresses = tuple(address.strip() for address in text.split(",")) if text else ()
    for address in addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        is_good = address.startswith("tcp://") and host and not set(host) & set(" /")
        if not is_good or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
            text = f"{address!r} is not an address; use tcp://HOST:PORT with a port from 1 to 65535"
            raise click.BadParameter(text, param_hint="--advertise")
        if len(address) > ADDRESS_CHARS_MAX:
            text = f"an address has at most {ADDRESS_CHARS_MAX} characters, not {len(address)}"
            raise click.BadParameter(text, param_hint="--advertise")
    if len(addresses) > ADVERTISED_MAX:
        text = f"{len(addresses)} addresses are too many: a broker has at most {ADVERTISED_MAX}"
        raise click.BadParameter(text, param_hint="--advertise")
    return addresses


def _checked_bucket(text: str, option: str) -> str:
    """Return the URL. Raises `UsageError`, also if the library that it needs is not installed."""
    from importlib.util import find_spec

    from ....storage.bucket.bucket_url import parse_bucket_url

    url = parse_bucket_url(text)
    if url.scheme != "file" and find_spec("obstore") is None:
        raise click.UsageError(
            f"{option} {url} needs the library of object stores: pip install 'zsq[bucket]'"
        )
    return str(url)


def given_alarms(
    given: GivenOptions, environment: MutableMapping[str, str] = os.environ
) -> AlarmOptions:
    """Return the checked alarm options.

    A receiver that cannot work is refused at the start, not when the first alarm comes.
    """
    from ....actors.settings.options import AlarmOptions

    commands = []
    for text in given.alarm_command:
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(E_BAD_ARGUMENT, f"--alarm-command {text!r}: {error}") from None
        program = shutil.which(argv[0]) if argv else None
        if program is None:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"--alarm-command {text!r}: the program does not exist or is not executable",
            )
        commands.append((os.path.abspath(program), *argv[1:]))
    return AlarmOptions(
        **_set_fields(AlarmOptions, given, "alarm_"),
        webhooks=given.alarm_webhook,
        webhook_token=secret(TOKEN, environment),
        commands=tuple(commands),
    )


def secret(name: str, environment: MutableMapping[str, str]) -> str:
    """Return a secret from the variable, or from the first line of the file that NAME_FILE names.

    Both are removed from the environment, so that no child process inherits them.
    """
    value, path = environment.pop(name, ""), environment.pop(f"{name}_FILE", "")
    if value and path:
        raise UsageError(E_BAD_ARGUMENT, f"{name} and {name}_FILE are both set; unset one of them")
    if path:
        try:
            with Path(path).open(encoding="utf-8") as file:
                value = file.read(SECRET_BYTES_MAX).partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{name}_FILE {path!r} cannot be read: {getattr(error, 'strerror', None) or error}",
            ) from None
        if not value:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{name}_FILE {path!r}: the first line is empty; it must hold the secret",
            )
    if not (value.isascii() and value.isprintable()):
        raise UsageError(E_BAD_ARGUMENT, f"{name} may hold only printable ASCII characters")
    return value


def given_gateways(given: GivenOptions) -> tuple[NsqOptions | None, HttpOptions | None]:
    """Return the options of both gateways.

    Those of the NSQ gateway contain the port of the HTTP gateway.
    """
    http, nsq = given_http(given), given_nsq(given)
    if http is not None and nsq is not None:
        nsq = replace(nsq, http_port=int(http.listen.rpartition(":")[2]))
    if given.nsq_lookupd_tcp_address:
        _check_announced(nsq)
    return nsq, http


def _check_announced(nsq: NsqOptions | None) -> None:
    """Refuse a node that every nsqlookupd would refuse again and again (`E_BAD_BODY`).

    Such a node has no TCP port or no HTTP port. Raises `click.UsageError`.
    """
    if nsq is None:
        raise click.UsageError(
            "--nsq-lookupd-tcp-address needs the NSQ gateway; remove --no-nsq, or give --nsq-listen"
        )
    if not nsq.broadcast_tcp_port and all(place.startswith("unix:") for place in nsq.listen):
        missing = "a TCP port, but --nsq-listen has only unix sockets; add --nsq-listen HOST:PORT"
        raise click.UsageError(
            f"nsqlookupd accepts only nodes with {missing}, or give a port with "
            "--nsq-broadcast-tcp-port"
        )
    if not nsq.broadcast_http_port and not nsq.http_port:
        missing = (
            "an HTTP port, but the HTTP gateway is off; give --http-listen HOST:PORT (it needs "
            "zsq[http]) instead of --no-http"
        )
        raise click.UsageError(
            f"nsqlookupd accepts only nodes with {missing}, or give a port with "
            "--nsq-broadcast-http-port"
        )


def given_nsq(given: GivenOptions) -> NsqOptions | None:
    """Return the checked options of the NSQ gateway, or None if it is not started."""
    from importlib.util import find_spec

    from ....actors.settings.options import NsqOptions, TlsOptions

    if given.no_nsq or (given.no_listen and not given.nsq_listen):
        if given.nsq_listen:
            raise click.UsageError("--no-nsq and --nsq-listen exclude each other")
        return None
    for place in given.nsq_listen:
        check_listen(place, "--nsq-listen", unix=True)
    tls = {
        "cert": given.nsq_tls_cert, "key": given.nsq_tls_key, "root_ca": given.nsq_tls_root_ca_file,
        "client_auth": given.nsq_tls_client_auth_policy, "required": given.nsq_tls_required, "min_version": given.nsq_tls_min_version,
    }  # fmt: skip
    if (tls["cert"] is None) != (tls["key"] is None):
        raise click.UsageError("--nsq-tls-cert and --nsq-tls-key must be given together")
    if not tls["cert"] and any(tls.values()):
        raise click.UsageError("the TLS options need --nsq-tls-cert and --nsq-tls-key")
    if tls["client_auth"] == "require-verify" and not tls["root_ca"]:
        raise click.UsageError(
            "--nsq-tls-client-auth-policy require-verify needs --nsq-tls-root-ca-file"
        )
    for option in ("nsq_auth_http_address", "nsq_lookupd_tcp_address"):
        for place in getattr(given, option):
            check_listen(place, f"--{key(option)}")
    if given.nsq_auth_http_address and find_spec("re2") is None:
        text = (
            "--nsq-auth-http-address needs google-re2, which applies the patterns of auth "
            "servers: pip install 'zsq[nsq]'"
        )
        raise click.UsageError(text)
    values = _set_fields(NsqOptions, given, "nsq_") | {
        "listen": given.nsq_listen or (NSQ_LISTEN,),
        "given": bool(given.nsq_listen),
        "tls": TlsOptions(**{name: str(value) for name, value in tls.items() if value}),
        "deflate": not given.nsq_no_deflate,
        "snappy": not given.nsq_no_snappy,
        "auth_http_addresses": given.nsq_auth_http_address,
        "lookupd_tcp_addresses": given.nsq_lookupd_tcp_address,
    }
    options = NsqOptions(**values)
    _check_timeouts(options.msg_timeout_ms / 1000, options.max_msg_timeout_ms / 1000)
    return options


def _check_timeouts(usual: float, longest: float) -> None:
    """Refuse time-outs above 24 hours, the limit of a channel's leases.

    The gateway would otherwise promise times that are refused at SUB.
    """
    if not 1 <= longest <= MSG_TIMEOUT_S_MAX:
        raise click.UsageError(
            f"--nsq-max-msg-timeout must be from 1s to 24h, not {spelled(longest)}"
        )
    if not 1 <= usual <= longest:
        raise click.UsageError(
            f"--nsq-msg-timeout must be from 1s to --nsq-max-msg-timeout ({spelled(longest)}), "
            f"not {spelled(usual)}"
        )


def given_http(given: GivenOptions) -> HttpOptions | None:
    """Return the options of the HTTP gateway, or None if it is not started.

    It is not started by default if its libraries are not installed.
    """
    from importlib.util import find_spec

    from ....actors.settings.options import HttpOptions

    listen = given.http_listen
    if given.no_http or (given.no_listen and not listen):
        if listen:
            raise click.UsageError("--no-http and --http-listen exclude each other")
        return None
    if listen:
        check_listen(listen, "--http-listen")
    missing = [
        name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None
    ]
    if missing and listen:
        raise click.UsageError(f"--http-listen needs {', '.join(missing)}: pip install 'zsq[http]'")
    cert, key = _absolute(given.http_tls_cert), _absolute(given.http_tls_key)
    if bool(cert) != bool(key):
        raise click.UsageError("--http-tls-cert and --http-tls-key must be given together")
    if missing:
        return None
    console = str(Path(__file__).resolve().parents[2] / "console")
    return HttpOptions(
        listen or HTTP_LISTEN, bool(listen), None, cert, key, given.http_allowed_host, console
    )


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def check_listen(place: str, option: str, *, unix: bool = False) -> None:
    """Check that `place` can be an address to listen on. Raises `click.BadParameter`.

    With `unix`, unix:PATH is accepted too.
    """
    if unix and place.startswith("unix:") and len(place) > len("unix:"):
        return
    host, colon, port = place.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        text = f"{place!r} is not an address; use HOST:PORT with a port from 1 to 65535"
        raise click.BadParameter(text + (", or unix:PATH" if unix else ""), param_hint=option)


def given_security(given: GivenOptions) -> SecurityOptions:
    """Return the checked security options.

    Files that cannot be used are refused before the broker starts.
    """
    from ....actors.settings.options import SecurityOptions

    access, key = _absolute(given.access), _absolute(given.curve_key)
    options = SecurityOptions(access, key, given.insecure)
    if not access and not key:
        return options
    from ....actors.security.access import AccessError
    from ....actors.security.curve import CurveAuthentication, check, load_rules

    try:
        if not given.no_listen:
            CurveAuthentication(options)
        elif access:
            load_rules(access)
        if key and not access:
            check(options, None)
    except AccessError as error:
        raise click.UsageError(str(error)) from None
    return options
