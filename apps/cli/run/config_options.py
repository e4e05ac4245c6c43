"""Where `zsq serve` gets its options from: a file, the environment, flags, the later over the earlier; by click's own means.

The file is TOML. Its keys are the flags without their dashes; a table is a prefix: `[nsq]` with `listen` is `nsq-listen`. It is checked
whole before anything begins: what is not known, of another type or out of range is refused, with the file, the key and what is allowed.
The variable of an option is ZSQ_SERVE_ and its name in capitals; some have an older name too.

Options of `zsq serve`: from where on a backlog is an alarm, and whom to tell. Secrets come from the environment or from files.

Options of `zsq serve` for its NSQ and HTTP gateways; named as nsqd names them, with `--nsq-` before.

Options of `zsq serve`: who may come in. What they name are files, so that no secret is on a command line.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ..manage.settings import KEEPING
from ..quantities import Count, Lines, Seconds, Size

if TYPE_CHECKING:
    from ....actors.settings.options import AlarmOptions, HttpOptions, NsqOptions, SecurityOptions


Command = TypeVar("Command", bound=Callable[..., Any])

TOKEN: Final = "ZSQ_ALARM_WEBHOOK_TOKEN"
SECRET_BYTES_MAX: Final = 4096


def with_alarms(command: Command) -> Command:
    many: dict[str, Any] = {"multiple": True}
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        (
            "--alarm-command", {"metavar": "COMMAND", "type": Lines(), **many},
            "Run this with the alarms as JSON on stdin; no shell. Repeatable.",
        ),
        (
            "--alarm-webhook", {"metavar": "URL", "envvar": "ZSQ_ALARM_WEBHOOK", **many},
            f"POST alarms there as JSON; a bearer token is {TOKEN} or in the file {TOKEN}_FILE. Repeatable.",
        ),
        ("--alarm-hold", {"type": Seconds(), "metavar": "TIME"}, "How long it must last to be told, and be over to be cleared (10s)."),
        ("--alarm-age", {"type": Seconds(), "metavar": "TIME"}, "The same where a channel's oldest message is older."),
        ("--alarm-depth", {"type": Count(), "metavar": "N"}, "Alarm where more messages wait in a channel, unless it has its own bound."),
    )  # fmt: skip
    for name, more, text in rows:
        command = click.option(name, help=text, **more)(command)
    return command


def given_alarms(options: Mapping[str, Any], environment: MutableMapping[str, str] = os.environ) -> AlarmOptions:
    """What was said, checked: a receiver that cannot work shall be known at the start, not in the night."""
    from ....actors.settings.options import AlarmOptions
    from ....transport.errors import E_BAD_ARGUMENT, UsageError

    commands = []
    for text in options["alarm_command"]:
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(E_BAD_ARGUMENT, f"--alarm-command {text!r}: {error}") from None
        found = shutil.which(argv[0]) if argv else None
        if found is None:
            raise UsageError(E_BAD_ARGUMENT, f"--alarm-command {text!r}: there is no such program, or it may not be run")
        commands.append((os.path.abspath(found), *argv[1:]))
    more = {name: options[f"alarm_{name}"] for name in ("depth", "age", "hold") if options[f"alarm_{name}"] is not None}
    return AlarmOptions(
        webhooks=tuple(options["alarm_webhook"]),
        webhook_token=secret(TOKEN, environment),
        commands=tuple(commands),
        **{{"age": "age_s", "hold": "hold_s"}.get(name, name): value for name, value in more.items()},
    )


def secret(name: str, environment: MutableMapping[str, str]) -> str:
    """From the variable, or the first line of the file that NAME_FILE names. Both leave the environment: no child inherits them."""
    from ....transport.errors import E_BAD_ARGUMENT, UsageError

    value, path = environment.pop(name, ""), environment.pop(f"{name}_FILE", "")
    if value and path:
        raise UsageError(E_BAD_ARGUMENT, f"{name} and {name}_FILE are both set: which is it?")
    if path:
        try:
            with Path(path).open(encoding="utf-8") as file:
                value = file.read(SECRET_BYTES_MAX).partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(E_BAD_ARGUMENT, f"{name}_FILE {path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not value:
            raise UsageError(E_BAD_ARGUMENT, f"{name}_FILE {path!r} is empty")
    if not (value.isascii() and value.isprintable()):
        raise UsageError(E_BAD_ARGUMENT, f"{name} holds characters that cannot be sent")
    return value


PREFIX: Final = "ZSQ_SERVE_"
CONFIG: Final = "ZSQ_CONFIG"
FILE_BYTES_MAX: Final = 1 << 20
SECRETS: Final = (TOKEN,)
RELOADABLE: Final = frozenset(
    {
        *(row.parameter for row in KEEPING), "log_level", "alarm_depth", "alarm_age", "alarm_hold", "alarm_webhook", "alarm_command",
        "access", "nsq_tls_cert", "nsq_tls_key",
        "nsq_tls_root_ca_file", "nsq_tls_client_auth_policy", "nsq_tls_min_version", "http_tls_cert", "http_tls_key",
    }
)  # fmt: skip
"""Options that SIGHUP brings into force (actors/supervisor/reloading.py); the others need a restart."""


class Configured(click.Command):
    """A command whose options may stand in a file and in the environment too. Wrong ones are told by where they stand."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        for option in options_of(self):
            older = () if option.envvar is None else (option.envvar,) if isinstance(option.envvar, str) else tuple(option.envvar)
            own = variable(option)
            option.envvar = [own, *(name for name in older if name != own)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is not None and error.param.name == "data_dir":
                raise click.UsageError(MISSING, ctx) from None
            raise
        except click.NoSuchOption as error:
            _refuse_mail(error.option_name, error.option_name)
            raise
        except click.BadParameter as error:
            name = getattr(error.param, "name", None)
            if name and ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT and isinstance(error.param, click.Option):
                raise UsageError(E_BAD_ARGUMENT, f"{said_in(error.param)}: {error.message}") from None
            raise


_MAIL: Final = re.compile(r"(--|ZSQ_|ZSQ_SERVE_)?alarm[-_](mail|smtp)", re.IGNORECASE)
MISSING: Final = "Say where the data is: --data-dir DIR. (ZSQ_DATA_DIR, or data-dir in the file of --config, does the same.)"
ARGUMENTS: Final = "zsq.arguments"  # of a context's meta: what the command was called with


def options_of(command: click.Command) -> list[click.Option]:
    """Those that may stand in the file."""
    return [one for one in command.params if isinstance(one, click.Option) and one.name not in ("config", "as_json", "help")]


def flag(option: click.Parameter) -> str:
    return max(option.opts, key=len)


def key(option: click.Parameter) -> str:
    return flag(option).removeprefix("--")


def variable(option: click.Parameter) -> str:
    return PREFIX + str(option.name).upper()


def said_in(option: click.Parameter, environment: Mapping[str, str] = os.environ) -> str:
    """Which of its variables it is that counts."""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return next((name for name in names if environment.get(name)), names[0] if names else "")


def _read(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Before all other options: its values become what click takes where neither a flag nor a variable says something."""
    for name in filter(os.environ.get, list(os.environ)):
        _refuse_mail(name, name)
    if path is not None and not context.resilient_parsing:
        context.default_map = read(path, context)
    for name in unknown_variables(context.command):
        click.echo(f"zsq: {name} is set, and there is no such option of zsq serve{_close(name, _variables(context.command))}", err=True)
    return path


config_option = click.option(
    "--config",
    envvar=CONFIG,
    is_eager=True,
    callback=_read,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Options as TOML, named as these without dashes; flags and ZSQ_SERVE_... go before it. {CONFIG} does the same.",
)


def _variables(command: click.Command) -> list[str]:
    return [variable(option) for option in options_of(command)]


def unknown_variables(command: click.Command, environment: Mapping[str, str] = os.environ) -> list[str]:
    """A slip of the pen, most likely. Not refused: orchestrators set such ones for a service that is called zsq-serve."""
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in _variables(command))


def read(path: Path, context: click.Context) -> dict[str, Any]:
    """The file's options by name, checked. `UsageError` says what is wrong in it."""
    options = {key(option): option for option in options_of(context.command)}
    found: dict[str, Any] = {}
    for name, value in _flat(_parsed(path), "", options, path):
        option = options[name]
        if option.name in found:
            raise _wrong(path, name, "said twice, alone and in a table")
        found[str(option.name)] = _checked(path, name, option, value, context)
    return found


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib

    from ....transport.wire.credentials import open_to_others

    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX + 1)
        if stat.S_ISREG(state.st_mode) and (why := open_to_others(path, state)):  # it may name commands that the broker runs
            raise UsageError(E_BAD_ARGUMENT, f"the configuration {why}")
        if len(text) > FILE_BYTES_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB: is it the file that you mean?")
        return tomllib.loads(text.decode())
    except OSError as error:
        raise UsageError(E_BAD_ARGUMENT, f"{path}: {error.strerror or error}: --config or {CONFIG} names it") from None
    except UnicodeDecodeError:
        raise UsageError(E_BAD_ARGUMENT, f"{path}: not TOML, which is text in UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(E_BAD_ARGUMENT, f"{path}: not TOML: {error}") from None


def _flat(table: dict[str, Any], prefix: str, options: Mapping[str, click.Option], path: Path) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        name = prefix + name
        if isinstance(value, dict):
            if not any(one.startswith(f"{name}-") for one in options):
                raise _unknown(path, name, options)
            yield from _flat(value, f"{name}-", options, path)
        elif name not in options:
            raise _unknown(path, name, options)
        else:
            yield name, value


def _refuse_mail(name: str, where: str) -> None:
    """Refuse the options of earlier versions that sent alarms by mail, wherever they stand."""
    if _MAIL.match(name):
        raise UsageError(
            E_BAD_ARGUMENT,
            f'{where}: zsq sends no mail any more; let Alertmanager send it (docs/channels.md, "Alerts by Prometheus"), or name a'
            " program that does by --alarm-command",
        )


def _unknown(path: Path, name: str, options: Mapping[str, click.Option]) -> UsageError:
    _refuse_mail(name, f"{path}: {name}")
    variable_name = "ZSQ_" + name.upper().replace("-", "_")
    if variable_name in SECRETS:
        return _wrong(
            path, name, f"secrets do not stand in this file: set {variable_name}, or {variable_name}_FILE to a file that holds it"
        )
    if name.replace("_", "-") in options:
        return _wrong(path, name, f"no such option; it is written {name.replace('_', '-')}")
    return _wrong(path, name, f"no such option{_close(name, list(options))}; zsq config --help lists all")


def _close(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _wrong(path: Path, name: str, text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"{path}: {name}: {text}")


def _checked(path: Path, name: str, option: click.Option, value: Any, context: click.Context) -> Any:
    """As click takes it."""
    types, allowed = kind(option)
    values = value if option.multiple and isinstance(value, list) else [value]
    for one in values:
        if not isinstance(one, types) or (isinstance(one, bool) and bool not in types):
            raise _wrong(path, name, f"{one!r} is not allowed; {allowed}")
    if isinstance(option.type, click.Path):
        values = [str(path.absolute().parent / one) for one in values]
    elif not option.is_flag:
        values = [one if isinstance(one, str) else repr(one) for one in values]
    try:
        for one in values:
            option.type.convert(one, option, context)
    except click.BadParameter as error:
        raise _wrong(path, name, f"{error.message.rstrip('.')}; {allowed}") from None
    return values if option.multiple else values[0]


def kind(option: click.Option) -> tuple[tuple[type, ...], str]:
    """What TOML may say of it: the types, and the words for that."""
    of = option.type
    types: tuple[type, ...] = (str,)
    if option.is_flag:
        types, words = (bool,), "true or false"
    elif isinstance(of, click.IntRange):
        types, words = (int,), f"a whole number{_range(of)}"
    elif isinstance(of, click.FloatRange):
        types, words = (int, float), f"a number{_range(of)}"
    elif isinstance(of, Seconds):
        types, words = (str, int, float), 'a time as "90s", "15m", "1h30m", "7d", or a number of seconds'
    elif isinstance(of, Size):
        types, words = (str, int), 'a size as "500MB", "10GiB", or a number of bytes'
    elif isinstance(of, Count):
        types, words = (str, int), 'a whole number, or "none"'
    elif isinstance(of, click.Choice):
        words = "one of " + ", ".join(f'"{one}"' for one in of.choices)
    elif isinstance(of, click.Path):
        words = "a path as a text; a relative one begins at this file's folder"
    else:
        words = f"a text{f' ({option.metavar})' if option.metavar else ''}"
    return types, f"allowed is {words}{', or a list of such' if option.multiple else ''}"


def _range(of: click.IntRange | click.FloatRange) -> str:
    if of.min is not None and of.max is not None:
        return f" from {of.min:g} to {of.max:g}"
    return f" of {of.min:g} or more" if of.min is not None else f" up to {of.max:g}" if of.max is not None else ""


def origin(context: click.Context, option: click.Parameter) -> str:
    """Where its value came from, in words."""
    sources = click.core.ParameterSource
    source = context.get_parameter_source(str(option.name))
    if source is sources.ENVIRONMENT:
        return f"environment variable {said_in(option)}"
    if source is sources.DEFAULT_MAP:
        return f"file {context.params.get('config')}"
    return "flag" if source is sources.COMMANDLINE else "default"


# These repeat actors/settings/options.py (a test compares them): help should come at once.
NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"
MSG_TIMEOUT_S: Final = 60
MSG_TIMEOUT_S_MAX: Final = 900


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
    if options["nsq_lookupd_tcp_address"]:
        _check_announced(nsq)
    return {"nsq": nsq, "http": None if http is None else replace(http, nsq=nsq)}


def _check_announced(nsq: NsqOptions | None) -> None:
    """`UsageError` for a node that every nsqlookupd refuses (`E_BAD_BODY`), again and again: one without a TCP port or an HTTP port."""
    if nsq is None:
        raise click.UsageError("--nsq-lookupd-tcp-address needs the NSQ gateway: leave out --no-nsq, or give --nsq-listen")
    if not nsq.broadcast_tcp_port and all(one.startswith("unix:") for one in nsq.listen):
        what = (
            "a TCP port, and --nsq-listen has unix sockets only: add --nsq-listen HOST:PORT, or name a port with --nsq-broadcast-tcp-port"
        )
        raise click.UsageError(f"nsqlookupd takes only nodes with {what}")
    if not nsq.broadcast_http_port and not nsq.http_port:
        what = "an HTTP port, and there is no HTTP gateway: give --http-listen HOST:PORT (it needs zsq[http])"
        raise click.UsageError(
            f"nsqlookupd takes only nodes with {what} instead of --no-http, or name a port with --nsq-broadcast-http-port"
        )


def given_nsq(options: Mapping[str, Any]) -> NsqOptions | None:
    """What was said of the NSQ gateway, checked; None for none."""
    from dataclasses import fields
    from importlib.util import find_spec

    from ....actors.settings.options import NsqOptions, TlsOptions

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
    if options["nsq_auth_http_address"] and find_spec("re2") is None:
        raise click.UsageError(
            "--nsq-auth-http-address needs google-re2, which applies the patterns of auth servers: pip install 'zsq[nsq]'"
        )
    _check_timeouts(options)
    more: dict[str, Any] = {}
    for field in fields(NsqOptions):  # those that have an option of their name; a time is given in seconds
        value = options.get(f"nsq_{field.name.removesuffix('_ms')}")
        if value is not None and field.name != "listen":
            more[field.name] = int(value * 1000) if field.name.endswith("_ms") else value
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


def given_http(options: Mapping[str, Any]) -> HttpOptions | None:
    """What was said of the HTTP gateway; None for none, or where its libraries are not installed and nobody asked for it."""
    from importlib.util import find_spec

    from ....actors.settings.options import HttpOptions

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
    more["console"] = str(Path(__file__).resolve().parents[2] / "console")
    return None if missing else HttpOptions(listen=listen or HTTP_LISTEN, given=bool(listen), **more)


def _check(place: str, option: str, *, unix: bool = False) -> None:
    if unix and place.startswith("unix:") and len(place) > len("unix:"):
        return
    host, colon, port = place.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(
            f"{place!r} is not HOST:PORT with a port of 1 to 65535" + (", nor unix:PATH" if unix else ""), param_hint=option
        )


def with_security(command: Command) -> Command:
    file: dict[str, Any] = {"metavar": "FILE", "type": click.Path(exists=True, dir_okay=False, path_type=Path)}
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--insecure", {"is_flag": True}, "Listen beyond this machine although anybody who gets there may do anything."),
        (
            "--curve-key",
            file,
            "The broker's key pair for ZeroMQ clients, from `zsq keys server`: they must have keys, and all is encrypted.",
        ),
        ("--access", file, "Who may do what, by key or token: one TOML file for ZeroMQ, NSQ and HTTP (docs/security.md)."),
    )
    for name, more, text in rows:
        command = click.option(name, help=text, **more)(command)
    return command


def given_security(options: Mapping[str, Any]) -> SecurityOptions:
    """What was said, checked: files that cannot be used shall be known before the broker starts. Needs `no_listen` too."""
    from ....actors.security.access import AccessError
    from ....actors.security.curve import CurveAuthentication, check, load_rules
    from ....actors.settings.options import SecurityOptions

    access, key = ("" if options[name] is None else str(options[name].absolute()) for name in ("access", "curve_key"))
    found = SecurityOptions(access, key, bool(options["insecure"]))
    try:
        if not options["no_listen"]:
            CurveAuthentication(found)
        elif access:
            load_rules(access)
        if key and not access:
            check(found, None)
    except AccessError as error:
        raise click.UsageError(str(error)) from None
    return found
