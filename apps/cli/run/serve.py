"""zsq serve: run the broker in the foreground until SIGTERM or SIGINT.

`ConfigReload` reads the configuration of a running `zsq serve` again after SIGHUP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from .broker_options import serve_options
from .config_options import ARGUMENTS, Configured, serve_parameters
from .option_table import ROWS, SECRETS, GivenOptions, key

if TYPE_CHECKING:
    from ....actors.supervisor.reloading import Fresh


class ConfigReload:
    """Reads the same flags and environment again, and the file as it is now.

    Secrets are kept here, because they leave the environment at the start, so that no child
    inherits them. The files that *_FILE variables name are read again.
    """

    def __init__(self, context: click.Context, environment: Mapping[str, str] = os.environ) -> None:
        self._command = context.command
        self._arguments: list[str] = context.meta[ARGUMENTS]
        names = [name + end for name in SECRETS for end in ("", "_FILE")]
        self._secrets = {name: environment[name] for name in names if name in environment}
        self._begun = self._now = GivenOptions.of(context.params)

    def read(self) -> Fresh:
        """Read the options again.

        Raises `UsageError` or `OSError` for any error, and then changes nothing.
        """
        from ....actors.supervisor.reloading import Fresh

        try:
            with self._command.make_context("serve", list(self._arguments)) as context:
                given = GivenOptions.of(context.params)
            options = serve_options(given, dict(self._secrets))
        except click.ClickException as error:
            raise UsageError(E_BAD_ARGUMENT, error.format_message()) from None
        live, dead = (
            _differing(given, self._now, live=True),
            _differing(given, self._begun, live=False),
        )
        self._now = given
        return Fresh(options, live, dead)


def _differing(one: GivenOptions, other: GivenOptions, *, live: bool) -> tuple[str, ...]:
    changed = (
        name
        for name, row in ROWS.items()
        if row.live is live and getattr(one, name) != getattr(other, name)
    )
    return tuple(f"--{key(name)}" for name in changed)


@click.command(cls=Configured, params=serve_parameters(needs_data_dir=True))
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> int:
    """Run the broker on DIR until SIGTERM or Ctrl-C.

    With --sync always (the default) a publish is acknowledged after fdatasync. SIGHUP reloads the
    configuration; zsq config shows it.
    """
    check_python(sys.version_info[:3])

    # Made before the secrets are removed from the environment.
    again = ConfigReload(context, os.environ)
    options = serve_options(GivenOptions.of(given), os.environ)
    from ....actors.runtime import forkserver

    # Imports take half of the time of a start. The forkserver does its imports in parallel.
    forkserver.begin()
    from ....actors.supervisor.serve import serve as serve_broker

    return serve_broker(options, again.read)


def check_python(version: tuple[int, ...]) -> None:
    """Refuse a Python version whose forkserver obeys every user of the machine (CVE-2022-42919).

    The broker's processes come from the forkserver.
    """
    if version < (3, 11, 1):
        found = ".".join(map(str, version))
        text = (
            "any user of this machine could run code as the broker (CVE-2022-42919); install "
            "Python 3.11.1 or later"
        )
        raise UsageError(E_BAD_ARGUMENT, f"Python {found} is not safe for a broker: {text}")
