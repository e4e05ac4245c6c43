"""What commands share: where the broker is, how long to wait, and being stopped by a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, TypeVar

import click

from .quantities import Number

# These repeat transport's, which takes 80 ms to import (a test compares them): help should come at once.
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"
BLOCK_COUNT_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = 1024 * 1024

TIMEOUT_S: Final = 10.0
HINT_S: Final = 1.0  # until a person who waits at a terminal hears why
KEY_FILE: Final = "ZSQ_KEY_FILE"
SYNC_MODES: Final = ("always", "interval", "never")

Command = TypeVar("Command", bound=Callable[..., Any])


def with_broker(command: Command) -> Command:
    """Add `--url`, `--key-file` and `--timeout` (seconds); the command receives `url` resolved: its own, that of `zsq --url`, ZSQ_URL, the
    default. What `--key-file` says goes to the clients by the way that is open for all of them: ZSQ_KEY_FILE."""
    command = click.option(
        "--timeout",
        type=Number(min=0.05, max=3600),
        default=TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the broker before giving up with exit code 3.",
    )(command)
    command = click.option(
        "--key-file",
        callback=_remember_key_file,
        expose_value=False,
        metavar="FILE",
        help=f"Keys for a broker that wants some, from zsq keys client; else {KEY_FILE}.",
    )(command)
    return click.option(
        "--url",
        callback=_resolve,
        metavar="URL",
        help=f"tcp://host:port or ipc://DATA_DIR/run; else ZSQ_URL, else {DEFAULT_URL}.",
    )(command)


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
