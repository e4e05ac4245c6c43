"""Options of all commands: address of the broker, keys, time-out; and handling of stop signals."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar, cast

import click

from ...transport.errors import E_BAD_ARGUMENT, NotFound, UsageError, ZsqError
from ...transport.system import SignalFlag, StopRequests
from .quantities import Number

# These repeat constants of transport (a test compares them). The import of transport takes 80 ms,
# which is too long for --help.
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"
BLOCK_COUNT_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_LARGEST: Final = 7 * 1024 * 1024  # the highest limit that a broker can be set to

# As in Python. A standby with the default patience takes over within half of it, so that a script
# with defaults goes on.
TIMEOUT_S: Final = 30.0
NAMES_S: Final = 2.0  # seconds to wait for the names among which a similar one is looked for
KEY_FILE: Final = "ZSQ_KEY_FILE"
GIVES_UP: Final = "Seconds to wait for the broker before exit code 3."
NOBODY_LISTENS: Final = " If not set and nothing listens on this machine: 1 s."
AUTO_CREATE: Final = ("always", "publishers", "never")

Command = TypeVar("Command", bound=Callable[..., Any])


class Value(NamedTuple):
    """An option's value for click: its name in the help, and its type with bounds."""

    metavar: str | None = None
    type: click.ParamType[Any] | None = None


def with_broker(command: Command) -> Command:
    """Add `--url`, `--key-file` and `--timeout` (seconds) to a command.

    The command receives the resolved `url`: the value of its `--url`, of `zsq --url`, of ZSQ_URL,
    or the default. `--key-file` reaches the clients through the environment variable ZSQ_KEY_FILE,
    which all of them read. If the command ends with `NotFound`, the error suggests a similar name.
    """
    return _with_broker(command, GIVES_UP + NOBODY_LISTENS)


def with_admin(command: Command) -> Command:
    """Add the same options to a command that needs only an Admin.

    It receives `admin`, which connects with its first request and is closed behind the command.
    """

    @functools.wraps(command)
    def run(*arguments: Any, url: str, timeout: float, **options: Any) -> Any:
        from ...transport.client.blocking.client import Admin

        with Admin(url, timeout=timeout) as admin:
            return command(*arguments, admin=admin, **options)

    return with_broker(cast("Command", run))


def with_broker_followed(command: Command) -> Command:
    """Add the same options to a command that runs until it is stopped.

    Without `--timeout` it waits without limit for a broker after the first connection. It passes
    `timeout` to `followed`.
    """
    return _with_broker(
        command,
        GIVES_UP + NOBODY_LISTENS + " After the first connection, the command waits without limit.",
    )


def followed(timeout: float) -> float:
    """Return the time-out after the first connection: the user's, or infinity if none was given."""
    from ...transport.wire.address import DefaultTimeout

    return DefaultTimeout(math.inf) if isinstance(timeout, DefaultTimeout) else timeout


def suggesting(error: NotFound) -> NotFound:
    """Return the error, with the existing name most like the one in the command's arguments.

    If the arguments exist, or the broker does not list its names, the error stays as it is.
    """
    from ...transport.names import meant
    from .completion import known_names

    context = click.get_current_context(silent=True)
    values = context.params if context is not None else {}
    known = known_names(values.get("url"), NAMES_S)
    # `--to` is the name of a topic for `redrive`, and a path for `export`.
    names = (values.get(name) for name in ("topic", "dead_topic", "to"))
    topics = [name for name in names if name and isinstance(name, str)]
    missing = [meant(topic, known) for topic in topics if topic not in known]
    channel, channels = values.get("channel"), known.get(topics[-1], []) if topics else []
    if channel and channel not in channels:
        missing.append(meant(channel, channels))
    if not missing or error.text.endswith(missing[0]):  # the broker itself suggests names
        return error
    return NotFound(error.code, error.text + missing[0])


def _with_suggestions(command: Command) -> Command:
    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except NotFound as error:
            raise suggesting(error) from None

    return cast("Command", run)


