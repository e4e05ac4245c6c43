"""zsq serve: the broker in front, until SIGTERM or SIGINT."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from .alarm_options import given_alarms, with_alarms
from .nsq_options import given_gateways, with_nsq
from .options import SYNC_MODES
from .retention import given_retention, with_keep

DEFAULT_LISTEN: Final = "127.0.0.1:4153"


@click.command()
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
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="How long staged rows that nobody commits are kept; default: 15 min, and 24 h once a task has sealed them.",
)
@with_keep(default=False)
@with_alarms
@with_nsq
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
def serve(
    data_dir: Path,
    listen: str,
    listen_push: str,
    no_listen: bool,
    sync: str,
    node_id: int,
    chunk_bytes: int | None,
    stage_timeout: float | None,
    log_level: str,
    **others: Any,
) -> int:
    """Run the broker on DIR until SIGTERM or Ctrl-C.

    With sync "always" (the default) a publish is answered after fdatasync.
    """
    if not no_listen:
        check_listen(listen, "--listen")
        if listen_push:
            check_listen(listen_push, "--listen-push")
    from ...actors.options import ServeOptions
    from ...actors.serve import serve as serve_broker

    more: dict[str, Any] = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    keep = {name: others[name] for name in others if name.startswith("keep_")}
    gateway, push = ("", "") if no_listen else (listen, listen_push)
    options = ServeOptions(
        data_dir=data_dir,
        gateway=gateway,
        gateway_push=push,
        node_id=node_id,
        log_level=log_level,
        sync=sync,
        stage_timeout_s=stage_timeout or 0.0,
        retention=given_retention(keep),
        alarms=given_alarms(others),
        **given_gateways(others | {"no_listen": no_listen}),
        **more,
    )
    return serve_broker(options)


def check_listen(listen: str, option: str) -> None:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{listen!r} is not HOST:PORT with a port of 1 to 65535", param_hint=option)
