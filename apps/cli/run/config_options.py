"""Sources of the options of `zsq serve`: a TOML file, the environment, and flags.

Flags override variables, which override the file. click applies this order.

The keys of the file are the flags without their dashes. A table is a prefix: `[nsq]` with `listen`
is `nsq-listen`. The whole file is checked first. Unknown keys, wrong types and values out of range
are refused, with the file, the key and the allowed values. An option's variable is ZSQ_SERVE_ and
its name in capitals. Some options have an older variable too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ..quantities import BoundedSeconds, BoundedSize, Count, Seconds, SizeType
from .option_table import PREFIX, SECRETS, key, table_options

CONFIG: Final = "ZSQ_CONFIG"
FILE_BYTES_MAX: Final = 1 << 20


class Configured(click.Command):
    """A command whose options may also come from a file and the environment.

    Errors name the source of the wrong value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is not None and error.param.name == "data_dir":
                raise click.UsageError(MISSING, ctx) from None
            raise
        except click.BadParameter as error:
            name = getattr(error.param, "name", None)
            if (
                name
                and ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
                and isinstance(error.param, click.Option)
            ):
                raise UsageError(
                    E_BAD_ARGUMENT, f"{said_in(error.param)}: {error.message}"
                ) from None
            raise


MISSING: Final = (
    "The data directory is missing. Give --data-dir DIR, set ZSQ_DATA_DIR, or set data-dir in "
    "the file of --config."
)
ARGUMENTS: Final = "zsq.arguments"  # the key of the command's arguments in the context's `meta`


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options that the file may contain."""
    return [
        param
        for param in command.params
        if isinstance(param, click.Option) and param.name not in ("config", "as_json", "help")
    ]


def said_in(option: click.Parameter, environment: Mapping[str, str] = os.environ) -> str:
    """Return the variable that sets the option."""
    names = list(option.envvar or ())
    return next((name for name in names if environment.get(name)), names[0])


def _read(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Read the file before click processes the other options.

    Its values become the defaults, which flags and variables override.
    """
    if path is not None and not context.resilient_parsing:
        context.default_map = read(path, context)
    for name in unknown_variables(context.command):
        click.echo(
            (
                f"zsq: {name} is set, but zsq serve has no such "
                f"option{_close(name, _variables(context.command))}"
            ),
            err=True,
        )
    return path


def standby_parameters() -> list[click.Parameter]:
    """Return the parameters of `zsq standby`: a bucket, and the options of `zsq serve`."""
    first = click.Option(
        ["--first"],
        is_flag=True,
        help="If the bucket is still empty, begin a new broker as its primary.",
    )
    return [click.Argument(["url"], required=False), first, *serve_parameters(needs_data_dir=True)]


def serve_parameters(*, needs_data_dir: bool) -> list[click.Parameter]:
    """Return the options of `zsq serve`, for a `Configured` command."""
    text = (
        "Read options from this TOML file. Keys are option names without the leading dashes. "
        f"Flags and {PREFIX}... variables override it. "
        f"Also set by {CONFIG}."
    )
    file = click.Path(dir_okay=False, path_type=Path)
    config = click.Option(
        ["--config"],
        envvar=CONFIG,
        is_eager=True,
        callback=_read,
        metavar="FILE",
        type=file,
        help=text,
    )
    return [config, *table_options(needs_data_dir=needs_data_dir)]


def _variables(command: click.Command) -> list[str]:
    return [PREFIX + str(option.name).upper() for option in options_of(command)]