def _with_broker(command: Command, how_long: str) -> Command:
    command = click.option(
        "--timeout",
        type=Number(min=0.05, max=3600),
        default=TIMEOUT_S,
        show_default=True,
        callback=_chosen,
        metavar="SECONDS",
        help=how_long,
    )(_with_suggestions(command))
    command = click.option(
        "--key-file",
        callback=_remember_key_file,
        expose_value=False,
        metavar="FILE",
        help=(
            "File with the client's keys, for a broker with authentication. `zsq keys client` "
            f"makes it. Default: {KEY_FILE}."
        ),
    )(command)
    return click.option(
        "--url",
        callback=_resolve,
        metavar="URL",
        help=(
            "Address of the broker: tcp://host:port or ipc://DATA_DIR/run; several addresses, for "
            "a broker and its standby, with commas between them. Default: ZSQ_URL, else "
            f"{DEFAULT_URL}."
        ),
    )(command)


def _chosen(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Return the time-out, marked if the user gave none.

    With the mark, clients wait only 1 s for a broker if nothing listens on this machine.
    """
    if (
        context.resilient_parsing
        or context.get_parameter_source(str(parameter.name))
        is not click.core.ParameterSource.DEFAULT
    ):
        return value
    from ...transport.wire.address import DefaultTimeout

    return DefaultTimeout(value)


def _resolve(context: click.Context, _: click.Parameter, value: str | None) -> str:
    url = value or context.find_root().params.get("url") or os.environ.get("ZSQ_URL") or DEFAULT_URL
    if not url.startswith(("tcp://", "ipc://")):
        raise click.BadParameter(
            f"{url!r} is not a broker's address; use tcp://HOST:PORT or ipc://DATA_DIR/run"
        )
    return str(url)


def _remember_key_file(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Set ZSQ_KEY_FILE while the command runs."""
    path = value or context.find_root().params.get("key_file")
    if not path:
        return
    before = os.environ.get(KEY_FILE)

    def forget() -> None:
        if before is None:
            del os.environ[KEY_FILE]
        else:
            os.environ[KEY_FILE] = before

    os.environ[KEY_FILE] = str(path)
    context.call_on_close(forget)


def yes_option(command: Command) -> Command:
    """Add `--yes` to a command that removes messages. The command passes `yes` to `confirm`."""
    return click.option(
        "--yes",
        is_flag=True,
        help="Do not ask for confirmation. Needed if standard input is not a terminal.",
    )(command)


def confirm(action: str, yes: bool) -> None:
    """Ask the user at the terminal to confirm `what`, such as `delete topic 'x': 5 messages ...`.

    Without a terminal and without `--yes`, raises `UsageError` (E_BAD_ARGUMENT).
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            E_BAD_ARGUMENT, f"this would {action}. Use --yes to do it without confirmation"
        )
    from ...actors.runtime.logs import escaped

    if not click.confirm(f"This will {escaped(action)}. Continue?", err=True):
        raise ZsqError("E_INTERRUPTED", "not confirmed; nothing was done")


class Stopping(SignalFlag):
    """The flag that a signal to end sets."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal also raise `KeyboardInterrupt` inside the context.

        Use it while the command waits for a broker, when no work is half done.
        """
        self.waits = True
        try:
            if self.is_set():
                raise KeyboardInterrupt  # the signal came before the wait
            yield
        finally:
            self.waits = False


@contextlib.contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Let SIGINT and SIGTERM set the event instead of ending the process.

    A second request ends the process as usual.
    """
    stopping, requests = Stopping(), StopRequests()
    before: dict[signal.Signals, Any] = {}

    def on_signal(number: int, _: FrameType | None) -> None:
        if requests.is_second():
            restore(signal.Signals(number))
            signal.raise_signal(number)
            return
        if stopping.is_set():
            return
        stopping.set()
        if stopping.waits:
            raise KeyboardInterrupt

    def restore(number: signal.Signals) -> None:
        handler = before[number]
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stopping
    finally:
        for number in before:
            restore(number)
