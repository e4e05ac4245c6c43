"""The root command, and the one place where errors become a line on stderr and an exit code.

0 done, 1 failed, 2 wrong usage, 3 broker not reached. Nothing here imports ZeroMQ, rich or the client:
`zsq --help` should feel immediate, so each command is imported when it is named, and imports what it needs when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from ... import __version__
from ...transport.errors import E_INTERNAL, BrokerUnreachable, UsageError, ZsqError
from .lazy import LazyGroup, Place

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_REACHED: Final = 3


SECTIONS: Final = {
    "Run a broker": {
        "serve": Place("serve:serve", "Run the broker in front, until SIGTERM or Ctrl-C."),
        "doctor": Place("doctor:doctor", "Whether a broker can run well here."),
        "config": Place("config:config", "The options in force for serve, and where each came from."),
        "completion": Place("completion:completion", "Complete commands, topics and channels in bash, zsh or fish."),
        "keys": Place("keys:keys", "Make key pairs and tokens for a broker that asks who comes."),
    },
    "Publish and consume": {
        "pub": Place("publish:pub", "Publish each line of a file or of standard input."),
        "sub": Place("consume:sub", "Write a channel's messages to standard output, and finish them."),
        "tail": Place("consume:tail", "Write a topic's messages from an offset or a time on."),
        "delayed": Place("delayed:delayed", "What was published with --delay and is not due yet."),
        "redrive": Place("redrive:redrive", "Send dead letters back to where they died."),
    },
    "Look": {
        "top": Place("top:top", "Watch it live: channels, topics, processes."),
        "stats": Place("stats:stats", "Topics, channels, consumers, processes."),
        "alarms": Place("alarms:alarms", "Backlog alarms, and who is told."),
        "audit": Place("audit:audit", "Who changed what, the newest last."),
        "peek": Place("look:peek", "What a topic or channel holds, without taking part."),
        "message": Place("message:message", "One message, by offset or id."),
    },
    "Manage": {
        "topic": Place("closing:topic_group", "Create, set, show, close, retire, delete, pause a topic."),
        "channel": Place("manage:channel", "Create, set, show, delete, pause, empty a channel."),
        "seek": Place("look:seek", "Move a channel back or forward."),
    },
    "Keep a copy": {
        "backup": Place("backup:backup", "Copy a data directory, while its broker runs."),
        "restore": Place("backup:restore", "Make a data directory from a backup; check one."),
    },
    "A stopped broker's files": {
        "fsck": Place("fsck:fsck", "Check them all, and repair what can be."),
        "dump": Place("dump:dump", "Any file as readable lines."),
        "import-nsqd": Place("nsqd:import_nsqd", "Take over the data of a stopped nsqd."),
        "export-nsqd": Place("nsqd:export_nsqd", "Write a data directory that nsqd starts from."),
    },
}  # fmt: skip


@click.group(
    cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip
@click.version_option(__version__, message="zsq %(version)s")
@click.option("--url", envvar="ZSQ_URL", metavar="URL", help="Where the broker is: tcp://host:port or ipc://DATA_DIR/run.")
@click.option("--key-file", metavar="FILE", help="Keys for a broker that wants some, from zsq keys client; else ZSQ_KEY_FILE.")
def app(url: str | None, key_file: str | None) -> None:
    """ZSQ, a durable message queue: what is acknowledged is on disk.

    Start a broker with `zsq serve --data-dir DIR`, then `zsq pub` and `zsq sub`.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 broker not reached.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: this process's) and return its exit code; never a traceback for an expected error."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - closed by who started us (`<&-`): empty
    try:
        code = app.main(args=None if arguments is None else list(arguments), prog_name="zsq", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit:
        if "PacifyFlushWrapper" in type(sys.stdout).__name__:
            return DONE  # the pipe is broken: click has put this in place of stdout, and ends with 1
        raise
    except (click.Abort, KeyboardInterrupt):
        return _fail("E_INTERRUPTED interrupted", FAILED)
    except UsageError as error:
        return _fail(str(error), WRONG_USAGE)
    except BrokerUnreachable as error:
        return _fail(str(error), NOT_REACHED)
    except ZsqError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        return DONE  # whoever read our output has had enough
    except OSError as error:
        code_name = errno.errorcode.get(error.errno or 0, E_INTERNAL)
        return _fail(f"{code_name} {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), FAILED)


def main() -> NoReturn:
    """The entry point of `zsq` and `python -m zsq`."""
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Else the interpreter finds the pipe broken once more at its end, and complains.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _fail(text: str, code: int) -> int:
    click.echo(f"zsq: {' '.join(text.split())}", err=True)
    return code
