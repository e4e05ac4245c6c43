"""zsq serve: the broker in front, until SIGTERM or SIGINT."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .alarm_options import given_alarms, with_alarms
from .config_options import Configured, config_option
from .nsq_options import given_gateways, with_nsq
from .options import SYNC_MODES
from .quantities import Number
from .retention import given_retention, with_keep
from .security_options import given_security, with_security

if TYPE_CHECKING:
    from ...actors.options import ServeOptions

DEFAULT_LISTEN: Final = "127.0.0.1:4153"


@click.command(cls=Configured)
@config_option
@click.option(
    "--data-dir",
    required=True,
    envvar="ZSQ_DATA_DIR",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where topics are kept; made if it is missing (its parent must exist). ZSQ_DATA_DIR does the same.",
)
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Where the TCP gateway for clients listens.")
@click.option(
    "--listen-push",
    default="",
    metavar="HOST:PORT",
    help="Where it takes what Spark's executors push; default: port 4154 beside port 4153, else any free port of the same host.",
)
@click.option("--no-listen", is_flag=True, help="No TCP gateway: only ipc://DATA_DIR/run, for clients of the same user on this machine.")
@click.option("--sync", type=click.Choice(SYNC_MODES), default="always", show_default=True, help="Sync mode of new topics.")
@click.option("--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="Number of this node, for message ids.")
@click.option("--chunk-bytes", type=click.IntRange(min=64 * 1024), metavar="BYTES", help="Size at which a new log file is begun (256 MiB).")
@click.option(
    "--stage-timeout",
    type=Number(min=1),
    metavar="SECONDS",
    help="How long staged rows that nobody commits are kept; default: 15 min, and 24 h once a task has sealed them.",
)
@with_keep(default=False)
@with_alarms
@with_security
@with_nsq
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is told on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or a JSON object a line: time, level, actor, pid, message.",
)
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> int:
    """Run the broker on DIR until SIGTERM or Ctrl-C.

    With sync "always" (the default) a publish is answered after fdatasync. SIGHUP takes the configuration anew; zsq config shows it.
    """
    from .reload import Again

    again = Again(context, os.environ)  # before the secrets leave the environment
    options = serve_options(given, os.environ)
    from ...actors import forkserver

    forkserver.begin()  # half of a start is imports: its ones go on beside ours
    from ...actors.serve import serve as serve_broker

    return serve_broker(options, again.read)


def serve_options(given: Mapping[str, Any], environment: MutableMapping[str, str]) -> ServeOptions:
    """What was said, checked as a whole; secrets are taken out of the environment."""
    gateway, push = ("", "") if given["no_listen"] else (given["listen"], given["listen_push"])
    if gateway:
        check_listen(gateway, "--listen")
    if push:
        check_listen(push, "--listen-push")
    from ...actors.exposure import check as check_exposure
    from ...actors.options import ServeOptions

    more: dict[str, Any] = {} if given["chunk_bytes"] is None else {"chunk_bytes": given["chunk_bytes"]}
    keep = {name: given[name] for name in given if name.startswith("keep_")}
    found = ServeOptions(
        data_dir=given["data_dir"],
        gateway=gateway,
        gateway_push=push,
        node_id=given["node_id"],
        log_level=given["log_level"],
        log_format=given["log_format"],
        sync=given["sync"],
        stage_timeout_s=given["stage_timeout"] or 0.0,
        retention=given_retention(keep),
        alarms=given_alarms(given, environment),
        security=given_security(given),
        **given_gateways(given),
        **more,
    )
    check_exposure(found)
    return found


def check_listen(listen: str, option: str) -> None:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{listen!r} is not HOST:PORT with a port of 1 to 65535", param_hint=option)
