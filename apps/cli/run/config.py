"""zsq config: show the options of `zsq serve` and the source of each.

`usual` finds the defaults that click does not know. It is pure, except for its imports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ....transport.durations import spelled
from ....transport.settings import NONE
from ..manage.settings import KEEPING
from ..output import json_option, say, tell
from ..quantities import Seconds
from .broker_options import serve_options
from .config_options import Configured, options_of, origin, serve_parameters
from .option_table import ROWS, SECRETS, GivenOptions, key


def usual(name: str) -> object:
    """Return the value of an option that is not set, or None if it has none.

    Times are in seconds.
    """
    value = _of_objects().get(name) if ROWS[name].usual is None else ROWS[name].usual
    return None if value in ("", (), -1) else value


def _of_objects() -> Mapping[str, object]:
    """Return the defaults of the objects that the options are converted to."""
    from dataclasses import fields

    from ....actors.settings.options import (
        AlarmOptions,
        HttpOptions,
        NsqOptions,
        ServeOptions,
        TlsOptions,
    )

    defaults: dict[str, object] = {"chunk_bytes": ServeOptions(Path()).chunk_bytes}
    for prefix, of in (
        ("nsq_tls_", TlsOptions()),
        ("nsq_", NsqOptions()),
        ("http_", HttpOptions()),
        ("alarm_", AlarmOptions()),
    ):
        for field in fields(of):
            value = getattr(of, field.name)
            if field.name.endswith("_ms"):
                value = value / 1000
            defaults.setdefault(prefix + field.name.removesuffix("_ms").removesuffix("_s"), value)
    return defaults


def show(context: click.Context, /, as_json: bool, config: Path | None, **given: Any) -> None:
    """Show the options that zsq serve would use with these arguments: the value of each, and its
    source.

    Flags override environment variables (ZSQ_SERVE_ and the option's name), which override the file
    of --config. The options are those of zsq serve, and invalid values are refused in the same way.
    Secrets are not shown, only whether they are set.
    """
    environment = dict(os.environ)  # a copy, because secrets are removed from it
    secrets = {name: _secret(name, environment) for name in SECRETS}
    retention = serve_options(GivenOptions.of(given), environment).retention
    usuals = _kept(retention)
    rows = [
        (option, *_value(option, given.get(str(option.name)), usuals), origin(context, option))
        for option in options_of(context.command)
    ]
    if as_json:
        options = {
            key(str(option.name)): {"value": _plain(value), "from": where}
            for option, value, _, where in rows
        }
        secret_rows = {
            name: {"set": bool(where), "from": where or None} for name, where in secrets.items()
        }
        tell(
            {
                "config_file": None if config is None else str(config),
                "options": options,
                "secrets": secret_rows,
            }
        )
        return
    lines = [(key(str(option.name)), text, where) for option, _, text, where in rows]
    lines += [
        (name, "set, not shown" if where else "-", where or "default")
        for name, where in secrets.items()
    ]
    wide = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for name, text, where in lines:
        say(f"{name:<{wide[0]}}  {text:<{min(wide[1], 50)}}  {where}")


def _kept(retention: Mapping[str, object]) -> dict[str, object]:
    """Return the values in force of the options for retention. One may depend on another."""
    from ....storage.retention import resolve

    settings = resolve(retention).as_dict()
    return {
        row.parameter: None if (value := settings[row.name]) == NONE else value for row in KEEPING
    }


def _value(option: click.Option, value: Any, usuals: Mapping[str, object]) -> tuple[Any, str]:
    """Return an option's value for programs and its text for users.

    `usuals` has the values of options that are not set, where the other options decide about them.
    """
    name = str(option.name)
    if value in (None, "", ()):
        value = usuals[name] if name in usuals else usual(name)
    elif name == "alarm_webhook":
        from ....actors.settings.options import shown_url

        # In the URLs of many services the part after the host is the secret.
        value = [f"{shown_url(url)}/..." for url in value]
    elif name == "alarm_command":
        # An argument may be a secret.
        value = [
            " ".join([*text.split()[:1], *(["..."] if len(text.split()) > 1 else [])])
            for text in value
        ]
    return value, as_text(option, value)


def as_text(option: click.Parameter, value: Any) -> str:
    """Return the value as it could be typed."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or value == -1:
        return "-" if value is None else "none"
    if isinstance(value, bool):
        return str(value).lower()
    return spelled(value) if isinstance(option.type, Seconds) else str(value)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _secret(name: str, environment: Mapping[str, str]) -> str:
    """Return the place of a secret, or "" if it is not set."""
    if environment.get(f"{name}_FILE"):
        return f"file {environment[f'{name}_FILE']}"
    return f"environment variable {name}" if environment.get(name) else ""


config = json_option(
    Configured(
        "config",
        callback=click.pass_context(show),
        params=serve_parameters(needs_data_dir=False),
        help=show.__doc__,
    )
)
