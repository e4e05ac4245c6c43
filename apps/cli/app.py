"""Root command, which loads all other commands and turns errors into exit codes.

An error becomes one line on stderr. `exit_codes.py` has the exit codes.

`zsq --help` must be immediate, so nothing here imports ZeroMQ, rich or the client. A command is
imported when it is used, and imports what it needs when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from ... import __version__
from ...transport.errors import (
    E_INTERNAL,
    BrokerUnreachable,
    DataLoss,
    UsageError,
    ZsqError,
    options_as_flags,
)
from .exit_codes import DATA_LOST, DONE, FAILED, NOT_REACHED, WRONG_USAGE
from .output import say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandPlace(NamedTuple):
    """A command's place (`module:name` in this package) and its short help.

    `linux` is True for a command that needs Linux: it runs a broker, or reads a broker's files.
    """

    where: str
    text: str
    linux: bool = False


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used. `add_command` works as usual.

    `sections` maps titles to the places of commands by name, in the order of the help.
    """

    def __init__(
        self, *arguments: Any, sections: Mapping[str, Mapping[str, CommandPlace]], **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.sections: Final = sections
        self._places: Final = {
            name: place for section in sections.values() for name, place in section.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            *self._places,
            *(name for name in sorted(self.commands) if name not in self._places),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._places:
            if self._places[cmd_name].linux and sys.platform != "linux":
                return Elsewhere(cmd_name, self._places[cmd_name].text)
            module, _, name = self._places[cmd_name].where.partition(":")
            self.commands[cmd_name] = getattr(import_module(f".{module}", __package__), name)
        if ctx.resilient_parsing and cmd_name in self.commands:  # the user pressed TAB
            from .completion import complete_names

            complete_names(self.commands[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest name for an unknown command.

        click itself would suggest only commands that are already imported.
        """
        name = args[0] if args else ""
        if (
            name
            and not name.startswith("-")
            and not ctx.resilient_parsing
            and name not in self.list_commands(ctx)
        ):
            from difflib import get_close_matches

            close = get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(
                f"No such command {name!r}." + (f" Did you mean {close[0]!r}?" if close else "")
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=place.text)
            for name, place in self._places.items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the sections without importing their commands."""
        width = max(map(len, self.list_commands(ctx)))
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), place.text) for name, place in section.items()]
                )
        others = [
            (name.ljust(width), self.commands[name].get_short_help_str())
            for name in self.list_commands(ctx)
            if name not in self._places
        ]
        if others:
            with formatter.section("Others"):
                formatter.write_dl(others)


