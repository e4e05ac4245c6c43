"""Options of `zsq serve`: a table with one row for each option.

A new option takes a row here and the code in `broker_options.py` that applies it. The rows define
the options of `zsq serve` and `zsq config` with their help, their environment variables, the keys
and types of the configuration file, the options that SIGHUP reloads, and the table in
docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ....transport.records import Record, record
from ....transport.settings import SYNC_MODES
from ..manage.settings import KEEPING, value_of
from ..options import AUTO_CREATE, MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX, Value
from ..quantities import BoundedSeconds, BoundedSize, Costs, Count, Lines, Number, Seconds

PREFIX: Final = "ZSQ_SERVE_"
TOKEN: Final = "ZSQ_ALARM_WEBHOOK_TOKEN"
SECRETS: Final = (TOKEN,)  # set only by the environment, or by a file that it names

# These repeat actors/settings/options.py (a test compares them), whose import would delay help.
LISTEN: Final = "127.0.0.1:4153"
NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"
BUCKET_LAG_S: Final = 1.0

BUCKET_LAG_S_MIN: Final = 0.05
BUCKET_LAG_S_MAX: Final = 3_600.0
PATIENCE_S: Final = 10.0
PATIENCE_S_MIN: Final = 1.0
PATIENCE_S_MAX: Final = 7_200.0

_PUSH_PLACE: Final = "port 4154 beside port 4153, else any free port of the same host"
_BY_MEMORY: Final = "one for each 16 MiB of memory, 64 to 2,500"

_T = TypeVar("_T")


def _one_of(*choices: str) -> Value:
    return Value(type=click.Choice(choices))


_PLACE: Final = Value("HOST:PORT")
_PORT: Final = Value("PORT", click.IntRange(1, 65535))
_FILE: Final = Value("FILE", click.Path(exists=True, dir_okay=False, path_type=Path))
_FOLDER: Final = Value("DIR", click.Path(file_okay=False, path_type=Path))
_TIME: Final = Value("TIME", Seconds())
_NUMBER: Final = Value("N", Count())


@record
class OptionRow(Record):
    """The row of an option.

    `live` options are reloaded by SIGHUP (actors/supervisor/reloading.py). The others need a
    restart. `usual` is the default (a text or a value). It is only given if neither click nor the
    object that gets the option has the default. `variable` is an older name of its environment
    variable.
    """

    value: Value
    help: str
    live: bool = False
    usual: object = None
    variable: str = ""


def _row(default: _T, value: Value, help: str, **columns: Any) -> _T:
    """Declare an option with its row. An option with the default () may be repeated."""
    declared: _T = field(default=default, metadata={"row": OptionRow(value, help, **columns)})
    return declared


def _flag(help: str) -> bool:
    return _row(False, Value(), help)


def _kept(parameter: str) -> Any:
    """Declare the option that sets a topic setting's default for all topics."""
    (setting,) = (row for row in KEEPING if row.parameter == parameter)
    return _row(None, value_of(setting), setting.help, live=True, usual=setting.default)


