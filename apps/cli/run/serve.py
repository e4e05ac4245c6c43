"""zsq serve: the broker in front, until SIGTERM or SIGINT.

Reading the configuration of a running `zsq serve` again, for SIGHUP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.settings import SYNC_MODES
from ..manage.settings import KEEPING, given_settings, with_settings
from ..options import AUTO_CREATE, MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX
from ..quantities import Number
from .config_options import (
    ARGUMENTS,
    RELOADABLE,
    SECRETS,
    Configured,
    config_option,
    flag,
    given_alarms,
    given_gateways,
    given_security,
    options_of,
    with_alarms,
    with_nsq,
    with_security,
)

if TYPE_CHECKING:
    from ....actors.settings.options import ServeOptions
    from ....actors.supervisor.reloading import Fresh


class ConfigReload:
    """Takes the same flags and the same environment again, and the file as it is now.

    Secrets are kept here: they leave the environment at the start, so that no child inherits them. What *_FILE names is read again.
    """

    def __init__(self, context: click.Context, environment: Mapping[str, str] = os.environ) -> None:
        self._command = context.command
        self._arguments: list[str] = context.meta[ARGUMENTS]
        names = [name + end for name in SECRETS for end in ("", "_FILE")]
        self._secrets = {name: environment[name] for name in names if name in environment}
        self._begun = dict(context.params)
        self._now = dict(context.params)

    def read(self) -> Fresh:
        """`UsageError` (or `OSError`) where anything is wrong: nothing is taken of it then."""
        from ....actors.supervisor.reloading import Fresh

        try:
            with self._command.make_context("serve", list(self._arguments)) as context:
                params = dict(context.params)
            secrets: MutableMapping[str, str] = dict(self._secrets)
            options = serve_options(params, secrets)
        except click.ClickException as error:
            raise UsageError(E_BAD_ARGUMENT, error.format_message()) from None
        live = self._differing(params, self._now, reloadable=True)
        dead = self._differing(params, self._begun, reloadable=False)
        self._now = params
        return Fresh(options, live, dead)

    def _differing(self, params: Mapping[str, Any], before: Mapping[str, Any], *, reloadable: bool) -> tuple[str, ...]:
        found = [one for one in options_of(self._command) if (one.name in RELOADABLE) is reloadable]
        return tuple(flag(one) for one in found if params.get(str(one.name)) != before.get(str(one.name)))


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
@click.option("--sync", type=click.Choice((*SYNC_MODES,)), default="always", show_default=True, help="Sync mode of new topics.")
@click.option(
    "--auto-create",
    type=click.Choice(AUTO_CREATE),
    default="always",
    show_default=True,
    help="Who makes a topic by using it: anybody, only publishers, or nobody (then channels too are made by command only).",
)
@click.option("--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="Number of this node, for message ids.")
@click.option(
    "--max-msg-size",
    type=click.IntRange(1, MESSAGE_BYTES_LARGEST),
    default=MESSAGE_BYTES_MAX,
    show_default=True,
    metavar="BYTES",
    help="Largest message that clients may publish, by ZSQ's protocol, NSQ's or HTTP; at most 7 MiB.",
)
@click.option("--chunk-bytes", type=click.IntRange(min=64 * 1024), metavar="BYTES", help="Size at which a new log file is begun (256 MiB).")
@click.option(
    "--stage-timeout",
    type=Number(min=1),
    metavar="SECONDS",
    help="How long staged rows that nobody commits are kept; default: 15 min, and 24 h once a task has sealed them.",
)
@click.option(
    "--processes-max",
    type=click.IntRange(16, 2_500),
    metavar="N",
    help="Processes that may run when a topic (2) or channel (1) is made; default: one for each 16 MiB of memory, 64 to 2,500.",
)
@with_settings(KEEPING)
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
    check_python(sys.version_info[:3])

    again = ConfigReload(context, os.environ)  # before the secrets leave the environment
    options = serve_options(given, os.environ)
    from ....actors.runtime import forkserver

    forkserver.begin()  # half of a start is imports: its ones go on beside ours
    from ....actors.supervisor.serve import serve as serve_broker

    return serve_broker(options, again.read)


def check_python(version: tuple[int, ...]) -> None:
    """Refuse a Python whose forkserver, from which the broker's processes come, obeys every user of the machine (CVE-2022-42919)."""
    if version < (3, 11, 1):
        found = ".".join(map(str, version))
        text = "any user of this machine could run code as the broker (CVE-2022-42919); install Python 3.11.1 or later"
        from ....transport.errors import E_BAD_ARGUMENT, UsageError

        raise UsageError(E_BAD_ARGUMENT, f"Python {found} is not safe for a broker: {text}")


def serve_options(given: Mapping[str, Any], environment: MutableMapping[str, str]) -> ServeOptions:
    """What was said, checked as a whole; secrets are taken out of the environment."""
    gateway, push = ("", "") if given["no_listen"] else (given["listen"], given["listen_push"])
    if gateway:
        check_listen(gateway, "--listen")
    if push:
        check_listen(push, "--listen-push")
    from ....actors.security.exposure import check as check_exposure
    from ....actors.settings.options import ServeOptions

    more: dict[str, Any] = {} if given["chunk_bytes"] is None else {"chunk_bytes": given["chunk_bytes"]}
    found = ServeOptions(
        data_dir=given["data_dir"],
        gateway=gateway,
        gateway_push=push,
        node_id=given["node_id"],
        message_bytes_max=given["max_msg_size"],
        log_level=given["log_level"],
        log_format=given["log_format"],
        sync=given["sync"],
        auto_create=given["auto_create"],
        stage_timeout_s=given["stage_timeout"] or 0.0,
        processes_max=given["processes_max"] or 0,
        retention=given_settings(KEEPING, given),
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