class Elsewhere(click.Command):
    """A command that this system cannot run. With any arguments, it says so.

    The real command is not imported, because its modules may not exist here.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(
            name,
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            callback=self._refuse,
            help=f"{text} This needs Linux.",
            context_settings={"ignore_unknown_options": True},
        )

    def _refuse(self, arguments: Sequence[str]) -> None:
        from ...transport.system import check_runs_brokers

        check_runs_brokers(f"zsq {self.name}")


SECTIONS: Final = {
    "Run a broker": {
        "serve": CommandPlace("run.serve:serve", "Run the broker in the foreground.", linux=True),
        "standby": CommandPlace("run.serve:standby", "Follow a broker through its bucket, and take over.", linux=True),
        "handover": CommandPlace("manage.handover:handover", "Let the standby take over from the primary."),
        "cluster": CommandPlace("manage.balance:cluster", "Show the brokers of the cluster, and the parts of topics; balance them."),
        "broker": CommandPlace("manage.broker:broker", "Drain a broker of the cluster, or forget one that is gone."),
        "doctor": CommandPlace("run.doctor:doctor", "Check this machine.", linux=True),
        "config": CommandPlace("run.config:config", "Show the options of serve, and the source of each.", linux=True),
        "completion": CommandPlace("completion:completion", "Complete commands, topics and channels in bash, zsh or fish."),
        "keys": CommandPlace("run.keys:keys", "Create key pairs and tokens for a broker with authentication."),
    },
    "Publish and consume": {
        "pub": CommandPlace("messages.publish:pub", "Publish a message, or each line of a file or of standard input."),
        "sub": CommandPlace("messages.consume:sub", "Write a channel's messages to standard output, and finish them."),
        "forward": CommandPlace("messages.forward:forward", "Send a channel to another broker, to files, or to an HTTP server."),
        "tail": CommandPlace("messages.tail:tail", "Write a topic's messages from an offset or a time."),
        "delayed": CommandPlace("messages.delayed:delayed", "List, count or cancel delayed messages."),
        "schedule": CommandPlace("messages.schedule:schedule", "Publish a message at the times of a cron expression."),
        "errors": CommandPlace("messages.errors:errors", "Show why messages became dead letters."),
        "redrive": CommandPlace("messages.redrive:redrive", "Send dead letters back to their channels."),
    },
    "Look": {
        "top": CommandPlace("inspect.top:top", "Watch channels, topics and processes live."),
        "stats": CommandPlace("inspect.stats:stats", "Show topics, channels and consumers."),
        "alarms": CommandPlace("inspect.alarms:alarms", "Show alarms and their receivers."),
        "audit": CommandPlace("inspect.alarms:audit", "Show the audit log."),
        "peek": CommandPlace("inspect.message:peek", "Show messages without consuming them."),
        "message": CommandPlace("inspect.message:message", "Show one message, by offset or id."),
    },
    "Manage": {
        "topic": CommandPlace("manage.topic:topic", "Create, set, show, list, close, retire, delete, pause a topic."),
        "channel": CommandPlace("manage.topic:channel", "Create, set, show, list, delete, pause, empty a channel; skip messages."),
        "cancel": CommandPlace("messages.cancel:cancel", "Cancel messages that wait."),
        "seek": CommandPlace("inspect.message:seek", "Move a channel back or forward."),
    },
    "Keep a copy": {
        "backup": CommandPlace("files.backup:backup", "Copy a data directory while its broker runs.", linux=True),
        "restore": CommandPlace("files.restore:restore", "Create a data directory from a backup or a bucket, or check one.", linux=True),
        "export": CommandPlace("files.export:export", "Write a topic to Parquet files, and continue later."),
    },
    "A stopped broker's files": {
        "fsck": CommandPlace("files.fsck:fsck", "Check all files, and repair them.", linux=True),
        "dump": CommandPlace("files.dump:dump", "Print any file as readable lines.", linux=True),
        "rescue": CommandPlace("files.rescue:rescue", "Show or publish what an old primary had not shipped.", linux=True),
        "import-nsqd": CommandPlace("files.nsqd:import_nsqd", "Import the data of a stopped nsqd.", linux=True),
        "export-nsqd": CommandPlace("files.nsqd:export_nsqd", "Write a data directory for nsqd.", linux=True),
    },
}  # fmt: skip


@click.group(
    cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip
@click.version_option(__version__, message="zsq %(version)s")
@click.option(
    "--url",
    envvar="ZSQ_URL",
    metavar="URL",
    help=(
        "Address of the broker: tcp://host:port or ipc://DATA_DIR/run. For a broker with a "
        "standby: both, with a comma between them."
    ),
)
@click.option(
    "--key-file",
    metavar="FILE",
    help=(
        "File with the client's keys, for a broker with authentication. `zsq keys client` makes "
        "it. Default: ZSQ_KEY_FILE."
    ),
)
def app(url: str | None, key_file: str | None) -> None:
    """ZSQ, a durable message queue: every acknowledged message is on disk.

    Start a broker with `zsq serve --data-dir DIR`, then use `zsq pub` and `zsq sub`.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 broker not reached, 4 messages are lost.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return its exit code.

    An expected error never gives a traceback.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - the parent process closed it (`<&-`)
    if sys.stdout is None:  # closed, too (`>&-`): each write then fails with EBADF
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    try:
        with options_as_flags():
            code = app.main(
                args=None if arguments is None else list(arguments),
                prog_name="zsq",
                standalone_mode=False,
            )
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit:
        if "PacifyFlushWrapper" in type(sys.stdout).__name__:
            return DONE  # click replaces stdout if the pipe is broken, and exits with 1
        raise
    except (click.Abort, KeyboardInterrupt):
        return _fail("E_INTERRUPTED interrupted", FAILED)
    except UsageError as error:
        return _fail(str(error), WRONG_USAGE)
    except BrokerUnreachable as error:
        return _fail(str(error), NOT_REACHED)
    except DataLoss as error:
        return _fail(str(error), DATA_LOST)
    except ZsqError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        return DONE  # the reader of the output has closed the pipe
    except OSError as error:
        code_name = errno.errorcode.get(error.errno or 0, E_INTERNAL)
        return _fail(
            f"{code_name} {error.strerror or error}"
            + (f": {error.filename}" if error.filename else ""),
            FAILED,
        )


def main() -> NoReturn:
    """Run `zsq` or `python -m zsq`."""
    code = run()
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == DONE and not isinstance(error, BrokenPipeError):
            name = errno.errorcode.get(error.errno or 0, E_INTERNAL)
            code = _fail(f"{name} {error.strerror}: standard output", FAILED)
        # Otherwise the interpreter would find the error again when it ends, and print it.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _fail(text: str, code: int) -> int:
    say(f"zsq: {' '.join(text.split())}", err=True)
    return code
