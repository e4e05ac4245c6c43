"""Options of `zsq serve`: from where on a backlog is an alarm, and whom to tell. Secrets come from the environment or from files."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from .quantities import Count, Lines, Seconds

if TYPE_CHECKING:
    from ...actors.alarm_options import AlarmOptions

Command = TypeVar("Command", bound=Callable[..., Any])

TOKEN: Final = "ZSQ_ALARM_WEBHOOK_TOKEN"
PASSWORD: Final = "ZSQ_ALARM_SMTP_PASSWORD"
SECRET_BYTES_MAX: Final = 4096


def with_alarms(command: Command) -> Command:
    many: dict[str, Any] = {"multiple": True}
    tls = click.Choice(["none", "starttls", "tls"])
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--alarm-smtp-user", {"metavar": "USER"}, f"Who sends; the password is {PASSWORD} or in the file {PASSWORD}_FILE."),
        ("--alarm-smtp-tls", {"type": tls, "default": "none", "show_default": True}, "How to reach it."),
        ("--alarm-smtp", {"metavar": "HOST:PORT", "default": "127.0.0.1:25", "show_default": True}, "The mail server."),
        ("--alarm-mail-from", {"metavar": "ADDRESS"}, "Whose mail it is; default: zsq@ this machine."),
        ("--alarm-mail", {"metavar": "ADDRESS", **many}, "Mail alarms there. Repeatable."),
        (
            "--alarm-command", {"metavar": "COMMAND", "type": Lines(), **many},
            "Run this with the alarms as JSON on stdin; no shell. Repeatable.",
        ),
        (
            "--alarm-webhook", {"metavar": "URL", "envvar": "ZSQ_ALARM_WEBHOOK", **many},
            f"POST alarms there as JSON; a bearer token is {TOKEN} or in the file {TOKEN}_FILE. Repeatable.",
        ),
        ("--alarm-hold", {"type": Seconds(), "metavar": "TIME"}, "How long it must last to be told, and be over to be cleared (10s)."),
        ("--alarm-age", {"type": Seconds(), "metavar": "TIME"}, "The same where a channel's oldest message is older."),
        ("--alarm-depth", {"type": Count(), "metavar": "N"}, "Alarm where more messages wait in a channel, unless it has its own bound."),
    )  # fmt: skip
    for name, more, text in rows:
        command = click.option(name, help=text, **more)(command)
    return command


def given_alarms(options: Mapping[str, Any], environment: MutableMapping[str, str] = os.environ) -> AlarmOptions:
    """What was said, checked: a receiver that cannot work shall be known at the start, not in the night."""
    from ...actors.alarm_options import AlarmOptions
    from ...transport.errors import E_BAD_ARGUMENT, UsageError

    commands = []
    for text in options["alarm_command"]:
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(E_BAD_ARGUMENT, f"--alarm-command {text!r}: {error}") from None
        found = shutil.which(argv[0]) if argv else None
        if found is None:
            raise UsageError(E_BAD_ARGUMENT, f"--alarm-command {text!r}: there is no such program, or it may not be run")
        commands.append((os.path.abspath(found), *argv[1:]))
    password = secret(PASSWORD, environment)
    if password and not options["alarm_smtp_user"]:
        raise UsageError(E_BAD_ARGUMENT, f"{PASSWORD} is set, and --alarm-smtp-user is not: whose is it?")
    more = {name: options[f"alarm_{name}"] for name in ("depth", "age", "hold") if options[f"alarm_{name}"] is not None}
    return AlarmOptions(
        webhooks=tuple(options["alarm_webhook"]),
        webhook_token=secret(TOKEN, environment),
        mail_to=tuple(options["alarm_mail"]),
        mail_from=options["alarm_mail_from"] or "",
        smtp=options["alarm_smtp"],
        smtp_tls=options["alarm_smtp_tls"],
        smtp_user=options["alarm_smtp_user"] or "",
        smtp_password=password,
        commands=tuple(commands),
        **{{"age": "age_s", "hold": "hold_s"}.get(name, name): value for name, value in more.items()},
    )


def secret(name: str, environment: MutableMapping[str, str]) -> str:
    """From the variable, or the first line of the file that NAME_FILE names. Both leave the environment: no child inherits them."""
    from ...transport.errors import E_BAD_ARGUMENT, UsageError

    value, path = environment.pop(name, ""), environment.pop(f"{name}_FILE", "")
    if value and path:
        raise UsageError(E_BAD_ARGUMENT, f"{name} and {name}_FILE are both set: which is it?")
    if path:
        try:
            with Path(path).open(encoding="utf-8") as file:
                value = file.read(SECRET_BYTES_MAX).partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(E_BAD_ARGUMENT, f"{name}_FILE {path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not value:
            raise UsageError(E_BAD_ARGUMENT, f"{name}_FILE {path!r} is empty")
    if not (value.isascii() and value.isprintable()):
        raise UsageError(E_BAD_ARGUMENT, f"{name} holds characters that cannot be sent")
    return value