def unknown_variables(
    command: click.Command, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Return unknown variables, which are probably misspelt.

    They are not refused: orchestrators set such variables for a service named zsq-serve.
    """
    return sorted(
        name for name in environment if name.startswith(PREFIX) and name not in _variables(command)
    )


def read(path: Path, context: click.Context) -> dict[str, object]:
    """Return the file's options by name, checked.

    Raises `UsageError` (E_BAD_ARGUMENT), which says what is wrong in the file.
    """
    options = {key(str(option.name)): option for option in options_of(context.command)}
    values: dict[str, object] = {}
    for name, value in _flat(_parsed(path), "", options, path):
        option = options[name]
        if option.name in values:
            raise _wrong(path, name, "set twice, as a key and in a table")
        values[str(option.name)] = _checked(path, name, option, value, context)
    return values


def _parsed(path: Path) -> Mapping[str, object]:
    import tomllib

    from ....transport.wire.credentials import open_to_others

    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX + 1)
        # The file may name commands that the broker runs.
        if stat.S_ISREG(state.st_mode) and (why := open_to_others(path, state)):
            raise UsageError(E_BAD_ARGUMENT, f"the configuration {why}")
        if len(text) > FILE_BYTES_MAX:
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB, the limit; check --config or "
                    f"{CONFIG}"
                ),
            )
        return tomllib.loads(text.decode())
    except OSError as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"{path}: {error.strerror or error}; check --config or {CONFIG}"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(E_BAD_ARGUMENT, f"{path}: not TOML: the file is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(E_BAD_ARGUMENT, f"{path}: not TOML: {error}") from None


def _flat(
    table: Mapping[str, object], prefix: str, options: Mapping[str, click.Option], path: Path
) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        name = prefix + name
        if isinstance(value, dict):
            if not any(known.startswith(f"{name}-") for known in options):
                raise _unknown(path, name, options)
            yield from _flat(value, f"{name}-", options, path)
        elif name not in options:
            raise _unknown(path, name, options)
        else:
            yield name, value


def _unknown(path: Path, name: str, options: Mapping[str, click.Option]) -> UsageError:
    variable_name = "ZSQ_" + name.upper().replace("-", "_")
    if variable_name in SECRETS:
        text = (
            f"secrets are not allowed in this file; set the variable {variable_name}, or "
            f"{variable_name}_FILE to the path of a file"
        )
        return _wrong(path, name, text)
    if name.replace("_", "-") in options:
        return _wrong(path, name, f"no such option; use {name.replace('_', '-')}")
    return _wrong(
        path,
        name,
        f"no such option{_close(name, list(options))}; zsq config --help lists all options",
    )


def _close(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    names = get_close_matches(name, known, n=1)
    return f"; did you mean {names[0]}?" if names else ""


def _wrong(path: Path, name: str, text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"{path}: {name}: {text}")


def _checked(
    path: Path, name: str, option: click.Option, value: object, context: click.Context
) -> object:
    """Check a value, and return it in the form that click takes."""
    types, allowed = kind(option)
    values: list[Any] = value if option.multiple and isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, types) or (isinstance(each, bool) and bool not in types):
            raise _wrong(path, name, f"{each!r} is not allowed; {allowed}")
    if isinstance(option.type, click.Path):
        values = [str(path.absolute().parent / each) for each in values]
    elif not option.is_flag:
        values = [each if isinstance(each, str) else repr(each) for each in values]
    try:
        for each in values:
            option.type.convert(each, option, context)
    except click.BadParameter as error:
        raise _wrong(path, name, f"{error.message.rstrip('.')}; {allowed}") from None
    return values if option.multiple else values[0]


def kind(option: click.Option) -> tuple[tuple[type, ...], str]:
    """Return the TOML types that the option accepts, and their description."""
    of = option.type
    types: tuple[type, ...] = (str,)
    if option.is_flag:
        types, words = (bool,), "true or false"
    elif isinstance(of, click.IntRange):
        types, words = (int,), f"a whole number{_range(of)}"
    elif isinstance(of, click.FloatRange):
        types, words = (int, float), f"a number{_range(of)}"
    elif isinstance(of, BoundedSeconds):
        types, words = (
            (str, int, float),
            f'a time such as "500ms" or "10s", or a number of seconds ({of.bounds}), or "none"',
        )
    elif isinstance(of, Seconds):
        types, words = (
            (str, int, float),
            'a time such as "90s", "15m", "1h30m", "7d", or a number of seconds',
        )
    elif isinstance(of, BoundedSize):
        types, words = (str, int), f'a size such as "500MB", or a number of bytes ({of.bounds})'
    elif isinstance(of, SizeType):
        types, words = (str, int), 'a size such as "500MB", "10GiB", or a number of bytes'
    elif isinstance(of, Count):
        types, words = (str, int), 'a whole number, or "none"'
    elif isinstance(of, click.Choice):
        words = "one of " + ", ".join(f'"{choice}"' for choice in of.choices)
    elif isinstance(of, click.Path):
        words = "a path as a string (relative to this file's folder)"
    else:
        words = f"a string{f' ({option.metavar})' if option.metavar else ''}"
    return types, f"use {words}{', or a list of them' if option.multiple else ''}"


def _range(of: click.IntRange | click.FloatRange) -> str:
    if of.min is not None and of.max is not None:
        return f" from {of.min:g} to {of.max:g}"
    return (
        f" of {of.min:g} or more"
        if of.min is not None
        else f" up to {of.max:g}"
        if of.max is not None
        else ""
    )


def origin(context: click.Context, option: click.Parameter) -> str:
    """Return a description of the source of the option's value."""
    sources = click.core.ParameterSource
    source = context.get_parameter_source(str(option.name))
    if source is sources.ENVIRONMENT:
        return f"environment variable {said_in(option)}"
    if source is sources.DEFAULT_MAP:
        return f"file {context.params.get('config')}"
    return "flag" if source is sources.COMMANDLINE else "default"
