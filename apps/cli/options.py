"""What commands share: where the broker is, how long to wait, and being stopped by a signal."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

import click

from ...transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from .quantities import Number

# These repeat transport's, which takes 80 ms to import (a test compares them): help should come at once.
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"
BLOCK_COUNT_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_LARGEST: Final = 7 * 1024 * 1024  # what a broker may be told to take

TIMEOUT_S: Final = 10.0
HINT_S: Final = 1.0  # until a person who waits at a terminal hears why
KEY_FILE: Final = "ZSQ_KEY_FILE"
GIVES_UP: Final = "Seconds to wait for the broker before exit code 3."
NOBODY_LISTENS: Final = " If not set and nothing listens on this machine: 1 s."
AUTO_CREATE: Final = ("always", "publishers", "never")

Command = TypeVar("Command", bound=Callable[..., Any])


class Value(NamedTuple):
    """What an option takes, by click: its name in the help, and its type with its bounds."""

    metavar: str | None = None
    type: click.ParamType[Any] | None = None


def with_broker(command: Command) -> Command:
    """Add `--url`, `--key-file` and `--timeout` (seconds); the command receives `url` resolved: its own, that of `zsq --url`, ZSQ_URL, the
    default. What `--key-file` says goes to the clients by the way that is open for all of them: ZSQ_KEY_FILE."""
    return _with_broker(command, GIVES_UP + NOBODY_LISTENS)


def with_broker_followed(command: Command) -> Command:
    """The same, for a command that goes on until it is stopped: without `--timeout` it waits for a broker that it has met for as long as
    it takes. It passes `timeout` to `followed`."""
    return _with_broker(command, GIVES_UP + NOBODY_LISTENS + " After the first connection, the command waits without limit.")


def followed(timeout: float) -> float:
    """The time-out for what comes after the broker was met: that which somebody gave, or none."""
    from ...transport.wire.address import DefaultTimeout

    return DefaultTimeout(math.inf) if isinstance(timeout, DefaultTimeout) else timeout


def _with_broker(command: Command, how_long: str) -> Command:
    command = click.option(
        "--timeout",
        type=Number(min=0.05, max=3600),
        default=TIMEOUT_S,
        show_default=True,
        callback=_chosen,
        metavar="SECONDS",
        help=how_long,
    )(command)
    command = click.option(
        "--key-file",
        callback=_remember_key_file,
        expose_value=False,
        metavar="FILE",
        help=f"Client keys, made by zsq keys client, for a broker with authentication. Default: {KEY_FILE}.",
    )(command)
    return click.option(
        "--url",
        callback=_resolve,
        metavar="URL",
        help=f"Address of the broker: tcp://host:port or ipc://DATA_DIR/run. Default: ZSQ_URL, else {DEFAULT_URL}.",
    )(command)


def _chosen(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """The time-out, marked where nobody gave one: clients then do not wait for a broker that is not there."""
    if context.resilient_parsing or context.get_parameter_source(str(parameter.name)) is not click.core.ParameterSource.DEFAULT:
        return value
    from ...transport.wire.address import DefaultTimeout

    return DefaultTimeout(value)


def _resolve(context: click.Context, _: click.Parameter, value: str | None) -> str:
    found = value or context.find_root().params.get("url") or os.environ.get("ZSQ_URL") or DEFAULT_URL
    if not found.startswith(("tcp://", "ipc://")):
        raise click.BadParameter(f"{found!r} is neither tcp://host:port nor ipc://DATA_DIR/run")
    if found.startswith("tcp://") and not context.resilient_parsing and sys.stderr.isatty():
        patience = threading.Timer(HINT_S, hint, (found,))
        patience.daemon = True
        patience.start()
    return str(found)


def hint(url: str) -> None:
    """For a person who waits: a broker that is being started answers in a moment, one that was forgotten never."""
    import socket

    host, _, port = url.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), HINT_S).close()
    except OSError as error:
        click.echo(f"zsq: nobody answers at {url} yet ({error.strerror or error}); still trying", err=True)
    except (ValueError, OverflowError):  # it will be told what is wrong with it
        return


def _remember_key_file(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """For as long as the command runs."""
    found = value or context.find_root().params.get("key_file")
    if not found:
        return
    before = os.environ.get(KEY_FILE)

    def forget() -> None:
        if before is None:
            del os.environ[KEY_FILE]
        else:
            os.environ[KEY_FILE] = before

    os.environ[KEY_FILE] = str(found)
    context.call_on_close(forget)


def yes_option(command: Command) -> Command:
    """`--yes`, for a command that removes messages; the command takes `yes` and passes it to `confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation. Needed if standard input is not a terminal.")(command)


def confirm(what: str, yes: bool) -> None:
    """Ask a person at the terminal; without one, `UsageError` unless `--yes` was given. `what`: `delete topic 'x': 5 messages ...`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(E_BAD_ARGUMENT, f"this would {what}. Say --yes to do it without a question")
    from ...actors.runtime.logs import escaped

    if not click.confirm(f"This will {escaped(what)}. Go on?", err=True):
        raise ZsqError("E_INTERRUPTED", "nothing was done")


class Stopping(threading.Event):
    """Set by a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While inside, a signal also raises `KeyboardInterrupt`: for waiting on a broker, where nothing is half done."""
        self.waits = True
        try:
            if self.is_set():
                raise KeyboardInterrupt  # it came before the waiting began
            yield
        finally:
            self.waits = False


@contextlib.contextmanager
def stop_signals() -> Iterator[Stopping]:
    """While inside, SIGINT and SIGTERM set the event instead of ending the process; a second one ends it as usual."""
    stopping = Stopping()
    before: dict[signal.Signals, Any] = {}

    def on_signal(number: int, _: FrameType | None) -> None:
        stopping.set()
        restore(signal.Signals(number))
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