@record
class GivenOptions(Record):
    """The options of `zsq serve`, by click's names, in the order of its help.

    None means not set.
    """

    data_dir: Path = _row(
        Path("data"), _FOLDER,
        "Directory for all data. Created if it is missing; its parent must exist. Also set by ZSQ_DATA_DIR.", variable="ZSQ_DATA_DIR",
    )  # fmt: skip
    must_exist: bool = _flag(
        "Refuse to start if DIR has no broker's data, for example because its disk is not mounted."
    )
    listen: str = _row(LISTEN, _PLACE, "Address of the TCP gateway for ZSQ clients.")
    listen_push: str = _row(
        "",
        _PLACE,
        f"Address that Spark executors push to. Default: {_PUSH_PLACE}.",
        usual=_PUSH_PLACE,
    )
    no_listen: bool = _flag(
        "Start no TCP gateway, and no NSQ or HTTP gateway without its own option. Clients of the "
        "same user on this machine can connect, by ipc://DATA_DIR/run."
    )
    sync: str = _row("always", _one_of(*SYNC_MODES), "Sync mode of new topics.")
    auto_create: str = _row(
        "always", _one_of(*AUTO_CREATE),
        (
            "Who creates a topic by using it: anybody (always), only publishers, or nobody (never: channels are then "
            "created by command only, too)."
        ),
    )  # fmt: skip
    node_id: int = _row(
        0, Value(type=click.IntRange(0, 1023)), "Number of this broker, part of each message id."
    )
    max_msg_size: int = _row(
        MESSAGE_BYTES_MAX, Value("SIZE", BoundedSize(1, MESSAGE_BYTES_LARGEST)),
        "Largest message that clients may publish over any protocol, in bytes. At most 7 MiB.",
    )  # fmt: skip
    chunk_bytes: int | None = _row(
        None,
        Value("SIZE", BoundedSize(64 * 1024)),
        ("Size at which a topic starts a new log file (256 MiB)."),
    )
    stage_timeout: float | None = _row(
        None, Value("SECONDS", Number(min=1)),
        "How long uncommitted rows of a Spark job are kept. Default: 15 minutes, and 24 hours once a task has sealed them.",
        usual="15m, 24h once a task has sealed them",
    )  # fmt: skip
    processes_max: int | None = _row(
        None, Value("N", click.IntRange(16, 2_500)),
        f"Upper limit of processes. Each topic and each channel of a busy topic needs one. Default: {_BY_MEMORY}.", usual=_BY_MEMORY,
    )  # fmt: skip
    sleep_after: float | None = _row(
        None, _TIME, "End the processes of a topic that was not used for this time. The next request starts them again. none: never.",
        usual=60.0,
    )  # fmt: skip
    own_process: str = _row(
        "busy", _one_of("always", "busy", "never"),
        "Which topics have processes of their own: all, busy ones, or none. The others share some.",
    )  # fmt: skip
    busy_at: int = _row(
        15, Value("PERCENT", click.IntRange(1, 100)),
        "The processor time of a busy topic with its channels, of one core.",
    )  # fmt: skip
    share_after: float | None = _row(
        None, _TIME, "Let a topic share processes again when it was quiet for this time. none: never.", usual=60.0,
    )  # fmt: skip
    keep_bytes: int | None = _kept("keep_bytes")
    keep_time: float | None = _kept("keep_time")
    keep_chunks: int | None = _kept("keep_chunks")
    bucket: str = _row(
        "", Value("URL"), (
            "Copy all topics to this bucket (docs/bucket.md): s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER. "
            "Needs zsq[bucket], except for a folder."
        )
    )  # fmt: skip
    bucket_cache_bytes: int | None = _row(
        None, Value("SIZE", BoundedSize(64 * 1024 * 1024)),
        "Size of each topic's cache on the disk for what is read from the bucket (256 MiB).",
    )  # fmt: skip
    bucket_lag: float | None = _row(
        None, Value("TIME", BoundedSeconds(BUCKET_LAG_S_MIN, BUCKET_LAG_S_MAX)), (
            "Copy everything newer than the full log files to the bucket within this time, and let publishes wait when it takes longer. "
            "none: copy only full log files. Changing from or to none needs a restart."
        ), live=True, usual=BUCKET_LAG_S,
    )  # fmt: skip
    patience: float | None = _row(
        None, Value("TIME", BoundedSeconds(PATIENCE_S_MIN, PATIENCE_S_MAX)), (
            "As a standby, take over when the primary was quiet for this time (docs/standby.md). At least twice --bucket-lag, "
            "which is also the default if that is longer."
        ), usual=PATIENCE_S,
    )  # fmt: skip
    bucket_cost: tuple[float, float] | None = _row(
        None, Value("WRITES,READS", Costs()),
        "Cost of 1,000 requests that write, and of 1,000 that read, such as 0.005,0.0004. zsq stats then shows the cost of the bucket.",
    )  # fmt: skip
    bucket_keep_bytes: int | None = _kept("bucket_keep_bytes")
    bucket_keep_time: float | None = _kept("bucket_keep_time")
    cluster: str = _row(
        "", Value("URL"), (
            "Belong to the cluster with this bucket URL: topics may have parts at several brokers (docs/parts.md). All brokers "
            "of a cluster have the same URL, and each has its own --bucket."
        )
    )  # fmt: skip
    advertise: str = _row(
        "", Value("ADDRESS,..."), (
            "Addresses at which clients reach this broker, such as tcp://one:4153, for the cluster and standbys. "
            "Default: the host and port of --listen."
        ), usual="where it listens"
    )  # fmt: skip

    alarm_depth: int | None = _row(
        None,
        _NUMBER,
        (
            "Raise an alarm when a channel has more waiting messages than this. A channel's "
            "own setting overrides it."
        ),
        live=True,
    )
    alarm_age: float | None = _row(
        None,
        _TIME,
        "Raise an alarm when the oldest waiting message of a channel is older than this.",
        live=True,
    )
    alarm_topic_depth: int | None = _row(
        None,
        _NUMBER,
        (
            "Raise an alarm when all channels of a topic together have more waiting messages "
            "than this."
        ),
        live=True,
    )
    alarm_total_depth: int | None = _row(
        None,
        _NUMBER,
        (
            "Raise an alarm when all channels of the broker together have more waiting messages "
            "than this."
        ),
        live=True,
    )
    alarm_held_bytes: int | None = _row(
        None,
        Value("SIZE", BoundedSize(0)),
        (
            "Raise an alarm when the oldest unfinished message of a topic holds more bytes of "
            "its log than this."
        ),
        live=True,
    )
    alarm_dead_letters: int | None = _row(
        None,
        _NUMBER,
        (
            "Raise an alarm when a dead-letter topic has more dead letters than this that were not "
            "sent back. A channel's own setting overrides it."
        ),
        live=True,
    )
    alarm_total_dead_letters: int | None = _row(
        None,
        _NUMBER,
        "Raise an alarm when all dead-letter topics together have more dead letters than this.",
        live=True,
    )
    alarm_hold: float | None = _row(
        None,
        _TIME,
        (
            "How long a condition must last before its alarm is raised, and be over before it "
            "is cleared (10s)."
        ),
        live=True,
    )
    alarm_webhook: tuple[str, ...] = _row(
        (), Value("URL"), f"Send alarms to this URL by POST, as JSON. Bearer token: {TOKEN}, or the file in {TOKEN}_FILE. Repeatable.",
        live=True, variable="ZSQ_ALARM_WEBHOOK",
    )  # fmt: skip
    alarm_command: tuple[str, ...] = _row(
        (), Value("COMMAND", Lines()), (
            "Run this command, without a shell, with the alarms as JSON on its standard input. Repeatable."
        ), live=True
    )  # fmt: skip

    access: Path | None = _row(
        None, _FILE, (
            "TOML file with users, their keys and tokens, and their permissions, for ZeroMQ, NSQ and HTTP "
            "(docs/security.md)."
        ), live=True
    )  # fmt: skip
    curve_key: Path | None = _row(
        None, _FILE, (
            "The broker's key pair, made by `zsq keys server`. ZeroMQ clients must then have keys, and their traffic "
            "is encrypted."
        )
    )  # fmt: skip
    insecure: bool = _flag("Allow unauthenticated remote access.")

    nsq_listen: tuple[str, ...] = _row(
        (), _PLACE, f"Address for NSQ clients, or unix:PATH. Repeatable. Default: {NSQ_LISTEN} if free.", usual=f"{NSQ_LISTEN} if free"
    )  # fmt: skip
    no_nsq: bool = _flag("Start no NSQ gateway.")
    http_listen: str | None = _row(
        None, _PLACE,
        f"Address of the HTTP API and the console. Default: {HTTP_LISTEN} if free.",
        usual=f"{HTTP_LISTEN} if free, where zsq[http] is installed",
    )  # fmt: skip
    no_http: bool = _flag("Start no HTTP gateway.")
    http_tls_cert: Path | None = _row(
        None, _FILE, "Certificate of the HTTP gateway, PEM. The gateway then accepts only TLS 1.2 or later.", live=True
    )  # fmt: skip
    http_tls_key: Path | None = _row(
        None, _FILE, "Private key of that certificate, PEM.", live=True
    )
    http_allowed_host: tuple[str, ...] = _row(
        (), Value("HOST"), "Additional host name that browsers may use for the console. Repeatable."
    )
    nsq_lookupd_tcp_address: tuple[str, ...] = _row(
        (), _PLACE, "Register with the nsqlookupd at this address. Repeatable."
    )
    nsq_broadcast_address: str | None = _row(
        None, Value("HOST"), "Host name that is announced to nsqlookupd.", usual="where it listens"
    )  # fmt: skip
    nsq_broadcast_tcp_port: int | None = _row(
        None,
        _PORT,
        ("TCP port that is announced to nsqlookupd. Default: the port of --nsq-listen."),
        usual="that of --nsq-listen",
    )
    nsq_broadcast_http_port: int | None = _row(
        None,
        _PORT,
        ("HTTP port that is announced to nsqlookupd. Default: the port of --http-listen."),
        usual="that of --http-listen",
    )
    nsq_auth_http_address: tuple[str, ...] = _row(
        (), _PLACE, "Ask this auth server for the permissions of NSQ clients. Repeatable."
    )
    nsq_auth_http_method: str | None = _row(
        None, _one_of("get", "post"), "HTTP method for requests to the auth server (get)."
    )
    nsq_tls_cert: Path | None = _row(
        None, _FILE, "Certificate of the NSQ gateway, PEM. NSQ clients may then use TLS.", live=True
    )
    nsq_tls_key: Path | None = _row(None, _FILE, "Private key of that certificate, PEM.", live=True)
    nsq_tls_root_ca_file: Path | None = _row(
        None, _FILE, "Certificate authorities that may sign client certificates, PEM.", live=True
    )
    nsq_tls_client_auth_policy: str | None = _row(
        None, _one_of("require", "require-verify"), "Require a certificate from NSQ clients. TLS is then required, too.", live=True
    )  # fmt: skip
    nsq_tls_required: str | None = _row(
        None,
        _one_of("true", "tcp-https"),
        ("Refuse NSQ clients without TLS. `tcp-https`: HTTP may stay without TLS."),
    )
    nsq_tls_min_version: str | None = _row(
        None, _one_of("tls1.0", "tls1.1", "tls1.2", "tls1.3"), "Oldest TLS version that is accepted (tls1.2).", live=True
    )  # fmt: skip
    nsq_no_deflate: bool = _flag("Do not offer deflate compression.")
    nsq_no_snappy: bool = _flag("Do not offer snappy compression.")
    nsq_max_deflate_level: int | None = _row(
        None,
        Value("N", click.IntRange(1, 9)),
        ("Highest deflate level that a client may ask for (6)."),
    )
    nsq_max_rdy_count: int | None = _row(
        None, Value("N", click.IntRange(1)), "Largest RDY count of a client (2500)."
    )
    nsq_msg_timeout: float | None = _row(
        None, _TIME, "Time that a client has to answer a message, unless it sets its own (60s)."
    )
    nsq_max_msg_timeout: float | None = _row(
        None,
        _TIME,
        ("Longest time that a client may hold a message, with TOUCH (15m, at most 24h)."),
    )
    nsq_max_req_timeout: float | None = _row(None, _TIME, "Longest delay of REQ and DPUB (1h).")
    nsq_max_heartbeat_interval: float | None = _row(
        None, _TIME, "Longest heartbeat interval that a client may ask for (60s)."
    )
    nsq_max_output_buffer_size: int | None = _row(
        None,
        Value("N", click.IntRange(64)),
        ("Largest output buffer that a client may ask for, in bytes (65536)."),
    )
    nsq_max_output_buffer_timeout: float | None = _row(
        None, _TIME, "Longest time that output may be buffered for a client (30s)."
    )
    nsq_max_channel_consumers: int | None = _row(
        None,
        Value("N", click.IntRange(0)),
        ("Largest number of NSQ consumers per channel; 0: unlimited."),
    )
    nsq_topology_region: str | None = _row(
        None, Value("NAME"), "Region of this broker, as announced to NSQ clients."
    )
    nsq_topology_zone: str | None = _row(
        None, Value("NAME"), "Zone of this broker, as announced to NSQ clients."
    )

    log_level: str = _row(
        "info",
        _one_of("debug", "info", "warning", "error"),
        ("Lowest level of messages that are logged to standard error."),
        live=True,
    )
    log_format: str = _row(
        "text",
        _one_of("text", "json"),
        (
            "Log as text lines, or as one JSON object per line with time, level, actor, pid "
            "and message."
        ),
    )

    @classmethod
    def of(cls, parameters: Mapping[str, object]) -> GivenOptions:
        """Take the options from a command's parameters, which may include other parameters."""
        values: dict[str, Any] = {
            name: value for name in ROWS if (value := parameters[name]) is not None
        }
        return cls(**values)


ROWS: Final[Mapping[str, OptionRow]] = {
    one.name: one.metadata["row"] for one in fields(GivenOptions)
}
RELOADABLE: Final = frozenset(name for name, row in ROWS.items() if row.live)


def key(name: str) -> str:
    """Return the option's name in the file, which is also its flag without the dashes."""
    return name.replace("_", "-")


def table_options(*, needs_data_dir: bool) -> list[click.Option]:
    """Return the rows as click options."""
    options = [
        _option(field.name, field.default, ROWS[field.name]) for field in fields(GivenOptions)
    ]
    options[0].required = needs_data_dir  # --data-dir is the first row
    return options


def _option(name: str, default: object, row: OptionRow) -> click.Option:
    more: dict[str, Any] = (
        {"default": default, "show_default": default != ""}
        if isinstance(default, str | int)
        else {}
    )
    if default is False:
        more = {"is_flag": True}
    names = [PREFIX + name.upper(), *filter(None, [row.variable])]
    return click.Option(
        [f"--{key(name)}"],
        **row.value._asdict(),
        help=row.help,
        multiple=default == (),
        envvar=names,
        **more,
    )
