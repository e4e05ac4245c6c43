"""zsq forward: send the messages of a channel to another broker, to files, or to an HTTP server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ..exit_codes import DATA_LOST, DONE
from ..manage.settings import SUBSCRIBING, given_settings, resolved, with_settings, with_start
from ..options import followed, stop_signals, with_broker_followed
from ..output import say
from ..quantities import BoundedSize, Seconds
from .consume import channels_of, note_new

if TYPE_CHECKING:
    from ..options import Stopping

SECRET: Final = "ZSQ_FORWARD_SECRET"
FOR_FILES: Final = ("lines", "use_gzip", "roll_bytes", "roll_every", "sample")
FOR_WEB: Final = (
    "lines", "batch", "headers", "header_file", "secret_file", "concurrency", "answer_timeout",
    "retry_for", "sample",
)  # fmt: skip
FOR_MIRROR: Final = ("to_key_file",)
OPTIONS: Final = {"mirror": FOR_MIRROR, "files": FOR_FILES, "web": FOR_WEB}
FLAGS: Final = {"lines": "--format", "use_gzip": "--gzip", "headers": "--header"}


class ForwardTarget(NamedTuple):
    """The target of messages: its kind, its address, and the topic of a mirror."""

    kind: str
    address: str
    topic: str = ""


def parse_target(text: str) -> ForwardTarget:
    """Return the target that `--to` names. Raises `UsageError`."""
    if text.startswith(("http://", "https://")):
        return ForwardTarget("web", text)
    if text.startswith("file:"):
        folder = text.removeprefix("file:")
        folder = folder.removeprefix("//") if folder.startswith("///") else folder
        if not folder or folder.startswith("//"):
            raise UsageError(E_BAD_ARGUMENT, f"--to {text!r:.100} names no directory: use file:DIR")
        return ForwardTarget("files", folder)
    if text.startswith(("tcp://", "ipc://")):
        url, _, topic = text.rpartition("/")
        if topic and url.rstrip("/") not in ("tcp:", "ipc:"):
            return ForwardTarget("mirror", url, topic)
    raise UsageError(
        E_BAD_ARGUMENT,
        f"--to {text!r:.100} is no target: use tcp://HOST:PORT/TOPIC, ipc://DATA_DIR/run/TOPIC, "
        "file:DIR, http://... or https://...",
    )


@click.command()
@click.argument("source", metavar="TOPIC/CHANNEL")
@click.option(
    "--to",
    required=True,
    metavar="TARGET",
    help="tcp://HOST:PORT/TOPIC of another broker, file:DIR, or https://HOST/PATH.",
)
@click.option(
    "--idle",
    type=Seconds(),
    metavar="TIME",
    help="Stop when no message has arrived for this long.",
)
@click.option(
    "--format",
    "lines",
    type=click.Choice(["body", "json", "array"]),
    help=(
        "file: and https: What is written of a message: its body, or a JSON object with its "
        "offset, key, tag and headers. array: with --batch, a JSON array instead of JSON lines. "
        "Default: body, with --batch json."
    ),
)
@click.option(
    "--sample",
    type=click.IntRange(1, 99),
    metavar="PERCENT",
    help="file: and https: Take only this percentage of the messages, and finish the others.",
)
@click.option("--gzip", "use_gzip", is_flag=True, help="file: Compress the files.")
@click.option(
    "--roll-bytes",
    type=BoundedSize(1),
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="file: Begin a new file when one has this size on disk.",
)
@click.option(
    "--roll-every",
    type=Seconds(),
    default="1h",
    show_default=True,
    metavar="TIME",
    help="file: Begin a new file when one is this old.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 2500),
    metavar="N",
    help="https: Send up to N messages in one request.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="https: Add a header to each request. Can be repeated.",
)
@click.option(
    "--header-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="https: Add the headers in FILE, one NAME=VALUE per line, such as Authorization.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"https: Sign each body with the secret in FILE. Default: {SECRET}.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="https: Send N requests at a time. With 1, messages go in order.",
)
@click.option(
    "--answer-timeout",
    type=Seconds(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="https: Wait this long for an answer.",
)
@click.option(
    "--retry-for",
    type=Seconds(),
    default="1m",
    show_default=True,
    metavar="TIME",
    help="https: Try a request again for this long, before it uses an attempt of its message.",
)
@click.option(
    "--to-key-file",
    metavar="FILE",
    help="tcp: File with the keys for the target. Default: as for the source.",
)
@with_start
@with_settings(SUBSCRIBING)
@with_broker_followed
@click.pass_context
def forward(
    context: click.Context, /, source: str, to: str, url: str, timeout: float, idle: float | None,
    start: Any, **options: Any,
) -> int:  # fmt: skip
    """Send the messages of CHANNEL to a TARGET, and finish those that the target has.

    \b
    tcp://HOST:PORT/TOPIC  mirrors to another broker: in order, exactly once
    file:DIR               writes files: at least once, synced before a finish
    https://HOST/PATH      sends a POST for each message: at least once

    CHANNEL is created if it is missing. --start and the settings apply to a new CHANNEL. Run the
    command again to go on where it ended. Ctrl-C and SIGTERM finish what the target has.
    """
    from ....transport.client.blocking.client import Admin
    from ....transport.names import check_name

    topic, _, channel = source.rpartition("/")
    if not topic:
        text = f"{source!r:.100} must name a topic and a channel: TOPIC/CHANNEL"
        raise UsageError(E_BAD_ARGUMENT, text)
    check_name(topic)
    check_name(channel, "channel")
    target = parse_target(to)
    _check_options(context, target.kind)
    settings = given_settings(SUBSCRIBING, options)
    with stop_signals() as stopping:
        try:
            with stopping.interruptible(), Admin(url, timeout=timeout) as admin:
                channels = channels_of(admin, topic)
                if channels is not None:
                    note_new(topic, channel, channels)
                if start is not None:
                    settings["start"] = resolved(admin, topic, start)
        except KeyboardInterrupt:
            return DONE  # no broker was reached
        runs = {"mirror": _mirror, "files": _files, "web": _web}
        common: dict[str, Any] = {
            "url": url,
            "topic": topic,
            "channel": channel,
            "timeout": timeout,
            "idle_s": idle,
            "settings": settings,
        }
        return runs[target.kind](target, common, options, stopping)


def _check_options(context: click.Context, kind: str) -> None:
    """Raise `UsageError` for an option that belongs to another kind of target."""
    for name in sorted({*FOR_MIRROR, *FOR_FILES, *FOR_WEB} - {*OPTIONS[kind]}):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(E_BAD_ARGUMENT, f"{flag} has no meaning for this target")


def _mirror(target: ForwardTarget, common: Any, options: Any, stopping: Stopping) -> int:
    from ....transport.names import check_name
    from ...forward.mirror import MirrorPlan, mirror
    from ..progress import bar

    check_name(target.topic)
    if common["settings"].get("priorities"):
        raise UsageError(E_BAD_ARGUMENT, "--priorities has no meaning for this target")
    plan = MirrorPlan(
        to_url=target.address,
        to_topic=target.topic,
        to_key_file=options["to_key_file"],
        **common,
    )
    with bar("forwarding", None, unit="messages") as advance:
        report = mirror(plan, stopping, tell, advance)
    dead = f", {report.rejected:,} dead letters" if report.rejected else ""
    tell(f"{report.messages:,} messages forwarded{dead}")
    if not report.lost:
        return DONE
    tell(f"{report.lost:,} messages could not be read and were left out")
    return DATA_LOST


def _files(target: ForwardTarget, common: Any, options: Any, stopping: Stopping) -> int:
    from ...forward.files import FilePlan, write_files
    from ..progress import bar

    lines = options["lines"] or "body"
    if lines == "array":
        raise UsageError(E_BAD_ARGUMENT, "--format array is for https: use json, for JSON lines")
    plan = FilePlan(
        folder=Path(target.address),
        lines=lines,
        is_gzip=options["use_gzip"],
        roll_bytes=options["roll_bytes"],
        roll_s=options["roll_every"],
        sample=options["sample"] or 0,
        followed_s=followed(common["timeout"]),
        **common,
    )
    with bar("forwarding", None, unit="messages") as advance:
        report = write_files(plan, stopping, tell, advance)
    tell(f"{report.messages:,} messages forwarded, {report.files:,} files complete")
    return DONE


def _web(target: ForwardTarget, common: Any, options: Any, stopping: Stopping) -> int:
    from ...forward.web import WebPlan, forward_to_web
    from ..progress import bar

    batch = options["batch"] or 0
    lines = options["lines"] or ("json" if batch else "body")
    if (lines == "body" and batch) or (lines == "array" and not batch):
        needs = "does not go with" if batch else "needs"
        raise UsageError(E_BAD_ARGUMENT, f"--format {lines} {needs} --batch")
    plan = WebPlan(
        to=target.address,
        lines="lines" if batch and lines == "json" else lines,
        batch=batch,
        headers=headers_of(options["headers"], options["header_file"]),
        secret=secret_of(options["secret_file"]),
        concurrency=options["concurrency"],
        answer_s=options["answer_timeout"],
        retry_s=options["retry_for"],
        sample=options["sample"] or 0,
        followed_s=followed(common["timeout"]),
        **common,
    )
    with bar("forwarding", None, unit="messages") as advance:
        report = forward_to_web(plan, stopping, tell, advance)
    failed = f", {report.failed:,} deliveries failed" if report.failed else ""
    tell(f"{report.messages:,} messages forwarded{failed}")
    return DONE


def tell(text: str) -> None:
    """Print a note on stderr, as all siblings do."""
    say(f"zsq: {text}", err=True)


def headers_of(given: tuple[str, ...], path: Path | None) -> dict[str, str]:
    """Return the headers of the options and of the file. Raises `UsageError`."""
    lines = [*given]
    if path is not None:
        lines += [line for line in path.read_text().splitlines() if line.strip()]
    headers = {}
    for line in lines:
        name, separator, value = line.partition("=")
        name = name.strip()
        is_name = bool(name) and all(char.isalnum() or char in "-_" for char in name)
        if not separator or not (is_name and name.isascii() and value.isprintable()):
            # The value may be secret, so it is not shown.
            text = f"header {name!r:.40} must be NAME=VALUE, without control characters"
            raise UsageError(E_BAD_ARGUMENT, text)
        if not value.isascii() or name.lower() in ("content-length", "host", "transfer-encoding"):
            raise UsageError(E_BAD_ARGUMENT, f"header {name!r:.40} cannot be set to this value")
        headers[name] = value.strip()
    return headers


def secret_of(path: Path | None) -> bytes:
    """Return the secret of the file or of the environment, or b"" if there is none."""
    if path is None:
        return os.environ.get(SECRET, "").encode()
    secret = path.read_bytes().strip()
    if not secret:
        raise UsageError(E_BAD_ARGUMENT, f"the secret file {path} is empty")
    return secret
